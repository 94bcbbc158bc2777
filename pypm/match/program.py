"""What compiled patterns are made of: cells, frames, steps, and the state of one search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from pypm.core.terms import UNDEFINED, Term, Value

__all__ = ["FAIL", "NOWHERE", "Cell", "Frame", "Run", "Step", "Subject", "Visit"]


class Subject(Protocol):
    """One occurrence of a term; a term is an occurrence of itself."""

    @property
    def term(self) -> Term: ...

    @property
    def children(self) -> Sequence[Subject]: ...


@dataclass(frozen=True, slots=True)
class Visit:
    """An operator pattern that matched, and where."""

    subject: Subject
    keep: bool


class Cell:
    """A location of the store: its value and, if that is a term, the occurrences it met."""

    __slots__ = ("places", "value")

    def __init__(self, value: Value = UNDEFINED, places: tuple[Subject, ...] = ()) -> None:
        self.value = value
        self.places = places


NOWHERE: Final = Cell()
"""The location of a name that is not in scope: never bound."""

Frame: TypeAlias = list[Cell]
"""The locations that one activation of a definition sees, by slot."""

Step: TypeAlias = Callable[["Run", Any, Frame, Any], Any]
"""An action of the machine: gets the run, a subject, a frame, and what is to be done after it.

Returns what is to be done next: a linked list of (step, subject, frame, rest), None when nothing
is left, or FAIL.
"""

FAIL: Final = object()


class Run:
    """The state of one search: the trail that undoes the store, open choices, visits so far.

    `known` is where an earlier search met its terms; `admits` tells where an operator may be
    visited at all.
    """

    __slots__ = ("admits", "choices", "known", "trail", "visits")

    def __init__(
        self, known: Mapping[Term, tuple[Subject, ...]], admits: Callable[[Any], bool]
    ) -> None:
        self.known = known
        self.admits = admits
        self.trail: list[tuple[Cell, Value, tuple[Subject, ...]]] = []
        self.choices: list[tuple[int, Any, Any]] = []
        self.visits: Any = None

    def assign(self, cell: Cell, value: Value, places: tuple[Subject, ...] = ()) -> None:
        self.trail.append((cell, cell.value, cell.places))
        cell.value = value
        cell.places = places

    def places(self, term: Term) -> tuple[Subject, ...]:
        """Where a term that was taken out of a tuple has been met."""
        bound = (cell for cell, _, _ in reversed(self.trail) if cell.value is term)
        return next((c.places for c in bound if c.places), self.known.get(term, (term,)))

    def choose(self, todo: Any) -> None:
        """Remember something else to do from the present state."""
        self.choices.append((len(self.trail), self.visits, todo))

    def backtrack(self) -> Any:
        """Return to the latest open choice; gives what is to be done there."""
        length, visits, todo = self.choices.pop()
        while len(self.trail) > length:
            cell, value, places = self.trail.pop()
            cell.value = value
            cell.places = places
        self.visits = visits
        return todo
