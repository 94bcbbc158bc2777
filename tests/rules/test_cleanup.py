"""What changes nothing goes, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from pypm.fx import rewrite
from pypm.rules.cleanup import RULES

aten = torch.ops.aten
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64

FIRES: list[tuple[str, Callable[[Tensor], Tensor], int]] = [
    # rule, function of a tensor, calls that are left
    ("nothing", lambda x: aten.view(x, [2, 3, 4]).exp(), 1),
    ("nothing", lambda x: aten.expand(x, [2, 3, 4]).exp(), 1),
    ("nothing", lambda x: x[:, 0:3].exp(), 1),
    ("nothing", lambda x: torch.squeeze(x, 0).exp(), 1),
    ("nothing", lambda x: torch.cat([x], 1).exp(), 1),
    ("same", lambda x: (x * 1).exp(), 1),
    ("same", lambda x: (x / 1.0).exp(), 1),
    ("same", lambda x: (x**1).exp(), 1),
    ("same", lambda x: (x - 0).exp(), 1),
    ("same", lambda x: x.neg().neg().exp(), 1),
    ("same", lambda x: (x > 0).bitwise_not().bitwise_not().int(), 2),
    ("same", lambda x: torch.logical_not(torch.logical_not(x > 0)).int(), 2),
    ("regrouped_back", lambda x: x.unsqueeze(1).squeeze(1).exp(), 1),
    ("regrouped_back", lambda x: x.view(6, 4).view(2, 3, 4).exp(), 1),
    ("reshaped_twice", lambda x: x.view(6, 4).view(4, 6).exp(), 2),
    ("expanded_twice", lambda x: x[:, :, :1].expand(2, 3, 5).expand(6, 2, 3, 5).exp(), 3),
    ("permuted_twice", lambda x: x.permute(1, 2, 0).permute(2, 0, 1).exp(), 1),
    ("permuted_twice", lambda x: x.transpose(0, 1).transpose(1, 0).exp(), 1),
    ("permuted_twice", lambda x: x.transpose(-1, 1).permute(1, 0, 2).exp(), 2),
    ("permuted_twice", lambda x: x[0].t().mT.exp(), 2),
    ("unpermuted", lambda x: x.permute(0, -2, -1).exp(), 1),
    ("sliced_twice", lambda x: x[:, :, 1:4][:, :, ::2].exp(), 2),
    ("sliced_twice", lambda x: x[:, :, -3:][:, :, 5:].exp(), 2),
    ("rejoined", lambda x: torch.cat([x[:, :, :1], x[:, :, 1:3], x[:, :, 3:]], 2).exp(), 1),
    ("rejoined", lambda x: torch.cat([x[:, :, 1:2], x[:, :, 2:3]], -1).exp(), 2),
    ("rejoined", lambda x: torch.cat([x[:, :, -1:2], x[:, :, 2:]], -1).exp(), 2),  # one is empty
    ("unconverted", lambda x: aten._to_copy(x, dtype=F64).exp(), 1),
    ("converted_twice", lambda x: x.to(BF16).to(F32).to(BF16).exp(), 2),
    ("converted_twice", lambda x: x.to(BF16).to(F32).to(F64).exp(), 3),
    ("converted_twice", lambda x: x.to(torch.int8).long().to(torch.int8).exp(), 2),
    ("converted_twice", lambda x: x.to(torch.int8).long().to(torch.uint8).exp(), 3),
    ("converted_twice", lambda x: (x > 0).float().to(F64).exp(), 3),
    ("sum_of_constants", lambda x: (x.long() + 3 + 4).float(), 3),
    ("product_of_constants", lambda x: (x.long() * 3 * -4).float(), 3),
]

LEFT: list[Callable[[Tensor], Tensor]] = [
    lambda x: (x + 0).exp(),  # 0.0 of -0.0
    lambda x: (x - -0.0).exp(),
    lambda x: (x * 1.0000001).exp(),
    lambda x: (x - functional.pad(x[:, :, 1:], (1, 0), value=0.0)).exp(),  # no number
    lambda x: (x * torch.addcmul(x, x, x, value=1)).exp(),
    lambda x: (x / functional.threshold(x, 0.0, 1.0)).exp(),
    lambda x: (x.long() / 1).exp(),  # another type
    lambda x: (x.long() - 0.0).exp(),
    lambda x: (x.to(F32) * torch.ones(3, 4)).exp(),
    lambda x: torch.logical_not(torch.logical_not(x)).int(),
    lambda x: x.view(torch.int64).view(F64).exp(),  # other bits
    lambda x: x.view(6, 4).exp(),
    lambda x: x[:, 1:].exp(),
    lambda x: x[:, :, ::2].exp(),
    lambda x: x.permute(0, -1, 1).exp(),
    lambda x: x.transpose(0, 1).exp(),
    lambda x: x[:, 1:][:, :, 1:].exp(),  # of other dimensions
    lambda x: torch.cat([x[:, :, :2], x[:, :, 1:]], 2).exp(),  # overlap
    lambda x: torch.cat([x[:, :, 2:], x[:, :, :2]], 2).exp(),  # the other way round
    lambda x: torch.cat([x[:, :, :2], x[:, :, 2:]], 1).exp(),  # along another dimension
    lambda x: x.to(F32).to(F64).exp(),  # rounds
    lambda x: x.to(BF16).to(torch.float16).exp(),
    lambda x: x.to(torch.float16).to(BF16).to(torch.float16).exp(),
    lambda x: x.long().to(F32).long().exp(),  # float32 has not all of int64
    lambda x: x.to(F32).to(F64).to(torch.int8).exp(),  # out of range, floats have no one way
    lambda x: (x + 3 + 4).exp(),  # floats
    lambda x: (x * 3 * 4).exp(),
    lambda x: (x.to(torch.int8) + 100 + 100).exp(),
    lambda x: (x.long() + 2**31 + 2**31).exp(),
    lambda x: (x.long() + 3 + 0.5).exp(),
    lambda x: torch.ops.aten.full([], 2.0).view(1).view(1, 1) * x,
    lambda x: torch.ops.aten.full([], 2.0).expand(1).expand(3, 4) * x,
]


def strange() -> Tensor:
    """Every kind of number, in [2, 3, 4]."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=F64) * 40
    x[0, 0] = torch.tensor([0.0, -0.0, float("nan"), float("inf")])
    return x


