"""Operators of random graphs, each with its signature in the words of `coq/oracle/rewrites.ml`.

Strides decide what the operators of `BY_STRIDES` give: samples fill memory in its order,
`as_strided` reads in its order, and `view` raises for some strides. Other samples are contiguous.

The signatures are written down here by hand, so that PyPM's own tables are judged as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.amp import autocast_mode

from pypm.fx import declare
from tests.hunt.outcomes import NOTES

__all__ = ["BY_STRIDES", "KINDS", "OPERATORS", "SIGNATURES", "Operator", "note"]

aten = torch.ops.aten


def note(x: Tensor) -> Tensor:
    """Write down a value, which is an effect, and return a copy. A trace shows an assertion."""
    if type(x) is Tensor:
        NOTES.append(hash((*x.flatten().tolist(),)))
    aten._assert_async.msg(aten.all.default(aten.eq.Tensor(x, x)), "a number")
    return x.clone()


declare(note, acts=True)


@dataclass(frozen=True)
class Operator:
    """One way to call an operator: a target, how many tensors it takes, and what follows them."""

    target: Callable[..., Any]
    tensors: int
    signature: str
    rest: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *operands: Any) -> Any:
        return self.target(*operands, *self.rest, **self.options)

    def node(self, graph: fx.Graph, *operands: fx.Node, name: str | None = None) -> fx.Node:
        """Append a call to a graph."""
        args = (*operands, *self.rest)
        return graph.create_node("call_function", self.target, args, dict(self.options), name=name)


OPERATORS: Final = {
    "neg": Operator(aten.neg.default, 1, "f"),
    "abs": Operator(aten.abs.default, 1, "f"),
    "maximum": Operator(aten.maximum.default, 2, "f"),
    "minimum": Operator(aten.minimum.default, 2, "f"),
    "mm": Operator(aten.mm.default, 2, "f"),
    "clone": Operator(aten.clone.default, 1, "f"),
    "t": Operator(aten.t.default, 1, "v0"),
    "alias": Operator(aten.alias.default, 1, "v0"),
    "row": Operator(aten.select.int, 1, "v0", (0, 0)),
    "rows": Operator(aten.slice.Tensor, 1, "v0", (0, 0, 1)),
    "contiguous": Operator(aten.contiguous.default, 1, "m0"),
    "reshape": Operator(aten.reshape.default, 1, "m0", ([-1],)),
    "as_strided": Operator(aten.as_strided.default, 1, "v0", ([4], [1])),
    "view": Operator(aten.view.default, 1, "v0", ([-1],)),
    "neg_": Operator(aten.neg_.default, 1, "v0;w0"),
    "copy_": Operator(aten.copy_.default, 2, "v0;w0"),
    "fill_": Operator(aten.fill_.Scalar, 1, "v0;w0", (3.0,)),
    "rand_like": Operator(
        aten.rand_like.default, 1, "f;d", options={"memory_format": torch.contiguous_format}
    ),
    "rand_by_strides": Operator(aten.rand_like.default, 1, "f;d"),
    "note": Operator(note, 1, "f;a"),
    "seed": Operator(torch.manual_seed, 0, "f;s;d", (7,)),
    "set_grad": Operator(torch._C._set_grad_enabled, 0, "f;s", (False,)),
    "enter": Operator(autocast_mode._enter_autocast, 0, "f;s", ("cpu", torch.bfloat16, True, None)),
    "exit": Operator(autocast_mode._exit_autocast, 1, "f;s"),
    "sort": Operator(aten.sort.default, 1, "f"),
    "item": Operator(getitem, 1, "f", (0,)),
}

SIGNATURES: Final = {operator.target: operator.signature for operator in OPERATORS.values()} | {
    torch.clone: "f",
    torch.permute: "v0",
    aten.permute.default: "v0",
}
"""Also those that PyPM adds to copy a value or to restore its strides."""

KINDS: Final = {
    "computes": ("neg", "abs", "maximum", "minimum", "clone"),
    "views": ("t", "alias", "row", "rows", "contiguous", "reshape"),
    "writes": ("neg_", "copy_", "fill_"),
    "draws": ("rand_like",),
    "acts": ("note",),
    "switches": ("seed", "set_grad"),
}
BY_STRIDES: Final = {"rand_like": "rand_by_strides", "reshape": "view", "alias": "as_strided"}
"""Operators, and others whose value or success depends on strides."""
