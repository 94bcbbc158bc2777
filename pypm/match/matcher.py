"""The matcher: runs the steps of a rule's roots, with backtracking, over occurrences of terms.

It returns the distinct answers of `pypm.core.machine`, in the same order. It differs in four ways:

* names are slots of frames, resolved when the pattern is lowered;
* the store is mutable, and backtracking undoes it from a trail;
* it visits *occurrences*, so that an answer records where each operator was found;
* subjects that the index excludes, and calls that failed before, are not searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Final

from pypm.core.patterns import Pattern
from pypm.core.terms import UNDEFINED, Term, Unmade, Value
from pypm.core.traverse import free_names
from pypm.diagnostics import BudgetError, Diagnostic
from pypm.match.compile.lower import Compiler
from pypm.match.index import Index, Item
from pypm.match.search_state import FAIL, NOWHERE, Cell, Failed, Rest, SearchState, Subject, Visit

__all__ = ["STEPS", "Answer", "Budget", "Matcher", "Subject", "Visit", "admits_all"]

STEPS: Final = 1_000_000
"""The default budget: steps that the search from one root may take."""


class Budget:
    """The remaining steps of a search, or of several that share them."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Answer:
    """One match: the bindings of its names, with their occurrences, and the visited operators."""

    def __init__(
        self, cells: Mapping[str, Cell], met: tuple[Cell, ...], visits: tuple[Visit, ...]
    ) -> None:
        self.cells = cells
        """The locations of the pattern's free names that are bound."""
        self.met = met
        """All locations bound during the match, in order."""
        self.visits = visits
        """The visited operators, root first."""

    @cached_property
    def bindings(self) -> Mapping[str, Value]:
        """Return the values of the free names."""
        return {name: cell.read() for name, cell in self.cells.items()}

    @cached_property
    def places(self) -> Mapping[Term, tuple[Subject, ...]]:
        """Return, for terms that were bound and read, their occurrences in the order found."""
        places: dict[Term, tuple[Subject, ...]] = {}
        for cell in self.met:
            value = cell.look()
            if isinstance(value, Unmade) and value.is_made:
                value = value.term
            if isinstance(value, Term):
                known = places.get(value, ())
                places[value] = known + tuple(p for p in cell.places if p not in known)
        return places


def admits_all(subject: Subject) -> bool:
    """Return True: an operator may be visited anywhere."""
    return True


class Matcher:
    """The compiled roots of one rule (or pattern), which can be matched at any subject.

    Matchers of one program share a compiler, and so an index.
    """

    def __init__(self, roots: tuple[Pattern, ...], compiler: Compiler | None = None) -> None:
        compiler = Compiler(Index()) if compiler is None else compiler
        self.index = compiler.index
        self.roots = roots
        self._names = tuple(sorted(frozenset().union(*map(free_names, roots))))
        lowering = compiler.lowering(self._names)
        lowered = [lowering.lower(root, lowering.scope, {}) for root in roots]
        self._starts = tuple(step for step, _ in lowered)
        self._size = lowering.size
        self.items: tuple[Item, ...] = tuple(item for _, item in lowered)
        """The item of every subject at which a root can match, for each root."""

    def may_match(self, subject: Subject, root: int = 0) -> bool:
        """Return whether the index admits a match of a root at the subject."""
        return self.items[root] in subject.state.items

    def answers(
        self,
        subject: Subject,
        *,
        root: int = 0,
        given: Answer | None = None,
        budget: int | Budget = STEPS,
        admits: Callable[[Subject], bool] = admits_all,
    ) -> Iterator[Answer]:
        """Yield the matches at `subject` in order, possibly with duplicates.

        Arguments:
            subject: the occurrence at which the root is matched.
            root: the number of the root, for rules with several.
            given: the answer for the earlier roots, which the answers extend.
            budget: the steps that the search may take, or a `Budget` shared with other searches.
            admits: a predicate on subjects; a search never visits an operator for which it is
                false.

        Raises BudgetError when the budget is used up.
        """
        if not self.may_match(subject, root):
            return
        earlier = {} if given is None else given.cells
        cells = {name: _copy(earlier[name]) if name in earlier else Cell() for name in self._names}
        frame = [*cells.values(), *[NOWHERE] * (self._size - len(cells))]
        run = SearchState(() if given is None else given.met, admits)
        steps = Budget(budget) if isinstance(budget, int) else budget
        todo: Rest | Failed = (self._starts[root], subject, frame, None)
        # `left` is a local copy for speed. It is written back before each answer, and read again
        # after it, since other searches that share the budget may run in between.
        left = steps.left
        while True:
            while todo is not None and todo is not FAIL:
                left -= 1
                if left < 0:
                    steps.left = 0
                    raise BudgetError(_exhausted(subject))
                step, at, scope, rest = todo
                todo = step(run, at, scope, rest)
            steps.left = left
            if todo is None:
                run.answers += 1
                yield _answer(run, cells, given)
                left = steps.left
            if not run.choices:
                return
            todo = run.backtrack()


def _copy(cell: Cell) -> Cell:
    return Cell(cell.value, cell.places)


def _exhausted(subject: Subject) -> Diagnostic:
    return Diagnostic(
        f"the search at `{subject.operator}` did not end within its budget of steps",
        help="make alternates that can both match exclude each other, or raise the budget",
    )


def _answer(run: SearchState, cells: Mapping[str, Cell], given: Answer | None) -> Answer:
    # Backtracking changes the cells after the answer was yielded, so an answer has copies. Names
    # that share a cell share its copy.
    met = {cell: _copy(cell) for cell in run.bound()}
    named = [(name, cell) for name, cell in cells.items() if cell.value is not UNDEFINED]
    bound = {name: met.get(cell) or _copy(cell) for name, cell in named}
    visits = []
    linked = run.visits
    while linked is not None:
        subject, keep, linked = linked
        visits.append(Visit(subject, keep))
    earlier = given.visits if given else ()
    return Answer(bound, tuple(met.values()), (*earlier, *reversed(visits)))
