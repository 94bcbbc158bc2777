"""Metadata of nodes: the tensor or number that a node computes."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.node import Argument
from torch.fx.passes.shape_prop import TensorMetadata

from pypm.core.terms import Value
from pypm.fx.values.symbolic import is_symbolic, opaque, size
from pypm.torch_internals import FakeTensor

__all__ = [
    "is_number",
    "is_object",
    "metadata",
    "needs_gradient",
    "number",
    "storage",
    "tensor",
    "tracked",
    "unusual",
]


def metadata(node: fx.Node) -> Argument:
    """Return the value of a node's output that tracing recorded, or None if there is none.

    It is a fake tensor, a number (maybe symbolic), or a tuple or list of those.
    """
    meta = node.meta
    value: Argument = meta.get("val")
    return meta.get("example_value") if value is None else value


def needs_gradient(node: fx.Node) -> bool:
    """Return whether the value is known to need a gradient."""
    value = metadata(node)
    return isinstance(value, torch.Tensor) and value.requires_grad


def storage(value: torch.Tensor) -> int | None:
    """Return the identity of a tensor's storage; None if it has none, as a sparse tensor, or hides
    it, as a tensor inside a transform of `torch.func`.
    """
    try:
        return int(value.untyped_storage()._cdata)
    except NotImplementedError:
        return None


def unusual(value: Argument) -> str | None:
    """Return the kind of a tensor that is not dense, has no strides, or is of a class that runs
    operators in its own way; None for others, and for a tuple or list that holds none.
    """
    if isinstance(value, (tuple, list)):
        return next(filter(None, map(unusual, value)), None)
    if not isinstance(value, torch.Tensor):
        return None
    if value.layout is not torch.strided:
        return f"a tensor of layout `{value.layout}`"
    if isinstance(value, FakeTensor):
        return None
    if value.is_nested:
        return "a nested tensor"
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"a tensor of the class `{type(value).__qualname__}`"
    return None


def tracked(value: Argument) -> Argument:
    """Return a fake value as one that needs a gradient, if its type can."""
    if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        return value.detach().requires_grad_()
    if isinstance(value, (tuple, list)):
        return type(value)(tracked(part) for part in value)
    return value


def tensor(node: fx.Node) -> Argument | TensorMetadata:
    """Return the fake value of a node's output, else its `TensorMetadata`, else None."""
    value = metadata(node)
    return node.meta.get("tensor_meta") if value is None else value


def number(node: fx.Node) -> Value:
    """Return the number that a node computes: a Python number, or symbolic; opaque without
    metadata.
    """
    return size(metadata(node)) if is_number(node) else opaque(node)


def is_number(node: fx.Node) -> bool:
    """Return whether a node computes a number, such as a size, and not a tensor."""
    if node.op == "output":
        return False
    value = metadata(node)
    return is_symbolic(value) or isinstance(value, (bool, int, float))


def is_object(node: fx.Node) -> bool:
    """Return whether a node's value is known to be no tensor, number or list of these.

    Inputs of graphs may be such objects, for example of torch's opaque types.
    """
    value = metadata(node)
    is_other = value is None or isinstance(value, (torch.Tensor, tuple, list))
    return not (is_other or is_number(node))
