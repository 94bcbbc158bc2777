"""The discrimination index: a tree automaton over operators, shared by all patterns of a program.

An *item* is a sub-pattern without its names, guards and bindings: an operator over items, a choice,
a conjunction, a recursion. A *state* is the set of items that a subject satisfies. It is determined
by the subject's operator and its children's states, computed once for each such combination, and
looked up afterwards, so the cost does not depend on the number of patterns.

Invariant: if a pattern matches at a subject, its item is in the subject's state. So neither a root
nor an alternate whose item is missing is tried. The converse does not hold: items ignore repeated
names, and all guards except those on a class or dtype.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from pypm.core.operators import LITERAL

__all__ = ["ANYTHING", "Fact", "Index", "Item", "State"]

Fact: TypeAlias = tuple[str, object]
"""A fact about a subject itself: ("tags", class) or ("dtype", dtype)."""
Item = int
ANYTHING: Final[Item] = 0
"""The item that every subject satisfies."""


class State:
    """The items that some subjects satisfy; there is one object for each set of items.

    `starts` are the numbers of the patterns that may match at such a subject, in order, and
    `reach` is how far below it the deepest of them can look (-1 where there is none).
    """

    __slots__ = ("items", "reach", "starts")

    def __init__(self, items: frozenset[Item], starts: tuple[int, ...], reach: float) -> None:
        self.items = items
        self.starts = starts
        self.reach = reach

    def __repr__(self) -> str:
        return f"State({sorted(self.items)})"


class Index:
    """Items, and the states that are made of them on demand."""

    def __init__(self) -> None:
        self._shown: list[Callable[[], str]] = [lambda: "anything"]
        self._known: dict[object, Item] = {}
        self._above: list[list[Item]] = [[]]
        """For each item, the choices, conjunctions and recursions that it may satisfy."""
        self._pairs: dict[Item, tuple[Item, Item]] = {}
        self._applied: dict[tuple[str | None, int], dict[Item, list[tuple[Item, list[Item]]]]] = {}
        """By name (None for any) and arity, and then by the first child: items, and their other
        children.
        """
        self._facts: dict[Fact, Item] = {}
        self._roots: dict[Item, list[tuple[int, float]]] = defaultdict(list)
        self._states: dict[frozenset[Item], State] = {}
        self._transitions: dict[tuple[object, ...], State] = {}

    # --- items ---

    def applied(self, name: str | None, children: Sequence[Item]) -> Item:
        """Return the item of an operator of that name (any, if None) with such children."""
        key = ("applied", name, *children)
        if key not in self._known:
            found = self._new(key, lambda: f"{name or '_'}({self._list(children)})")
            bucket = self._applied.setdefault((name, len(children)), defaultdict(list))
            first = children[0] if children else ANYTHING
            bucket[first].append((found, list(children[1:])))
        return self._known[key]

    def fact(self, fact: Fact) -> Item:
        """Return the item of subjects for which a fact holds."""
        if fact not in self._facts:
            self._facts[fact] = self._new(("fact", *fact), lambda: f"<{fact[1]}>")
        return self._facts[fact]

    def either(self, items: Iterable[Item]) -> Item:
        """Return the item of subjects that satisfy one of the items; of none, if there are no
        items.
        """
        choices = tuple(sorted(set(items)))
        if ANYTHING in choices:
            return ANYTHING
        if len(choices) == 1:
            return choices[0]
        key = ("either", *choices)
        if key not in self._known:
            found = self._new(key, lambda: " | ".join(f"#{item}" for item in choices) or "nothing")
            for item in choices:
                self._above[item].append(found)
        return self._known[key]

    def both(self, one: Item, other: Item) -> Item:
        """Return the item of subjects that satisfy both items."""
        pair = (min(one, other), max(one, other))
        if pair[0] in (ANYTHING, pair[1]):
            return pair[1]
        key = ("both", *pair)
        if key not in self._known:
            found = self._new(key, lambda: f"#{pair[0]} & #{pair[1]}")
            self._pairs[found] = pair
            for item in pair:
                self._above[item].append(found)
        return self._known[key]

    def recursion(self, name: str) -> Item:
        """Return a new item that `define` defines later."""
        return self._new(None, lambda: name)

    def define(self, recursion: Item, item: Item) -> None:
        self._above[item].append(recursion)
        name = self._shown[recursion]
        self._shown[recursion] = lambda: f"{name()} = #{item}"

    def root(self, item: Item, number: int, reach: float) -> None:
        """Register pattern `number` as a start of the states that contain its root's item."""
        self._roots[item].append((number, reach))

    def copy(self, patterns: Container[int]) -> Index:
        """Return an index with the same items, numbers included, and the roots of some patterns."""
        other = Index()
        other._shown = [*self._shown]
        other._known = {**self._known}
        other._above = [[*items] for items in self._above]
        other._pairs = {**self._pairs}
        for kind, bucket in self._applied.items():
            items = {first: [*found] for first, found in bucket.items()}
            other._applied[kind] = defaultdict(list, items)
        other._facts = {**self._facts}
        for item, roots in self._roots.items():
            kept = [(number, reach) for number, reach in roots if number in patterns]
            if kept:
                other._roots[item] = kept
        return other

    def _new(self, key: Hashable, shown: Callable[[], str]) -> Item:
        item = len(self._shown)
        self._shown.append(shown)
        self._above.append([])
        if key is not None:
            self._known[key] = item
        return item

    def _list(self, children: Sequence[Item]) -> str:
        return ", ".join("_" if item == ANYTHING else f"#{item}" for item in children)

    def __len__(self) -> int:
        return len(self._shown)

    def lines(self) -> Iterator[str]:
        """Yield the items as text, one a line."""
        for item, shown in enumerate(self._shown):
            yield f"#{item} {shown()}"

    # --- states ---

    def state(
        self, name: str, children: Sequence[State] = (), facts: frozenset[Fact] = frozenset()
    ) -> State:
        """Return the state of a subject with that operator and such children.

        `facts` are those of the index's `facts` that hold of it.
        """
        key = (name, facts, *children)
        found = self._transitions.get(key)
        if found is None:
            found = self._transitions[key] = self._intern(self._satisfied(name, children, facts))
        return found

    @property
    def facts(self) -> Iterable[Fact]:
        """Return the facts that items demand."""
        return self._facts

    @property
    def literal(self) -> State:
        """Return the state of a number, or of None, among the children of an operator."""
        return self.state(LITERAL.name)

    def _satisfied(
        self, name: str, children: Sequence[State], facts: frozenset[Fact]
    ) -> frozenset[Item]:
        todo = [ANYTHING, *(self._facts[fact] for fact in facts)]
        first = children[0].items if children else (ANYTHING,)
        others = [child.items for child in children[1:]]
        # Operator items are keyed by their first child's item, so only those whose first child is
        # satisfied are compared.
        for called in (name, None):
            bucket = self._applied.get((called, len(children)))
            if bucket is None:
                continue
            for item in first:
                for found, rest in bucket.get(item, ()):
                    if all(wanted in given for wanted, given in zip(rest, others, strict=True)):
                        todo.append(found)
        # Close upwards: a choice or a recursion holds once one part does, a conjunction once both
        # do. A conjunction met too early is rejected, and pushed again by its second part.
        satisfied: set[Item] = set()
        while todo:
            item = todo.pop()
            pair = self._pairs.get(item)
            if item in satisfied or not (pair is None or satisfied.issuperset(pair)):
                continue
            satisfied.add(item)
            todo += self._above[item]
        return frozenset(satisfied)

    def _intern(self, items: frozenset[Item]) -> State:
        found = self._states.get(items)
        if found is None:
            roots = [root for item in items & self._roots.keys() for root in self._roots[item]]
            starts = tuple(sorted(number for number, _ in roots))
            reach = max((reach for _, reach in roots), default=-1)
            found = self._states[items] = State(items, starts, reach)
        return found
