"""Quantized norms in combinations of their parts: each fused once, or left alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.fx import Report
from pypm.rules import quantization
from tests.rules.capture import decomposed, exported, hooked

torch.set_num_threads(1)

ROWS, COLUMNS, GROUP = 4, 8, 4
FP8, INT8 = torch.float8_e4m3fn, torch.int8
TOPS: Final = {FP8: 448.0, INT8: 127.0}

Function = Callable[..., Any]

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
    """One way to quantize the RMSNorm of x, or of x + y."""

    dtype: torch.dtype = FP8
    granularity: str = "row"
    largest: str = "amax"
    step: str = "clamped first"
    quotient: str = "over"
    rounding: str = "clamped"
    of_sum: bool = False
    returns: str = "all"

    def __str__(self) -> str:
        parts = (self.granularity, self.largest, self.step, self.quotient, self.rounding)
        return f"{self.dtype} {' '.join(parts)} {'sum ' * self.of_sum}{self.returns}"

    def __call__(self, x: Tensor, y: Tensor, w: Tensor, scale: Tensor) -> Any:
        total = x + y if self.of_sum else x
        h = total.float()
        n = w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
        z = (n.reshape(-1, GROUP) if self.granularity == "group" else n).float()
        top = TOPS[self.dtype]
        s = (
            scale
            if self.granularity == "given"
            else STEPS[self.step](LARGEST[self.largest](z), top)
        )
        q = QUOTIENTS[self.quotient](z, s)
        q = ROUNDINGS[self.rounding](q, top) if self.dtype == INT8 else q.clamp(-top, top)
        results = [q.to(self.dtype)]
        if self.returns == "all":
            results += [] if self.granularity == "given" else [s]
            results += [total * 2] if self.of_sum else []
        return tuple(results)

    @property
    def rule(self) -> str:
        what = "rms_norm_scaled" if self.granularity == "given" else "rms_norm_quantized"
        return "add_" * self.of_sum + what


def spellings() -> list[Spelling]:
    return [
        Spelling(*parts)
        for parts in product(
            TOPS, ("row", "group", "given"), LARGEST, STEPS, QUOTIENTS, ROUNDINGS,
            (False, True), ("all", "values"),
        )
    ]  # fmt: skip


def inputs(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    shapes = ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,))
    return [*(torch.randn(*s, generator=made).to(dtype) for s in shapes), torch.full((1,), 0.02)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules act as on a GPU; the operator runs as its reference."""
    monkeypatch.setattr(quantization, "unsupported", lambda *given: None)


WAYS: Final[dict[str, Function]] = {
    "export": exported,
    "decomposed": decomposed,
    "pre_grad": lambda f, args, rules: hooked(f, args, rules, "pre_grad"),
    "joint": hooked,
}


def fired(report: Report) -> list[str]:
    return [record.rule for record in report.rewrites]


def assert_near(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    """Up to the next value of eight bits, and rounding of bfloat16 elsewhere."""
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        a, b = mine.double(), other.double()
        step = (b.abs() / 8).clamp(min=1.0) if other.dtype in TOPS else b.abs() / 64 + 1e-6
        assert ((a - b).abs() <= step).all()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(3))
def test_all_are_fused(seed: int, way: str) -> None:
    cases = random.Random(seed).sample(spellings(), 12)

    def together(*args: Tensor) -> list[Any]:
        return [case(*args[4 * i : 4 * i + 4]) for i, case in enumerate(cases)]

    args = [x for _ in cases for x in inputs()]
    report, results = WAYS[way](together, args, quantization.RULES)
    assert sorted(fired(report)) == sorted(case.rule for case in cases), str(report)
    for ours, theirs in zip(results, together(*args), strict=True):
        assert_near(tuple(ours), theirs)


@pytest.mark.parametrize("granularity", ["row", "given"])
def test_there_is_no_kernel_on_cpus(granularity: str) -> None:
    report, _ = exported(Spelling(granularity=granularity), inputs(), quantization.RULES)
    assert [refusal.reason for refusal in report.refusals] == ["the kernel is for GPUs"]


def _normed(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w


def _square(x: Tensor, w: Tensor) -> Tensor:
    return _normed(x[:, :ROWS], w[:ROWS])


def _finish(z: Tensor, s: Tensor) -> Tensor:
    return (z / s).clamp(-448, 448).to(FP8)


def _whole(z: Tensor) -> Tensor:
    return _finish(z, z.abs().amax() / 448)


def _both(z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    return _finish(z, s), z


NEAR: Final[dict[str, Function]] = {
    "not rounded": lambda x, y, w, s: (_normed(x, w) / s).clamp(-128, 127).to(INT8),
    "rounded before float8": lambda x, y, w, s: (
        (_normed(x, w) / s).round().clamp(-448, 448).to(FP8)
    ),
    "another eight bits": lambda x, y, w, s: (
        (_normed(x, w) / s).clamp(-448, 448).to(torch.float8_e5m2)
    ),
    "not clamped": lambda x, y, w, s: (_normed(x, w) / s).to(FP8),
    "a zero point": lambda x, y, w, s: (
        ((_normed(x, w) / s).round() + 3).clamp(-128, 127).to(INT8)
    ),
    "a scale for each column": lambda x, y, w, s: _finish(_normed(x, w), w.abs() + 1),
    "over columns": lambda x, y, w, s: _finish(
        _normed(x, w), _normed(x, w).abs().amax(0, keepdim=True) / 448
    ),
    "its dimension is another": lambda x, y, w, s: _finish(
        _square(x, w), _square(x, w).abs().amax(-1) / 448
    ),
    "the largest, not in magnitude": lambda x, y, w, s: _finish(
        _normed(x, w), _normed(x, w).amax(-1, keepdim=True) / 448
    ),
    "the largest of the input": lambda x, y, w, s: _finish(
        _normed(x, w), x.abs().amax(-1, keepdim=True) / 448
    ),
    "of the whole tensor": lambda x, y, w, s: _whole(_normed(x, w)),
    "the norm returned": lambda x, y, w, s: _both(_normed(x, w), s),
    "groups across rows": lambda x, y, w, s: _finish(
        _normed(x, w).reshape(2, -1),
        _normed(x, w).reshape(2, -1).abs().amax(-1, keepdim=True) / 448,
    ),
}  # fmt: skip


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("way", ["export", "decomposed"])
@pytest.mark.parametrize("name", NEAR)
def test_near_misses_are_left_alone(name: str, way: str) -> None:
    args = inputs(torch.float32)
    report, results = WAYS[way](NEAR[name], args, quantization.RULES)
    assert fired(report) == [], str(report)
    for ours, theirs in zip(results, NEAR[name](*args), strict=True):
        assert torch.equal(ours.float(), theirs.float())


EXAMPLES: Final = {case.rule: [(case, inputs())] for case in spellings()}
"""One for each rule: the samples that `verify` draws do not reach so far."""
