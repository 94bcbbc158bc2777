"""Tile programs of regions that patterns match in graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import find
from pypm.rules.tiles import Epilogue
from pypm.tiles.build import built
from pypm.tiles.emit import emitted
from pypm.tiles.emulator import emulate
from pypm.tiles.partition import partitioned
from pypm.tiles.program import TileError, printed
from pypm.tiles.regions import TileRegion, tile_region
from tests.kernels.triton_checks import needs_triton
from tests.tiles.cases import TOLERANCES

M, N, K = 70, 48, 33


def matched(function: Callable[..., Tensor], args: Sequence[Tensor]) -> fx.GraphModule:
    return make_fx(function)(*args)


def region_of(module: fx.GraphModule) -> TileRegion:
    return tile_region(find(module, Epilogue)[0].region.nodes)


def plain(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b)) * 0.5 + r


def swish(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    y = x @ w.T + b[:, None].sum()
    return y * torch.sigmoid(y)


def masked(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.relu(x @ w.T.contiguous()).masked_fill(r > 0, -1.0) * r[:, :1]


def gated(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, w * 2)


def gated_with_biases(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b)) * F.linear(x, w * 2, b) + r


def arguments(dtype: torch.dtype, rows: Sequence[int] = (M,)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((*rows, K), (N, K), (N,), (*rows, N))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [plain, swish, masked, gated, gated_with_biases])
def test_the_kernel_of_a_region_gives_its_result(
    function: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    given = arguments(dtype)
    module = matched(function, given)
    region = region_of(module)
    values: dict[fx.Node, Tensor] = {}

    class Recorded(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            values[n] = found = super().run_node(n)
            return found

    Recorded(module).run(*given)
    operands = {**region.matrices(values.__getitem__)}
    operands["out"] = torch.full((M, N), torch.nan, dtype=dtype)
    emulate(emitted(partitioned(region.program, region.rings)), operands)
    wide = [x.double() for x in given]
    exact = function(*wide)
    tolerance = TOLERANCES[region.program.operand("out").dtype]
    torch.testing.assert_close(operands["out"].double(), exact, rtol=tolerance, atol=tolerance * 4)


@needs_triton
@pytest.mark.parametrize(
    "function", [pytest.param(plain, marks=pytest.mark.soak), gated_with_biases]
)
def test_the_kernel_of_a_region_spills_nothing(function: Callable[..., Tensor]) -> None:
    region = region_of(matched(function, arguments(torch.bfloat16)))
    assert built(emitted(partitioned(region.program, region.rings))).spilled == 0


def test_two_products_of_the_same_rows_share_their_load() -> None:
    module = matched(gated, arguments(torch.bfloat16))
    assert (
        printed(region_of(module).program)
        == """\
x: bf16[M, K]
w0: bf16[N, K]
w1: bf16[N, K]
out: bf16[M, N]
tile i: 128 of M, j: 128 of N
c0 = 0.0[i, j]
c1 = 0.0[i, j]
for k: 64 of K
  a = x[i, k]
  b0 = w0[j, k]
  c0 = dot(a, b0.T, c0)
  b1 = w1[j, k]
  c1 = dot(a, b1.T, c1)
y = map "silu(acc);mul(v0,s0)" c0, c1
out[i, j] = y
"""
    )


def used_twice(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    up = F.linear(x, w * 2)
    return F.silu(F.linear(x, w)) * up, up + 1


def other_rows(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x * 2, w)


@pytest.mark.parametrize("function", [used_twice, other_rows])
def test_a_product_that_is_not_shared_is_a_side_input(function: Callable[..., Tensor]) -> None:
    module = matched(function, arguments(torch.bfloat16))
    (last, *_) = [m for m in find(module, Epilogue) if "mul" in m.root.name]
    assert "s0in: bf16[M, N]" in printed(tile_region(last.region.nodes).program)


@pytest.mark.parametrize(
    ("function", "dtype", "reason"),
    [
        (plain, torch.float32, "the result is fp32"),
        (lambda x, w, b, r: torch.lgamma(x @ w.T), torch.bfloat16, "has no expression in Triton"),
        (lambda x, w, b, r: (x @ w.T).float() + 1, torch.bfloat16, "the result is fp32"),
    ],
)  # fmt: skip
def test_regions_without_a_tile_program(
    function: Callable[..., Tensor], dtype: torch.dtype, reason: str
) -> None:
    module = matched(function, arguments(dtype))
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    nodes = [
        n
        for n in calls
        if not any(n in c.all_input_nodes for c in calls if c.name.startswith(("mm", "addmm")))
    ]
    with pytest.raises(TileError) as raised:
        tile_region(nodes)
    assert reason in str(raised.value)


def test_a_region_has_one_product_of_its_own() -> None:
    with pytest.raises(TileError, match="the region has 0 products"):
        tile_region([])
