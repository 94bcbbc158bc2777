"""Fields of JSON objects, read with diagnostics that name the file and the place in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from pypm.diagnostics import Diagnostic, PyPMError, did_you_mean
from pypm.tools.files.rule_files import existing_file

__all__ = ["Fields", "nearest", "read_json", "read_json_lines"]

T = TypeVar("T")
_KINDS: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


class Fields:
    """An object of a JSON file. Each method raises PyPMError if its field is missing or wrong."""

    def __init__(self, value: object, file: str, place: str = "") -> None:
        """Take an object at a place of a file; the place is empty for the file's own object."""
        self.file = file
        self.place = place
        if not isinstance(value, dict):
            raise self.error(f"{_quoted(place)}is not an object: {_short(value)}")
        self.value: Mapping[str, object] = value

    def error(self, problem: str, help: str = "") -> PyPMError:
        """Return a diagnostic about this object."""
        return PyPMError(Diagnostic(f"`{self.file}`: {problem}", help=help))

    def has(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self.value.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text that is not empty."""
        found = self._of(str, name, default)
        if not found.strip() and default is None:
            raise self.error(f"the field `{self._at(name)}` is empty")
        return found

    def whole(self, name: str) -> int:
        """Return a whole number from zero up."""
        found = self._of(int, name, None)
        if found < 0:
            raise self.error(f"the field `{self._at(name)}` is negative: {found}")
        return found

    def number(self, name: str, default: float) -> float:
        """Return a number from zero up."""
        found = self._of(float, name, default)
        if not found >= 0:
            raise self.error(f"the field `{self._at(name)}` is negative: {found}")
        return found

    def truth(self, name: str, default: bool) -> bool:
        """Return true or false."""
        return self._of(bool, name, default)

    def scalar(self, name: str) -> bool | int | float:
        """Return a number, or true or false."""
        found = self._any(name)
        if not isinstance(found, (bool, int, float)):
            raise self._wrong(name, "a number, or true or false")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts, or an empty one if the field is missing."""
        found = self._of(list, name, [])
        for each in found:
            if not isinstance(each, str):
                raise self._wrong(name, "a list of texts")
        return tuple(found)

    def table(self, name: str) -> dict[str, Fields]:
        """Return the objects of an object of objects, by name."""
        found = self._of(dict, name, None)
        return {key: Fields(each, self.file, self._at(name, key)) for key, each in found.items()}

    def items(self, name: str) -> list[Fields]:
        """Return the objects of a list that is not empty."""
        found = self._of(list, name, None)
        if not found:
            raise self.error(f"the field `{self._at(name)}` is an empty list")
        pairs = enumerate(found)
        return [Fields(each, self.file, self._at(name, str(i))) for i, each in pairs]

    def below(self, name: str) -> Fields:
        """Return the object in a field, an empty one if it is missing."""
        return Fields(self._of(dict, name, {}), self.file, self._at(name))

    def _of(self, kind: type[T], name: str, default: T | None) -> T:
        if default is not None and not self.has(name):
            return default
        found = self._any(name)
        if kind is float and isinstance(found, int) and not isinstance(found, bool):
            found = float(found)
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise self._wrong(name, _KINDS[kind])
        return found

    def _any(self, name: str) -> object:
        if not self.has(name):
            near = nearest(name, self.value)
            raise self.error(f"the field `{self._at(name)}` is missing", near)
        return self.value[name]

    def _wrong(self, name: str, kind: str) -> PyPMError:
        found = _short(self.value[name])
        return self.error(f"the field `{self._at(name)}` is not {kind}: {found}")

    def _at(self, *names: str) -> str:
        return ".".join([*([self.place] if self.place else []), *names])


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question for the nearest of some names, or their list, for a diagnostic's help."""
    names = list(known)
    listed = f"there are {', '.join(f'`{each}`' for each in names)}" if names else ""
    return did_you_mean(name, names) or listed


def read_json(path: Path) -> Fields:
    """Return the object that a JSON file holds. Raises PyPMError if it holds none."""
    return Fields(_parsed(_text(path), str(path)), str(path))


def read_json_lines(path: Path) -> list[Fields]:
    """Return the objects of a file with one on each line; empty lines are left out.

    Raises PyPMError if there are none, or a line holds something else.
    """
    lines = enumerate(_text(path).splitlines(), 1)
    places = [(f"{path}:{number}", line) for number, line in lines if line.strip()]
    if not places:
        raise PyPMError(Diagnostic(f"`{path}` is empty", help="give one workload on each line"))
    return [Fields(_parsed(line, place), place) for place, line in places]


def _text(path: Path) -> str:
    try:
        return existing_file(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PyPMError(Diagnostic(f"`{path}` cannot be read: {error}")) from None


def _parsed(text: str, file: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PyPMError(Diagnostic(f"`{file}` is not JSON: {error}")) from None


def _quoted(place: str) -> str:
    return f"the field `{place}` " if place else "the content "


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
