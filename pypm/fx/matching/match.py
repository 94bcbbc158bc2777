"""One match of a rule: its bindings, its roots and its region."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from pypm.fx.legality.region import Region

__all__ = ["Match"]


@dataclass(frozen=True)
class Match:
    """One match: `find` returns it, and a rule's body receives it as its parameter `match`.

    In a body the values in `bindings`, `inputs` and `side_inputs` are traced; elsewhere they are
    nodes. A body's result may depend on these, and on what `region.module` computes.
    """

    rule: str
    bindings: Mapping[str, object]
    """By the name of the variable: a tensor, a number or None, an operator, a tuple of those."""
    roots: tuple[fx.Node | None, ...]
    """The outputs of the region; None for one that the graph does not have."""
    region: Region
    inputs: tuple[object, ...]
    """The arguments of `region.module`: the variables in order, then the side inputs."""
    side_inputs: tuple[object, ...]
    exact: bool = False
    """True if only rewrites that keep every value, NaN included, are accepted."""

    @property
    def root(self) -> fx.Node:
        """Return the first output that the graph has."""
        return next(root for root in self.roots if root is not None)
