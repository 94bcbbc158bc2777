"""The matcher: runs the steps of a rule's roots, with backtracking, over occurrences of terms.

It gives the answers of `pypm.core.machine` in the same order. It differs in three ways: names are
slots of frames, resolved when the pattern is lowered; the store is mutable and undone from a
trail; and it walks *occurrences*, so that an answer says where each operator was met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pypm.core.patterns import Pattern, free_names
from pypm.core.terms import UNDEFINED, Term, Value
from pypm.diagnostics import BudgetError, Diagnostic
from pypm.match.index import Heads, heads, visited
from pypm.match.lower import Lowering
from pypm.match.program import FAIL, NOWHERE, Cell, Run, Subject, Visit

__all__ = ["STEPS", "Answer", "Matcher", "Subject", "Visit", "admits_all"]

STEPS: Final = 1_000_000
"""Steps that one search from one root may take before it is given up."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One match.

    `bindings` gives the free names of the pattern their values, `places` every term bound on the
    way its occurrences in the order met, and `visits` the operators walked over, root first.
    """

    bindings: Mapping[str, Value]
    places: Mapping[Term, tuple[Subject, ...]]
    visits: tuple[Visit, ...]


def admits_all(subject: Any) -> bool:
    """Visits operators anywhere."""
    return True


class Matcher:
    """The roots of one rule (or one pattern), ready to be matched at any subject."""

    def __init__(self, roots: tuple[Pattern, ...]) -> None:
        self._names = tuple(sorted(frozenset().union(*map(free_names, roots))))
        lowering = Lowering(self._names)
        self._starts = tuple(lowering.lower(root, lowering.scope, {}) for root in roots)
        self._size = lowering.size
        self.heads: tuple[Heads, ...] = tuple(heads(root, {}) for root in roots)
        """The operators at which each root may match; None for any."""
        self.visited = visited(roots)
        """The operators that a match can visit."""

    def answers(
        self,
        subject: Subject,
        *,
        root: int = 0,
        given: Answer | None = None,
        budget: int = STEPS,
        admits: Callable[[Any], bool] = admits_all,
    ) -> Iterator[Answer]:
        """The matches at `subject` in order, the same one possibly more than once.

        With several roots, `given` is the answer for the earlier ones that this one extends.
        Answers that visit an operator where `admits` says no are left out, and are not searched
        for. Raises BudgetError when `budget` steps are used up.
        """
        cells = {name: _initial(name, given) for name in self._names}
        frame = [*cells.values(), *[NOWHERE] * (self._size - len(cells))]
        run = Run(given.places if given else {}, admits)
        todo: Any = (self._starts[root], subject, frame, None)
        while True:
            while todo is not None and todo is not FAIL:
                budget -= 1
                if budget < 0:
                    raise BudgetError(_exhausted(subject))
                step, at, scope, rest = todo
                todo = step(run, at, scope, rest)
            if todo is None:
                yield _answer(run, cells, given)
            if not run.choices:
                return
            todo = run.backtrack()


def _initial(name: str, given: Answer | None) -> Cell:
    if given is None or name not in given.bindings:
        return Cell()
    value = given.bindings[name]
    return Cell(value, given.places.get(value, ()) if isinstance(value, Term) else ())


def _exhausted(subject: Subject) -> Diagnostic:
    return Diagnostic(
        f"the search at `{subject.term.operator}` did not end within its budget of steps",
        help="make alternates that can both match exclude each other, or raise the budget",
    )


def _answer(run: Run, cells: Mapping[str, Cell], given: Answer | None) -> Answer:
    bindings = {name: c.value for name, c in cells.items() if c.value is not UNDEFINED}
    places = dict(given.places) if given else {}
    for cell, _, _ in run.trail:
        if isinstance(cell.value, Term):
            known = places.get(cell.value, ())
            places[cell.value] = known + tuple(p for p in cell.places if p not in known)
    visits = []
    linked = run.visits
    while linked is not None:
        visit, linked = linked
        visits.append(visit)
    earlier = given.visits if given else ()
    return Answer(bindings, places, (*earlier, *reversed(visits)))
