"""A pattern finds a call however the model writes it: reflected, renamed, as method, in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm import pattern
from pypm.core.operators import Operator
from pypm.core.patterns import Op, Var
from pypm.core.text import parse_pattern
from pypm.diagnostics import SyntaxDiagnostic
from pypm.fx import aten, declare, find, rewrite
from pypm.lang.pattern_function import PatternFunction
from tests.fx.small_rules import zeros

Function = Callable[..., torch.Tensor]
X, Y = torch.rand(4, 4) + 0.5, torch.rand(4, 4) + 0.5
DECOMPOSITIONS = select_decomp_table()


@pattern
def FromOne(x):
    return 1 - x


@pattern
def Reflected(x):
    return aten.rsub(x, 1)


@pattern
def Difference(x, y):
    return x - y


@pattern
def Twice(x, y):
    return aten.rsub(y, x, alpha=2)


@pattern
def Floored(x):
    return x // 2


@pattern
def TwoFloored(x):
    return aten.div(2, x, rounding_mode="floor")


@pattern
def Squared(x):
    return x**2


@pattern
def Square(x):
    return aten.square(x)


@pattern
def Power(x):
    return 2**x


@pattern
def Remainder(x):
    return 2 % x


@pattern
def Negative(x):
    return -x


@pattern
def Ratio(x, y):
    return x / y


@pattern
def AboveTwo(x):
    return x > 2


@pattern
def Below(x, y):
    return x < y


@pattern
def AtLeast(x, y):
    return aten.ge(x, y)


@pattern
def NotNegative(x):
    return aten.clamp_min(x, 0)


@pattern
def Quotient(x, y):
    return x / y | x * aten.reciprocal(y)  # torch itself writes the second for `2 / y`


@pattern
def TwoOver(x):
    return Quotient(2, x)


CALLS: list[tuple[PatternFunction, list[Function]]] = [
    (
        FromOne,
        [
            lambda x, y: 1 - x,
            lambda x, y: torch.rsub(x, 1),
            lambda x, y: torch.sub(1, x),
            lambda x, y: 1.0 - x,
        ],
    ),
    (Reflected, [lambda x, y: 1 - x, lambda x, y: torch.rsub(x, 1)]),
    (
        Difference,
        [lambda x, y: x - y, lambda x, y: torch.rsub(y, x), lambda x, y: x.clone().sub_(y)],
    ),
    (Twice, [lambda x, y: torch.sub(x, y, alpha=2), lambda x, y: torch.rsub(y, x, alpha=2)]),
    (
        Floored,
        [
            lambda x, y: x // 2,
            lambda x, y: torch.div(x, 2, rounding_mode="floor"),
            lambda x, y: x.clone().floor_divide_(2),
        ],
    ),
    (TwoFloored, [lambda x, y: 2 // x]),
    (
        Squared,
        [lambda x, y: x**2, lambda x, y: x.square(), lambda x, y: x.pow(2.0)],
    ),
    (Square, [lambda x, y: x.pow(2), lambda x, y: torch.square(x)]),
    (Power, [lambda x, y: 2**x, lambda x, y: torch.pow(2, x)]),
    (Remainder, [lambda x, y: 2 % x]),
    (Negative, [lambda x, y: -x, lambda x, y: x.negative(), lambda x, y: x.clone().neg_()]),
    (
        Ratio,
        [
            lambda x, y: x / y,
            lambda x, y: x.true_divide(y),
            lambda x, y: torch.div(x, y, rounding_mode=None),
            lambda x, y: x.clone().div_(y),
        ],
    ),
    (AboveTwo, [lambda x, y: x > 2, lambda x, y: x > 2, lambda x, y: torch.gt(x, 2)]),
    (Below, [lambda x, y: x < y, lambda x, y: y > x, lambda x, y: torch.greater(y, x)]),
    (AtLeast, [lambda x, y: x >= y, lambda x, y: y <= x, lambda x, y: y.le(x)]),
    (
        NotNegative,
        [
            lambda x, y: x.clamp(min=0),
            lambda x, y: x.clamp_min(0),
            lambda x, y: torch.clip(x, 0),
            lambda x, y: x.clone().clamp_min_(0),
        ],
    ),
    (TwoOver, [lambda x, y: 2 / x, lambda x, y: torch.div(2, x), lambda x, y: x.reciprocal() * 2]),
]


def graphs(function: Function) -> dict[str, fx.GraphModule]:
    """The graphs that torch makes of a function of X and Y, at different stages."""

    fake: Any = {"tracing_mode": "fake"}
    if any(name.endswith("_") for name in function.__code__.co_names):
        return {"functional": make_fx(functionalize(function), **fake)(X, Y)}
    return {
        "torch": fx.symbolic_trace(function),
        "composite": make_fx(function, pre_dispatch=True, **fake)(X, Y),
        "decomposed": make_fx(function, DECOMPOSITIONS, **fake)(X, Y),
    }


@pytest.mark.parametrize(
    ("form", "function"),
    [(form, function) for form, functions in CALLS for function in functions],
    ids=[f"{form.name}-{i}" for form, functions in CALLS for i in range(len(functions))],
)
def test_a_call_is_found_at_every_stage(form: PatternFunction, function: Function) -> None:
    for stage, gm in graphs(function).items():
        assert len(find(gm, form)) == 1, (stage, gm.code)


@pytest.mark.parametrize(
    ("form", "function"),
    [
        (FromOne, lambda x, y: x - 1),
        (FromOne, lambda x, y: torch.rsub(x, 2)),
        (FromOne, lambda x, y: torch.rsub(x, 1, alpha=2)),
        (Difference, lambda x, y: torch.rsub(x, y, alpha=3)),
        (Floored, lambda x, y: x / 2),
        (Floored, lambda x, y: torch.div(x, 2, rounding_mode="trunc")),
        (Ratio, lambda x, y: x // y),
        (Squared, lambda x, y: x**3),
        (Square, lambda x, y: 2**x),
        (AboveTwo, lambda x, y: x < 2),
        (AboveTwo, lambda x, y: x >= 2),
        (NotNegative, lambda x, y: x.clamp_max(0)),
        (TwoOver, lambda x, y: x / 2),
    ],
)
def test_another_call_is_not(form: PatternFunction, function: Function) -> None:
    for stage, gm in graphs(function).items():
        assert find(gm, form) == [], stage


def test_the_operands_are_bound_as_the_pattern_has_them() -> None:
    for function in (lambda x, y: x - y, lambda x, y: torch.rsub(y, x)):
        (match,) = find(make_fx(function)(X, Y), Difference)
        assert [str(v) for v in match.bindings.values()] == ["x_1", "y_1"]
    for function in (lambda x, y: x < y, lambda x, y: y > x):
        (match,) = find(make_fx(function)(X, Y), Below)
        assert [str(v) for v in match.bindings.values()] == ["x_1", "y_1"]


def test_text_names_the_operators_that_terms_have() -> None:
    def operator(name: str) -> Operator:
        found: Operator = getattr(aten, name.removeprefix("aten."))
        return found

    assert parse_pattern("aten.multiply(x, y)", operators=operator) == Op(
        aten.mul, (Var("x"), Var("y"))
    )
    with pytest.raises(SyntaxDiagnostic, match=r"no term has operator `aten\.rsub`"):
        parse_pattern("aten.rsub(x, y)", operators=operator)


@pattern
def SumOfPools(x):
    return aten.sum(aten.adaptive_max_pool2d(x, [2, 2])[0])


@pattern
def SumOfBags(x, w):
    return aten.sum(aten.embedding_bag(w, x, ...)[0])


@pytest.mark.parametrize(
    ("form", "function"),
    [
        (SumOfPools, lambda x: F.adaptive_max_pool2d(x, [2, 2])[0].sum()),
        (SumOfBags, lambda x, w: F.embedding_bag(x, w)[0].sum()),
    ],
)
def test_one_result_of_several_is_another_call(form: PatternFunction, function: Function) -> None:
    assert not list(find(fx.symbolic_trace(function), form))


def scaled_by(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    @declare
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return scaled


class Scaled:
    """An object that fx calls."""

    def __init__(self, factor: float) -> None:
        self.factor, self.__name__ = factor, "scaled"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@declare
def chosen(x: torch.Tensor, how: object, **others: torch.Tensor) -> torch.Tensor:
    factor = 2 if isinstance(how, (list, dict, slice, torch.device)) else 3
    return x * factor + others.get("added", 0) - others.get("removed", 0)


DOUBLE, TRIPLE = scaled_by(2), scaled_by(3)
ONES = torch.ones(2, 2)


@pattern
def Cast(x):
    return aten.to(x, ...)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_a_device_alone(device: str | torch.device) -> None:
    gm = fx.symbolic_trace(lambda x: x.to(device) + x.to(device, copy=False) + x.to(device=device))
    assert len(find(gm, Cast)) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((DOUBLE,), (TRIPLE,)),
        ((declare(Scaled(2)),), (declare(Scaled(3)),)),
        ((chosen, [1]), (chosen, (1,))),
        ((chosen, slice(0, 1)), (chosen, ("slice", 0, 1, None))),
        ((chosen, {"k": 1}), (chosen, (("k", 1),))),
        ((chosen, torch.device("cpu")), (chosen, "cpu")),
        ((chosen, 0, {"added"}), (chosen, 0, {"removed"})),
        ((DOUBLE,), (DOUBLE,)),
        ((chosen, [1]), (chosen, [1])),
        ((chosen, 0, {"added"}), (chosen, 0, {"added"})),
    ],
)
def test_calls_of_python_are_the_same_if_they_are_given_the_same(one: Any, other: Any) -> None:
    """Functions of one name are told apart, and so are lists, tuples, and the keywords."""
    graph = fx.Graph()
    x = graph.placeholder("x")

    def called(function: Callable[..., Any], *args: Any) -> fx.Node:
        named = args[-1] if len(args) == 2 else {}
        return graph.call_function(function, (x, *args[:1]), dict.fromkeys(named, x))

    graph.output(graph.call_function(torch.sub, (called(*one), called(*other))))
    gm = fx.GraphModule({}, graph)
    before = gm(ONES)
    assert len(rewrite(gm, zeros)) == bool((before == 0).all())
    torch.testing.assert_close(gm(ONES), before)


def test_modules_are_the_same_if_they_are_given_the_same() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.layer(x, src_mask=mask) - self.layer(x, src_key_padding_mask=mask)

    x, mask = torch.randn(3, 3, 4), torch.arange(9).view(3, 3) % 4 == 1
    gm = fx.symbolic_trace(Model().eval())
    before = gm(x, mask)
    assert not len(rewrite(gm, zeros))
    torch.testing.assert_close(gm(x, mask), before)


@pattern
def Swapped(x):
    return aten.mT(x)


@pattern
def Reversed(x):
    return aten.numpy_T(x)


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize(
    ("name", "rank", "found"),
    [
        ("mT", 3, Swapped),
        ("mT", 2, Swapped),
        ("T", 2, Reversed),
        ("T", 3, Reversed),
        ("H", 2, None),
        ("mH", 3, None),
        ("real", 2, None),
    ],
)
def test_attributes_that_transpose(name: str, rank: int, found: PatternFunction | None) -> None:
    x = torch.rand(2, 3, 4)[(0,) * (3 - rank)]
    module = fx.symbolic_trace(lambda x: getattr(x, name))
    assert not any(find(module, each) for each in (Swapped, Reversed))
    FakeTensorProp(module).propagate(x)
    assert [each for each in (Swapped, Reversed) if find(module, each)] == (
        [] if found is None else [found]
    )
