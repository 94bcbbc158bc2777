"""Tables of JSON and TOML files read field by field, with diagnostics of place, cause and help."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from pypm.diagnostics import Diagnostic, PyPMError, Span, did_you_mean

__all__ = ["Fields", "Plain", "nearest", "read_json", "read_json_lines", "read_toml"]

Plain: TypeAlias = dict[str, object]
"""Plain data for JSON."""
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
    """A table of a file. Each method raises PyPMError if its field is missing or wrong."""

    def __init__(
        self, value: object, file: str, place: str = "", source: str = "", help: str = ""
    ) -> None:
        """Take a table.

        Arguments:
            value: the table.
            file: the name of the file.
            place: the field that holds the table; empty for the file's own.
            source: the text of a TOML file; diagnostics point at the lines of its fields.
            help: the help of diagnostics that have no other.
        """
        self.file = file
        self.place = place
        self._source = source
        self._help = help
        if not isinstance(value, dict):
            what = f"the field `{place}`" if place else "the content"
            raise self.error(f"{what} is not an object: {_short(value)}")
        self.value: Mapping[str, object] = value

    def error(self, problem: str, help: str = "", name: str = "", label: str = "") -> PyPMError:
        """Return a diagnostic, which points at the line of a field if the file is TOML."""
        name, help = self._at(name).partition(".")[0], help or self._help
        for number, line in enumerate(self._source.splitlines() if name else (), 1):
            if re.match(rf"\s*{re.escape(name)}\s*=", line):
                start = len(line) - len(line.lstrip())
                span = Span(self.file, number, start, number, len(line), line)
                return PyPMError(Diagnostic(problem, span, label, help))
        return PyPMError(Diagnostic(f"`{self.file}`: {problem}", help=help))

    def only(self, names: Iterable[str]) -> None:
        """Raise PyPMError if there are fields of other names."""
        known = [*names]
        for name in self.value:
            if name not in known:
                listed = f"the fields are {', '.join(f'`{each}`' for each in known)}"
                help = did_you_mean(name, known) or listed
                raise self.error(
                    f"the field `{self._at(name)}` is not known", help, name, "not a field"
                )

    def has(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self.value.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text that is not empty."""
        found = self._of(str, name, default)
        if not found.strip() and default is None:
            raise self.error(f"the field `{self._at(name)}` is empty", "", name)
        return found

    def whole(self, name: str, default: int | None = None, least: int = 0) -> int:
        """Return a whole number that is at least some other."""
        return self._at_least(self._of(int, name, default), name, least)

    def number(self, name: str, default: float | None = None, least: float = 0.0) -> float:
        """Return a finite number that is at least some other."""
        return self._at_least(self._of(float, name, default), name, least)

    def positive(self, name: str) -> float:
        """Return a finite number above zero."""
        found = self._any(name)
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        if not is_number or not math.isfinite(found) or found <= 0:  # type: ignore[arg-type, operator]
            raise self.wrong(name, "a positive number")
        return float(found)  # type: ignore[arg-type]

    def truth(self, name: str, default: bool) -> bool:
        """Return true or false."""
        return self._of(bool, name, default)

    def scalar(self, name: str) -> bool | int | float:
        """Return a number, or true or false."""
        found = self._any(name)
        if not isinstance(found, (bool, int, float)):
            raise self.wrong(name, "a number, or true or false")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts, or an empty one if the field is missing."""
        found = self._of(list, name, [])
        if not all(isinstance(each, str) for each in found):
            raise self.wrong(name, "a list of texts")
        return tuple(found)

    def table(self, name: str) -> dict[str, Fields]:
        """Return the tables of a table of tables, by name."""
        found = self._of(dict, name, None)
        return {key: Fields(each, self.file, self._at(name, key)) for key, each in found.items()}

    def items(self, name: str) -> list[Fields]:
        """Return the tables of a list that is not empty."""
        found = self._of(list, name, None)
        if not found:
            raise self.error(f"the field `{self._at(name)}` is an empty list")
        pairs = enumerate(found)
        return [Fields(each, self.file, self._at(name, str(i))) for i, each in pairs]

    def below(self, name: str) -> Fields:
        """Return the table in a field, an empty one if it is missing."""
        found = self._of(dict, name, {})
        return Fields(found, self.file, self._at(name), self._source, self._help)

    def wrong(self, name: str, kind: str) -> PyPMError:
        """Return a diagnostic of a field that is not of some kind, as "a text"."""
        problem = f"the field `{self._at(name)}` is not {kind}: {_short(self.value[name])}"
        return self.error(problem, "", name, f"{kind} is needed")

    def _of(self, kind: type[T], name: str, default: T | None) -> T:
        if default is not None and not self.has(name):
            return default
        found = self._any(name)
        if kind is float and isinstance(found, int) and not isinstance(found, bool):
            found = float(found)
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise self.wrong(name, _KINDS[kind])
        return found

    def _any(self, name: str) -> object:
        if not self.has(name):
            near = self._help or nearest(name, self.value)
            raise self.error(f"the field `{self._at(name)}` is missing", near)
        return self.value[name]

    def _at_least(self, found: T, name: str, least: T) -> T:
        if not least <= found < math.inf:  # type: ignore[operator]
            what = "negative: " if not least else ""
            problem = f"the field `{self._at(name)}` is {what}{found}"
            raise self.error(problem, "", name, f"at least {least:g} is needed")
        return found

    def _at(self, *names: str) -> str:
        return ".".join(filter(None, [self.place, *names]))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question for the nearest of some names, or their list, for a diagnostic's help."""
    names = list(known)
    listed = f"there are {', '.join(f'`{each}`' for each in names)}" if names else ""
    return did_you_mean(name, names) or listed


def read_toml(path: Path, text: str | None = None, help: str = "") -> Fields:
    """Return the table of a TOML file. Raises PyPMError if it cannot be read.

    Arguments:
        path: the file.
        text: its content, if it was read already.
        help: the help of diagnostics that have no other.
    """
    text = _text(path, help) if text is None else text
    try:
        return Fields(tomllib.loads(text), str(path), source=text, help=help)
    except tomllib.TOMLDecodeError as error:
        raise PyPMError(Diagnostic(f"`{path}` cannot be read: {error}", help=help)) from None


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
        raise PyPMError(Diagnostic(f"`{path}` is empty", help="give one object on each line"))
    return [Fields(_parsed(line, place), place) for place, line in places]


def _text(path: Path, help: str = "") -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PyPMError(Diagnostic(f"`{path}` cannot be read: {error}", help=help)) from None


def _parsed(text: str, file: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PyPMError(Diagnostic(f"`{file}` is not JSON: {error}")) from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
