"""Each operator's meaning computes what torch computes, on samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.fx import describe
from pypm.laws.algebra import SizesDiffer
from pypm.laws.operators.meanings import MEANINGS
from pypm.tools.verification.sampling.graphs import captured
from pypm.torch_internals import register_inductor_prims
from tests.laws.sides import computed

register_inductor_prims()
aten = torch.ops.aten
X = torch.arange(1, 25, dtype=torch.float64).reshape(2, 3, 4).sin() + 0.1
Y = torch.arange(1, 25, dtype=torch.float64).reshape(2, 3, 4).cos()
P = X.abs() + 0.3
W = torch.arange(1, 13, dtype=torch.float64).reshape(3, 4).cos()
V = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
C = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
M = X > 0
IDS = torch.tensor([[2, 0], [1, 1]])
EIGHT = torch.arange(64, dtype=torch.float64).reshape(8, 8) % 5
Q, K = X.reshape(1, 2, 3, 4), Y.reshape(1, 2, 3, 4)


def flash_gradients(g: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
    """The gradients of q, k and v by the flash kernel."""
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    found: tuple[Tensor, ...] = backward(g, q, k, v, out, sums, 0.0, causal)
    return found


SAMPLES: Final[dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]]] = {
    "aten.add": (lambda x, y: torch.add(x, y, alpha=2), (X, W)),
    "aten.sub": (lambda x, y: torch.sub(x, y, alpha=3) - 2, (X, W)),
    "aten.mul": (lambda x, y: 3 * x * y, (X, V)),
    "aten.div": (lambda x, y: x / y / 2, (X, P)),
    "aten.neg": (lambda x: -x, (X,)),
    "aten.reciprocal": (lambda x: 2 / x, (P,)),
    "aten.sqrt": (torch.sqrt, (P,)),
    "aten.rsqrt": (torch.rsqrt, (P,)),
    "aten.pow": (lambda x, y: x**3 + x**0.5 + x**-1 + x**y, (P, Y)),
    "aten.exp": (torch.exp, (X,)),
    "aten.exp2": (torch.exp2, (X,)),
    "aten.expm1": (torch.expm1, (X,)),
    "aten.log": (torch.log, (P,)),
    "aten.log1p": (torch.log1p, (P,)),
    "aten.abs": (torch.abs, (X,)),
    "aten.sigmoid": (torch.sigmoid, (X,)),
    "aten.silu": (lambda x: F.silu(x) + 0, (X,)),
    "aten.tanh": (torch.tanh, (X,)),
    "aten.softplus": (lambda x: F.softplus(x, 2.0), (X,)),
    "aten.gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), (X,)),
    "aten.relu": (torch.relu, (X,)),
    "aten.erf": (torch.erf, (X,)),
    "aten.hardtanh": (lambda x: F.hardtanh(x, -0.25, 0.5), (X,)),
    "aten.leaky_relu": (lambda x: F.leaky_relu(x, 0.25), (X,)),
    "aten.logical_xor": (lambda x: torch.logical_xor(x > 0, x > 0.5) * x, (X,)),
    "aten.bitwise_xor": (lambda x: ((x > 0) ^ (x > 0.5)) * x, (X,)),
    "aten.round": (lambda x: torch.round(x * 8), (X,)),
    "aten.sin": (torch.sin, (X,)),
    "aten.cos": (torch.cos, (X,)),
    "aten.maximum": (torch.maximum, (X, Y)),
    "aten.minimum": (torch.minimum, (X, Y)),
    "aten.clamp": (lambda x: x.clamp(-0.2, 0.3) + x.clamp(max=0.1), (X,)),
    "aten.where": (lambda m, x: torch.where(m, x, 2.0), (M, X)),
    "aten.masked_fill": (lambda x, m: x.masked_fill(m, -1.0), (X, M)),
    "aten.addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=2), (X, Y, P)),
    "aten.lerp": (lambda x, y: torch.lerp(x, y, 0.3), (X, Y)),
    "aten.gt": (lambda x, y: (x > y) | (x > 0.1), (X, Y)),
    "aten.lt": (lambda x, y: (x < y) | (x < 0.1), (X, Y)),
    "aten.ge": (lambda x, y: (x >= y) | (x >= 0.1), (X, Y)),
    "aten.le": (lambda x, y: (x <= y) | (x <= 0.1), (X, Y)),
    "aten.eq": (lambda x, i: (x == x) & (i == 1), (W[:2, :2], IDS)),
    "aten.ne": (lambda x, i: (x != x) | (i != 1), (W[:2, :2], IDS)),
    "aten.logical_not": (lambda x, m: x.logical_not() | m.logical_not(), (X, M)),
    "aten.logical_and": (lambda m, x: m.logical_and(x > 0.5), (M, X)),
    "aten.logical_or": (lambda m, x: m.logical_or(x < -0.5), (M, X)),
    "aten.bitwise_not": (lambda m: ~m, (M,)),
    "aten.bitwise_and": (lambda m, x: m & (x > 0.5), (M, X)),
    "aten.bitwise_or": (lambda m, x: m | (x < -0.5), (M, X)),
    "aten.sum": (lambda x: x.sum() + x.sum(1).sum((0, 1), keepdim=True), (X,)),
    "aten.mean": (lambda x: x.mean() + x.mean((0, -1), keepdim=True), (X,)),
    "aten.any": (lambda x: (x > 0.9).any(-1, keepdim=True) | (x - 0.6 < 0).any(1, True), (X,)),
    "aten.amax": (lambda x: x.amax(-1) + x.amax((1, 2), keepdim=True)[..., 0], (X,)),
    "aten.max": (lambda x, y: torch.max(x, y) + x.max(-1, True)[0] + x.max(), (X, Y)),
    "aten.var": (lambda x: x.var(-1) + x.var(-1, correction=0) + aten.var.dim(x, [2], False), (X,)),
    "aten.var_mean": (lambda x: torch.var_mean(x, [-1], correction=0, keepdim=True), (X,)),
    "aten.softmax": (lambda x: torch.softmax(x, 1), (X,)),
    "aten._softmax": (lambda x: aten._softmax.default(x, -1, False), (X,)),
    "aten.log_softmax": (lambda x: torch.log_softmax(x, -1), (X,)),
    "aten._log_softmax": (lambda x: aten._log_softmax.default(x, 1, False), (X,)),
    "aten.logsumexp": (lambda x: torch.logsumexp(x, -1, True), (X,)),
    "aten.linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, 2, -1), (X,)),
    "aten.matmul": (lambda x, w, v: (x @ w.t() @ w @ v) + (v @ w.t() @ w @ v), (X, W, V)),
    "aten.mm": (lambda x, y: torch.mm(x, y.t()), (W, W)),
    "aten.bmm": (lambda x, y: torch.bmm(x, y.mT), (X, Y)),
    "aten.mv": (torch.mv, (W, V)),
    "aten.dot": (torch.dot, (V, V)),
    "aten.linear": (F.linear, (X, W, C)),
    "aten.addmm": (lambda b, x, y: torch.addmm(b, x, y.t(), alpha=2, beta=3), (C, W, W)),
    "aten.baddbmm": (lambda b, x, y: torch.baddbmm(b, x, y.mT), (C, X, Y)),
    "aten.outer": (torch.outer, (V, C)),
    "aten.einsum": (lambda x, y: torch.einsum("abc,dbc->da", x, y), (X, Y)),
    "aten._softmax_backward_data": (
        lambda g, x: aten._softmax_backward_data(g, torch.softmax(x, 1), 1, x.dtype),
        (X, Y),
    ),
    "prims.fma": (torch.ops.prims.fma.default, (X, Y, P)),
    "aten.layer_norm": (lambda x, v: F.layer_norm(x, (4,), v, v, 0.01), (X, V)),
    "aten.rms_norm": (lambda x, v: F.rms_norm(x, (4,), v, 0.01), (X, V)),
    "aten.group_norm": (lambda x, c: F.group_norm(x, 3, c, c, 0.01), (X, C)),
    "aten.instance_norm": (lambda x, c: F.instance_norm(x, weight=c, bias=c, eps=0.01), (X, C)),
    "aten.scaled_dot_product_attention": (
        lambda q, k, m: (
            F.scaled_dot_product_attention(q, k, k, m[..., :3], scale=0.3)
            + F.scaled_dot_product_attention(q, k[:, :1], q[:, :1], is_causal=True, enable_gqa=True)
            + F.scaled_dot_product_attention(q, k, k, k @ q.mT)
        ),
        (Q, K, Q > -0.5),
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu": (
        lambda q, k: (
            *aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, True)[:2],
            *aten._scaled_dot_product_flash_attention_for_cpu(q, k[:, :1], q[:, :1])[:2],
        ),
        (Q, K),
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": (
        lambda q, k: flash_gradients(k + 1, q, k, q * k, True) + flash_gradients(q, k, q, k, False),
        (Q, K),
    ),
    "aten.clone": (torch.clone, (X,)),
    "aten.contiguous": (aten.contiguous.default, (X,)),
    "aten.alias": (lambda x: aten.alias.default(x) + 0, (X,)),
    "aten.detach": (lambda x: x.detach() + 0, (X,)),
    "aten.lift_fresh_copy": (aten.lift_fresh_copy.default, (X,)),
    "aten.dropout": (lambda x: F.dropout(x, 0.5, False), (X,)),
    "aten.to": (lambda x, m: x.to(torch.float32) + m.to(torch.float32), (X, M)),
    "aten._to_copy": (lambda x: aten._to_copy.default(x, dtype=torch.float32), (X,)),
    "aten.type_as": (lambda x: x.type_as(x.float()), (X,)),
    "prims.convert_element_type": (
        lambda x: torch.ops.prims.convert_element_type.default(x, torch.float32),
        (X,),
    ),
    "aten.view": (lambda x: x.view(6, 4).view(2, 12), (X,)),
    "aten.reshape": (lambda x: x.reshape(4, 1, 6), (X,)),
    "aten._unsafe_view": (lambda x: aten._unsafe_view.default(x, [3, 8]), (X,)),
    "aten.flatten": (lambda x: x.flatten(1), (X,)),
    "aten.unflatten": (lambda x: x.unflatten(-1, (2, 2)), (X,)),
    "aten.view_as": (lambda x, w: x[0].view_as(w), (X, W)),
    "aten.reshape_as": (lambda x, w: x[0].reshape_as(w), (X, W)),
    "aten.squeeze": (lambda x: x[:1].squeeze(0), (X,)),
    "aten.unsqueeze": (lambda x: x.unsqueeze(-1).unsqueeze(1), (X,)),
    "aten.expand": (lambda v: v.expand(2, 3, 4), (V,)),
    "aten.expand_as": (lambda v, x: v.expand_as(x), (V, X)),
    "aten.broadcast_to": (lambda v: torch.broadcast_to(v, (3, 4)), (V,)),
    "aten.t": (torch.t, (W,)),
    "aten.mT": (lambda x: x.mT, (X,)),
    "aten.numpy_T": (aten.numpy_T.default, (W,)),
    "aten.transpose": (lambda x: x.transpose(0, -1), (X,)),
    "aten.permute": (lambda x: x.permute(2, 0, 1), (X,)),
    "aten.movedim": (lambda x: torch.movedim(x, (0, 1), (-1, 0)), (X,)),
    "aten.flip": (lambda x: x.flip(0, -1), (X,)),
    "aten.select": (lambda x: x[:, -1] + x[:, 1], (X,)),
    "aten.select_scatter": (
        lambda x, y: (
            aten.select_scatter.default(x, y[..., 0], -1, -2)
            + aten.select_scatter.default(x, y[:, 0], 1, 0)
        ),
        (X, Y),
    ),
    "aten.slice": (lambda x: x[..., 1:4:2] + x[..., -2:], (X,)),
    "aten.slice_scatter": (
        lambda x, y: (
            aten.slice_scatter.default(x, y[..., :2], -1, 1, 9, 2)
            + aten.slice_scatter.default(x, y[:, :2], 1, -2)
        ),
        (X, Y),
    ),
    "aten.copy": (aten.copy.default, (X, V)),
    "aten.narrow": (lambda x: x.narrow(1, 1, 2), (X,)),
    "aten.split": (lambda x: x.split(2, -1)[1], (X,)),
    "aten.split_with_sizes": (lambda x: x.split((1, 3), -1)[1], (X,)),
    "aten.chunk": (lambda x: x.chunk(2, -1)[1], (X,)),
    "aten.tensor_split": (lambda x: x.tensor_split(2, -1)[1], (X,)),
    "aten.unbind": (lambda x: x.unbind(1)[2], (X,)),
    "getitem": (lambda x: x.unbind(1)[-1] + x[:, 0, -4:9] + x[:, ..., 1, 0:9:1], (X,)),
    "aten.cat": (lambda x, y: torch.cat([x, y[:, :1]], 1), (X, Y)),
    "aten.stack": (lambda x, y: torch.stack([x, y], -1), (X, Y)),
    "aten.pad": (lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), (X,)),
    "aten.constant_pad_nd": (lambda x: aten.constant_pad_nd.default(x, [2, 0], 1.5), (X,)),
    "aten.repeat": (lambda x: x.repeat(2, 1, 1, 3), (X,)),
    "aten.repeat_interleave": (lambda x: x.repeat_interleave(2, 1), (X,)),
    "aten.zeros": (lambda x: torch.zeros(4, dtype=torch.float64) + x, (X,)),
    "aten.zeros_like": (torch.zeros_like, (X,)),
    "aten.new_zeros": (lambda x: x.new_zeros((2, 2)), (X,)),
    "aten.ones": (lambda x: torch.ones(4, dtype=torch.float64) + x, (X,)),
    "aten.ones_like": (torch.ones_like, (X,)),
    "aten.new_ones": (lambda x: x.new_ones((2, 2)), (X,)),
    "aten.full": (lambda x: torch.full((4,), 1.5, dtype=torch.float64) + x, (X,)),
    "aten.full_like": (lambda x: torch.full_like(x, 1.5), (X,)),
    "aten.new_full": (lambda x: x.new_full((2, 2), 1.5), (X,)),
    "aten.new_empty": (lambda x: torch.zeros_like(x.new_empty((2, 2))), (X,)),
    "aten.empty_like": (lambda x: torch.zeros_like(torch.empty_like(x)), (X,)),
    "aten.new_empty_strided": (
        lambda x: torch.zeros_like(x.new_empty_strided((2, 3), (1, 2))),
        (X,),
    ),
    "aten.arange": (lambda x: torch.arange(4) + torch.arange(2, 10, 2) + x, (X,)),
    "prims.iota": (
        lambda x: (
            x
            + torch.ops.prims.iota.default(
                4, start=1, step=2, dtype=torch.int64, device="cpu", requires_grad=False
            )
        ),
        (X,),
    ),
    "aten.remainder": (
        lambda x: (torch.arange(24) * 2 + 1).reshape(2, 3, 4) % 5 + x + (torch.arange(4) + 3) // 2,
        (X,),
    ),
    "aten.tril": (lambda x: x.tril(-1), (X,)),
    "aten.triu": (lambda x: x.triu(1), (X,)),
    "aten.topk": (lambda x: x.topk(2, -1)[0] + x.topk(2, -1)[1], (X,)),
    "aten.histc": (lambda i: torch.histc(i.reshape(-1).double(), 4, 0, 3), (IDS,)),
    "aten.cumsum": (lambda x: torch.cumsum(x, 0), (V,)),
    "aten.index_put": (
        lambda x, i, y: (
            aten.index_put(x, (None, None, i), y[:, :, :1]) + aten.index_put(x, (-i,), y[:1])
        ),
        (X, torch.tensor([1]), Y),
    ),
    "aten.index_copy": (
        lambda x, i, y: aten.index_copy(x, 1, i, y[:, 1:]),
        (X, torch.tensor([2, 0]), Y),
    ),
    "aten.index": (lambda x, i: x[i].sum(0) + x[-i].sum() + x.sum(), (W, IDS)),
    "aten.index_select": (lambda x, i: x.index_select(1, i[0]), (X, IDS)),
    "aten.embedding": (lambda i, w: F.embedding(i, w) + 0, (IDS, W)),
    "aten.gather": (lambda w, i: w.gather(1, i), (W, IDS)),
    "aten.sort": (lambda i: torch.sort(i.reshape(-1), stable=True), (IDS,)),
    "aten.argsort": (lambda i: i.reshape(-1).argsort(stable=True), (IDS,)),
    "aten.searchsorted": (
        lambda i: torch.searchsorted(i[1] * 2, i, right=True) + torch.searchsorted(i[1], i[0]),
        (IDS,),
    ),
    "aten._grouped_mm": (
        lambda x, w, ends: torch._grouped_mm(x.bfloat16(), w.bfloat16(), ends),
        (EIGHT, torch.stack([EIGHT, EIGHT.T]), torch.tensor([3, 8], dtype=torch.int32)),
    ),
}


WITHOUT_VALUES: Final = frozenset({"opaque", "aten.empty", "aten.empty_strided"})
"""Functions without laws, and elements that may be anything."""


def test_there_is_a_sample_of_each_meaning() -> None:
    assert set(SAMPLES) == set(MEANINGS) - WITHOUT_VALUES


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: torch.mm(x, x), X),
        (lambda x: torch.bmm(x, x), W),
        (lambda x: torch.addmm(x, x, x), X),
        (lambda x: torch.baddbmm(x, x, x), W),
        (lambda x: F.linear(x, x), X),
        (lambda x: torch.einsum("ab,bc->ac", x, x), W),
    ],
)
def test_products_take_their_sizes_alone(function: Callable[..., object], x: Tensor) -> None:
    with pytest.raises(SizesDiffer):
        computed(function, (x,))


@pytest.mark.parametrize("name", SAMPLES)
def test_meaning(name: str) -> None:
    function, inputs = SAMPLES[name]
    module = captured(function, inputs)
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert name in {describe(node).operator.name for node in calls}
    expected = function(*inputs)
    found = computed(function, inputs)
    listed = expected if isinstance(expected, (tuple, list)) else [expected]
    for one, two in zip(listed, found, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-6, atol=1e-6)
