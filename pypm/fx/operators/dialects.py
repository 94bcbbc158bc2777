"""Dialects: the operators that a graph uses at each stage of compilation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from torch import fx

from pypm.torch_internals import HigherOrderOperator, OpOverload

__all__ = [
    "EXPORT",
    "INDUCTOR",
    "JOINT",
    "POST_GRAD",
    "PRE_GRAD",
    "PROGRAM",
    "TORCH",
    "Dialect",
    "dialect_of",
]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The operators that a graph uses, and that its replacements must use."""

    name: str
    style: Literal["aten", "torch"]
    decompose: bool = False
    """True if replacements are decomposed by Inductor's table, as composites fail to lower."""
    reshape: bool = False
    """True if `view` is written `reshape`, as after Inductor's partitioning."""
    constants: bool = True
    """True if a replacement may add a tensor to the graph's module; functions it may always add."""
    is_differentiable: bool = True
    """True if autograd may still run through the graph: gradients that it cuts stay cut."""
    writes_stay: bool = True
    """False if AOTAutograd removes writes to memory before autograd runs: autograd refuses writes
    to values that it saved.
    """
    gradients_off: bool = False
    """True if the graph runs with gradients off, as bodies of `wrap_with_set_grad_enabled` may."""


TORCH: Final = Dialect("torch", "torch")
EXPORT: Final = Dialect("export", "aten")
PROGRAM: Final = Dialect("program", "aten", constants=False)
PRE_GRAD: Final = Dialect("pre_grad", "torch", constants=False, writes_stay=False)
JOINT: Final = Dialect("joint", "aten", is_differentiable=False)
INDUCTOR: Final = replace(JOINT, name="inductor", decompose=True, constants=False)
POST_GRAD: Final = replace(INDUCTOR, name="post_grad", reshape=True)


def dialect_of(graph: fx.Graph) -> Dialect:
    """Return the dialect of a graph that is not at one of Inductor's hooks."""
    examples = {id(node.target): node for node in graph.nodes}.values()
    calls = [node for node in examples if node.op.startswith("call_")]
    aten = all(
        node.op == "call_function"
        and (
            isinstance(node.target, (OpOverload, HigherOrderOperator))
            or getattr(node.target, "__module__", "") in ("_operator", "math")
        )
        for node in calls
    )
    return EXPORT if aten and any(hasattr(n.target, "_schema") for n in calls) else TORCH
