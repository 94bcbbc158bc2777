"""Results that share memory go on sharing the same part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm import pattern, rule
from pypm.core.rules import Rule
from pypm.fx import aten, rewrite
from tests.hunt.rules import Turned, Windows

ops = torch.ops.aten
REASON = "would share other parts of their memory"


@rule(Windows)
def windows_of_a_copy(x):
    n = -x
    z = torch.cat([n[0:2], n[1:3]])
    return z[0:2], z[2:4]


@rule(Windows)
def windows_of_another(x):
    n = x * -1
    return ops.slice(n, 0, 0, 2), ops.slice(n, 0, 1, 3)


def windows(x: Tensor) -> tuple[Tensor, Tensor]:
    n = ops.neg(x)
    return ops.slice(n, 0, 0, 2), ops.slice(n, 0, 1, 3)


@rule(Turned)
def turned_parts(x):
    pair = torch.stack([-x, -x])
    return pair[0], pair[1].t()


@rule(Turned)
def turned(x):
    n = x.t() * -1
    return n.t(), n


def whole(x: Tensor) -> tuple[Tensor, Tensor]:
    n = ops.neg(x)
    return n, ops.t(n)


@pattern
def Doubled(y):
    c = aten.cat([y, y])
    return c, aten.slice(c, 0, 0, 2)


@rule(Doubled)
def second_half(y):
    c = torch.cat([y, y])
    return c, c[2:4]


def doubled(y: Tensor) -> tuple[Tensor, Tensor]:
    c = ops.cat([y, y])
    return c, ops.slice(c, 0, 0, 2)


def rewritten(
    function: Callable[..., Any], r: Rule, x: Tensor, *, described: bool
) -> tuple[fx.GraphModule, list[str]]:
    """Return a graph after a rule, and the reasons of the refusals."""
    gm = fx.symbolic_trace(function)
    if described:
        FakeTensorProp(gm, FakeTensorMode()).propagate(x)
    return gm, [refusal.reason for refusal in rewrite(gm, (r,)).refusals]


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize(
    ("function", "r", "x"),
    [
        (windows, windows_of_a_copy, torch.arange(4.0)),
        (whole, turned_parts, torch.ones(2, 3)),
        (doubled, second_half, torch.arange(2.0)),
    ],
)
def test_other_parts_are_refused(
    function: Callable[..., Any], r: Rule, x: Tensor, described: bool
) -> None:
    gm, reasons = rewritten(function, r, x, described=described)
    assert len(reasons) == 1
    assert REASON in reasons[0]
    one, other = gm(x)
    one.fill_(5.0)
    expected = function(x)
    expected[0].fill_(5.0)
    assert torch.equal(other, expected[1])


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize(
    ("function", "r", "x"),
    [
        (windows, windows_of_another, torch.arange(4.0)),
        (whole, turned, torch.ones(2, 3)),
    ],
)
def test_the_same_parts_are_kept(
    function: Callable[..., Any], r: Rule, x: Tensor, described: bool
) -> None:
    gm, reasons = rewritten(function, r, x, described=described)
    assert not reasons
    expected = function(x)
    expected[0].fill_(5.0)
    actual = gm(x)
    actual[0].fill_(5.0)
    assert torch.equal(actual[1], expected[1])


@pattern
def Flat(x):
    n = aten.neg(x)
    return n, aten.reshape(n, [-1])


@rule(Flat)
def flat(x):
    n = -x
    return n, n.view(-1)


def test_what_may_be_a_copy_does_not_become_a_copy_for_certain() -> None:
    """Without metadata, `reshape` may be a view: then both results share memory."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        n = ops.neg(x)
        return n, ops.reshape(n, [-1])

    gm, reasons = rewritten(function, flat, torch.ones(2, 3), described=False)
    assert reasons == ["`reshape` is a view of memory that is written or seen later"]
    one, other = gm(torch.ones(2, 3))
    assert one.data_ptr() == other.data_ptr()
