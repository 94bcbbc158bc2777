"""Gradients that calls cut, and views that autograd does not know."""

from __future__ import annotations

from torch import fx

from pypm.fx.operators import known_effects as known
from pypm.fx.operators.targets import resolve

__all__ = ["cuts_gradient", "has_tangents", "is_untracked_view"]


def cuts_gradient(node: fx.Node) -> bool:
    """Return whether the value is cut off from a gradient that an argument may need."""
    if node.op not in ("call_function", "call_method"):
        return False
    target = resolve(node.op, node.target)
    name = target.candidates[0].packet_name if target.candidates else target.operator.name
    is_data = name == "builtins.getattr" and node.args[1:] == ("data",)
    if name not in known.CUTS and not is_data:
        return False
    given = node.all_input_nodes[0].meta.get("example_value")  # other metadata does not tell
    return given is None or given.requires_grad or has_tangents(node.graph)


def has_tangents(graph: fx.Graph) -> bool:
    """Return whether a graph differentiates forward: its tensors may have tangents."""
    return any(getattr(node.target, "__name__", "") in known.DUALS for node in graph.nodes)


def is_untracked_view(node: fx.Node) -> bool:
    """Return whether the value shares memory with an argument while autograd treats it as fresh."""
    if node.op not in ("call_function", "call_method"):
        return False
    candidates = resolve(node.op, node.target).candidates
    return bool(candidates) and candidates[0].packet_name in known.VIEWS
