"""Linear layers with an epilogue: oneDNN's fused kernel, or the whole region in float32."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from pypm.fx import describe, metadata
from pypm.fx.operators.corrections import CASTS
from pypm.fx.operators.effects import is_sure_view
from pypm.kernels.support.activations import ACTIVATIONS
from pypm.kernels.support.registration import Gradients, Needed, Saved, custom_operator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ONEDNN",
    "has_fast_bfloat16",
    "in_float32",
    "linear_in_float32",
    "linear_pointwise",
    "reference",
]

ONEDNN: Final = {
    "none": ("none", ""),
    **{name: each.onednn for name, each in ACTIVATIONS.items()},
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

    It is for float32, and for bfloat16 if `has_fast_bfloat16()`; other types and empty operands
    are computed by `reference`.
    """
    is_known = x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and has_fast_bfloat16())
    if not is_known or not (x.numel() and weight.numel()):
        return reference(x, weight, bias, other, activation)
    x, weight = _apart(x), _apart(weight)
    fused = torch.ops.mkldnn._linear_pointwise
    bias = None if bias is None else bias.contiguous()  # the kernel looks at no stride of it
    if other is not None:
        result: Tensor = fused.binary(x, _apart(other), weight, bias, "add")
        return result
    attribute, algorithm = ONEDNN[activation]
    result = fused(x, weight, bias, attribute, [], algorithm)
    return result.relu_() if activation == "relu" else result


def _apart(x: Tensor) -> Tensor:
    """Return x [rows, columns]; a copy if rows or columns overlap, which oneDNN refuses."""
    (rows, columns), (down, across) = x.shape, x.stride()
    is_apart = (across == 1 and down >= columns) or (down == 1 and across >= rows)
    return x if is_apart else x.contiguous()


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
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def saves(inputs: Saved, output: Tensor, needed: Needed) -> Saved:
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


def flops(
    x: Sequence[int], weight: Sequence[int], *rest: object, out_shape: Sequence[int] | None = None
) -> int:
    """Return the FLOPs of the product, from the shapes of its operands."""
    return 2 * prod(x) * weight[0]


def misfit(other: Tensor | None, activation: str) -> str | None:
    """Return why there is no such epilogue, or None."""
    known = ["none"] if other is not None else list(ONEDNN)
    place = "beside `other`" if other is not None else "here"
    found = f"`activation` is {activation!r}; {place} it must be one of {', '.join(known)}"
    return None if activation in known else found


linear_pointwise = custom_operator(
    "pypm::linear_pointwise",
    launch,
    outputs=empty,
    operands={
        "x": "[n, in] T",
        "weight": "[out, in] T",
        "bias": "[out] T?",
        "other": "[n, out] T?",
    },
    requires=misfit,
    reference=reference,
    gradients=Gradients(backward, saves),
    device="cpu",
    flops=flops,
)


# --- products in float32 -------------------------------------------------------------------------


def widened(x: Tensor, weight: Tensor, bias: Tensor | None, rounds: bool) -> Tensor:
    """Return x weight^T + bias, in float32 or wider, as [..., out]; if `rounds`, in x's type.

    x [..., in], weight [out, in], bias [out] or [1]. The operands are cast inside: a compiler would
    fuse the casts with what is around each product, and generate a kernel for each place.
    """
    wide = _wide(x)
    y = F.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide))
    return y.to(x.dtype) if rounds else y


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def empty_widened(x: Tensor, weight: Tensor, rounds: bool) -> Tensor:
    dtype = x.dtype if rounds else _wide(x)
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)


def widened_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, rounds: bool, grad: Tensor
) -> tuple[Tensor | None, ...]:
    wide = _wide(x)
    grad = grad.to(wide)
    rows = grad.flatten(0, -2) if grad.dim() > 1 else grad.unsqueeze(0)
    to_x = (grad @ weight.to(wide)).to(x.dtype)
    items = x.to(wide).flatten(0, -2) if x.dim() > 1 else x.to(wide).unsqueeze(0)
    to_weight = (rows.t() @ items).to(weight.dtype)
    to_bias = None if bias is None else rows.sum_to_size(*bias.shape).to(bias.dtype)
    return to_x, to_weight, to_bias, None


linear_in_float32 = custom_operator(
    "pypm::linear_in_float32",
    widened,
    outputs=empty_widened,
    operands={"x": "[*rows, in] float", "weight": "[out, in] float", "bias": "[out|1] float?"},
    gradients=Gradients(widened_backward),
    flops=flops,
)


class _Float32(fx.Interpreter):
    """An interpreter that computes every bfloat16 value of a graph as float32."""

    def __init__(self, region: fx.GraphModule, given: Mapping[fx.Node, Tensor], *, rounds: bool):
        super().__init__(region)
        self._given = given
        self._rounds = rounds

    def run_node(self, n: fx.Node) -> object:
        if _is_linear(n):
            x, w, b = _operands(n)
            weight = self._given[w] if _name(n) == "aten.linear" else self._given[w].t()
            bias = None if b is None else self._given[b]
            return linear_in_float32(self._given[x], weight, bias, self._rounds)
        if _rounds(n):
            (source,) = n.all_input_nodes
            return self.env[source].to(torch.float32)
        return super().run_node(n)


def _name(node: fx.Node) -> str:
    return describe(node).operator.name if node.op.startswith("call_") else ""


def _is_bfloat16(node: fx.Node) -> bool:
    value = metadata(node)
    return isinstance(value, Tensor) and value.dtype == torch.bfloat16


def _rank(node: fx.Node) -> int | None:
    value = metadata(node)
    return value.dim() if isinstance(value, Tensor) else None


def _rounds(node: fx.Node) -> bool:
    """Return whether the node is a cast to bfloat16."""
    return _name(node) in CASTS and _is_bfloat16(node)


def _operands(product: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None]:
    """Return the rows, the weight and the bias of a product."""
    args = cast("tuple[fx.Node, ...]", product.args)
    if _name(product) == "aten.addmm":
        return args[1], args[2], args[0]
    return args[0], args[1], args[2] if len(args) > 2 else None


def _is_linear(node: fx.Node) -> bool:
    """Return whether the node is a product of inputs, with a bias for each output or without."""
    if _name(node) not in ("aten.addmm", "aten.linear", "aten.mm") or node.kwargs:
        return False
    x, weight, bias = _operands(node)
    return (
        _is_input(x)
        and _is_input(weight)
        and _rank(weight) == 2
        and (bias is None or (_is_input(bias) and _rank(bias) == 1))
    )


def _is_input(operand: fx.Node) -> bool:
    return operand.op == "placeholder" and _is_bfloat16(operand)


def in_float32(region: fx.GraphModule, inputs: Sequence[Any]) -> Tensor:
    """Return a region's result, computed in float32 throughout and rounded once, to bfloat16.

    Arguments:
        region: the region as a graph module with one output.
        inputs: the values of its placeholders, in order: tensors, and sizes that it reads.

    The result is more accurate than the region itself, which rounds after every operator.
    """
    given = dict(zip(region.graph.find_nodes(op="placeholder"), inputs, strict=True))
    wide = [
        x.float() if _is_bfloat16(node) and not all(map(_is_linear, node.users)) else x
        for node, x in given.items()
    ]
    calls = [node for node in region.graph.nodes if node.op.startswith("call_")]
    is_alone = all(_is_linear(node) or is_sure_view(node) for node in calls)
    result: Tensor = _Float32(region, given, rounds=is_alone).run(*wide)
    return result if is_alone else result.to(torch.bfloat16)
