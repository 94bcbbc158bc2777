"""TOML files read field by field, with diagnostics that point at the line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from pypm.diagnostics import Diagnostic, PyPMError, Span, did_you_mean

__all__ = ["Table"]

T = TypeVar("T")
_KINDS: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
}


class Table:
    """The fields of a TOML file. Each method raises PyPMError if its field is missing or wrong."""

    def __init__(self, path: Path, known: Iterable[str], text: str | None = None) -> None:
        """Read a file.

        Arguments:
            path: the file.
            known: the names of all fields that it may have.
            text: its content, if it was read already.

        Raises PyPMError if it cannot be read, or has a field that is not known.
        """
        self.path = path
        names = [*known]
        try:
            self._text = path.read_text(encoding="utf-8") if text is None else text
            self.value: Mapping[str, object] = tomllib.loads(self._text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise PyPMError(Diagnostic(f"`{path}` cannot be read: {error}")) from None
        for name in self.value:
            if name not in names:
                fields = ", ".join(f"`{each}`" for each in names)
                help = did_you_mean(name, names) or f"the fields are {fields}"
                raise self.error(f"the field `{name}` is not known", name, "not a field", help)

    def error(self, message: str, name: str, label: str = "", help: str = "") -> PyPMError:
        """Return a diagnostic that points at a field, if the file has it."""
        for number, line in enumerate(self._text.splitlines(), 1):
            if re.match(rf"\s*{re.escape(name)}\s*=", line):
                start = len(line) - len(line.lstrip())
                span = Span(str(self.path), number, start, number, len(line), line)
                return PyPMError(Diagnostic(message, span, label, help))
        return PyPMError(Diagnostic(f"`{self.path}`: {message}", help=help))

    def has(self, name: str) -> bool:
        """Return whether the file has a field."""
        return name in self.value

    def text(self, name: str, default: str | None = None, help: str = "") -> str:
        """Return a text that is not empty."""
        found = self._of(str, name, default, help)
        if not found.strip() and default is None:
            raise self.error(f"the field `{name}` is empty", name, "a text is needed", help)
        return found

    def number(self, name: str, default: float, least: float) -> float:
        """Return a number that is at least some other."""
        value = self.value.get(name, default)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        found = float(value) if is_whole else self._of(float, name, default, "")  # type: ignore[arg-type]
        if not least <= found < float("inf"):
            raise self.error(
                f"the field `{name}` is {found}", name, f"at least {least:g} is needed"
            )
        return found

    def whole(self, name: str, default: int, least: int) -> int:
        """Return a whole number that is at least some other."""
        found = self._of(int, name, default, "")
        if found < least:
            raise self.error(f"the field `{name}` is {found}", name, f"at least {least} is needed")
        return found

    def truth(self, name: str, default: bool) -> bool:
        """Return true or false."""
        return self._of(bool, name, default, "")

    def _of(self, kind: type[T], name: str, default: T | None, help: str) -> T:
        if name not in self.value:
            if default is None:
                raise self.error(f"the field `{name}` is missing", name, "", help)
            return default
        found = self.value[name]
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            label = f"{found!r} is not {_KINDS[kind]}"
            raise self.error(f"the field `{name}` is not {_KINDS[kind]}", name, label, help)
        return found
