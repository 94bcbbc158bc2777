"""The state of a search: cells, frames, steps, the trail and open choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from pypm.core.records import Record
from pypm.core.terms import UNDEFINED, Term, Unmade, Value, all_made

if TYPE_CHECKING:
    from pypm.core.operators import Operator
    from pypm.match.index import State

__all__ = [
    "COMPOUND",
    "FAIL",
    "NOWHERE",
    "UNREAD",
    "Cell",
    "Frame",
    "Rest",
    "Scope",
    "SearchState",
    "Step",
    "Subject",
    "Visit",
]


class Subject(Protocol):
    """One occurrence of a term, with its state in the index of the running program.

    The term itself is read only for comparisons and guards, so most occurrences never create it.
    """

    @property
    def term(self) -> Term: ...

    @property
    def operator(self) -> Operator: ...

    @property
    def children(self) -> Sequence[Subject]: ...

    @property
    def state(self) -> State: ...


class Visit(NamedTuple):
    """A visited operator: its subject, and whether the pattern marks it `keep`."""

    subject: Subject
    keep: bool


class Unread(Enum):
    """The value of a location bound to an occurrence whose term was not read yet."""

    UNREAD = "unread"


UNREAD: Final = Unread.UNREAD


COMPOUND: Final = (tuple, Record)
"""Values that may hold terms and are none."""


class Cell:
    """A location of the store: its value, and the occurrences it was bound to.

    The occurrences of a tuple or record are those of the terms in it. A record has occurrences
    themselves in place of terms that are unmade.
    """

    __slots__ = ("places", "value")

    def __init__(self, value: Value = UNDEFINED, places: tuple[Subject, ...] = ()) -> None:
        self.value = value
        self.places = places

    def read(self) -> Value:
        """Return the value; UNDEFINED if the location is unbound."""
        if self.value is UNREAD:
            self.value = self.places[0].term
        return all_made(self.value) if isinstance(self.value, Record) else self.value

    def look(self) -> Value | Unmade:
        """Return the value, of a term its first occurrence if that may be unmade, for its
        attributes and for a record: whether it was read or not, as equal searches make equal ones.
        """
        if self.places and not isinstance(self.value, COMPOUND):
            first = self.places[0]
            return first if isinstance(first, Unmade) else self.read()
        return self.value


NOWHERE: Final = Cell()
"""The location of a name that is not in scope, which is never bound."""

Frame: TypeAlias = list[Cell]
"""The locations of one activation of a definition, by slot."""

Scope: TypeAlias = Mapping[str, int]
"""The slots of the names in scope."""


class Failed(Enum):
    """The result of a step that fails."""

    FAIL = "fail"


FAIL: Final = Failed.FAIL

Rest: TypeAlias = "tuple[Step, Subject, Frame, Rest] | None"
"""A continuation: a linked list of steps to run, each with its subject and frame; None if done."""

Step: TypeAlias = Callable[["SearchState", Subject, Frame, Rest], "Rest | Failed"]
"""A transition of the machine: from the search, a subject, a frame and the continuation.

Returns the next continuation, or FAIL.
"""

Visits: TypeAlias = "tuple[Subject, bool, Visits] | None"
"""A linked list of visited operators, the last one first; see `Visit`."""


class SearchState:
    """The state of one search: the trail that undoes the store, open choices, visits so far.

    `known` are the cells of earlier roots; `admits` tells where an operator may be visited.
    """

    __slots__ = ("admits", "answers", "choices", "done", "failed", "known", "trail", "visits")

    def __init__(self, known: Sequence[Cell], admits: Callable[[Subject], bool]) -> None:
        self.known = known
        self.admits = admits
        self.answers = 0
        self.trail: list[tuple[Cell | None, object, tuple[Subject, ...]]] = []
        """Cells with the value and places to restore; no cell for a call to remove from `done`."""
        self.choices: list[tuple[int, Visits, Rest]] = []
        self.visits: Visits = None
        self.done: set[object] = set()
        self.failed: set[object] = set()

    def assign(self, cell: Cell, value: Value, places: tuple[Subject, ...] = ()) -> None:
        self.trail.append((cell, cell.value, cell.places))
        cell.value = value
        cell.places = places

    def note(self, call: object) -> None:
        """Record that a call has succeeded, until backtracking passes this point."""
        if call not in self.done:
            self.done.add(call)
            self.trail.append((None, call, ()))

    def bound(self) -> list[Cell]:
        """Return the locations bound so far, in order."""
        cells = (cell for cell, _, _ in self.trail if cell is not None)
        return [*self.known, *dict.fromkeys(cells)]

    def choose(self, todo: Rest) -> None:
        """Push a choice: another continuation from the present state."""
        self.choices.append((len(self.trail), self.visits, todo))

    def backtrack(self) -> Rest:
        """Pop the latest choice, undo the store up to it, and return its continuation."""
        length, self.visits, todo = self.choices.pop()
        trail = self.trail
        while len(trail) > length:
            cell, value, places = trail.pop()
            if cell is None:
                self.done.discard(value)
            else:
                cell.value = value
                cell.places = places
        return todo
