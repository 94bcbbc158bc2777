"""Parts of graphs as graphs of their own, and as text that is equal where they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter

import torch
from torch import fx

from pypm.fx.operators.effects import is_pure

__all__ = ["Copy", "extract", "in_module", "signature"]


def extract(nodes: Sequence[fx.Node]) -> tuple[fx.GraphModule, tuple[fx.Node, ...]]:
    """Return some calls of a graph as a graph of their own, and the nodes whose values it takes.

    Its results are the values that are used outside, and those that nothing uses.
    """
    inside = {*nodes}
    read = {source for node in nodes for source in node.all_input_nodes}
    inputs = tuple(sorted(node for node in read - inside if node.op != "get_attr"))
    copy = Copy(inputs)
    copies = {node: copy.of(node) for node in sorted(inside)}
    results = [copies[node] for node in copies if not node.users or _is_read(node, inside)]
    return copy.module(results), inputs


def _is_read(node: fx.Node, inside: Collection[fx.Node]) -> bool:
    """Return whether something outside uses a value; not what is used by nothing itself."""
    return any(
        user not in inside and (user.users or user.op == "output" or not is_pure(user))
        for user in node.users
    )


class Copy:
    """A graph in the making, from nodes of other graphs and what they read of their modules."""

    def __init__(self, inputs: Iterable[fx.Node]) -> None:
        self._graph = fx.Graph()
        self._owner = torch.nn.Module()
        self._copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            copy = self._copies[node] = self._graph.placeholder(node.name)
            copy.meta = dict(node.meta)

    def put(self, node: fx.Node, value: fx.Node) -> None:
        """Let a node of this graph stand for one of the user's graph."""
        self._copies[node] = value

    def of(self, node: fx.Node) -> fx.Node:
        """Return the copy of a node of the user's graph, with all that it is computed from."""
        todo = [node]
        while todo:
            current = todo[-1]
            if current in self._copies:
                todo.pop()
            elif missing := [x for x in current.all_input_nodes if x not in self._copies]:
                todo += missing
            else:
                owner = current.graph.owning_module
                self._copies[current] = self.add(current, self._copies.__getitem__, owner)
        return self._copies[node]

    def add(
        self, node: fx.Node, of: Callable[[fx.Node], fx.Node], owner: torch.nn.Module | None
    ) -> fx.Node:
        """Add a copy of a node, on the copies of what it reads."""
        copy = self._graph.node_copy(node, of)
        if node.op == "get_attr" and owner is not None:
            copy.target = f"held_{len(self._graph.nodes)}"
            setattr(self._owner, copy.target, attrgetter(str(node.target))(owner))
        return copy

    def graph(self, results: Iterable[fx.node.Argument]) -> fx.Graph:
        """Return the graph, with these results; nothing can be added afterwards.

        Its `owning_module` holds what it reads, and has no code.
        """
        self._graph.output(tuple(results))
        self._graph.owning_module = self._owner  # type: ignore[assignment]
        return self._graph

    def module(self, results: Iterable[fx.node.Argument]) -> fx.GraphModule:
        """Return the graph, with these results, in a module; nothing can be added afterwards."""
        return in_module(self.graph(results))


def in_module(graph: fx.Graph) -> fx.GraphModule:
    """Return a graph in a module with code, and with what it reads of the module that owns it."""
    return fx.GraphModule(graph.owning_module or torch.nn.Module(), graph)


def signature(values: Iterable[fx.node.Argument], *graphs: fx.Graph) -> str:
    """Return a hash of some graphs, with types, sizes and strides of the values that they take.

    It is equal in any two processes only if the graphs are.
    """
    texts = [_described(value) for value in values]
    for graph in graphs:
        texts += ["=>", *_lines(graph)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _lines(graph: fx.Graph) -> list[str]:
    """Return the nodes of a graph as text, with numbers for names."""
    names = {node: f"%{place}" for place, node in enumerate(graph.nodes)}
    return [
        f"{names[node]} = {node.op} {_target(node)} "
        f"{fx.node.map_arg((node.args, node.kwargs), lambda n: _Unquoted(names[n]))}"
        for node in graph.nodes
        if node.op != "placeholder"
    ]


class _Unquoted(str):
    """The name of a node, which prints without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


def _target(node: fx.Node) -> str:
    if node.op == "call_function" and not isinstance(node.target, str):
        return f"{getattr(node.target, '__module__', '')}.{node._pretty_print_target(node.target)}"
    if node.op == "get_attr":
        owner = node.graph.owning_module
        return _described(attrgetter(str(node.target))(owner)) if owner is not None else "?"
    return str(node.target)


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        layout = f"{[*value.shape]} {[*value.stride()]}"
        return f"{value.dtype} {layout} {value.device.type}"
    if isinstance(value, fx.GraphModule):
        return "; ".join(_lines(value.graph))
    return repr(value)
