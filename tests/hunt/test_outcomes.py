"""The comparison that judges random graphs sees each kind of difference, and no rounding."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from tests.hunt.graphs import Case, Inputs, enclosed, overruns, tried
from tests.hunt.outcomes import ASKED, Asked, difference, observed
from tests.hunt.strangers import notes

fx.wrap("notes")


def judged(
    before: Callable[..., Any],
    after: Callable[..., Any],
    *,
    bitwise: bool = False,
    of_gradients: torch.dtype | None = None,
    asked: Asked = ASKED,
    by_strides: bool = True,
) -> str:
    def make(moved: float) -> list[Tensor]:
        made = torch.Generator().manual_seed(0)
        x = torch.randn(3, 3, generator=made, dtype=torch.float64) * (1 + moved)
        return [x.requires_grad_(), torch.zeros(3, 3, dtype=torch.float64)]

    modules = [fx.symbolic_trace(f) for f in (before, after)]
    expected, actual = (observed(module, make, asked=asked) for module in modules)
    rounding = None if bitwise else torch.float64
    return difference(
        modules[0],
        expected,
        actual,
        make,
        rounding,
        of_gradients,
        asked=asked,
        by_strides=by_strides,
    )


def after_a_draw(x: Tensor, y: Tensor) -> Tensor:
    torch.rand(3)
    return x


DIFFERENCES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "off by": (lambda x, y: x + y, lambda x, y: x + y + 1e-8),
    "nan": (lambda x, y: y / y, lambda x, y: y + 0),
    "inf": (lambda x, y: 1 / y, lambda x, y: y + 0),
    "-inf": (lambda x, y: 1 / y, lambda x, y: -1 / y),
    "outputs": (lambda x, y: x, lambda x, y: (x, y)),
    "float32": (lambda x, y: y, lambda x, y: y.float()),
    "strides": (lambda x, y: y.clone(), lambda x, y: y.t().clone()),
    "memory is shared": (lambda x, y: y.clone(), lambda x, y: y),
    "require gradients": (lambda x, y: x + y, lambda x, y: x.detach() + y),
    "inputs require gradients": (
        lambda x, y: y.add_(x).detach(),
        lambda x, y: y.add_(x.detach()).detach(),
    ),
    "gradient 0": (lambda x, y: x * x, lambda x, y: x * x.detach()),
    "effects": (lambda x, y: notes(y), lambda x, y: y + 0),
    "input 1": (lambda x, y: y.add_(0) * 1, lambda x, y: y.add_(1) * 0),
    "draws": (lambda x, y: F.dropout(y), lambda x, y: y * 1),
}


@pytest.mark.parametrize("words", DIFFERENCES)
def test_differences_are_seen(words: str) -> None:
    assert words in judged(*DIFFERENCES[words])


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_numbers_of_half_precision_are_compared() -> None:
    def half(x: Tensor, y: Tensor) -> Tensor:
        return y.to(torch.complex32)

    assert judged(half, half) == ""
    assert "output 0" in judged(half, lambda x, y: half(y, x.detach()))


def test_strides_are_compared_where_the_graph_says_them() -> None:
    x = torch.randn(3, 3)
    module = fx.symbolic_trace(lambda x: x.clone())
    turned = fx.symbolic_trace(lambda x: x.t().contiguous().t())
    expected, actual = (observed(each, lambda _: [x]) for each in (module, turned))
    _, call, _ = module.graph.nodes
    for said, seen in ((x, True), (x.t(), False)):
        call.meta["val"] = said
        assert bool(difference(module, expected, actual, lambda _: [x], None)) is seen


def test_parts_of_memory_are_compared_where_strides_are_not() -> None:
    def parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = y.clone()
        return z[0], z[:, 0]

    def others(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = y.clone()
        return z[0], z[0]

    def turned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = y.clone().t()
        return z[:, 0], z[0]

    assert "strides" in judged(parts, others)
    assert "other parts share memory" in judged(parts, others, by_strides=False)
    assert judged(parts, lambda x, y: turned(x, y)[::-1], by_strides=False) == ""


def test_second_gradients_are_compared() -> None:
    def cubed(x: Tensor) -> Tensor:
        """Its second derivative is 2."""
        held = x.detach()
        moved = x - held
        return held**3 + 3 * held**2 * moved + moved**2

    pair = (lambda x, y: x**3, lambda x, y: cubed(x))
    assert judged(*pair) == ""
    assert "gradient 1" in judged(*pair, asked=Asked("second"))
    assert judged(pair[0], lambda x, y: x * x * x, asked=Asked("second")) == ""


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_tangents_are_compared() -> None:
    pair = (lambda x, y: y.exp(), lambda x, y: y.detach().exp())
    assert judged(*pair) == ""
    assert "gradient 0" in judged(*pair, asked=Asked("tangents"))
    assert judged(pair[0], lambda x, y: 1 / (-y).exp(), asked=Asked("tangents")) == ""


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
def test_graphs_run_with_gradients_off(mode: str) -> None:
    pair = (lambda x, y: x + y, lambda x, y: x.detach() + y)
    assert "require gradients" in judged(*pair)
    assert judged(*pair, asked=Asked(mode=mode)) == ""


def test_a_gradient_of_zeros_may_stand_for_none() -> None:
    def alone(x: Tensor, y: Tensor) -> Tensor:
        return y.clone().requires_grad_()

    assert judged(alone, lambda x, y: alone(x, y) + x * 0) == ""
    assert "on one side" in judged(alone, lambda x, y: alone(x, y) + (x - x.detach()))
    assert "on one side" in judged(lambda x, y: alone(x, y) + x * 0, alone)


def test_rounding_is_no_difference() -> None:
    pair = (lambda x, y: (x * 3) * 7, lambda x, y: x * 21)
    assert judged(*pair) == ""
    assert judged(*pair, bitwise=True) != ""


def test_gradients_may_be_summed_in_another_order() -> None:
    pair = (lambda x, y: x.expand(7, 3, 3).expand(5, 7, 3, 3), lambda x, y: x.expand(5, 7, 3, 3))
    assert "gradient 0" in judged(*pair, bitwise=True)
    assert judged(*pair, bitwise=True, of_gradients=torch.float64) == ""


def test_cancelled_rounding_is_no_difference() -> None:
    assert judged(lambda x, y: (x * 1e6 + 1) - x * 1e6, lambda x, y: x * 0 + 1) == ""


def test_signs_of_zero_are_bits() -> None:
    pair = (lambda x, y: y * 1, lambda x, y: -y)
    assert judged(*pair) == ""
    assert judged(*pair, bitwise=True) == "output 0: other bits"


def test_memory_that_nobody_wrote_is_the_same_in_each_run() -> None:
    assert judged(lambda x, y: torch.empty_like(x), lambda x, y: torch.empty_like(x + y)) == ""
    assert judged(lambda x, y: torch.empty_like(x), lambda x, y: x) != ""


@pytest.mark.parametrize("share", [1e-15, 1e-11])
def test_inputs_move_by_so_much(share: float) -> None:
    make = Inputs((torch.empty(50, dtype=torch.float64),), seed=0, tracked=False, special=False)
    (plain,), (moved,) = make(), make(share)
    assert 0 < ((moved - plain) / plain).abs().max() < 2 * share


def test_what_a_large_constant_swallows_is_a_rounding() -> None:
    assert not judged(lambda x, y: (x + 1e5) * 10, lambda x, y: x * 10 + 1e6)


def test_infinities_that_come_from_rounding() -> None:
    assert not judged(lambda x, y: (x * 1.1 / 1.1 - x) / y, lambda x, y: (x - x) / y)
    assert judged(lambda x, y: (x * 1.1 / 1.1 - x + 1) / y, lambda x, y: (x - x) / y)


@pytest.mark.parametrize("rounded", [0.0, 2**-52])
def test_steps_of_what_is_computed_from_integers(rounded: float) -> None:
    def halves(x: Tensor, share: float) -> Tensor:
        return ((x * 4).to(torch.int64).double() * 0.5 * (1 + share)).round().to(torch.int8)

    def before(x: Tensor, y: Tensor) -> Tensor:
        return halves(x, 0.0)

    def after(x: Tensor, y: Tensor) -> Tensor:
        return halves(x, rounded)

    def wrong(x: Tensor, y: Tensor) -> Tensor:
        return halves(x, rounded) + 2

    assert not judged(before, after)
    assert judged(before, wrong)


@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_torch_of_fewer_keys_than_values(keys: int, causal: bool) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    q, k, v = (torch.randn(2, 1, n, 8) for n in (3, keys, 3))
    graph = make_fx(function, tracing_mode="fake", pre_dispatch=True)(q, k, v).graph
    assert sum(map(overruns, graph.nodes)) == (keys == 1)


@pytest.mark.parametrize("seed", range(6))
def test_roundings_are_moved_in_bodies_too(seed: int) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    module = enclosed(fx.symbolic_trace(lambda x: x * 3), [x], Random(seed))
    plain, moved = (
        observed(module, lambda _: [x], rounded=draw).outputs[0] for draw in (None, Random(0))
    )
    assert 0 < ((plain - moved) / plain).abs().max() <= 2 * torch.finfo(plain.dtype).eps


def test_what_is_exact_is_not_moved() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.where(x.double() > 1, -x.to(torch.int64).float(), x.clone())

    make = Inputs((torch.empty(50, dtype=torch.float32),), seed=0, tracked=False, special=False)
    module = fx.symbolic_trace(function)
    (plain,), (moved,) = (observed(module, make, rounded=d).outputs for d in (None, Random(0)))
    assert torch.equal(plain, moved)


def test_roundings_beside_a_large_number() -> None:
    pair = (lambda x, y: (x + 1e12) - 1e12, lambda x, y: x + 0)
    assert not judged(*pair)
    assert judged(pair[0], lambda x, y: x + 0.1)


def test_graphs_that_give_eight_bits_count() -> None:
    cases = [
        Case(seed, "add_rms_norm_quantized", (), "as it is", "alone", tracked=False, special=False)
        for seed in range(3)
    ]
    assert all(tried(case).counts for case in cases)
