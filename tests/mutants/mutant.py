"""A change that makes something wrong, and where it is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """What the change does, its file, and the texts that it replaces."""

    does: str
    file: str
    changes: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.does}"

    def then(self, old: str, new: str) -> Mutant:
        """The same with one change more."""
        return Mutant(self.does, self.file, (*self.changes, (old, new)))

    def applied(self, root: Path = ROOT) -> str:
        """The text of the file with the changes.

        Raises ValueError where a text that is replaced is not there exactly once.
        """
        text = (root / self.file).read_text(encoding="utf-8")
        for old, new in self.changes:
            if text.count(old) != 1:
                raise ValueError(f"{self}: {old!r} is there {text.count(old)} times")
            text = text.replace(old, new)
        return text
