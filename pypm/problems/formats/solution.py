"""Solutions: sources, and the function in them that computes a definition's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from pypm.fields import Fields, nearest, read_json
from pypm.integrations.rule_files import existing_file
from pypm.problems.formats.definition import ProblemDefinition

__all__ = ["ProblemSolution"]

_LANGUAGES: Final = ("python", "pytorch", "triton")


@dataclass(frozen=True, slots=True)
class ProblemSolution:
    """A way to compute a definition's outputs, in Python."""

    name: str
    sources: Mapping[str, str]
    """Content by relative path."""
    file: str
    """The path of the source that holds the function."""
    function: str
    has_destinations: bool
    """True if outputs are the last arguments, which the function fills; else it returns them."""

    @staticmethod
    def from_file(path: Path, definition: ProblemDefinition) -> ProblemSolution:
        """Return the solution in a JSON file.

        Raises PyPMError if it cannot be read, a field is missing or wrong, it is for another
        definition, or in a language other than Python.
        """
        fields = read_json(existing_file(path))
        other = fields.text("definition")
        if other != definition.name:
            raise fields.error(f"this solution is for `{other}`, not for `{definition.name}`")
        spec = fields.below("spec")
        _check_languages(spec)
        sources: dict[str, str] = {}
        for each in fields.items("sources"):
            place = _relative(each)
            if place in sources:
                raise each.error(f"`{place}` occurs twice in `sources`")
            sources[place] = each.text("content")
        file, separator, function = spec.text("entry_point").rpartition("::")
        if not separator or not function.isidentifier():
            problem = f"`spec.entry_point` is `{spec.text('entry_point')}`"
            raise spec.error(problem, "write `FILE.py::FUNCTION`")
        if file not in sources:
            raise spec.error(f"`{file}` is not in `sources`", nearest(file, sources))
        return ProblemSolution(
            fields.text("name"),
            sources,
            file,
            function,
            spec.truth("destination_passing_style", True),
        )


def _check_languages(spec: Fields) -> None:
    given = spec.texts("languages") if spec.has("languages") else (spec.text("language"),)
    for name in given:
        if name not in _LANGUAGES:
            known = ", ".join(f"`{each}`" for each in _LANGUAGES)
            raise spec.error(f"solutions in `{name}` cannot be run", f"supported are {known}")


def _relative(fields: Fields) -> str:
    path = PurePosixPath(fields.text("path"))
    if path.is_absolute() or ".." in path.parts:
        raise fields.error(f"the path `{path}` leaves the folder of the solution")
    return str(path)