def calls(gm: torch.fx.GraphModule) -> int:
    return sum(node.op == "call_function" for node in gm.graph.nodes)


@pytest.mark.parametrize(("name", "function", "left"), FIRES)
def test_it_fires(name: str, function: Callable[[Tensor], Tensor], left: int) -> None:
    gm = make_fx(function, pre_dispatch=True)(strange())
    report = rewrite(gm, RULES)
    assert report.count(name) >= 1
    assert calls(gm) == left
    one, two = gm(strange()), function(strange())
    assert one.dtype == two.dtype
    assert one.stride() == two.stride()
    bits = [value.contiguous().view(torch.uint8) for value in (one, two)]
    assert torch.equal(*bits)


@pytest.mark.parametrize("function", LEFT)
def test_it_leaves_the_rest(function: Callable[[Tensor], Tensor]) -> None:
    gm = make_fx(function, pre_dispatch=True)(strange())
    code = gm.code
    report = rewrite(gm, RULES)
    assert not len(report)
    assert "mismatch" not in {refusal.kind for refusal in report.refusals}  # nor was it tried
    assert gm.code == code


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 0)])
def test_empty_tensors(shape: tuple[int, int]) -> None:
    def function(x):
        y = x.permute(1, 0).permute(1, 0) * 1
        return torch.cat([y[:, :1], y[:, 1:]], 1).reshape(-1).reshape(shape).exp()

    x = torch.randn(shape)
    gm = make_fx(function, pre_dispatch=True)(x)
    assert len(rewrite(gm, RULES)) >= 3
    torch.testing.assert_close(gm(x), function(x))


def test_a_copy_that_is_written_to_is_copied_still() -> None:
    def function(x):
        y = x * 1
        y.add_(1)
        return x.exp(), y

    gm = make_fx(function)(strange())
    assert rewrite(gm, RULES).count("same") == 1
    for one, two in zip(gm(strange()), function(strange()), strict=True):
        torch.testing.assert_close(one, two, equal_nan=True)


def test_symbolic_sizes() -> None:
    """What is equal for every size goes; no size is asked for."""

    def function(x):
        y = x.permute(1, 0, 2).permute(1, 0, 2)
        return y[:, : y.shape[1]][:, 1:].exp()

    gm = make_fx(function, tracing_mode="symbolic")(strange())
    report = rewrite(gm, RULES)
    assert report.count("permuted_twice") == 1
    assert {refusal.kind for refusal in report.refusals} <= {"declined", "symbolic"}
    torch.testing.assert_close(gm(strange()), function(strange()), equal_nan=True)


