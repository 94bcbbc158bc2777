"""The trajectory: a file with a line for each attempt, which is all that a search remembers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.evolve.verdicts import Verdict
from pypm.fields import Plain

__all__ = ["Attempt", "Trajectory", "shown_lines"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: a candidate with its verdict, or the reason why there is none."""

    number: int
    time: str
    operator: str
    digest: str | None
    """The candidate; None if the operator proposed none."""
    parent: str | None
    """The incumbent at that time."""
    verdict: Verdict
    is_accepted: bool
    seconds: float
    """The time that the attempt took: proposing and judging."""
    hint: str = ""
    """The hint that the operator was given."""
    repeats: int | None = None
    """The earlier attempt with the same candidate, whose verdict this is."""
    log: str = ""
    """The end of what an outside program printed."""

    def as_dict(self) -> Plain:
        """Return the attempt in a form for JSON."""
        return {**asdict(self), "verdict": self.verdict.as_dict()}

    @staticmethod
    def from_dict(value: Plain) -> Attempt:
        """Return the attempt of `as_dict`."""
        verdict = value["verdict"]
        assert isinstance(verdict, dict)
        return Attempt(**{**value, "verdict": Verdict.from_dict(verdict)})  # type: ignore[arg-type]

    def shown(self) -> Plain:
        """Return what whoever proposes may see."""
        return {
            "number": self.number,
            "operator": self.operator,
            "is_accepted": self.is_accepted,
            "seconds": round(self.seconds, 3),
            "repeats": self.repeats,
            **self.verdict.shown(),
        }


class Trajectory:
    """The attempts of a search, in a file to which lines are added."""

    def __init__(self, path: Path) -> None:
        """Read a file, if there is one; a line that was cut off in the middle is removed.

        Raises PyPMError if a line cannot be read, or attempts are not numbered from 0.
        """
        self._path = path
        self.attempts: list[Attempt] = []
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines()):
            try:
                attempt = Attempt.from_dict(json.loads(line))
                assert attempt.number == number
            except (ValueError, TypeError, KeyError, AssertionError, RecursionError):
                what = f"`{path}:{number + 1}` is not attempt {number}"
                help = "the file was changed; begin in another folder, with `--run`"
                raise PyPMError(Diagnostic(what, help=help)) from None
            self.attempts.append(attempt)

    def add(self, attempt: Attempt) -> None:
        """Write an attempt; when this returns, it is on disk."""
        line = json.dumps(attempt.as_dict(), allow_nan=False).encode() + b"\n"
        with self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.attempts.append(attempt)

    def accepted(self) -> list[Attempt]:
        """Return the accepted attempts."""
        return [each for each in self.attempts if each.is_accepted]

    def judged(self, digest: str) -> Attempt | None:
        """Return the first attempt with a candidate."""
        return next((each for each in self.attempts if each.digest == digest), None)


def shown_lines(attempts: Sequence[Attempt]) -> str:
    """Return a line of JSON for each attempt, with what whoever proposes may see."""
    return "".join(f"{json.dumps(each.shown())}\n" for each in attempts)
