"""Quantized norms and activations in combinations of their parts: fused once, or left alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.rules import inference, quantization
from tests.axes import axes
from tests.rules.capture import decomposed, exported, fired, hooked

torch.set_num_threads(1)

ROWS, COLUMNS, GROUP = 4, 8, 4
FP8, INT8 = torch.float8_e4m3fn, torch.int8
TOPS: Final = {FP8: 448.0, INT8: 127.0}

Function = Callable[..., Any]


def rms_norm(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


NORMS: Final[dict[str, Function]] = {
    "norm": rms_norm,
    "sum": lambda x, y, w: rms_norm(x + y, y, w),
}
ACTIVATIONS: Final[dict[str, Function]] = {
    "silu gate": lambda x, y, w: F.silu(x) * y,
    "silu gate by hand": lambda x, y, w: y * (x.float() / (1 + (-x.float()).exp())).to(x.dtype),
    "gelu gate": lambda x, y, w: F.gelu(x) * y,
    "gelu_tanh gate": lambda x, y, w: F.gelu(x, approximate="tanh") * y,
    "wide gate": lambda x, y, w: F.silu(x.float()) * y.float(),
    "silu": lambda x, y, w: F.silu(x),
    "gelu_tanh": lambda x, y, w: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x, y, w: x * torch.sigmoid(1.702 * x),
}
LARGEST: Final[dict[str, Function]] = {
    "amax": lambda z: z.abs().amax(-1, keepdim=True),
    "max": lambda z: z.abs().max(dim=-1, keepdim=True)[0],
    "unsqueezed": lambda z: z.abs().amax(-1).unsqueeze(-1),
}
OF_ALL: Final[dict[str, Function]] = {
    "amax": lambda z: z.abs().amax(),
    "max": lambda z: z.abs().max(),
    "unsqueezed": lambda z: z.abs().amax((0, 1), keepdim=True),
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
    """One way to quantize a norm or an activation."""

    of: str = "norm"
    dtype: torch.dtype = FP8
    granularity: str = "row"
    largest: str = "amax"
    step: str = "clamped first"
    quotient: str = "over"
    rounding: str = "clamped"
    returns: str = "all"

    def __str__(self) -> str:
        parts = (self.granularity, self.largest, self.step, self.quotient, self.rounding)
        return f"{self.of} {self.dtype} {' '.join(parts)} {self.returns}"

    def __call__(self, x: Tensor, y: Tensor, w: Tensor, scale: Tensor) -> Any:
        n = {**NORMS, **ACTIVATIONS}[self.of](x, y, w)
        z = (n.reshape(-1, GROUP) if self.granularity == "group" else n).float()
        top = TOPS[self.dtype]
        largest = OF_ALL if self.granularity == "tensor" else LARGEST
        s = (
            scale
            if self.granularity == "given"
            else STEPS[self.step](largest[self.largest](z), top)
        )
        q = QUOTIENTS[self.quotient](z, s)
        q = ROUNDINGS[self.rounding](q, top) if self.dtype == INT8 else q.clamp(-top, top)
        results = [q.to(self.dtype)]
        if self.returns == "all":
            results += [] if self.granularity == "given" else [s]
            results += [(x + y) * 2] if self.of == "sum" else []
        return tuple(results)

    @property
    def rule(self) -> str:
        what = {"norm": "rms_norm", "sum": "add_rms_norm"}.get(self.of, "activation")
        return what + ("_scaled" if self.granularity == "given" else "_quantized")


def spellings(of: dict[str, Function], *granularities: str) -> list[Spelling]:
    return [
        Spelling(*parts)
        for parts in product(
            of, TOPS, granularities, LARGEST, STEPS, QUOTIENTS, ROUNDINGS, ("all", "values")
        )
    ]


ALL: Final = [
    *spellings(NORMS, "row", "group", "tensor", "given"),
    *spellings(ACTIVATIONS, "row", "group", "given"),
]


def inputs(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    shapes = ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,))
    return [*(torch.randn(*s, generator=made).to(dtype) for s in shapes), torch.full((1,), 0.02)]


WAYS: Final[dict[str, Function]] = {
    "export": exported,
    "decomposed": decomposed,
    "pre_grad": lambda f, args, rules: hooked(f, args, rules, "pre_grad"),
    "joint": hooked,
}


def assert_near(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    """Up to the next value of eight bits, and rounding of bfloat16 elsewhere."""
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        a, b = mine.double(), other.double()
        step = (b.abs() / 8).clamp(min=1.0) if other.dtype in TOPS else b.abs() / 64 + 1e-6
        assert ((a - b).abs() <= step).all()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(4))
def test_all_are_fused(seed: int, way: str) -> None:
    cases = random.Random(seed).sample(ALL, 16)

    def together(*args: Tensor) -> list[Any]:
        return [case(*args[4 * i : 4 * i + 4]) for i, case in enumerate(cases)]

    args = [x for _ in cases for x in inputs()]
    report, results = WAYS[way](together, args, quantization.RULES)
    assert sorted(fired(report)) == sorted(case.rule for case in cases), str(report)
    for ours, theirs in zip(results, together(*args), strict=True):
        assert_near(tuple(ours), theirs)


@pytest.mark.parametrize("of", ["norm", "silu gate", "silu"])
@pytest.mark.parametrize("granularity", ["row", "tensor", "given"])
def test_there_is_no_kernel_on_cpus(granularity: str, of: str) -> None:
    report, _ = exported(Spelling(of, granularity=granularity), inputs(), quantization.RULES)
    assert fired(report) == []
    assert {refusal.reason for refusal in report.refusals} == {"the kernel is for GPUs"}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("largest", OF_ALL)
@pytest.mark.parametrize("of", ["silu gate", "gelu_tanh"])
def test_activations_in_steps_of_the_whole_tensor(of: str, largest: str) -> None:
    case = Spelling(of, granularity="tensor", largest=largest)
    report, _ = exported(case, inputs(), quantization.RULES)
    assert fired(report) == []
    assert report.refusals[0].reason.startswith("of a whole tensor")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("of", ["norm", "sum", "silu gate"])
def test_the_quantizing_rules_come_first(of: str) -> None:
    """Among all of `inference`, the gate alone would be another rule's."""
    report, _ = exported(Spelling(of), inputs(), inference.RULES)
    assert fired(report) == [Spelling(of).rule]