# --- bit for bit, in every type ------------------------------------------------------------------

FLOATS = (torch.float16, BF16, F32, F64)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
EVERY = (*FLOATS, *COMPLEX, *INTEGERS, torch.bool)
EIGHT_BITS = (
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)  # fmt: skip

STEPS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x * 1,
    lambda x: x * True,
    lambda x: x / 1,
    lambda x: x**1,
    lambda x: x - 0,
    lambda x: x - -0.0,
    lambda x: x - 0.0,
    lambda x: x + 0,
    lambda x: x.neg().neg(),
    lambda x: x.bitwise_not().bitwise_not(),
    lambda x: x.logical_not().logical_not(),
    lambda x: x + 3 + 4,
    lambda x: x + (2**31 - 1) + 1,
    lambda x: x * 3 * -4,
    lambda x: x * (2**16) * (2**15 - 1),
    lambda x: x * 1.0,
    lambda x: x * torch.tensor(1),
    lambda x: x - torch.tensor(0.3, dtype=torch.int64),
    lambda x: torch.cat([x[:2], x[2:]]),
]


def extremes(dtype: torch.dtype) -> Tensor:
    """Numbers at which an operator that does nothing is told from one that does."""
    if dtype == torch.bool:
        return torch.tensor([True, False, True, True])
    if dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        return torch.tensor([0, 1, limits.min, limits.max], dtype=dtype)
    limits = torch.finfo(dtype)
    inf, nan = float("inf"), float("nan")
    reals = [0.0, -0.0, inf, -inf, nan, limits.max, limits.smallest_normal, -1.5]
    real = torch.tensor(reals, dtype=getattr(torch, limits.dtype))
    if dtype not in COMPLEX:
        return real
    return torch.complex(real.repeat(len(reals)), real.repeat_interleave(len(reals)))


def bits(value: Tensor) -> Tensor:
    """The bits of a tensor, every NaN the same."""
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    value = value.float() if value.dtype in EIGHT_BITS else value
    value = (
        value.nan_to_num(nan=1.25, posinf=2.5, neginf=-2.5) if value.is_floating_point() else value
    )
    return value.contiguous().reshape(-1).view(torch.uint8)


def unchanged(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """The number of rewrites, whose result must be that of the function bit for bit."""
    try:
        eager = function(x)
    except RuntimeError:  # torch has no such operator for the type
        return 0
    gm = make_fx(function, pre_dispatch=True)(x)
    rewrites = len(rewrite(gm, RULES))
    ours = gm(x)
    assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
    assert torch.equal(bits(ours), bits(eager)), gm.code
    return rewrites


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_every_bit_stays(dtype: torch.dtype) -> None:
    x = extremes(dtype)
    rewrites = sum(unchanged(function, x) for function in STEPS)
    assert rewrites >= (1 if dtype.is_complex else 2)


def converting(*dtypes: torch.dtype) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        for dtype in dtypes:
            x = x.to(dtype)
        return x.clone()

    return function


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_every_bit_stays_under_casts(dtype: torch.dtype) -> None:
    x = extremes(dtype)
    rewrites = 0
    for wide in (*EVERY, *EIGHT_BITS):
        if dtype.is_complex and not wide.is_complex:
            continue
        for then in (dtype, F32, torch.int8, torch.bool):
            if not (wide.is_complex and not then.is_complex):
                rewrites += unchanged(converting(wide, then), x)
    assert rewrites


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_every_number_of_eight_bits_stays_under_casts(dtype: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(dtype)
    casts = [(wide, then) for wide in (*FLOATS, *EIGHT_BITS) for then in (dtype, F32)]
    assert sum(unchanged(converting(*each), x) for each in casts) >= 2 * len(FLOATS)


def test_strides_that_a_concatenation_changes_stay() -> None:
    """Without metadata, a copy cannot restore them."""
    gm = fx.symbolic_trace(lambda x: torch.cat([x.t()]))
    assert not len(rewrite(gm, RULES))


def test_kernels_get_the_strides_that_they_were_called_with() -> None:
    def model(k: Tensor, q: Tensor) -> Tensor:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k - 0.0, q)[0]

    q = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    k = torch.randn(1, 2, 3, 8, dtype=torch.float64)[..., ::2]
    graph = make_fx(model, tracing_mode="fake")(k, q)
    rewrite(graph, RULES)
    torch.testing.assert_close(graph(k, q), model(k, q))
