"""Nodes to visit: those that wait, and those near a change."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from pypm.fx.subject.view import View

__all__ = ["Worklist"]


class Worklist:
    """The nodes at which some rules may match anew, as the graph changes."""

    def __init__(self, view: View, reach: float) -> None:
        """`reach` is how far below its root any match can look."""
        self._view = view
        self._reach = reach
        self.waiting = view.starts
        """Nodes to visit, in graph order."""
        self._touched: set[fx.Node] = set()
        """Nodes that were changed since `take` was last called."""

    def touch(self, nodes: Iterable[fx.Node]) -> None:
        """Remember nodes that are new, read other nodes, or have other users."""
        self._touched.update(nodes)

    def take(self) -> list[fx.Node]:
        """Remove and return the nodes to visit, in graph order.

        These are the ones that wait, the nodes that were changed, and the transitive users of
        these, as far as the rules that may match at a user look down from it.
        """
        waiting, self.waiting = self.waiting, []
        seen, self._touched = self._touched, set()
        if not seen:
            return waiting
        view, found = self._view, set(waiting)
        level, distance = list(seen), 0
        while level and distance <= self._reach:
            following: list[fx.Node] = []
            for node in level:
                if node in view.dead:
                    continue
                if view.states[node].reach >= distance:
                    found.add(node)
                fresh = [user for user in node.users if user not in seen]
                seen.update(fresh)
                following += fresh
            level, distance = following, distance + 1
        return sorted(node for node in found if node.op.startswith("call_"))
