"""Linear layers with an epilogue: oneDNN's fused kernel, or the whole region in float32."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from pypm.fx import describe, metadata
from pypm.fx.operators.tables import CASTS
from pypm.kernels.support.activations import ACTIVATIONS
from pypm.kernels.support.registration import Gradients, custom_operator

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ONEDNN",
    "has_fast_bfloat16",
    "in_float32",
    "linear_pointwise",
    "reference",
]

ONEDNN: Final = {
    "none": ("none", ""),
    **{name: each.onednn for name, each in ACTIVATIONS.items() if each.onednn is not None},
}
"""Activations of oneDNN's kernel: the attribute and the algorithm of each."""


@cache
def has_fast_bfloat16() -> bool:
    """Return whether this CPU has instructions that multiply bfloat16 matrices.

    Otherwise torch falls back to a reference loop that is many times slower than float32.
    """
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, activation: str
) -> Tensor:
    """Return what `reference` returns, by one oneDNN kernel.

    All operands have one type: float32, or bfloat16 if `has_fast_bfloat16()`.
    """
    fused = torch.ops.mkldnn._linear_pointwise
    bias = None if bias is None else bias.contiguous()  # the kernel looks at no stride of it
    if other is not None:
        result: Tensor = fused.binary(x, other, weight, bias, "add")
        return result
    attribute, algorithm = ONEDNN[activation]
    result = fused(x, weight, bias, attribute, [], algorithm)
    return result.relu_() if activation == "relu" else result


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, activation: str
) -> Tensor:
    """Return activation(x weight^T + bias) + other, as [N, out].

    x [N, in], weight [out, in], bias [out], other [N, out]; `activation` is a key of `ONEDNN`, and
    "none" if `other` is given.
    """
    y = F.linear(x, weight, bias)
    if other is not None:
        return y + other
    return y if activation == "none" else ACTIVATIONS[activation].torch(y)


def empty(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def saves(inputs: tuple[object, ...], output: Tensor, needed: object) -> tuple[object, ...]:
    """Return the inputs, with `other` replaced by whether it is given."""
    x, weight, bias, other, activation = inputs
    return x, weight, bias, other is not None, activation


def backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, has_other: bool, activation: str, grad: Tensor
) -> tuple[Tensor | None, ...]:
    other = grad if has_other else None
    if activation != "none":
        grad = ACTIVATIONS[activation].backward(grad, F.linear(x, weight, bias))
    to_bias = None if bias is None else grad.sum(0)
    return grad @ weight, grad.t() @ x, to_bias, other, None


def flops(x: Sequence[int], weight: Sequence[int], *rest: object, out_shape: object = None) -> int:
    """Return the FLOPs of the product, from the shapes of its operands."""
    return 2 * x[0] * x[1] * weight[0]


linear_pointwise = custom_operator(
    "pypm::linear_pointwise",
    launch,
    outputs=empty,
    gradients=Gradients(backward, saves),
    device="cpu",
    flops=flops,
)


# --- regions in float32 --------------------------------------------------------------------------


class _Float32(fx.Interpreter):
    """An interpreter that computes every bfloat16 value of a graph as float32."""

    def run_node(self, n: fx.Node) -> object:
        if _rounds(n):
            (source,) = n.all_input_nodes
            return self.env[source].to(torch.float32)
        return super().run_node(n)


def _rounds(node: fx.Node) -> bool:
    """Return whether the node is a cast to bfloat16."""
    is_cast = node.op.startswith("call_") and describe(node).operator.name in CASTS
    value = metadata(node)
    return is_cast and isinstance(value, Tensor) and value.dtype == torch.bfloat16


def in_float32(region: fx.GraphModule, inputs: Sequence[Any]) -> Tensor:
    """Return a region's result, computed in float32 throughout and rounded once, to bfloat16.

    Arguments:
        region: the region as a graph module with one output.
        inputs: the values of its placeholders, in order: tensors, and sizes that it reads.

    The result is more accurate than the region itself, which rounds after every operator.
    """
    placeholders = region.graph.find_nodes(op="placeholder")
    wide = [
        x.float() if getattr(metadata(node), "dtype", None) == torch.bfloat16 else x
        for node, x in zip(placeholders, inputs, strict=True)
    ]
    result: Tensor = _Float32(region).run(*wide)
    return result.to(torch.bfloat16)
