"""Values between stages: what is sent is contiguous, and what arrives has its strides back."""

from __future__ import annotations

import torch
from torch import fx

from pypm.fx import metadata
from pypm.fx.values.symbolic import hint

__all__ = ["memory_order", "received_value", "sent_value"]


def sent_value(graph: fx.Graph, node: fx.Node, order: list[int]) -> fx.Node:
    """Return a contiguous copy, with its dimensions in an order: what is sent may not be a view,
    which cannot be detached.
    """
    form = torch.contiguous_format
    node = _permuted(graph, node, order)
    clone = torch.ops.aten.clone.default
    made = graph.call_function(clone, (node,), {"memory_format": form})
    value = metadata(node)
    if isinstance(value, torch.Tensor):
        made.meta["val"] = value.clone(memory_format=form)
    return made


def received_value(graph: fx.Graph, node: fx.Node, order: list[int]) -> fx.Node:
    """Return what was sent with its dimensions as they were before."""
    value = metadata(node)
    if isinstance(value, torch.Tensor):
        node.meta["val"] = value.permute(order).clone(memory_format=torch.contiguous_format)
    return _permuted(graph, node, sorted(order, key=order.__getitem__))


def _permuted(graph: fx.Graph, node: fx.Node, order: list[int]) -> fx.Node:
    if order == sorted(order):
        return node
    made = graph.call_function(torch.ops.aten.permute.default, (node, order))
    value = metadata(node)
    if isinstance(value, torch.Tensor):
        made.meta["val"] = value.permute(order)
    return made


def memory_order(node: fx.Node) -> list[int]:
    """Return the dimensions of a tensor from the outermost in memory to the innermost: views of
    later stages were traced for its strides.
    """
    value = metadata(node)
    assert isinstance(value, torch.Tensor)
    strides = [hint(each) or 0 for each in value.stride()]
    dims = range(value.dim())
    return [*dims] if 0 in strides else sorted(dims, key=strides.__getitem__, reverse=True)