def _normed(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w


def _gated(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def _square(x: Tensor, w: Tensor) -> Tensor:
    return _normed(x[:, :ROWS], w[:ROWS])


def _of_rows(z: Tensor) -> Tensor:
    return _finish(z, z.abs().amax(-1, keepdim=True) / 448)


def _of_all(z: Tensor) -> Tensor:
    return _finish(z, z.abs().amax() / 448)


def _of_integers(x: Tensor) -> Tensor:
    z = x.int()
    return z * torch.rsqrt(z.square().sum(-1, keepdim=True) / COLUMNS + 1)


def _low(x: Tensor) -> Tensor:
    return _normed(x.bfloat16(), x[0].bfloat16())


def _finish(z: Tensor, s: Tensor) -> Tensor:
    return (z / s).clamp(-448, 448).to(FP8)


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
    "not clamped from below": lambda x, y, w, s: (
        (_normed(x, w) / s).round().clamp(max=127).to(INT8)
    ),
    "not clamped from above": lambda x, y, w, s: (
        (_normed(x, w) / s).round().clamp(min=-128).to(INT8)
    ),
    "limits that are not whole numbers": lambda x, y, w, s: (
        (_normed(x, w) / s).round().clamp(-128, 12.7).to(INT8)
    ),
    "limits that change places": lambda x, y, w, s: (
        (_normed(x, w) / s).round().clamp(100, -100).to(INT8)
    ),
    "one limit after the other, and they change places": lambda x, y, w, s: (
        (_normed(x, w) / s).clamp(min=100).clamp(max=-100).to(FP8)
    ),
    "limits of more than eight bits": lambda x, y, w, s: (
        (_normed(x, w) / s).round().clamp(-128, 200).to(INT8)
    ),
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
    "two scales": lambda x, y, w, s: _finish(
        _normed(x, w), torch.cat((s, s * 2)).repeat(2).unsqueeze(-1)
    ),
    "the norm returned": lambda x, y, w, s: _both(_normed(x, w), s),
    "groups across rows": lambda x, y, w, s: _finish(
        _normed(x, w).reshape(2, -1),
        _normed(x, w).reshape(2, -1).abs().amax(-1, keepdim=True) / 448,
    ),
    "an activation, not rounded": lambda x, y, w, s: (_gated(x, y) / s).clamp(-128, 127).to(INT8),
    "an activation returned": lambda x, y, w, s: _both(_gated(x, y), s),
    "an activation, its rows' scales returned and it": lambda x, y, w, s: (
        *_both(_gated(x, y), _gated(x, y).abs().amax(-1, keepdim=True) / 448),
    ),
    "an activation over columns": lambda x, y, w, s: _finish(
        _gated(x, y), _gated(x, y).abs().amax(0, keepdim=True) / 448
    ),
    "the rows' scales of the gate": lambda x, y, w, s: _finish(
        _gated(x, y), x.abs().amax(-1, keepdim=True) / 448
    ),
    "the rows' scales of another activation": lambda x, y, w, s: _finish(
        _gated(x, y), _gated(x, w.expand_as(x)).abs().amax(-1, keepdim=True) / 448
    ),
    "the other row's scale": lambda x, y, w, s: _finish(
        _gated(x, y), _gated(x, y).abs().amax(-1, keepdim=True).flip(0) / 448
    ),
    "an activation in groups across rows": lambda x, y, w, s: _finish(
        _gated(x, y).reshape(2, -1),
        _gated(x, y).reshape(2, -1).abs().amax(-1, keepdim=True) / 448,
    ),
    "gates of another shape": lambda x, y, w, s: _finish(F.silu(x) * y[:1], s),
    "a gate that is a number": lambda x, y, w, s: _finish(F.silu(x) * 1, s),
    "a gate that is a number, scales of rows": lambda x, y, w, s: _of_rows(F.silu(x) * 1),
    "gates of another type": lambda x, y, w, s: _finish(F.silu(x) * y.double(), s),
    "a gate of integers": lambda x, y, w, s: _finish(F.silu(x) * (y * 4).to(torch.int32), s),
    "another activation": lambda x, y, w, s: _finish(F.elu(x) * y, s),
    "scales of rows in another type": lambda x, y, w, s: _of_rows(_low(x)),
    "a scale of the whole in another type": lambda x, y, w, s: _of_all(_low(x)),
    "a given scale in another type": lambda x, y, w, s: _finish(_low(x), s.bfloat16()),
    "scales with a dimension too many": lambda x, y, w, s: _finish(
        _normed(x, w), (_normed(x, w).abs().amax(-1, keepdim=True) / 448).unsqueeze(-1)
    ),
    "a weight for each element": lambda x, y, w, s: _of_rows(_normed(x, y)),
    "a weight for each element, a given scale": lambda x, y, w, s: _finish(_normed(x, y), s),
    "a sum's weight for each element": lambda x, y, w, s: _of_rows(_normed(x + y, y)),
    "a sum's weight for each element, a given scale": lambda x, y, w, s: _finish(
        _normed(x + y, y), s
    ),
    "a norm of integers": lambda x, y, w, s: _of_rows(_of_integers(x)),
    "a norm of integers, a given scale": lambda x, y, w, s: _finish(_of_integers(x), s),
    "a sum of integers": lambda x, y, w, s: _of_rows(_of_integers(x.int() + y.int())),
    "a sum of integers, a given scale": lambda x, y, w, s: _finish(
        _of_integers(x.int() + y.int()), s
    ),
    "a number": lambda x, y, w, s: _of_all(_normed(x[0, 0], 1)).reshape(1),
    "a number, a given scale": lambda x, y, w, s: _finish(_normed(x[0, 0], 1), s),
    "a sum of numbers": lambda x, y, w, s: _of_all(_normed(x[0, 0] + y[0, 0], 1)).reshape(1),
    "a sum of numbers, a given scale": lambda x, y, w, s: _finish(
        _normed(x[0, 0] + y[0, 0], 1), s
    ),
    "an activation of a number": lambda x, y, w, s: _of_rows(F.silu(x[0, 0]).reshape(1)),
    "an activation of a number, a given scale": lambda x, y, w, s: _finish(F.silu(x[0, 0]), s),
    "a gate with a sum behind": lambda x, y, w, s: _finish(F.silu(x) * y + w, s),
}  # fmt: skip


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("way", ["export", "decomposed"])
def test_a_norm_in_float64_keeps_its_digits(way: str) -> None:
    """In float32 the mean of the squares is infinite."""

    def function(x: Tensor, y: Tensor, w: Tensor, s: Tensor) -> Tensor:
        z = _normed((x * 1e25).double(), w).float()
        t = z.abs().amax(-1, keepdim=True) / 127
        return (z / t).round().clamp(-128, 127).to(INT8)

    args = inputs(torch.float32)
    _, result = WAYS[way](function, args, quantization.RULES)
    assert torch.equal(result, function(*args))


@pytest.mark.usefixtures("gpu")
@axes(name=NEAR, way=["decomposed", "export"])
def test_near_misses_are_left_alone(name: str, way: str) -> None:
    args = inputs(torch.float32)
    report, results = WAYS[way](NEAR[name], args, quantization.RULES)
    assert fired(report) == [], str(report)
    for ours, theirs in zip(results, NEAR[name](*args), strict=True):
        assert torch.equal(ours.float(), theirs.float())


TAKEN: Final[dict[str, tuple[str, Function]]] = {
    "a sum that is broadcast": (
        "rms_norm_quantized",
        lambda x, y, w, s: _of_rows(_normed(x + y[:1], w)),
    ),
    "a sum that is broadcast, a given scale": (
        "rms_norm_scaled",
        lambda x, y, w, s: _finish(_normed(x + y[:1], w), s),
    ),
    "a gate that is rounded before": (
        "activation_quantized",
        lambda x, y, w, s: _of_rows(_gated(x.bfloat16(), y.bfloat16()).float()),
    ),
    "a gate that is rounded before, a given scale": (
        "activation_scaled",
        lambda x, y, w, s: _finish(_gated(x.bfloat16() * 2, y.bfloat16()).float(), s),
    ),
}
"""Near misses of a rule that are another's, or its own without what is around."""


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", TAKEN)
def test_near_misses_that_are_others(name: str) -> None:
    rule, function = TAKEN[name]
    args = inputs(torch.float32)
    report, ours = decomposed(function, args, quantization.RULES)
    assert fired(report) == [rule], str(report)
    assert_near((ours,), (function(*args),))


GIVEN: Final[dict[str, Function]] = {
    "the largest of the whole input": lambda x, y, w, s: _finish(
        _gated(x, y), x.abs().amax() / 448
    ),
    "the sum of the whole": lambda x, y, w, s: _finish(
        _gated(x, y), _gated(x, y).abs().sum() / 448
    ),
    "the smallest of columns": lambda x, y, w, s: _finish(
        _gated(x, y), _gated(x, y).abs().amax(0).amin() / 448
    ),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", GIVEN)
def test_scales_of_another_kind_are_given_ones(name: str) -> None:
    args = inputs(torch.float32)
    report, ours = exported(GIVEN[name], args, quantization.RULES)
    assert fired(report) == ["activation_scaled"], str(report)
    assert_near((ours,), (GIVEN[name](*args),))


@pytest.mark.usefixtures("gpu")
def test_rows_without_elements_are_left_alone() -> None:
    def function(x: Tensor, y: Tensor, s: Tensor) -> Tensor:
        return (F.silu(x) * y / s).round().clamp(-127, 127).to(torch.int8)

    args = [torch.ones(3, 0), torch.ones(3, 0), torch.tensor(0.1)]
    report, ours = decomposed(function, args, quantization.RULES)
    assert fired(report) == [], str(report)
    assert ours.shape == (3, 0)


EXAMPLES: Final = {case.rule: [(case, inputs())] for case in ALL}
"""One for each rule: the samples that `verify` draws do not reach so far."""
