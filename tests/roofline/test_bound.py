"""Bounds against counts by hand, and against torch's counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pypm import PyPMError
from pypm.kernels.linear import linear_in_float32, linear_pointwise
from pypm.kernels.row_linear import row_linear
from pypm.roofline import Bound, bound
from pypm.tiles.operator import tile_kernel

ones = torch.ones
TILES = """\
x: bf16[M, K]
w: bf16[K, N]
out: fp32[M, N]
tile i: 64 of M, j: 16 of N
acc = 0.0[i, j]
for k: 16 of K
  a = x[i, k]
  b = w[k, j]
  acc = dot(a, b, acc)
out[i, j] = acc
"""


def traced(function: Callable[..., Any], *inputs: Any, mode: str = "fake") -> fx.GraphModule:
    return make_fx(function, tracing_mode=mode)(*inputs)


def of(function: Callable[..., Any], *inputs: Any, **options: Any) -> Bound:
    return bound(traced(function, *inputs), "H100", **options)


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def exported(function: Callable[..., Any], *inputs: Any) -> Bound:
    return bound(export(Model(function), inputs), "H100")


# --- products ------------------------------------------------------------------------------------


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "mm": (torch.mm, (ones(3, 5), ones(5, 7))),
    "linear": (F.linear, (ones(2, 3, 5), ones(7, 5), ones(7))),
    "matmul": (torch.matmul, (ones(2, 1, 3, 5), ones(4, 5, 7))),
    "bmm": (torch.bmm, (ones(4, 3, 5), ones(4, 5, 7))),
    "addmm": (torch.addmm, (ones(7), ones(3, 5), ones(5, 7))),
    "baddbmm": (torch.baddbmm, (ones(4, 3, 7), ones(4, 3, 5), ones(4, 5, 7))),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (ones(4, 3, 5), ones(4, 7, 5))),
    "strided": (lambda x, w: F.conv2d(x, w, stride=2), (ones(2, 3, 9, 9), ones(4, 3, 3, 3))),
    "1 x 1": (F.conv2d, (ones(2, 3, 9, 9), ones(4, 3, 1, 1))),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=2), (ones(2, 4, 9, 9), ones(6, 2, 1, 1))),
    "attention": (F.scaled_dot_product_attention, (ones(2, 4, 8, 16),) * 3),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("count", [of, exported])
def test_products_as_torch_counts_them(name: str, count: Callable[..., Bound]) -> None:
    function, inputs = PRODUCTS[name]
    with FlopCounterMode(display=False) as counter:
        function(*(x.to("meta") for x in inputs))
    assert count(function, *inputs).flops["float32"] == counter.get_total_flops() > 0


def test_attention_on_cpus_which_torch_counts_as_none() -> None:
    q, k, v = ones(2, 4, 8, 16), ones(2, 4, 8, 16), ones(2, 4, 8, 16)
    flops = 4 * 2 * 4 * 8 * 8 * 16
    for count in (of, exported):
        found = count(F.scaled_dot_product_attention, q, k, v)
        assert found.flops == {"float32": flops, "vector": 2 * 4 * 8 * 8}
        assert found.bytes == 4 * q.numel() * 4


@pytest.mark.parametrize(("queries", "keys", "pairs"), [(4, 4, 10), (4, 6, 10), (6, 4, 18)])
def test_causal_attention(queries: int, keys: int, pairs: int) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    q, k = ones(1, 2, queries, 8), ones(1, 2, keys, 8)
    assert of(attention, q, k, k).flops["float32"] == 4 * 2 * pairs * 8


def test_grouped_heads_count_the_keys_once() -> None:
    def repeated(q: Tensor, k: Tensor) -> Tensor:
        return q @ k.repeat_interleave(4, 1).transpose(-2, -1)

    def expanded(q: Tensor, k: Tensor) -> Tensor:
        return q @ k[:, :, None].expand(1, 2, 4, 16, 8).reshape(1, 8, 16, 8).transpose(-2, -1)

    q, k = ones(1, 8, 4, 8), ones(1, 2, 16, 8)
    for function in (repeated, expanded):
        found = of(function, q, k)
        assert found.flops == {"float32": 2 * 8 * 4 * 8 * 16}
        assert found.bytes == 4 * (q.numel() + k.numel() + 8 * 4 * 16)


def test_winograd_and_padding() -> None:
    x, w = ones(1, 2, 8, 8), ones(3, 2, 3, 3)
    assert of(lambda x, w: F.conv2d(x, w, padding=1), x, w).flops == {
        "float32": 2 * 3 * 2 * (8 * 6 // 4) ** 2
    }
    strided = of(lambda x, w: F.conv2d(x, w, padding=1, stride=2), x, w)
    assert strided.flops == {"float32": 2 * 3 * 2 * (4 * 3 - 1) ** 2}


def test_own_operators() -> None:
    x, w = ones(3, 5), ones(5, 7)
    own = {
        "tile_kernel": lambda x, w: tile_kernel([x, w], TILES, [2, 1, 1, 1])[0],
        "linear_pointwise": lambda x, w: linear_pointwise(
            x, w.t().contiguous(), None, None, "relu"
        ),
        "row_linear": lambda x, w: row_linear(x, w.t().contiguous(), None),
        "linear_in_float32": lambda x, w: linear_in_float32(x, w.t(), None, False),
    }
    for function in own.values():
        found = of(function, x, w)
        assert found.flops == {"float32": 2 * 3 * 5 * 7}
        assert not found.unknown
        with FlopCounterMode(display=False) as counter:
            function(x, w)
        assert counter.get_total_flops() == 2 * 3 * 5 * 7


def test_equal_products_count_once() -> None:
    x = ones(4, 4)
    assert of(lambda x: x @ x + x @ x, x).flops == {"float32": 2 * 4**3}


def test_unused_results_count_as_none() -> None:
    def last(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = x @ w
        y @ y
        return torch.relu(y + b)[-1:]

    x, w, b = ones(6, 8), ones(8, 6), ones(6)
    found = of(last, x, w, b)
    assert found.flops == {"float32": 2 * 8 * 6}
    assert found.bytes <= 4 * (8 + 8 * 6 + 6 + 6)


# --- types ---------------------------------------------------------------------------------------


def test_a_wider_type_does_not_raise_the_time() -> None:
    x = ones(64, 64, dtype=torch.bfloat16)
    narrow = of(lambda x: x @ x, x)
    wide = of(lambda x: (x.float() @ x.float()).bfloat16(), x)
    assert narrow.flops == wide.flops == {"bfloat16": 2 * 64**3}
    assert narrow.seconds == wide.seconds


def test_mixed_types_take_the_wider_unit() -> None:
    x, w = ones(64, 64), ones(64, 64, dtype=torch.int8)
    assert set(of(lambda x, w: x @ w.float(), x, w).flops) == {"float32"}


# --- masks ---------------------------------------------------------------------------------------


def written_out(mask: Callable[[int], Tensor]) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) * 0.125
        scores = scores.masked_fill(~mask(q.shape[-2]), float("-inf"))
        return torch.softmax(scores, -1) @ v

    return attention


def causal(n: int) -> Tensor:
    return ones(n, n, dtype=torch.bool).tril()


def window(n: int) -> Tensor:
    i = torch.arange(n)
    return (i[:, None] >= i) & (i[:, None] - i < 3)


@pytest.mark.parametrize(("mask", "pairs"), [(causal, 36), (window, 1 + 2 + 6 * 3)])
def test_masks_of_positions(mask: Callable[[int], Tensor], pairs: int) -> None:
    inputs = [ones(2, 2, 8, 16) for _ in range(3)]
    found = of(written_out(mask), *inputs)
    assert found.flops["float32"] == 4 * 4 * pairs * 16


@pytest.mark.parametrize("mask", [None, causal, window])
def test_attention_written_out_and_fused_have_one_bound(
    mask: Callable[[int], Tensor] | None,
) -> None:
    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        given = None if mask is None else mask(q.shape[-2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=given)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v

    inputs = [ones(2, 2, 8, 16) for _ in range(3)]
    written = plain if mask is None else written_out(mask)
    expected = of(fused, *inputs)
    with sdpa_kernel(SDPBackend.MATH):
        decomposed = of(fused, *inputs)
    for found in (of(written, *inputs), decomposed):
        assert (found.flops, found.bytes) == (expected.flops, expected.bytes)


def test_projections_of_hidden_keys_count() -> None:
    def attention(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = (x @ w).view(1, 8, 3, 2, 8).transpose(1, 3).unbind(2)
        return written_out(causal)(q, k, v)

    found = of(attention, ones(1, 8, 16), ones(16, 48))
    assert found.flops["float32"] == 2 * 8 * 16 * 48 + 4 * 2 * 36 * 8
    assert found.bytes == 4 * (8 * 16 + 16 * 48 + 8 * 16)


def test_stored_masks() -> None:
    class Stored(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden = torch.full((8, 8), float("-inf")).triu(1)
            self.register_buffer("hidden", hidden, persistent=False)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.softmax(q @ k.transpose(-2, -1) + self.hidden, -1) @ v

    inputs = tuple(ones(1, 2, 8, 16) for _ in range(3))
    found = bound(export(Stored(), inputs), "H100")
    assert found.flops["float32"] == 4 * 2 * 36 * 16


def test_masks_from_data_may_hide_all() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) + mask, -1) @ v

    def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    q, k, v, mask = ones(1, 2, 8, 16), ones(1, 2, 8, 16), ones(1, 2, 8, 16), ones(8, 8)
    for function in (attention, fused):
        assert of(function, q, k, v, mask).flops == {}
        typical = of(function, q, k, v, mask, typical=True)
        assert typical.flops["float32"] == 4 * 2 * 64 * 16
        assert typical.bytes == 4 * (4 * q.numel() + 64)


def test_biases_and_residuals_hide_nothing() -> None:
    x = ones(8, 8)
    found = of(lambda x, r, b: torch.relu(x @ x + r) + b, x, x, ones(8))
    assert found.flops == {"float32": 2 * 8**3}


# --- bytes ---------------------------------------------------------------------------------------


def test_slices_gathers_and_updates() -> None:
    x, index = ones(10, 8), torch.tensor([1, 2, 3])
    assert of(lambda x: x[2:4] * 2, x).bytes == 4 * 2 * 2 * 8
    assert of(lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1], x).bytes == 4 * (80 + 40)
    embedding = torch.ops.aten.embedding
    assert of(embedding, x, index).bytes == 3 * 8 + 4 * (8 + 3 * 8)
    assert of(embedding, x, index, typical=True).bytes == 3 * 8 + 4 * (24 + 24)
    updated = of(lambda x, y: torch.slice_scatter(x, y, 0, 2, 4), x, ones(2, 8))
    assert updated.bytes == 4 * 2 * 16


def test_writes() -> None:
    x, index = ones(10, 8), torch.tensor([3])
    assert of(lambda x: x.add_(1), x).bytes == 4 * 160
    assert of(lambda x, y: x.copy_(y), x, ones(10, 8)).bytes == 4 * 160
    assert of(lambda x, y: x[2:4].copy_(y), x, ones(2, 8)).bytes == 4 * 32
    assert of(lambda x: torch.empty_like(x).copy_(x), x).bytes == 4 * 160
    assert of(lambda x, i, y: x.index_copy_(0, i, y), x, index, ones(1, 8)).bytes <= 8 + 4 * 16
    put = torch.ops.aten.index_put
    assert of(lambda x, i, y: x.copy_(put(x, [i], y)), x, index, ones(1, 8)).bytes <= 8 + 4 * 16


def test_updates_inside_are_not_written() -> None:
    def last(x: Tensor, y: Tensor) -> Tensor:
        return torch.slice_scatter(x, y, 0, 9, 10).sum(-1)

    def fresh(x: Tensor, y: Tensor) -> Tensor:
        return torch.slice_scatter(torch.relu(x), y, 0, 9, 10)

    x, y = ones(10, 8), ones(1, 8)
    assert of(last, x, y).bytes == 4 * (80 + 10)
    assert of(fresh, x, y).bytes == 4 * (80 + 8 + 80)


def test_forward_and_backward_in_one_region() -> None:
    def step(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.scaled_dot_product_attention(q, k, v), (q, k, v), grad)

    inputs = [ones(1, 2, 8, 16).requires_grad_() for _ in range(3)]
    found = of(step, *inputs, ones(1, 2, 8, 16))
    assert found.flops == {"float32": 6 * 2 * 2 * 64 * 16, "vector": 2 * 64}


def test_views_are_free() -> None:
    x = ones(4, 6)
    assert of(lambda x: x.t().reshape(-1), x).bytes == of(lambda x: x + 1, x).bytes == 4 * 48
    assert of(lambda x: x.t()[1:], x).bytes == 0
    assert of(lambda x: x.expand(9, 4, 6) + 0, x[:1, :1]).bytes == 4 * (1 + 216)
    assert of(lambda x: [y := x + 1, y.t()], x).bytes == 4 * 48


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x.reshape(24), 0),
        (lambda x: x.flatten(), 0),
        (lambda x: x[:, :4].unflatten(1, (2, 2)), 0),
        (lambda x: x[:, :4].reshape(2, 2, 4), 0),
        (lambda x: x[:, :4].flatten(), 4 * 32),
        (lambda x: x.contiguous(), 0),
        (lambda x: x.to(torch.float32), 0),
        (lambda x: F.dropout(x, 0.5, False), 0),
        (lambda x: x.t().reshape(24), 4 * 48),
        (lambda x: x.t().contiguous(), 4 * 48),
        (lambda x: x.to(torch.float16), 6 * 24),
        (lambda x: F.dropout(x, 0.5, True), 4 * 48),
    ],
)
def test_calls_that_return_what_they_are_given_are_free(
    function: Callable[[Tensor], Tensor], count: int
) -> None:
    assert exported(function, ones(4, 6)).bytes == count


def test_shapes_are_not_read() -> None:
    assert of(torch.zeros_like, ones(8, 8)).bytes == 4 * 64


def test_weights_are_read_in_their_smallest_form() -> None:
    class Quantized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", ones(64, 64, dtype=torch.int8))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.weight.float() * 0.5)

    x = ones(4, 64)
    found = bound(export(Quantized(), (x,)), "H100")
    assert found.bytes == 64 * 64 + 4 * 2 * x.numel()
    assert found.flops == {"float32": 2 * 4 * 64 * 64}


# --- regions -------------------------------------------------------------------------------------


def test_nodes_as_a_region() -> None:
    gm = traced(lambda x, w: torch.relu(x @ w) * 2 + x, ones(4, 4), ones(4, 4))
    nodes = {node.name: node for node in gm.graph.nodes}
    region = [nodes["relu"], nodes["mul"]]
    found = bound(region, "H100")
    assert found.flops == {}
    assert found.bytes == 4 * 32
    assert bound([nodes["mm"], *region], "H100").flops == {"float32": 128}


def test_unknown_operators() -> None:
    @torch.library.custom_op("pypm_cost::foreign", mutates_args=())
    def foreign(x: Tensor) -> Tensor:
        return x.clone()

    foreign.register_fake(torch.empty_like)
    found = of(lambda x: foreign(x @ x), ones(4, 4))
    assert found.unknown == ("pypm_cost.foreign",)
    assert found.flops == {"float32": 128}


def test_a_size_is_no_mask() -> None:
    shapes = {"inputs": ({0: Dim("n", min=2, max=64)},)}
    program = export(Model(lambda x: x * (x.shape[0] * 12)), (ones(8, 4),), dynamic_shapes=shapes)
    for each in (program, program.run_decompositions()):
        assert bound(each, "H100").seconds > 0


def test_symbolic_sizes() -> None:
    n = Dim("n", min=2, max=4096)
    x, w = ones(6, 8), ones(8, 4)
    program = export(Model(torch.matmul), (x, w), dynamic_shapes={"inputs": ({0: n}, {})})
    before = program.range_constraints.copy()
    found = bound(program, "H100")
    (size,) = found.flops["float32"].free_symbols
    assert found.flops == {"float32": 64 * size}
    assert sympy.expand(found.bytes - (4 * (8 * size + 32 + 4 * size))) == 0
    assert found.hints == {str(size): 6}
    assert found.seconds == bound(export(Model(torch.matmul), (x, w)), "H100").seconds
    assert program.range_constraints == before
    assert "for s" in str(found)


@pytest.mark.parametrize("region", [3, "relu", torch.nn.ReLU(), [1, 2]])
def test_what_is_no_region(region: Any) -> None:
    with pytest.raises(PyPMError, match="a region is a graph"):
        bound(region, "H100")


def test_without_metadata() -> None:
    with pytest.raises(PyPMError, match="metadata"):
        bound(fx.symbolic_trace(torch.nn.ReLU()), "H100")


def test_the_nodes_of_two_graphs() -> None:
    nodes = [node for _ in range(2) for node in traced(torch.relu, ones(2)).graph.nodes]
    with pytest.raises(PyPMError, match="several graphs"):
        bound(nodes, "H100")


def test_the_larger_time_limits() -> None:
    x = ones(2048, 2048)
    assert of(lambda x: x @ x, x).limited_by == "compute"
    assert of(torch.relu, x).limited_by == "memory"
    assert of(torch.relu, x).seconds == 8 * x.numel() / 3.35e12


# --- flex attention ------------------------------------------------------------------------------


def flex(mask: Callable[..., Tensor] | None) -> Bound:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    inputs = tuple(ones(1, 2, 64, 16) for _ in range(3))
    blocks = None if mask is None else create_block_mask(mask, None, None, 64, 64, device="cpu")
    model = Model(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks))
    return bound(export(model, inputs), "H100")


def test_flex_attention_counts_what_its_mask_leaves() -> None:
    assert flex(None).flops["float32"] == 4 * 2 * 64 * 64 * 16
    near = flex(lambda b, h, q, k: (q >= k) & (q - k < 3))
    assert near.flops["float32"] == 4 * 2 * (1 + 2 + 62 * 3) * 16
    assert near.bytes == 4 * 4 * 2 * 64 * 16
    assert not near.unknown
    documents = torch.arange(64) // 20
    hidden = flex(lambda b, h, q, k: documents[q] == documents[k])
    assert hidden.flops == {}
