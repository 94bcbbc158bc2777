"""The order of a graph, in which a node comes after those it reads."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx.subject.transaction import Transaction

__all__ = ["check_order", "put_in_order"]


def check_order(graph: fx.Graph) -> None:
    """Raise PyPMError where a node reads one that comes after it."""
    node = _misplaced(graph)
    if node is not None:
        message = f"the graph is not in order: `{node}` reads a node that comes after it"
        raise PyPMError(Diagnostic(message, help="`pypm.fx.rewrite(gm, [])` puts it in order"))


def put_in_order(graph: fx.Graph, transaction: Transaction) -> bool:
    """Sort a graph that is not in order, and return whether it was not.

    A node that reads later ones follows the last of them, and the others stay in their order, as
    with torch's own pattern matcher. Raises PyPMError where nodes read each other in a cycle.
    """
    if _misplaced(graph) is None:
        return False
    order = _sorted(graph)
    transaction.keep(graph)
    last = graph._root
    for node in order:
        if last.next is not node:
            last.append(node)
        last = node
    return True


def _sorted(graph: fx.Graph) -> list[fx.Node]:
    order: dict[fx.Node, None] = {}
    waiting: dict[fx.Node, list[fx.Node]] = {}
    todo = [*reversed(graph.nodes)]
    while todo:
        node = todo.pop()
        missing = [source for source in node.all_input_nodes if source not in order]
        if missing:
            waiting.setdefault(missing[-1], []).append(node)
        else:
            order[node] = None
            todo += reversed(waiting.pop(node, []))
    if waiting:
        raise PyPMError(_cycle({node: source for source in waiting for node in waiting[source]}))
    return [*order]


def _cycle(waits: Mapping[fx.Node, fx.Node]) -> Diagnostic:
    """Return a diagnostic for nodes each of which reads a later one."""
    path = [next(iter(waits))]
    while (source := waits[path[-1]]) not in path:
        path.append(source)
    cycle = [*path[path.index(source) :], source]
    reads = " reads ".join(f"`{node}`" for node in cycle)
    return Diagnostic(f"nodes of the graph read each other: {reads}", help="no order computes them")


def _misplaced(graph: fx.Graph) -> fx.Node | None:
    """Return the first node that reads one that comes after it."""
    seen: set[fx.Node] = set()
    node: fx.Node
    for node in graph.nodes:
        if not seen.issuperset(node._input_nodes):
            return node
        seen.add(node)
    return None
