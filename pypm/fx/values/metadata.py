"""Metadata of nodes: the tensor or number that a node computes."""

from __future__ import annotations

from typing import Any

from torch import fx

from pypm.fx.values.symbolic import is_symbolic, opaque, size

__all__ = ["is_number", "metadata", "number", "tensor"]


def metadata(node: fx.Node) -> Any:
    """The fake value of a node's output as tracing recorded it, or None."""
    meta = node.meta
    value = meta.get("val")
    return meta.get("example_value") if value is None else value


def tensor(node: fx.Node) -> Any:
    """The fake value of a node's output, or torch's summary of the tensor that it is, or None."""
    value = metadata(node)
    return node.meta.get("tensor_meta") if value is None else value


def number(node: fx.Node) -> object:
    """The number a node stands for: a Python number, or symbolic; opaque without metadata."""
    return size(metadata(node)) if is_number(node) else opaque(node)


def is_number(node: fx.Node) -> bool:
    """Whether a node computes a number, such as a size, and no tensor."""
    if node.op == "output":
        return False
    value = metadata(node)
    return is_symbolic(value) or isinstance(value, (bool, int, float))
