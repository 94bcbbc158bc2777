"""Inner graphs: the branches and loop bodies that higher-order operators run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from torch import fx

from pypm.fx.subject.autocast import entered_at
from pypm.torch_internals import HigherOrderOperator

__all__ = ["ENTERED", "InnerGraph", "bodies"]

ENTERED: Final = frozenset({"cond", "map_impl", "scan", "while_loop", "wrap_with_set_grad_enabled"})
"""Operators that run their bodies as they are.

Others may require more of a body than to compute the same: `associative_scan` that it works element
by element, `wrap_with_autocast` that its operators are those whose inputs it converts.
"""


@dataclass(frozen=True)
class InnerGraph:
    """A graph module that a call in another graph runs."""

    path: str
    module: fx.GraphModule
    operator: str
    """The name of the higher-order operator."""
    gradients_off: bool
    """True if an operator around the body switches gradients off."""
    under_autocast: bool
    """True if the graph around the body switches autocast on: what the body computes is unknown."""

    @property
    def is_entered(self) -> bool:
        return self.operator in ENTERED and not self.under_autocast


def bodies(
    module: fx.GraphModule, prefix: str = "", *, gradients_off: bool = False
) -> Iterator[InnerGraph]:
    """Yield the bodies of a graph and of the bodies that are entered, once for each call."""
    for node in module.graph.nodes:
        if not isinstance(node.target, HigherOrderOperator):
            continue
        name, off = node.target._name, gradients_off
        if name == "wrap_with_set_grad_enabled":
            off = not node.args[0]
        for source in node.all_input_nodes:
            if source.op != "get_attr":
                continue
            held = attrgetter(str(source.target))(module)
            if isinstance(held, fx.GraphModule):
                body = InnerGraph(
                    f"{prefix}{source.target}", held, name, off, bool(entered_at(node))
                )
                yield body
                if body.is_entered:
                    yield from bodies(held, f"{body.path}.", gradients_off=off)
