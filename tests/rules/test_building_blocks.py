"""Building blocks: one rule written with them fires at every stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from pypm import RuleSet, pattern, rule
from pypm.core.rules import Rule
from pypm.fx import metadata
from pypm.rules import building_blocks
from pypm.rules.building_blocks import (
    MM,
    Gelu,
    GeluTanh,
    LayerNorm,
    Linear,
    QuickGelu,
    RMSNorm,
    Rows,
    Scaled,
    Sigmoid,
    Silu,
    Softmax,
    Transposed,
)
from tests.axes import axes
from tests.rules.capture import exported, hooked

torch.set_num_threads(1)


def after_linear(activation: Any) -> Rule:
    """relu instead of the activation, so that the result shows what was rewritten."""

    @pattern
    def AfterLinear(x, w, b, turned):
        return activation(Rows(Linear(x, w, b, turned)))

    @rule(AfterLinear)
    def relu_instead(x, w, b, turned, match):
        y = torch.relu(F.linear(x, w if turned else w.t(), b))
        return y.reshape(metadata(match.root).shape)

    return relu_instead


@pattern
def WeightedRMS(x, w, eps):
    return RMSNorm(x, w, _, eps)


@rule(WeightedRMS)
def weighted(x, w, eps):
    return x * w * eps


@pattern
def WeightedLayer(x, w, b, eps):
    return LayerNorm(x, w, _, b, eps)


@rule(WeightedLayer)
def weighted_and_biased(x, w, b, eps):
    return x * w * eps + b


@pattern
def Attention(q, k, v):
    return MM(Softmax(Scaled(MM(q, Transposed(k)), _)), v)


@rule(Attention)
def product_of_all(q, k, v):
    return q * k * v


Function = Callable[..., Tensor]
ACTIVATIONS: Final[dict[str, tuple[Any, Function]]] = {
    "gelu": (Gelu, F.gelu),
    "gelu_tanh": (GeluTanh, lambda y: F.gelu(y, approximate="tanh")),
    "silu": (Silu, F.silu),
    "quick_gelu": (QuickGelu, lambda y: y * torch.sigmoid(1.702 * y)),
    "sigmoid": (Sigmoid, torch.sigmoid),
}


def relu_of_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.linear(x, w, b))


X: Final = torch.randn(2, 4, 8)
ROW: Final = torch.randn(8)
CASES: Final[dict[str, tuple[Rule, Function, Function, list[Tensor]]]] = {
    **{
        name: (
            after_linear(block),
            lambda x, w, b, f=function: f(F.linear(x, w, b)),
            relu_of_linear,
            [X, torch.randn(6, 8), torch.randn(6)],
        )
        for name, (block, function) in ACTIVATIONS.items()
    },
    "rms_norm": (
        weighted,
        lambda x, w: F.rms_norm(x, (8,), w, 0.5),
        lambda x, w: x * w * 0.5,
        [X, ROW],
    ),
    "rms_norm by hand": (
        weighted,
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.5) * w,
        lambda x, w: x * w * 0.5,
        [X, ROW],
    ),
    "layer_norm": (
        weighted_and_biased,
        lambda x, w, b: F.layer_norm(x, (8,), w, b, 0.5),
        lambda x, w, b: x * w * 0.5 + b,
        [X, ROW, ROW + 1],
    ),
    "attention": (
        product_of_all,
        lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 2.0, -1) @ v,
        lambda q, k, v: q * k * v,
        [X, X + 1, X - 1],
    ),
}


@axes(name=CASES, way=["export", "pre_grad", "joint"])
def test_one_rule_fires_at_every_stage(name: str, way: str) -> None:
    fires, function, replaced, args = CASES[name]
    rules = RuleSet((fires,))
    with torch.no_grad():
        report, result = (
            exported(function, args, rules)
            if way == "export"
            else hooked(function, args, rules, way)
        )
    assert [record.rule for record in report.rewrites] == [fires.name], str(report)
    torch.testing.assert_close(result, replaced(*args))


def test_what_is_named_is_there() -> None:
    for name in building_blocks.__all__:
        assert getattr(building_blocks, name).core
