"""Nodes that compute the same: those of one term, wherever they are in the graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pypm.core.operators import LITERAL

if TYPE_CHECKING:
    from torch import fx

    from pypm.fx.subject.view import Occurrence, View

__all__ = ["equal_nodes"]


def equal_nodes(view: View, node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the node and all others of its term.

    Equal nodes have equal children. So those of a node are among the users of those of one child,
    found first; the chain of children ends at a node that has none, or that was asked about before.
    """
    known = view.equal
    chain = [node]
    while chain[-1] not in known and (child := _child(view.occurrence(chain[-1]))) is not None:
        chain.append(child)
    for at, below in zip(reversed(chain), [None, *reversed(chain)], strict=False):
        if at not in known:
            known[at] = (at, *_others(view, at, _near(view, at, below)))
    return known[node]


def _child(at: Occurrence) -> fx.Node | None:
    """Return the first node of the graph among the children, or None.

    A node whose value is a number does not count: an equal node may have the number itself there.
    """
    todo, found = [*at.children], []
    while todo:
        child = todo.pop()
        if child.node is None:
            todo += child.children
        elif child.operator is not LITERAL:
            found.append(child.node)
    return min(found, default=None)


def _near(view: View, node: fx.Node, child: fx.Node | None) -> Iterable[fx.Node]:
    """Return the candidates for equal nodes, given a child whose equal nodes are known."""
    if child is None:
        inputs = node.op in ("placeholder", "get_attr")
        return view.graph.find_nodes(op=node.op, target=node.target) if inputs else view.graph.nodes
    return {user for equal in view.equal[child] for user in equal.users}


def _others(view: View, node: fx.Node, near: Iterable[fx.Node]) -> Iterable[fx.Node]:
    """Yield the other nodes of the same term among those in `near`."""
    name, term = view.operator(node)[0], view.occurrence(node).term
    for other in near:
        if other is node or other.op == "output" or other in view.dead:
            continue
        if view.operator(other)[0] == name and view.occurrence(other).term is term:
            yield other
