"""Attention whose values have another width than its keys, as DeepSeek's latent attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import Report, every, first, rewrite
from pypm.integrations import inductor
from pypm.rules.attention import RULES, sdpa
from pypm.rules.attention.rules import attention_by_products
from pypm.rules.attention.widths import called_sdpa_of_two_widths, sdpa_of_two_widths
from tests.axes import axes
from tests.compiled import without_code
from tests.rules.gradients import assert_gradients_agree

torch.set_num_threads(1)

B, H, S, T = 2, 4, 5, 7
BOTH: Final = (sdpa_of_two_widths, called_sdpa_of_two_widths)
Function = Callable[..., Tensor]


def operands(keys: int, values: int, groups: int = H) -> list[Tensor]:
    shapes = (B, H, S, keys), (B, groups, T, keys), (B, groups, T, values)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.3, -1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.ones(S, T, dtype=torch.bool).triu(1)
    return torch.softmax((q @ k.mT / 3).masked_fill(hidden, -math.inf), -1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(torch.einsum("bhsd,bhtd->bhst", q, k), -1)
    return torch.einsum("bhst,bhte->bshe", weights, v)


def flat(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.softmax(torch.bmm(q, k.mT), -1).bmm(v).unflatten(0, (B, H))


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    return plain(q, k, v)


def filled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first row sees no key: its result is the mean of all values."""
    hidden = torch.arange(T) >= torch.arange(S)[:, None]
    return torch.softmax((q @ k.mT).masked_fill(hidden, -1e9), -1) @ v


def called(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def called_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=-0.5)


def called_with_scale_zero(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each query attends equally to what it sees."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.0)


def called_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first row sees no key: its result is 0."""
    seen = torch.arange(T) < torch.arange(S)[:, None]
    return F.scaled_dot_product_attention(q, k, v, seen[None, None])


def called_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, k[:, :1, :, 0][:, :, None], enable_gqa=True)


GROUPED: Final = (repeated, called_grouped)
FUNCTIONS: Final = (
    *(plain, causal, by_einsum, flat, repeated, filled),
    *(called, called_causal, called_with_scale_zero, called_masked, called_grouped),
)


def rewritten(
    function: Function, args: list[Tensor], rules: Any = BOTH, choose: Any = every
) -> tuple[Report, Any]:
    gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*args)
    return rewrite(gm, rules, choose=choose), gm


@axes(function=FUNCTIONS, widths=[(24, 16), (8, 12)])
def test_every_spelling(function: Function, widths: tuple[int, int]) -> None:
    args = operands(*widths, groups=2 if function in GROUPED else H)
    report, gm = rewritten(function, args)
    assert (len(report), report.unchecked) == (1, 0), report
    torch.testing.assert_close(gm(*args), function(*args), atol=1e-12, rtol=1e-12)
    if function is filled:
        return  # of a row that is filled everywhere, the rule declines where it knows of gradients
    assert_gradients_agree(gm, function, args, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", [plain, called_masked])
def test_narrow_types(function: Function, dtype: torch.dtype) -> None:
    args = [x.to(dtype) for x in operands(24, 16)]
    report, gm = rewritten(function, args)
    assert len(report) == 1
    exact = function(*(x.double() for x in args))
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(gm(*args).double(), exact, atol=tolerance, rtol=tolerance)


@torch.no_grad()
@pytest.mark.parametrize("stage", ["pre_grad", "joint"])
def test_calls_that_inductor_writes_out(stage: str) -> None:
    """A row that sees no key is 0, whether the call is one operator or written out by torch."""

    def two(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        return [called_causal(q, k, v), called_masked(q, k, v)]

    torch._dynamo.reset()
    args = [x.float() for x in operands(24, 16)]
    passed = inductor.Pass(BOTH, stage, choose=every)
    with without_code() if stage == "pre_grad" else nullcontext():
        ours = torch.compile(two, options=passed.options(fx_graph_cache=False))(*args)
    assert len(passed.report()) == 2
    for mine, eager in zip(ours, two(*args), strict=True):
        torch.testing.assert_close(mine, eager, atol=3e-6, rtol=3e-6)
    assert (ours[1][:, :, 0] == 0).all()


def test_products_of_groups() -> None:
    args = operands(24, 16, groups=2)
    report, gm = rewritten(repeated, args, attention_by_products)
    assert len(report) == 1
    torch.testing.assert_close(gm(*args), repeated(*args), atol=1e-12, rtol=1e-12)


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)


def of_three_dimensions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[0], k[0], v[0])


def with_more_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(torch.stack([q, q]), k, v)


def with_more_queries_and_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = torch.stack([q, q]), torch.stack([k, k])
    return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(
    ("function", "widths", "reason"),
    [
        (plain, (8, 8), "keys and values have one width"),
        (plain, (8, 0), "the widths of keys and values are not known, or 0"),
        (called, (8, 0), "the widths of keys and values are not known, or 0"),
        (called, (8, 8), ""),
        (dropped, (8, 4), ""),
        (of_three_dimensions, (8, 4), ""),
        (with_more_queries, (8, 4), ""),
        (with_more_queries_and_keys, (8, 4), ""),
    ],
)
def test_near_misses(function: Function, widths: tuple[int, int], reason: str) -> None:
    report, _ = rewritten(function, operands(*widths))
    assert len(report) == 0
    assert [refusal.reason for refusal in report.refusals] == ([reason] if reason else [])


def test_heads_that_do_not_divide() -> None:
    """The heads of keys are repeated and then cut: 3 heads of 2."""

    def cut(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(2, 1)[:, :3] for x in (k, v))
        return plain(q[:, :3], k, v)

    args = operands(24, 16, groups=2)
    report, gm = rewritten(cut, args)
    assert len(report) == 1  # of keys that are computed as before
    torch.testing.assert_close(gm(*args), cut(*args), atol=1e-12, rtol=1e-12)


def test_the_kernel_of_one_width_declines() -> None:
    report, _ = rewritten(plain, operands(24, 16), sdpa)
    reasons = [refusal.reason for refusal in report.refusals]
    assert reasons == ["the fused kernels take values of the width of the keys"]


def test_it_is_for_choices_alone() -> None:
    report, _ = rewritten(plain, operands(24, 16), RULES, first)
    assert not len(report)
