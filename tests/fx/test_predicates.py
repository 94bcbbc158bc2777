"""Predicates in guards: where they have no value, and the mistakes in them, which are shown."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import let, pattern, predicate, rule
from pypm.core.rules import Rule
from pypm.diagnostics import RewriteError
from pypm.fx import aten, explain, find, rewrite
from pypm.lang.pattern_function import PatternFunction
from pypm.tools import verify


def graph(dtype: torch.dtype, *, dynamic: bool = False) -> fx.GraphModule:
    mode = "symbolic" if dynamic else "fake"
    return make_fx(lambda a: a.relu(), tracing_mode=mode)(torch.ones(4, 4, dtype=dtype))


@predicate
def misspelt(dtype):
    return dtype in flaots  # noqa: F821


@predicate
def lacking(shape):
    return shape.volume > 4


@predicate
def is_wide(dtype):
    return torch.finfo(dtype).bits > 16


@predicate
def is_even(n):
    return len(range(n)) % 2 == 0


@pattern
def Misspelt(x):
    assert not misspelt(x.dtype)
    return aten.relu(x)


@pattern
def Relu(x):
    return aten.relu(x)


@rule(Misspelt)
def guarded_in_its_pattern(x):
    return x


@rule(Relu)
def guarded_itself(x):
    assert x.rank == 1 or lacking(x.shape)
    return x


@pattern
def Bound(x, wide):
    let(wide=lacking(x.shape))
    return aten.relu(x)


@rule(Bound)
def bound_by_it(x, wide):
    return x


@pytest.mark.parametrize("broken", [guarded_in_its_pattern, guarded_itself, bound_by_it])
@pytest.mark.parametrize(
    "ask",
    [
        rewrite,
        lambda gm, broken: explain(gm, broken, "relu"),
        explain,
    ],
)
def test_a_mistake_in_a_predicate_is_shown(
    broken: Rule, ask: Callable[[fx.GraphModule, Rule], object]
) -> None:
    gm = graph(torch.float32)
    before = gm.code
    with pytest.raises(RewriteError, match=r"predicate `.*` raised") as raised:
        ask(gm, broken)
    assert gm.code == before
    span = raised.value.diagnostic.span
    assert span is not None
    assert span.file == __file__
    assert span.source_line[span.column : span.end_column] in ("flaots", "shape.volume")


@pytest.mark.parametrize("broken", [guarded_in_its_pattern, guarded_itself, bound_by_it])
def test_verify_shows_it_too(broken: Rule) -> None:
    try:
        said = str(verify(broken, samples=2))
    except RewriteError as raised:
        said = str(raised)
    assert re.search("predicate `.*` raised", said)


@pattern
def InOneAssert(x):
    assert x.dtype in (torch.float32, torch.float64) and is_wide(x.dtype)
    return aten.relu(x)


@pattern
def InTwo(x):
    assert x.dtype in (torch.float32, torch.float64)
    assert is_wide(x.dtype)
    return aten.relu(x)


@pattern
def InTheOther(x):
    if x.dtype in (torch.float32, torch.float64):
        assert is_wide(x.dtype)
    return aten.relu(x)


@pytest.mark.parametrize("form", [InOneAssert, InTwo])
def test_a_predicate_is_asked_only_where_the_guards_before_it_hold(form: PatternFunction) -> None:
    assert len(find(graph(torch.float64), form)) == 1
    assert find(graph(torch.int32), form) == []
    assert "x.dtype is torch.int32" in str(explain(graph(torch.int32), form, "relu"))


def test_a_predicate_in_a_branch_is_asked_only_there() -> None:
    assert len(find(graph(torch.float32), InTheOther)) == 1
    assert len(find(graph(torch.int32), InTheOther)) == 1


@pattern
def Even(x):
    assert is_even(x.shape[0])
    return aten.relu(x)


def test_a_predicate_that_must_know_a_symbolic_size_is_unknown() -> None:
    assert len(find(graph(torch.float32), Even)) == 1
    assert find(graph(torch.float32, dynamic=True), Even) == []
