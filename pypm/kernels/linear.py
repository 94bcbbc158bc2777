"""Linear layers with what follows them: oneDNN's fused kernel, or the whole region in float32."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from pypm.fx.operators import describe
from pypm.fx.view import metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ACTIVATIONS",
    "has_fast_bfloat16",
    "in_float32",
    "linear_pointwise",
    "reference",
]

ACTIVATIONS: Final[dict[str, tuple[str, str]]] = {
    "none": ("none", ""),
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
}
"""The activations of `linear_pointwise`, as oneDNN's attribute and algorithm."""


@cache
def has_fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices by instructions of its own.

    Elsewhere torch falls back to a reference loop that is many times slower than float32.
    """
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@torch.library.custom_op("pypm::linear_pointwise", mutates_args=(), device_types="cpu")
def linear_pointwise(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, activation: str
) -> Tensor:
    """activation(x weight^T + bias), plus `other` where given, in one oneDNN kernel.

    x [N, in], weight [out, in], bias [out], other [N, out], all of one type; float32, and
    bfloat16 where `has_fast_bfloat16()`. `other` goes with the activation "none" only.
    """
    fused: Any = torch.ops.mkldnn._linear_pointwise
    bias = None if bias is None else bias.contiguous()  # the kernel looks at no stride of it
    if other is not None:
        result: Tensor = fused.binary(x, other, weight, bias, "add")
        return result
    attribute, algorithm = ACTIVATIONS[activation]
    result = fused(x, weight, bias, attribute, [], algorithm)
    return result


@linear_pointwise.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, activation: str
) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, other, activation = inputs
    ctx.save_for_backward(x, weight, bias)
    ctx.has_other, ctx.activation = other is not None, activation


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    other = grad if ctx.has_other else None
    before = F.linear(x, weight, bias)
    match ctx.activation:
        case "relu":
            grad = torch.ops.aten.threshold_backward(grad, before, 0)
        case "gelu":
            grad = torch.ops.aten.gelu_backward(grad, before)
        case "gelu_tanh":
            grad = torch.ops.aten.gelu_backward(grad, before, approximate="tanh")
        case "silu":
            grad = torch.ops.aten.silu_backward(grad, before)
    to_bias = None if bias is None else grad.sum(0)
    return grad @ weight, grad.t() @ x, to_bias, other, None


linear_pointwise.register_autograd(_backward, setup_context=_save)


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, activation: str
) -> Tensor:
    """`linear_pointwise` in plain operators."""
    y = F.linear(x, weight, bias)
    if other is not None:
        return y + other
    match activation:
        case "relu":
            return F.relu(y)
        case "gelu":
            return F.gelu(y)
        case "gelu_tanh":
            return F.gelu(y, approximate="tanh")
        case "silu":
            return F.silu(y)
    return y


_CASTS: Final = frozenset({"prims.convert_element_type", "aten._to_copy", "aten.to"})


class _Float32(fx.Interpreter):
    """Runs a graph with every bfloat16 value as float32."""

    def run_node(self, n: fx.Node) -> Any:
        if _rounds(n):
            (source,) = n.all_input_nodes
            return self.env[source].to(torch.float32)
        return super().run_node(n)


def _rounds(node: fx.Node) -> bool:
    """Whether the node is a cast to bfloat16."""
    is_cast = node.op.startswith("call_") and describe(node).operator.name in _CASTS
    return is_cast and metadata(node).dtype == torch.bfloat16


def in_float32(region: fx.GraphModule, inputs: Sequence[Tensor]) -> Tensor:
    """A region computed in float32 throughout and rounded once, to bfloat16.

    Exacter than the region itself, which rounds after every operator.
    """
    wide = [x.float() if x.dtype == torch.bfloat16 else x for x in inputs]
    result: Tensor = _Float32(region).run(*wide)
    return result.to(torch.bfloat16)
