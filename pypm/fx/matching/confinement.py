"""Confinement of a search to nodes that a legal region can contain.

Only views and constants of a legal region have users outside of it. So a search from a root does
not visit a node with a user that no region of the rule can contain: legality would refuse each
answer that visits it, as an escape. No other answer is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pypm.fx.legality.region import Refusal
from pypm.fx.operators.effects import is_view
from pypm.fx.subject.calls import is_constant
from pypm.fx.subject.view import node_of

if TYPE_CHECKING:
    from torch import fx

    from pypm.fx.subject.view import View
    from pypm.match.compile.extent import Extent
    from pypm.match.search_state import Subject

__all__ = ["Confinement"]


class Confinement:
    """The nodes that regions of one rule with one root can contain."""

    def __init__(self, view: View, root: fx.Node, extent: Extent, absorb: str | None) -> None:
        self._view = view
        self._root = root
        self._extent = extent
        self._absorb = absorb
        self._outside: dict[fx.Node, fx.Node | None] = {root: None}
        """The result of `_escape` for each node that was asked about."""
        self.refusal: Refusal | None = None
        """The refusal of the first node that was not admitted; None if all were."""

    def admits(self, subject: Subject) -> bool:
        """Return whether an answer that visits an operator at this subject could be legal."""
        node = node_of(subject)
        if node is None or node is self._root:
            return True
        if len(node.users) == 1 and self._outside.get(next(iter(node.users)), node) is None:
            self._outside[node] = None  # as for its only user
            return True
        if is_view(node) or is_constant(node):
            return True
        user = self._escape(node)
        if user is None:
            return True
        if self.refusal is None:
            reason = f"`{node}` is also used by `{user}`, outside of the match"
            self.refusal = Refusal("escape", reason, (node, user))
        return False

    def _escape(self, node: fx.Node) -> fx.Node | None:
        """Return a direct or indirect user of `node` that no region can contain, or None."""
        if node in self._outside:
            return self._outside[node]
        # Users come later in the graph, so the recursion is over paths from the node to the root.
        path = [node]
        while path:
            at = path[-1]
            users = self._view.users(at)
            found = next((u for u in users if not self._may_hold(u)), None)
            if found is None and not users:
                found = at
            open_users = [] if found else [u for u in users if u not in self._outside]
            if open_users:
                path.append(open_users[0])
                continue
            if found is None:
                found = next((self._outside[u] for u in users if self._outside[u]), None)
            self._outside[at] = found
            path.pop()
        return self._outside[node]

    def _may_hold(self, user: fx.Node) -> bool:
        """Return whether the operator of a user allows it to be in the region."""
        if user is self._root:
            return True
        if user.op == "output" or user > self._root:
            return False
        name, tags = self._view.operator(user)
        return self._extent.admits(name, tags) or self._absorb in tags
