"""Terms as subjects of matching: every path from the root is an occurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pypm.core.guards import FUNCTIONS, equal

if TYPE_CHECKING:
    from pypm.core.operators import Operator
    from pypm.core.terms import Term
    from pypm.match.index import Fact, Index, State

__all__ = ["TermTree", "Trees"]

_IN: Final = FUNCTIONS["in"]


class Trees:
    """The subjects for terms, for the patterns of one index; equal terms are one subject."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._known: dict[Term, TermTree] = {}

    def tree(self, term: Term) -> TermTree:
        todo = [term]
        while todo:  # no recursion: terms can be deeper than Python's stack
            last = todo[-1]
            missing = [child for child in last.children if child not in self._known]
            if missing:
                todo += missing
                continue
            todo.pop()
            if last not in self._known:
                children = [self._known[child] for child in last.children]
                states = [child.state for child in children]
                state = self.index.state(last.operator.name, states, self._facts(last))
                self._known[last] = TermTree(last, children, state)
        return self._known[term]

    def _facts(self, term: Term) -> frozenset[Fact]:
        def holds(fact: Fact) -> bool:
            kind, value = fact
            given = term.attribute(kind)
            return (_IN(value, given) if kind == "tags" else equal(given, value)) is True

        return frozenset(filter(holds, self.index.facts))


class TermTree:
    __slots__ = ("children", "state", "term")

    def __init__(self, term: Term, children: Sequence[TermTree], state: State) -> None:
        self.term = term
        self.children = children
        self.state = state

    @property
    def operator(self) -> Operator:
        return self.term.operator

    def __repr__(self) -> str:
        return f"TermTree({self.term})"
