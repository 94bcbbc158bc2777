"""What changes nothing goes, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

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
    lambda x: (x.long() / 1).exp(),  # another type
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
    assert not len(rewrite(gm, RULES))
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
