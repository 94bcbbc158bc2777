"""FLOPs of operators: those of torch's counter, and of the operators that it counts as none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from pypm.fx.operators.corrections import named
from pypm.roofline.regions import FLEX, Operation, numel, tensors
from pypm.roofline.sizes import Amount, Value, amount, amounts, least, product
from pypm.roofline.viewed_memory import Reached

__all__ = ["LEFT", "SOFTMAX", "Work", "attention_shape", "is_known", "work_of"]


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one call."""

    products: Amount = 0
    """FLOPs of matrix products."""
    vector: Amount = 0
    """Operations on elements that no algorithm saves: one for each exponential of a softmax."""
    operands: tuple[fx.Node, ...] = ()
    """The operands of the products; the type of the widest decides the unit."""


# --- products of two operands --------------------------------------------------------------------

LEFT: Final[Mapping[str, tuple[str, str]]] = {
    "aten.mm": ("self", "mat2"),
    "aten.bmm": ("self", "mat2"),
    "aten.matmul": ("self", "other"),
    "aten.linear": ("input", "weight"),
    "aten.mv": ("self", "vec"),
    "aten.dot": ("self", "tensor"),
    "aten.vdot": ("self", "other"),
    "aten.inner": ("self", "other"),
    "aten.addmm": ("mat1", "mat2"),
    "aten.addmv": ("mat", "vec"),
    "aten.baddbmm": ("batch1", "batch2"),
    "aten._int_mm": ("self", "mat2"),
    "aten._addmm_activation": ("mat1", "mat2"),
    "aten._scaled_mm": ("self", "mat2"),
    "aten._weight_int8pack_mm": ("self", "mat2"),
    "aten._weight_int4pack_mm": ("self", "mat2"),
    "aten._weight_int4pack_mm_for_cpu": ("self", "mat2"),
    "mkldnn._linear_pointwise": ("X", "W"),
}
"""Operators that compute one product, and the names of its operands. The last dimension of the
first operand is the one that is summed over."""


def _product(call: Operation, node: fx.Node) -> Work | None:
    left, right = (call.arguments.get(name) for name in LEFT[call.name])
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return None
    depth = _shape(left)[-1]
    return Work(2 * numel(node) * depth, 0, (left, right))


def _summed_products(call: Operation, node: fx.Node) -> Work | None:
    left, right = call.arguments["batch1"], call.arguments["batch2"]
    batch, _, depth = _shape(left)
    return Work(2 * numel(node) * batch * depth, 0, (left, right))


def _einsum(call: Operation, node: fx.Node) -> Work | None:
    """Count the product of two operands; labels of one operand alone are summed before."""
    operands = [n for n in call.arguments["tensors"] if isinstance(n, fx.Node)]
    terms, arrow, result = call.arguments["equation"].replace(" ", "").partition("->")
    labels = terms.split(",")
    if len(operands) != 2 or len(labels) != 2 or "." in terms:
        return None
    sizes: dict[str, Amount] = {}
    for term, operand in zip(labels, operands, strict=True):
        for label, size in zip(term, _shape(operand), strict=True):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    shared = set(labels[0]) & set(labels[1])
    if not arrow:
        result = "".join(label for label in sizes if terms.count(label) == 1)
    if not shared - set(result):
        return Work()
    return Work(2 * product(sizes[label] for label in shared | set(result)), 0, (*operands,))


# --- attention -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of one attention call."""

    pairs: Amount
    """Query-key pairs of all heads that are not left out by `is_causal`."""
    keys_seen: Amount
    """Keys of one head that some query sees."""
    keys: Amount
    key_width: Amount
    value_width: Amount
    mask: fx.Node | None


def attention_shape(call: Operation) -> AttentionShape:
    """Return the sizes of a call of attention, forward or backward."""
    given = call.arguments
    q, k, v = (_shape(given[name]) for name in ("query", "key", "value"))
    queries, keys = q[-2], k[-2]
    pairs, seen = queries * keys, keys
    if given.get("is_causal"):
        seen = queries if queries == keys else least(queries, keys)
        pairs = seen * (seen + 1) // 2 if isinstance(seen, int) else seen * (seen + 1) / 2
        pairs = pairs + (queries - seen) * keys
    mask = given.get("attn_mask", given.get("attn_bias"))
    return AttentionShape(
        product(q[:-2]) * pairs,
        seen,
        keys,
        q[-1],
        v[-1],
        mask if isinstance(mask, fx.Node) else None,
    )


