"""The protocol of operators of variation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from pypm.evolve.candidate import Snapshots
from pypm.evolve.lineage import Lineage
from pypm.evolve.trajectory import Attempt

__all__ = ["Evaluate", "Exhausted", "History", "NoProposal", "Turn", "VariationOperator"]

Evaluate = Callable[[], Mapping[str, object]]
"""Judges the files in the work tree as they are now; the answer is that of `pypm evolve`."""


class NoProposal(Exception):
    """An operator that has nothing to propose this time; the text says why."""


class Exhausted(NoProposal):
    """An operator that will not propose anything else for this incumbent."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Limits of one call of an operator."""

    attempt: int
    """The number that the next attempt will have."""
    seed: int
    seconds: float
    evaluations: int
    """The number of times that `evaluate` may be called."""
    hint: str = ""
    """Advice of the supervisor; empty if it has none."""

    def random(self) -> Random:
        """Return numbers that depend on the seed and the attempt alone."""
        return Random(f"{self.seed}/{self.attempt}")


@dataclass(frozen=True, slots=True)
class History:
    """All that was tried."""

    attempts: Sequence[Attempt]
    snapshots: Snapshots
    lineage: Lineage

    def judged(self) -> dict[str, Attempt]:
        """Return the first attempt with each candidate, by digest."""
        found: dict[str, Attempt] = {}
        for each in self.attempts:
            if each.digest is not None:
                found.setdefault(each.digest, each)
        return found


class VariationOperator(Protocol):
    """Proposes candidates. Those shipped are deterministic, but for `ProgramOperator`: the same
    history and budget give the same proposal.
    """

    @property
    def name(self) -> str:
        """Return a name for the trajectory."""

    def vary(
        self,
        workdir: Path,
        lineage: History,
        knowledge: Path,
        evaluate: Evaluate,
        budget: Turn,
    ) -> str:
        """Change the candidate in a folder; what is there in the end is judged.

        Arguments:
            workdir: a folder with the incumbent's files.
            lineage: the versions, and all attempts.
            knowledge: a folder of files to read: the task, and what is known of it.
            evaluate: judges what is in the folder now, and returns the answer.
            budget: limits, and a hint.

        Returns a note for the trajectory, as the end of a program's output. Raises NoProposal, or
        PyPMError for a mistake of the user.
        """
