"""Activations written out, and what only looks like them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.fx import Report
from pypm.rules import activation
from pypm.rules.replacement.types import IN_FLOAT64
from tests.axes import axes
from tests.rules.capture import WAYS_AND_HOOKS, hooked

torch.set_num_threads(1)

ROOT: Final = math.sqrt(2 / math.pi)
Unary = Callable[[Tensor], Tensor]

WRITTEN: Final[dict[str, tuple[str, Unary]]] = {
    "gelu": ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
    "gelu, half outside": ("gelu", lambda x: 0.5 * (x * (torch.erf(x * 0.5**0.5) + 1.0))),
    "gelu, half of the other": (
        "gelu",
        lambda x: x * ((1 + torch.erf(x * 0.7071067811865475)) / 2),
    ),
    "gelu, by hand with methods": ("gelu", lambda x: x.div(2) * x.div(math.sqrt(2)).erf().add(1)),
    "gpt2": (
        "gelu_tanh",
        lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    ),
    "products": (
        "gelu_tanh",
        lambda x: 0.5 * x * (1 + torch.tanh((x + x * x * x * 0.044715) * ROOT)),
    ),
    "bloom": (
        "gelu_tanh",
        lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
    ),
    "fast": (
        "gelu_tanh",
        lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    ),
    "cube of a square": (
        "gelu_tanh",
        lambda x: x / 2 * (torch.tanh(ROOT * (0.044715 * (x**2 * x) + x)) + 1),
    ),
    "silu": ("silu", lambda x: x * torch.sigmoid(x)),
    "silu by exponential": ("silu", lambda x: x / (1 + torch.exp(-x))),
    "silu by reciprocal": ("silu", lambda x: x * (1 + torch.exp(-x)).reciprocal()),
    "silu by division": ("silu", lambda x: 1 / (1 + torch.exp(-x)) * x),
}

ROUNDED: Final = ("bloom", "fast")
"""Whose constants have eight or ten digits: in float64 that shows."""


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made, dtype=torch.float64).mul(2).to(dtype)


def fired(report: Report) -> list[tuple[str, Any]]:
    return [(record.rule, record.bindings["activation"]) for record in report.rewrites]


def assert_no_worse(function: Callable[..., Tensor], args: list[Tensor], result: Tensor) -> None:
    """No further from float64 than eager, but for a step of float numbers of their size.

    Torch's functions differ by that much from one CPU to another.
    """
    eager, wide = function(*args), function(*(x.double() for x in args))
    assert (result.dtype, result.shape) == (eager.dtype, eager.shape)
    ours, theirs = ((y.double() - wide).abs().max().item() for y in (result, eager))
    step = torch.finfo(eager.dtype).eps * max(4, wide.abs().max().item())
    assert ours <= 1.05 * theirs + step, (ours, theirs)


# --- one operator --------------------------------------------------------------------------------


@axes(name=WRITTEN, way=["export", "symbolic_trace", "pre_grad"])
def test_every_spelling(name: str, way: str) -> None:
    expected, function = WRITTEN[name]
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        args = [normal(5, 16, dtype=dtype)]
        report, result = run(way, function, args)
        if dtype == torch.float64 and name in ROUNDED:
            assert {r.reason for r in report.refusals} == {activation.ROUNDED}, str(report)
            continue
        assert fired(report) == [("whole", expected)], str(report)
        assert_no_worse(function, args, result)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 0.5 * (1 + torch.erf(x * 0.70710678)),
        lambda x: x * 0.5 * (1 + torch.erf(x / 1.41421356)),
        lambda x: x * 0.5 * (1 + torch.erf(x * torch.tensor(0.5**0.5))),
        lambda x: 0.50000001 * x * (1 + torch.erf(x / math.sqrt(2))),
        lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.04471501 * torch.pow(x, 3.0)))),
    ],
)
def test_float64_shows_that_constants_are_rounded(function: Unary) -> None:
    args = [normal(5, 16)]
    report, result = run("symbolic_trace", function, args)
    assert len(report) == 0, str(report)
    assert torch.equal(result, function(*args))


def run(way: str, function: Callable[..., Any], args: list[Tensor]) -> tuple[Report, Any]:
    return WAYS_AND_HOOKS[way](function, args, activation.RULES)


def test_in_float32_and_rounded() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.sigmoid(y)).to(torch.bfloat16)

    args = [normal(5, 16, dtype=torch.bfloat16)]
    report, result = run("export", function, args)
    assert fired(report) == [("whole", "silu")]
    assert torch.equal(result, F.silu(args[0]))


def test_in_float64_and_rounded() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.double()
        return (y * 0.5 * (1 + torch.erf(y * math.sqrt(0.5)))).float()

    report, result = run("export", function, [torch.tensor([-6.0, 1.0])])
    assert IN_FLOAT64 in {refusal.reason for refusal in report.refusals}
    assert result[0] < 0  # the operator returns 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_was_rounded_before_stays_rounded(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.to(dtype)
        return (y * torch.sigmoid(y)).float()

    args = [torch.tensor([1e5, 1.001])]
    report, result = run("export", function, args)
    assert fired(report) == [("whole", "silu")]
    torch.testing.assert_close(result, F.silu(args[0].to(dtype)).float(), rtol=0, atol=0)


def test_in_float32_and_left_so() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.float()
        return y * torch.sigmoid(y)

    args = [normal(5, 16, dtype=torch.bfloat16)]
    report, result = run("export", function, args)
    assert fired(report) == [("whole", "silu")]
    assert torch.equal(result, F.silu(args[0].float()))


@pytest.mark.parametrize("name", WRITTEN)
def test_inductor_takes_them_apart(name: str) -> None:
    report, _ = hooked(WRITTEN[name][1], [normal(5, 16)], activation.RULES)
    assert len(report) == 0
    reasons = {r.reason for r in report.refusals if r.rule == "whole"}
    assert reasons == {"Inductor takes activations apart"}, str(report)


def test_dynamic_shapes() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return WRITTEN["gpt2"][1](x)

    from pypm.integrations import export

    program = torch.export.export(
        Model(), (normal(5, 16),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    assert len(export.rewrite(program, activation.RULES)) == 1
    x = normal(9, 16)
    torch.testing.assert_close(program.module()(x), Model()(x))


def test_within_a_gate() -> None:
    def function(gate: Tensor, up: Tensor) -> Tensor:
        return gate * torch.sigmoid(gate) * up

    args = [normal(5, 16).float(), normal(5, 16, seed=1).float()]
    report, result = run("export", function, args)
    assert fired(report) == [("whole", "silu")]
    assert_no_worse(function, args, result)


# --- near misses ---------------------------------------------------------------------------------

MISSES: Final[dict[str, Callable[..., Any]]] = {
    "no half": lambda x: x * (1 + torch.erf(x / math.sqrt(2))),
    "a third": lambda x: x * 0.501 * (1 + torch.erf(x / math.sqrt(2))),
    "no one": lambda x: x * 0.5 * torch.erf(x / math.sqrt(2)),
    "minus": lambda x: x * 0.5 * (1 - torch.erf(x / math.sqrt(2))),
    "another root": lambda x: x * 0.5 * (1 + torch.erf(x / 1.4156)),
    "another error function": lambda x: x * 0.5 * (1 + torch.erfc(x / math.sqrt(2))),
    "another x": lambda x: x * 0.5 * (1 + torch.erf(x.abs() / math.sqrt(2))),
    "tanh, another root": lambda x: 0.5 * x * (1 + torch.tanh(0.7987 * (x + 0.044715 * x**3))),
    "tanh, another factor": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.04476 * x**3))),
    "tanh, a square": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**2))),
    "tanh, a fourth power": lambda x: (
        0.5 * x * (1 + torch.tanh(ROOT * x * (1 + 0.044715 * x * x * x)))
    ),
    "silu, another sign": lambda x: x / (1 + torch.exp(x)),
    "silu, another one": lambda x: x / (1.001 + torch.exp(-x)),
    "silu of another": lambda x: x * torch.sigmoid(-x),
    "silu's gate alone": lambda x: 1 / (1 + torch.exp(-x)),
    "swish with a factor": lambda x: x * torch.sigmoid(1.5 * x),
    "integers": lambda x: x.long() * torch.sigmoid(x.long()),
    "integers over a number": lambda x: x.long() / (1 + torch.exp(-x.long())),
    "integers by erf": lambda x: x.long() * 0.5 * (1 + torch.erf(x.long() * math.sqrt(0.5))),
    "a gate used again": lambda x: [(x * s, s) for s in [torch.sigmoid(x)]],
}


@axes(name=MISSES, way=["export", "symbolic_trace"])
def test_near_misses(name: str, way: str) -> None:
    report, _ = run(way, MISSES[name], [normal(5, 16)])
    assert len(report) == 0, str(report)