def _attention(call: Operation, node: fx.Node) -> Work:
    of = attention_shape(call)
    operands = tuple(call.arguments[name] for name in ("query", "key", "value"))
    return Work(2 * of.pairs * (of.key_width + of.value_width), of.pairs, operands)


def _attention_backward(call: Operation, node: fx.Node) -> Work:
    """Count the products for the weights' gradient and for those of query, key and value.

    The scores count as known: they are, where the forward pass is in the same region.
    """
    of = attention_shape(call)
    gradient = call.arguments.get("grad_out", call.arguments.get("grad_out_"))
    operands = tuple(call.arguments[name] for name in ("query", "key", "value"))
    operands += (gradient,) if isinstance(gradient, fx.Node) else ()
    return Work(4 * of.pairs * (of.key_width + of.value_width), 0, operands)


SOFTMAX: Final = frozenset(("aten.softmax", "aten._softmax", "aten._safe_softmax"))


def _softmax(call: Operation, node: fx.Node) -> Work:
    return Work(0, Reached.by(tensors(call.arguments["self"])[0]).count)


_SDPA: Final = (
    *("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"),
    *("fused_attention_overrideable", "attention_math"),
)

# --- convolutions --------------------------------------------------------------------------------


def _convolution(call: Operation, node: fx.Node) -> Work | None:
    """Count a convolution as Winograd's algorithm F(4, r) computes it where that applies.

    Along a dimension of stride 1 it takes (r + 3) / 4 products for each result instead of r. Taps
    in the padding do not count.
    """
    given = call.arguments
    x, weight, out = _shape(given["input"]), _shape(given["weight"]), _shape(node)
    spatial = len(weight) - 2
    x, out = ((1,) * (spatial + 2 - len(shape)) + shape for shape in (x, out))
    stride, dilation = (_spread(given[name], spatial) for name in ("stride", "dilation"))
    padding = given.get("padding", 0)
    transposed = bool(given.get("transposed")) or "transpose" in call.name
    taps: Amount = 1
    for at in range(spatial):
        size, kernel, result = x[2 + at], weight[2 + at], out[2 + at]
        if not all(isinstance(n, int) for n in (size, kernel, result)):
            return Work(0, 0, (given["input"], given["weight"]))
        if transposed:
            count = min(size * kernel if kernel <= stride[at] else size, result)
        elif isinstance(padding, str):
            count = min(size, result)
        else:
            pad = _spread(padding, spatial)[at]
            starts = range(-pad, -pad + result * stride[at], stride[at])
            count = sum(_taps(start, kernel, dilation[at], size) for start in starts)
            if stride[at] == 1 and dilation[at] == 1 and kernel > 1:
                count = min(count, max(result * (kernel + 3) // 4, 1))
        taps = taps * count
    outputs = out[0] * out[1] if not transposed else x[0] * x[1]
    flops = 2 * outputs * weight[1] * taps
    return Work(flops, 0, (given["input"], given["weight"]))


def _taps(start: int, kernel: int, dilation: int, size: int) -> int:
    """Return how many taps of a kernel that begins at `start` are inside of [0, size)."""
    return sum(0 <= start + tap * dilation < size for tap in range(kernel))


def _spread(value: Value, count: int) -> list[int]:
    parts = list(value) if isinstance(value, (list, tuple)) else [value]
    return parts * count if len(parts) == 1 else parts


def _convolution_backward(call: Operation, node: fx.Node) -> Work:
    """Count each gradient as the products of a 1 x 1 convolution, the least that it needs."""
    given = call.arguments
    gradient, weight = _shape(given["grad_output"]), _shape(given["weight"])
    wanted = sum(map(bool, given["output_mask"][:2]))
    each = 2 * product(gradient) * (weight[0] if given["transposed"] else weight[1])
    is_strided = any(n != 1 for n in given["stride"])
    return Work(0 if is_strided else wanted * each, 0, (given["grad_output"], given["weight"]))


# --- all operators -------------------------------------------------------------------------------

_FORMULAS: Final[Mapping[str, Callable[[Operation, fx.Node], Work | None]]] = {
    **dict.fromkeys(LEFT, _product),
    "aten.addbmm": _summed_products,
    "aten.einsum": _einsum,
    **dict.fromkeys(sorted(SOFTMAX), _softmax),
    "aten.scaled_dot_product_attention": _attention,
    FLEX: _attention,
    **{f"aten._scaled_dot_product_{name}": _attention for name in _SDPA},
    **{f"aten._scaled_dot_product_{name}_backward": _attention_backward for name in _SDPA},
    **dict.fromkeys(
        ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution"), _convolution
    ),
    **dict.fromkeys(
        ("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d"), _convolution
    ),
    "aten.convolution_backward": _convolution_backward,
}

_NAMESPACES: Final = ("aten", "prims", "builtins", "operator", "_operator", "math", "inductor")
"""Namespaces whose operators have no products but those that are counted or listed here."""


_UNCOUNTED: Final = named(
    "aten",
    "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell mkldnn_rnn_layer"
    " bilinear _trilinear tensordot chain_matmul cdist _cdist_forward _pdist_forward pdist"
    " _euclidean_dist cosine_similarity corrcoef cov matrix_exp matrix_power cholesky"
    " cholesky_solve cholesky_inverse svd qr geqrf lu_solve lu_unpack ormqr orgqr logdet slogdet"
    " det inverse pinverse triangular_solve trapezoid kron multi_head_attention_forward"
    " _native_multi_head_attention _transform_bias_rescale_qkv _grouped_mm _scaled_grouped_mm"
    " _flash_attention_forward _efficient_attention_forward stft istft",
)


def is_known(call: Operation) -> bool:
    """Return whether the work of an operation is known, maybe none."""
    if call.name in _FORMULAS or call.name == "getitem":
        return True
    if call.name in _UNCOUNTED or call.name.startswith(
        ("aten.linalg_", "aten._linalg_", "aten.fft_", "aten._fft")
    ):
        return call.name.endswith(("_norm", "_cross"))
    namespace = call.name.partition(".")[0]
    return (call.is_bound and namespace in _NAMESPACES) or _packet(call.name) in flop_registry


def work_of(call: Operation, node: fx.Node) -> Work | None:
    """Return the work of a call, or None if its operator, or its form, is not known."""
    formula = _FORMULAS.get(call.name)
    try:
        if formula is not None:
            return formula(call, node)
        return _registered(call, node) if is_known(call) else None
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None  # without metadata, or a form that the formula does not take


def _registered(call: Operation, node: fx.Node) -> Work | None:
    """Return the work by the formula that torch's counter has for the operator."""
    formula = flop_registry.get(_packet(call.name))
    if formula is None:
        return Work()
    if not hasattr(formula, "__wrapped__"):  # it looks at tensors, not at shapes
        return None
    arguments = {
        name: fx.node.map_arg(value, lambda n: _shape(n) if tensors(n) else n.meta.get("val"))
        for name, value in call.arguments.items()
    }
    results = [amounts(each.shape) for each in tensors(node)]
    out = results[0] if len(results) == 1 else results
    flops = formula.__wrapped__(*arguments.values(), out_shape=out)
    given = [n for n in node.all_input_nodes if tensors(n)]
    floats = [n for n in given if tensors(n)[0].dtype.is_floating_point]
    narrowest = min(floats, key=lambda n: tensors(n)[0].dtype.itemsize, default=node)
    return Work(amount(flops), 0, (narrowest,))


def _packet(name: str) -> object:
    namespace, _, bare = name.partition(".")
    return getattr(getattr(torch.ops, namespace), bare, None) if bare.isidentifier() else None


def _shape(node: fx.Node) -> tuple[Amount, ...]:
    return amounts(tensors(node)[0].shape)
