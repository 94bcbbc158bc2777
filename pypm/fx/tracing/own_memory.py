"""Bodies that write memory which they allocated, traced without these writes."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from pypm.fx.operators.effects import is_pure, reads_old_memory
from pypm.torch_internals import FunctionalTensorMode, dispatch_functionalize

__all__ = ["functional", "remove_dead_code"]


def functional(body: Callable[..., object], pre_dispatch: bool) -> Callable[..., object]:
    """Return a body whose trace has a new value in place of each write.

    Writes to arguments would be lost: `writes_own_memory` must hold for the trace of `body`.
    """
    mode = FunctionalTensorMode(pre_dispatch=pre_dispatch)
    changed: Callable[..., object] = dispatch_functionalize(body, mode)
    return changed


def remove_dead_code(graph: fx.Graph) -> None:
    """Remove calls that only compute, or only allocate, and whose values have no users."""
    for node in reversed(graph.nodes):
        is_removable = is_pure(node) or reads_old_memory(node)
        if node.op.startswith("call_") and not node.users and is_removable:
            graph.erase_node(node)
