"""Quantized norms of sums in combinations of their parts: fused once, or left alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm import RuleSet
from pypm.rules import quantization
from tests.axes import axes
from tests.rules.capture import as_exported, decomposed, fired, hooked
from tests.rules.norms import over_length, unit

torch.set_num_threads(1)

RULES: Final = RuleSet((replace(quantization.add_rms_norm_quantized, pays="mostly"),))
"""The rule is a candidate, which the first choice would not take."""
ROWS, COLUMNS = 4, 8
INT8: Final = torch.int8

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "FEW", 0)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


WEIGHTS: Final[dict[str, Function]] = {
    "from 0": lambda w: w,
    "from 1": lambda w: 1 + w,
}
LARGEST: Final[dict[str, Function]] = {
    "amax": lambda z: z.abs().amax(-1, keepdim=True),
    "max": lambda z: z.abs().max(dim=-1, keepdim=True)[0],
    "unsqueezed": lambda z: z.abs().amax(-1).unsqueeze(-1),
}
STEPS: Final[dict[str, Function]] = {
    "clamped first": lambda a, top: a.clamp(min=1e-4) / top,
    "clamped last": lambda a, top: (a / top).clamp_min(1e-6),
    "times": lambda a, top: torch.clamp(a, min=1e-4) * (1 / top),
    "not clamped": lambda a, top: a / top,
}
QUOTIENTS: Final[dict[str, Function]] = {
    "over": lambda z, s: z / s,
    "inverse": lambda z, s: z * s.reciprocal(),
    "one over": lambda z, s: z * (1.0 / s),
}
ROUNDINGS: Final[dict[str, Function]] = {
    "clamped": lambda q, top: q.round().clamp(-top - 1, top),
    "rounded": lambda q, top: q.clamp(min=-top).clamp(max=top).round(),
}


@dataclass(frozen=True)
class Spelling:
    """One way to quantize a norm of a sum."""

    weight: str = "from 0"
    largest: str = "amax"
    step: str = "clamped first"
    quotient: str = "over"
    rounding: str = "clamped"
    rows: str = "as they are"
    returns: str = "all"

    def __str__(self) -> str:
        parts = (self.weight, self.largest, self.step, self.quotient, self.rounding, self.rows)
        return f"{' '.join(parts)} {self.returns}"

    def __call__(self, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        n = rms_norm(x + y, WEIGHTS[self.weight](w))
        z = (n if self.rows == "as they are" else n.reshape(2, -1, COLUMNS)).float()
        s = STEPS[self.step](LARGEST[self.largest](z), 127.0)
        q = ROUNDINGS[self.rounding](QUOTIENTS[self.quotient](z, s), 127.0).to(INT8)
        return (q, s, (x + y) * 2) if self.returns == "all" else (q,)


ALL: Final = [
    Spelling(*parts)
    for parts in product(
        WEIGHTS, LARGEST, STEPS, QUOTIENTS, ROUNDINGS, ("as they are", "cut"), ("all", "values")
    )
]


def inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    shapes = ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,))
    return [torch.randn(*s, generator=made).to(dtype) for s in shapes]


WAYS: Final[dict[str, Function]] = {
    "export": as_exported,
    "decomposed": decomposed,
    "pre_grad": lambda f, args, rules: hooked(f, args, rules, "pre_grad"),
    "joint": hooked,
}


def assert_near(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    """Up to the next value of eight bits, and rounding elsewhere."""
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        least = 1.0 if other.dtype == INT8 else 1e-6
        assert ((mine.double() - other.double()).abs() <= least).all()


@axes(seed=range(2), way=WAYS)
def test_all_are_fused(seed: int, way: str) -> None:
    cases = random.Random(seed).sample(ALL, 16)

    def together(*args: Tensor) -> list[Any]:
        return [case(*args[3 * i : 3 * i + 3]) for i, case in enumerate(cases)]

    args = [x for _ in cases for x in inputs()]
    report, results = WAYS[way](together, args, RULES)
    assert fired(report) == [rule.name for rule in RULES] * len(cases), str(report)
    for ours, theirs in zip(results, together(*args), strict=True):
        assert_near(tuple(ours), theirs)


def _sum(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return _normed(x + y, w)


def _normed(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w


def _steps(z: Tensor) -> Tensor:
    return z.abs().amax(-1, keepdim=True) / 127


def _finish(z: Tensor, s: Tensor, least: float = -128, most: float = 127) -> Tensor:
    return (z / s).round().clamp(least, most).to(INT8)


def _of_rows(z: Tensor, least: float = -128, most: float = 127) -> Tensor:
    return _finish(z, _steps(z), least, most)


def _of_integers(x: Tensor) -> Tensor:
    z = x.int()
    return z * torch.rsqrt(z.square().sum(-1, keepdim=True) / COLUMNS + 1)


def _low(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return _sum(x.bfloat16(), y.bfloat16(), w.bfloat16())


def _both(z: Tensor) -> tuple[Tensor, Tensor]:
    return _of_rows(z), z


NEAR: Final[dict[str, Function]] = {
    "not rounded": lambda x, y, w: (
        (_sum(x, y, w) / _steps(_sum(x, y, w))).clamp(-128, 127).to(INT8)
    ),
    "float8": lambda x, y, w: (
        (_sum(x, y, w) / _steps(_sum(x, y, w))).round().clamp(-128, 127).to(torch.float8_e4m3fn)
    ),
    "unsigned": lambda x, y, w: (
        (_sum(x, y, w) / _steps(_sum(x, y, w))).round().clamp(0, 127).to(torch.uint8)
    ),
    "not clamped": lambda x, y, w: (_sum(x, y, w) / _steps(_sum(x, y, w))).round().to(INT8),
    "not clamped from below": lambda x, y, w: (
        (_sum(x, y, w) / _steps(_sum(x, y, w))).round().clamp(max=127).to(INT8)
    ),
    "not clamped from above": lambda x, y, w: (
        (_sum(x, y, w) / _steps(_sum(x, y, w))).round().clamp(min=-128).to(INT8)
    ),
    "limits that are not whole numbers": lambda x, y, w: _of_rows(_sum(x, y, w), most=12.7),
    "limits that change places": lambda x, y, w: _of_rows(_sum(x, y, w), 100, -100),
    "one limit after the other, and they change places": lambda x, y, w: (
        (_sum(x, y, w) / _steps(_sum(x, y, w))).round().clamp(min=100).clamp(max=-100).to(INT8)
    ),
    "limits of more than eight bits": lambda x, y, w: _of_rows(_sum(x, y, w), most=200),
    "negative steps": lambda x, y, w: _finish(_sum(x, y, w), -_steps(_sum(x, y, w)) * 1),
    "steps over a negative number": lambda x, y, w: _finish(
        _sum(x, y, w), _sum(x, y, w).abs().amax(-1, keepdim=True) / -127
    ),
    "a zero point": lambda x, y, w: (
        ((_sum(x, y, w) / _steps(_sum(x, y, w))).round() + 3).clamp(-128, 127).to(INT8)
    ),
    "a given scale": lambda x, y, w: _finish(_sum(x, y, w), w[:1].abs()),
    "a scale for each column": lambda x, y, w: _finish(_sum(x, y, w), w.abs() + 1),
    "over columns": lambda x, y, w: _finish(
        _sum(x, y, w), _sum(x, y, w).abs().amax(0, keepdim=True) / 127
    ),
    "steps of zero": lambda x, y, w: _finish(
        _sum(x, y, w), _sum(x, y, w).abs().amax(-1, keepdim=True) / torch.inf
    ),
    "over all": lambda x, y, w: _finish(_sum(x, y, w), _sum(x, y, w).abs().amax() / 127),
    "its dimension is another": lambda x, y, w: _finish(
        _sum(x[:, :ROWS], y[:, :ROWS], w[:ROWS]),
        _sum(x[:, :ROWS], y[:, :ROWS], w[:ROWS]).abs().amax(-1) / 127,
    ),
    "the largest, not in magnitude": lambda x, y, w: _finish(
        _sum(x, y, w), _sum(x, y, w).amax(-1, keepdim=True) / 127
    ),
    "the largest of the sum": lambda x, y, w: _finish(_sum(x, y, w), _steps(x + y)),
    "the other row's scale": lambda x, y, w: _finish(_sum(x, y, w), _steps(_sum(x, y, w)).flip(0)),
    "the norm returned": lambda x, y, w: _both(_sum(x, y, w)),
    "groups in rows": lambda x, y, w: _of_rows(_sum(x, y, w).reshape(2 * ROWS, -1)),
    "groups across rows": lambda x, y, w: _of_rows(_sum(x, y, w).reshape(2, -1)),
    "no sum": lambda x, y, w: _of_rows(_normed(x, w)),
    "a sum that is broadcast": lambda x, y, w: _of_rows(_normed(x + y[:1], w)),
    "scales of rows in another type": lambda x, y, w: _of_rows(_low(x, y, w)),
    "another type": lambda x, y, w: _of_rows(_low(x, y, w).float()),
    "scales with a dimension too many": lambda x, y, w: _finish(
        _sum(x, y, w), _steps(_sum(x, y, w)).unsqueeze(-1)
    ),
    "a weight for each element": lambda x, y, w: _of_rows(_normed(x + y, y)),
    "a sum of a length that is at least a number": lambda x, y, w: _of_rows(unit(x + y, w)),
    "a sum over a length that is at least a number": lambda x, y, w: (
        _of_rows(over_length(x + y, w))
    ),
    "a sum of integers": lambda x, y, w: _of_rows(_of_integers(x.int() + y.int())),
    "a sum of numbers": lambda x, y, w: _of_rows(_normed(x[0, 0] + y[0, 0], 1)[None]),
}  # fmt: skip


@axes(name=NEAR, way=["decomposed", "export"])
def test_near_misses_are_left_alone(name: str, way: str) -> None:
    args = inputs()
    report, results = WAYS[way](NEAR[name], args, RULES)
    assert fired(report) == [], str(report)
    for ours, theirs in zip(results, NEAR[name](*args), strict=True):
        assert torch.equal(ours.float(), theirs.float())


@pytest.mark.parametrize("way", ["export", "decomposed"])
def test_a_norm_in_float64_keeps_its_digits(way: str) -> None:
    """In float32 the mean of the squares is infinite."""

    def function(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return _of_rows(_normed((x * 1e25 + y).double(), w).float())

    args = inputs()
    _, result = WAYS[way](function, args, RULES)
    assert torch.equal(result, function(*args))


EXAMPLES: Final = {rule.name: [(ALL[-1], inputs())] for rule in RULES}
"""The samples that `verify` draws do not reach so far."""
