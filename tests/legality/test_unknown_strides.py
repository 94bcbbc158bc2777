"""Without metadata, no replacement changes strides that something observes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor, fx

from pypm.core.operators import REQUIRED
from pypm.fx import rewrite
from pypm.fx.legality.unknown_strides import keeps_layout
from pypm.fx.operators import corrections
from pypm.fx.operators.schemas import overloads
from tests.hunt.outcomes import long_strides
from tests.layouts import LAYOUTS
from tests.legality.cases import NEG_TWICE, Planted

aten = torch.ops.aten
SMALLEST: Final = Planted(
    (("maximum", ("neg", "x"), ("neg", "y")),), (("neg", ("minimum", "y", "x")),)
)
FAMILIAR: Final = {name: layout for name, layout in LAYOUTS.items() if name != "empty"}

OBSERVERS: Final[dict[str, Callable[[Tensor], Any]]] = {
    "as_strided": lambda z: aten.as_strided(z, [6], [1]),
    "rand_like": torch.rand_like,
    "uniform_": lambda z: z.uniform_(),
    "dropout": lambda z: torch.nn.functional.dropout(z, 0.5, True),
    "bernoulli": lambda z: aten.bernoulli(aten.sigmoid(z)),
    "stride": lambda z: z.stride(),
    "stride of what follows": lambda z: z.abs().t().stride(),
    "is_contiguous": lambda z: z.is_contiguous(),
    "view": lambda z: z.view(-1),
    "view of what follows": lambda z: z.abs().view(-1),
}
BLIND: Final[dict[str, Callable[[Tensor], Any]]] = {
    "a product": lambda z: aten.mm(z, aten.t(z)).view(-1),
    "a copy": lambda z: z.clone(memory_format=torch.contiguous_format).view(-1),
    "a draw in one order": lambda z: torch.rand_like(z, memory_format=torch.contiguous_format),
    "its size": lambda z: torch.rand(z.size(0)),
    "the output": lambda z: z,
}


def smallest(x: Tensor, y: Tensor) -> Tensor:
    return aten.maximum(aten.neg(x), aten.neg(y))


def operands() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    return torch.rand(2, 3, generator=made), torch.rand(3, 2, generator=made).t()


def seen(function: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    found = function(*operands())
    return found.tolist() if isinstance(found, Tensor) else found


@pytest.mark.parametrize("name", OBSERVERS)
def test_what_observes_strides_sees_the_same(name: str) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        return OBSERVERS[name](smallest(x, y))

    gm = fx.symbolic_trace(function)
    (refusal,) = rewrite(gm, (SMALLEST.rule,)).refusals
    assert refusal.kind == "layout"
    assert "strides decide what" in refusal.reason
    try:
        expected = seen(function)
    except RuntimeError:
        return
    assert seen(gm) == expected


@pytest.mark.parametrize("name", BLIND)
def test_what_does_not_observe_strides_is_no_reason(name: str) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        return BLIND[name](smallest(x, y))

    gm = fx.symbolic_trace(function)
    assert rewrite(gm, (SMALLEST.rule,)).rewrites
    torch.testing.assert_close(seen(gm), seen(function))  # some products add in another order


def test_strides_that_certainly_stay_are_no_reason() -> None:
    """A copy of an operand lies as what is computed of it, element by element."""
    gm = fx.symbolic_trace(lambda x: aten.neg(aten.neg(x)).view(-1))
    assert rewrite(gm, (Planted((NEG_TWICE,), (("clone", "x"),)).rule,)).rewrites
    gm = fx.symbolic_trace(lambda x: aten.neg(aten.neg(x)).view(-1))
    assert rewrite(gm, (Planted((NEG_TWICE,), (("contiguous", "x"),)).rule,)).refusals


def turned_after(make: Callable[..., Any]) -> tuple[fx.GraphModule, Planted]:
    gm = fx.symbolic_trace(lambda x: aten.as_strided(aten.t(aten.abs(make(x))), [4], [1]))
    return gm, Planted((("t", ("abs", "x")),), (("abs", ("t", "x")),))


@pytest.mark.parametrize("make", [aten.neg, lambda x: aten.add(x, aten.t(x)), aten.contiguous])
@pytest.mark.parametrize("layout", FAMILIAR)
def test_what_lies_in_one_block_keeps_its_order(make: Callable[..., Any], layout: str) -> None:
    """Results of what is computed element by element have no gaps, so `abs` lies as they do."""
    gm, planted = turned_after(make)
    given = FAMILIAR[layout](torch.rand(3, 3))
    before = gm(given)
    assert rewrite(gm, (planted.rule,)).rewrites
    assert torch.equal(gm(given), before)
    below = make(given)
    assert long_strides(aten.t(aten.abs(below))) == long_strides(aten.abs(aten.t(below)))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        aten.t,
        lambda x: aten.slice(aten.neg(x), 1, 0, 2),
        lambda x: aten.neg(x).as_strided_([2, 2], [1, 0]),
        lambda x: aten.transpose(aten.neg(x), 0, 1),
    ],
)
def test_what_may_have_gaps_may_change_its_order(make: Callable[..., Any]) -> None:
    gm, planted = turned_after(make)
    (refusal,) = rewrite(gm, (planted.rule,)).refusals
    assert refusal.reason == "strides decide what `as_strided` does, and they are not known here"


@pytest.mark.parametrize("make", [aten.neg, aten.contiguous])
def test_what_is_given_other_strides_in_place_is_left(make: Callable[..., Any]) -> None:
    gm, planted = turned_after(lambda x: (y := make(x), y.as_strided_([2, 2], [1, 0]))[0])
    (refusal,) = rewrite(gm, (planted.rule,)).refusals
    assert "is given another shape in place" in refusal.reason


X: Final = torch.rand(2, 2, 3, 3)
CONTIGUOUS: Final[dict[str, Callable[..., Tensor]]] = {
    "mm": lambda f: aten.mm(f(X[0, 0]), f(X[1, 0])),
    "addmm": lambda f: aten.addmm(f(X[0, 1]), f(X[0, 0]), f(X[1, 0])),
    "bmm": lambda f: aten.bmm(f(X[0]), f(X[1])),
    "baddbmm": lambda f: aten.baddbmm(f(X[0]), f(X[1]), f(X[0])),
    "linear": lambda f: aten.linear(f(X), f(X[0, 0]), f(X[0, 0, 0])),
    "layer_norm": lambda f: aten.layer_norm(f(X), [3], f(X[0, 0, 0]), f(X[0, 0, 1])),
    "lift_fresh_copy": lambda f: aten.lift_fresh_copy(f(X)),
    "embedding": lambda f: aten.embedding(f(X[0, 0]), torch.tensor([[0, 1, 2], [2, 0, 1]])),
    **{
        name: lambda f, name=name: getattr(aten, name)(f(X), 1)
        for name in ("softmax", "log_softmax", "argmax", "argmin")
    },
    **{
        name: lambda f, name=name: getattr(aten, name)(f(X), 1, False)
        for name in ("_softmax", "_log_softmax")
    },
    **{
        name: lambda f, name=name: getattr(aten, name)(f(X), [1, 2])
        for name in ("sum", "mean", "amax", "amin")
    },
}


def test_each_contiguous_result_has_a_call() -> None:
    assert {f"aten.{name}" for name in CONTIGUOUS} == corrections.CONTIGUOUS


@pytest.mark.parametrize("name", CONTIGUOUS)
@pytest.mark.parametrize("layout", FAMILIAR)
def test_results_are_contiguous_in_any_layout(name: str, layout: str) -> None:
    assert CONTIGUOUS[name](FAMILIAR[layout]).is_contiguous()


def elementwise() -> list[Any]:
    """Return torch's overloads of one tensor that compute element by element."""
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    return [
        getattr(getattr(aten, name), each.name or "default")
        for name in sorted(n.removeprefix("aten::") for n in names if n.startswith("aten::"))
        for each in overloads(f"aten.{name}")
        if "pointwise" in each.tags
        and not each.mutates
        and sum(slot.parameter.default is REQUIRED for slot in each.slots) == 1
    ]


@pytest.mark.parametrize("layout", FAMILIAR)
def test_what_computes_element_by_element_lies_as_a_copy(layout: str) -> None:
    """By the same strides as any other such call, also if it is called once more."""
    tried = 0
    for call in elementwise():
        graph = fx.Graph()
        x = graph.placeholder("x")
        once, copy = graph.call_function(call, (x,)), graph.call_function(aten.clone.default, (x,))
        twice = graph.call_function(aten.neg.default, (once,))
        for shape in ((4,), (3, 4), (2, 3, 4), (2, 3, 4, 5)):
            given = FAMILIAR[layout](torch.rand(shape))
            try:
                value = call(given)
            except RuntimeError:
                continue
            if not isinstance(value, Tensor):
                continue
            if keeps_layout(once, copy, {}):
                tried += 1
                assert value.stride() == given.clone().stride(), call
            if keeps_layout(once, twice, {}) and value.dtype != torch.bool:
                assert value.neg().stride() == value.stride(), call
    assert tried > 100
