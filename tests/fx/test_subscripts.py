"""Subscripts of tensors in patterns match what they mean: before autograd, and as views of ATen."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, var
from pypm.fx import aten, find
from pypm.lang.pattern_function import PatternFunction

ROWS = slice(1, 3)


@pattern
def Column(x):
    return aten.exp(x[:, 0])


@pattern
def Rows(x):
    return aten.exp(x[ROWS.start : ROWS.stop])


@pattern
def Rest(x):
    return aten.exp(x[1:])


@pattern
def First(x):
    return aten.exp(x[:2])


@pattern
def Last(x):
    return aten.exp(x[:, -1:])


@pattern
def Stepped(x):
    return aten.exp(x[..., ::2])


@pattern
def Behind(x):
    return aten.exp(x[..., None])


@pattern
def InFront(x):
    return aten.exp(x[None])


@pattern
def Mixed(x):
    return aten.exp(x[:, None, 1:2])


@pattern
def OfTheEnd(x):
    return aten.exp(x[..., 1:3, 0])


@pattern
def Framed(x):
    return aten.exp(x[None, ..., None])


@pattern
def Item(x):
    return aten.exp(x[1, 0])


@pattern
def Chosen(x, i, end):
    return aten.exp(x[:, i, :end])


@pattern
def Any(x):
    return aten.exp(x[:, _])


CASES: list[tuple[PatternFunction, Callable[[Tensor], Tensor]]] = [
    (Column, lambda x: x[:, 0]),
    (Rows, lambda x: x[1:3]),
    (Rest, lambda x: x[1:]),
    (First, lambda x: x[0:2]),
    (Last, lambda x: x[:, -1:]),
    (Stepped, lambda x: x[..., ::2]),
    (Behind, lambda x: x[..., None]),
    (InFront, lambda x: x[None]),
    (Mixed, lambda x: x[:, None, 1:2]),
    (OfTheEnd, lambda x: x[..., 1:3, 0]),
    (Framed, lambda x: x[None, ..., None]),
    (Item, lambda x: x[1, 0]),
    (Chosen, lambda x: x[:, 3, :2]),
]
OTHERS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x[0],
    lambda x: x[1],
    lambda x: x[:, 1],
    lambda x: x[0, None],
    lambda x: x[:, None],
    lambda x: x[2:3],
    lambda x: x[1::2],
    lambda x: x[[1, 0]],
]
"""What none of the patterns means."""


def traces(part: Callable[[Tensor], Tensor]) -> dict[str, fx.GraphModule]:
    def function(x: Tensor) -> Tensor:
        return part(x).exp()

    x = torch.randn(4, 5, 6)
    root = torch.nn.Module()
    pre_grad = fx.Tracer().trace(function)
    return {
        "before autograd": fx.GraphModule(root, pre_grad),
        "aten": make_fx(function, tracing_mode="fake")(x),
        "aten, symbolic": make_fx(function, tracing_mode="symbolic")(x),
    }


def is_found(gm: fx.GraphModule, form: PatternFunction) -> bool:
    """Return whether a pattern matches with the input of a graph as its x, not a view of that."""
    return any(match.bindings["x"].op == "placeholder" for match in find(gm, form))


@pytest.fixture(scope="module")
def graphs() -> list[dict[str, fx.GraphModule]]:
    return [traces(part) for _, part in CASES]


@pytest.mark.parametrize("case", range(len(CASES)), ids=[form.name for form, _ in CASES])
def test_each_subscript_matches_itself_alone(
    case: int, graphs: list[dict[str, fx.GraphModule]]
) -> None:
    form = CASES[case][0]
    for stage in graphs[0]:
        found = [i for i, traced in enumerate(graphs) if is_found(traced[stage], form)]
        assert found == [case], stage


def test_other_subscripts_match_none() -> None:
    for part in OTHERS:
        for stage, gm in traces(part).items():
            assert not [form.name for form, _ in CASES if is_found(gm, form)], stage


def test_variables_in_subscripts_are_bound() -> None:
    for stage, gm in traces(lambda x: x[:, 3, :2]).items():
        (match,) = find(gm, Chosen)
        assert (match.bindings["i"], match.bindings["end"]) == (3, 2), stage
    for gm in traces(lambda x: x[:, 3]).values():
        assert len([*find(gm, Any)]) == 1


def test_numbers_of_numpy_are_numbers() -> None:
    half, last = numpy.float32(0.5), numpy.int64(-1)

    @pattern
    def HalfOfSum(x):
        return aten.sum(x, last) * half

    gm = make_fx(lambda x: x.sum(1) * 0.5)(torch.randn(2, 3))
    assert len([*find(gm, HalfOfSum)]) == 1


def test_a_tuple_of_tensors_is_a_list() -> None:
    @pattern
    def Joined(x, y):
        return aten.cat((x, y), 1)

    gm = make_fx(lambda x: torch.cat((x, x.exp()), 1))(torch.randn(2, 3))
    assert len([*find(gm, Joined)]) == 1


def test_a_list_is_no_tuple_of_an_index() -> None:
    places = [1, 0]

    @pattern
    def Places(x):
        return aten.exp(x[places])

    assert len([*find(fx.symbolic_trace(lambda x: x[[1, 0]].exp()), Places)]) == 1
    assert not [*find(fx.symbolic_trace(lambda x: x[1, 0].exp()), Places)]


def test_a_variable_alone_is_the_index() -> None:
    @pattern
    def Whole(x):
        i = var()
        return aten.exp(x[i])

    assert len([*find(fx.symbolic_trace(lambda x: x[0].exp()), Whole)]) == 1
