"""Patterns with several outputs: matched and replaced together, whichever of them are used."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule
from pypm.fx import aten, find, rewrite

X, R = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)


@pattern
def Moments(x):
    variance, mean = aten.var_mean(x, [-1], correction=0, keepdim=True)
    return variance, mean


@rule(Moments)
def by_hand(x):
    mean = x.mean(-1, keepdim=True)
    return ((x - mean) ** 2).mean(-1, keepdim=True), mean


@pattern
def AddNorm(x, r):
    s = x + r
    return s * aten.rsqrt(aten.mean(aten.pow(s, 2), [-1], True)), s


@rule(AddNorm)
def add_norm(x, r):
    s = r + x
    return s / (s**2).mean(-1, keepdim=True).sqrt(), s


@pattern
def SinCos(x):
    return aten.sin(x), aten.cos(x)


def test_both_outputs_of_one_operator() -> None:
    def both(x, r):
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return variance * mean

    gm = make_fx(both, tracing_mode="fake")(X, R)
    assert len(rewrite(gm, by_hand)) == 1
    assert "var_mean" not in gm.code
    torch.testing.assert_close(gm(X, R), both(X, R))


@pytest.mark.parametrize("index", [0, 1])
def test_one_output_of_two(index: int) -> None:
    def one(x, r):
        return torch.var_mean(x, -1, correction=0, keepdim=True)[index].clone()

    gm = make_fx(one, tracing_mode="fake")(X, R)
    gm.graph.eliminate_dead_code()
    assert len(rewrite(gm, by_hand)) == 1
    assert "var_mean" not in gm.code
    torch.testing.assert_close(gm(X, R), one(X, R))


def test_an_output_inside_of_another() -> None:
    def norm(x, r):
        s = x + r
        return s * torch.rsqrt(s.pow(2).mean(-1, True))

    def norm_and_sum(x, r):
        s = x + r
        return s * torch.rsqrt(s.pow(2).mean(-1, True)), s.relu()

    for function in (norm, norm_and_sum):
        gm = make_fx(function, tracing_mode="fake")(X, R)
        assert len(rewrite(gm, add_norm)) == 1
        assert "rsqrt" not in gm.code
        torch.testing.assert_close(gm(X, R), function(X, R))


def test_a_computation_of_its_own_is_never_absent() -> None:
    def either(x, r):
        return x.cos() + x.sin(), r.sin()

    gm = make_fx(either, tracing_mode="fake")(X, R)
    (match,) = find(gm, SinCos)
    assert [str(root.target) for root in match.roots] == ["aten.sin.default", "aten.cos.default"]


@pattern
def SinExp(x, y):
    a, b = aten.sin(x), aten.exp(y)
    assert a.rank == b.rank
    return a, b


@rule(SinExp)
def swapped(x, y):
    assert x.dtype == y.dtype
    return y.exp().sin(), x.sin().exp()


def test_outputs_that_have_only_a_guard_in_common() -> None:
    gm = make_fx(lambda x, r: (x.sin(), r.exp()), tracing_mode="fake")(X, R)
    assert len(find(gm, SinExp)) == len(find(gm, swapped)) == 1
