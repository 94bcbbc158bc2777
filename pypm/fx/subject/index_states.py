"""States of the nodes of a graph in a discrimination index, computed in one pass over raw nodes.

For torch's own overloads, the target and the states of the tensor arguments determine the state, so
the pass costs a dictionary lookup for each node. For other nodes, and for each combination met for
the first time, the state is computed from the call in canonical form.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import TypeAlias

from torch import fx

from pypm.core.operators import CONS, NIL
from pypm.fx.operators.arguments import Argument
from pypm.fx.operators.canonical_calls import direct_call
from pypm.fx.subject.calls import CanonicalCall
from pypm.fx.values.metadata import is_number, tensor
from pypm.match.index import Fact, Index, State

__all__ = ["StateReader", "States"]

_Table: TypeAlias = dict[object, State]


class StateReader:
    """Transitions of one index for raw nodes, shared by all graphs that its patterns are matched
    in.
    """

    def __init__(self, index: Index, left_out: Collection[str] = ()) -> None:
        """`left_out` are operators of patterns that the index has no items for."""
        self.index = index
        self.left_out = frozenset(left_out)
        self.tags = frozenset(tag for kind, tag in index.facts if kind == "tags")
        self.dtypes = frozenset(dtype for kind, dtype in index.facts if kind == "dtype")
        """The dtypes that patterns ask for."""
        self.tables: dict[object, tuple[int, _Table]] = {}
        """For plain overloads, by `key`: the number of arguments that count, and the transition
        table.
        """

    def key(self, node: fx.Node) -> Hashable:
        """Return the identity of the node's target, and its value's dtype if patterns ask for
        dtypes.
        """
        dtype = self.dtype(node)
        return id(node.target) if dtype is None else (id(node.target), dtype)

    def dtype(self, node: fx.Node) -> Hashable:
        """Return the dtype of the node's value if patterns ask for it, else None."""
        dtype = getattr(tensor(node), "dtype", None)
        return dtype if dtype in self.dtypes else None

    def facts(self, node: fx.Node, tags: frozenset[str]) -> frozenset[Fact]:
        """Return the facts that patterns ask for and that hold of a node with these classes."""
        dtype = self.dtype(node)
        facts: set[Fact] = {("tags", tag) for tag in self.tags & tags}
        return frozenset(facts if dtype is None else facts | {("dtype", dtype)})

    def table(self, node: fx.Node) -> tuple[int, _Table] | None:
        """Return the table of the node's target, or None if its states cannot be looked up."""
        key = self.key(node)
        found = self.tables.get(key)
        if found is None and (plain := direct_call(node.target)) is not None:
            found = self.tables[key] = (plain.count, {})
        return found


class States(dict[fx.Node, State]):
    """The state of every node of one graph."""

    def __init__(self, reader: StateReader, call: Callable[[fx.Node], CanonicalCall]) -> None:
        self.reader = reader
        self.missed: set[str] = set()
        """Operators of the graph that the reader's index leaves out: these states lack items."""
        self._call = call

    def __missing__(self, node: fx.Node) -> State:
        """Return the state of a node that was inserted later."""
        state = self[node] = self.compute(node)
        return state

    def read(self, graph: fx.Graph) -> tuple[list[fx.Node], list[fx.Node]]:
        """Read a graph; return the nodes at which some pattern may match, and those without users.

        The loop is unrolled for one and two arguments, as it runs for every node of a graph.
        """
        reader, tables = self.reader, self.reader.tables
        has_dtypes = bool(reader.dtypes)
        known = self.get
        starts: list[fx.Node] = []
        unused: list[fx.Node] = []
        for node in graph.nodes:
            state = None
            found = tables.get(reader.key(node) if has_dtypes else id(node.target))
            if found is not None:
                count, table = found
                args = node._args
                if len(args) >= count:
                    if count == 1:
                        state = table.get(known(args[0]))
                    elif count == 2:
                        state = table.get((known(args[0]), known(args[1])))
                    else:
                        state = table.get(tuple(map(known, args[:count])))
            self[node] = state = state or self.compute(node)
            if state.starts:
                starts.append(node)
            if not node.users:
                unused.append(node)
        return starts, unused

    def compute(self, node: fx.Node) -> State:
        """Compute the state of a node from those of its arguments, and memoize the transition."""
        index, found = self.reader.index, self.reader.table(node)
        if node.op == "output":
            return index.state("output")
        if node.op == "placeholder" and not is_number(node):
            return index.state("placeholder", (), self.reader.facts(node, frozenset()))
        key = None
        if found is not None and len(node.args) >= found[0]:
            count, table = found
            states = [self[a] if isinstance(a, fx.Node) else None for a in node.args[:count]]
            if states[0] is not None:  # a number that comes first may trade places with a tensor
                key = tuple(states) if count > 1 else states[0]
                if (known := table.get(key)) is not None:
                    return known
        call = self._call(node)
        if call.operator.name in self.reader.left_out:
            self.missed.add(call.operator.name)
            key = None  # the next graph must miss it as well
        facts = self.reader.facts(node, call.tags)
        state = index.state(call.operator.name, [*map(self.of, call.arguments)], facts)
        if key is not None:
            table[key] = state
        return state

    def of(self, argument: Argument) -> State:
        """Return the state of an argument: a node, a number, or a list."""
        if isinstance(argument, fx.Node):
            return self[argument]
        index = self.reader.index
        if not isinstance(argument, tuple):
            return index.literal
        cell = index.state(NIL.name)
        for element in reversed(argument):
            cell = index.state(CONS.name, (self.of(element), cell))
        return cell

    def refresh(self, nodes: Iterable[fx.Node]) -> None:
        """Recompute the states of these nodes, and of the nodes that depend on them."""
        todo = list(set(nodes))
        heapq.heapify(todo)
        last = None
        while todo:
            node = heapq.heappop(todo)
            if node is last:
                continue
            state, last = self.compute(node), node
            if self.get(node) is not state:
                self[node] = state
                for user in node.users:
                    heapq.heappush(todo, user)
