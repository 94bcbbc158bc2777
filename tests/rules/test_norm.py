"""Norms in all combinations of their parts: each fused once, or left alone for a reason.

PYPM_COMBINATIONS=all tries all of them instead of some.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import Report, rewrite
from pypm.integrations import export
from pypm.rules import norm
from pypm.tools import Bitwise, Refused, Unexercised, UpToRounding, verify
from tests.axes import axes
from tests.rules.capture import as_exported, hooked, traced
from tests.rules.norms import (
    DECLINED_UNITS,
    GROUPS,
    GROUPS_AROUND,
    IN_FLOAT32,
    IN_FLOAT64,
    MORE,
    NEAR,
    NEAR_UNITS,
    OTHER_WEIGHTS,
    UNITS,
    Spelling,
    group_norm,
    inputs,
    spellings,
    unit,
)

torch.set_num_threads(1)

ALL = os.environ.get("PYPM_COMBINATIONS") == "all"
SOME, AT_ONCE = 40, 20
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 4e-2}


class Called(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def core(function: Callable[..., Any], args: Sequence[Tensor], rules: Any) -> tuple[Report, Any]:
    """As core operators of an exported program, which runs as it is."""
    program = torch.export.export(Called(function), tuple(args)).run_decompositions()
    report = export.rewrite(program, rules)
    return report, program.module()(*args)


WAYS: dict[str, Callable[..., tuple[Report, Any]]] = {"export": as_exported, "core": core}
HOOKS = ("pre_grad", "joint")


def together(cases: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Several functions as one graph; each has inputs of its own, so that none shares a part."""

    def compute(*args: Tensor) -> list[Any]:
        groups = [args[i : i + 4] for i in range(0, len(args), 4)]
        return [case(*group) for case, group in zip(cases, groups, strict=True)]

    return compute


def fired(report: Report) -> list[str]:
    return sorted(record.rule for record in report.rewrites)


def check(
    way: str, cases: Sequence[Callable[..., Any]], rules: Sequence[str], dtype: torch.dtype
) -> None:
    """Each case is taken by its rule, and its results are eager's."""
    args = [x for _ in cases for x in inputs(dtype)]
    report, results = WAYS[way](together(cases), args, norm.RULES)
    assert fired(report) == sorted(rules), str(report)
    tolerance = TOLERANCES[dtype]
    for case, ours, theirs in zip(cases, results, together(cases)(*args), strict=True):
        torch.testing.assert_close(
            ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True,
            msg=lambda m, c=case: f"{c}: {m}",
        )  # fmt: skip


def chosen(seed: int, casts: bool, some: int = SOME) -> list[list[Spelling]]:
    """All that have casts, or none; or some of those; in batches."""
    cases = [case for case in spellings() if case.casts == casts]
    cases = cases if ALL else random.Random(seed).sample(cases, some)
    return [cases[i : i + AT_ONCE] for i in range(0, len(cases), AT_ONCE)]


@axes(cases=chosen(0, casts=False), way=WAYS)
def test_all_are_fused(way: str, cases: list[Spelling]) -> None:
    check(way, cases, [case.rule for case in cases], torch.float64)


@axes(cases=chosen(1, casts=True), way=WAYS)
def test_all_are_fused_with_casts(way: str, cases: list[Spelling]) -> None:
    check(way, cases, [case.rule for case in cases], torch.bfloat16)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_more_of_them(way: str) -> None:
    for cases in chosen(0, casts=False, some=60):
        check(way, cases, [case.rule for case in cases], torch.float64)
    for cases in chosen(1, casts=True, some=60):
        check(way, cases, [case.rule for case in cases], torch.bfloat16)


@pytest.mark.parametrize("stage", HOOKS)
def test_torch_compile_makes_as_much_of_a_norm_by_itself(stage: str) -> None:
    function = together([Spelling(), Spelling(moments="var"), group_norm, of_instances])
    args = [x for _ in range(4) for x in inputs(torch.float64)]
    report, _ = hooked(function, args, norm.RULES, stage)
    assert fired(report) == []
    assert {refusal.reason for refusal in report.refusals} == {norm.BY_ITSELF}


def of_instances(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.instance_norm(x, weight=w)


@pytest.mark.parametrize("way", WAYS)
def test_more_ways(way: str) -> None:
    check(way, MORE, ["rms_norm"] * len(MORE), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_groups(dtype: torch.dtype) -> None:
    check("export", GROUPS, ["group_norm"] * len(GROUPS), dtype)


@axes(name=NEAR, way=["export", "core"])
def test_near_misses_are_left_alone(name: str, way: str) -> None:
    check(way, [NEAR[name]], [], torch.float64)


@axes(name=UNITS, way=["export", "core"])
def test_units_times_a_number(name: str, way: str) -> None:
    check(way, [UNITS[name]], ["scaled_unit"], torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rows_of_any_length_times_a_number(dtype: torch.dtype) -> None:
    """Zero and tiny rows, numbers that are not normal, infinities and NaN."""
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    x, _, w, _ = inputs(dtype)
    lengths = 0.0, -0.0, tiny / 4, tiny, 1e-30, 1e-12, 1e-11, 1.0, 1e15, huge / 8
    rows = torch.cat([x[0, :1] * torch.tensor(n, dtype=dtype) for n in lengths])
    special = x[0, :4].clone()
    for row, value in enumerate((torch.inf, -torch.inf, torch.nan, huge)):
        special[row, row] = value
    args = torch.cat((rows, special)), w
    report, result = as_exported(unit, args, norm.RULES)
    assert fired(report) == ["scaled_unit"]
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(result, unit(*args), rtol=tolerance, atol=4 * tiny, equal_nan=True)


def test_gradients_of_units_times_a_number() -> None:
    x, _, w, _ = inputs(torch.float64)
    x[0, 0], x[0, 1] = 0.0, 1e-13 * x[0, 1]
    program = torch.export.export(Called(unit), (x, w))
    assert fired(export.rewrite(program, norm.RULES)) == ["scaled_unit"]
    found = []
    for function in (program.module(), unit):
        leaves = [y.clone().requires_grad_() for y in (x, w)]
        found.append(torch.autograd.grad(function(*leaves).cos().sum(), leaves))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@axes(name=NEAR_UNITS, way=["export", "core"])
def test_near_misses_of_units(name: str, way: str) -> None:
    check(way, [NEAR_UNITS[name]], [], torch.float64)


@pytest.mark.parametrize("name", DECLINED_UNITS)
def test_units_that_are_declined(name: str) -> None:
    args = inputs(torch.float64)
    report, result = as_exported(DECLINED_UNITS[name], args, norm.RULES)
    (refusal,) = report.refusals
    assert not len(report) and refusal.reason.startswith("a length over this factor")
    torch.testing.assert_close(result, DECLINED_UNITS[name](*args), equal_nan=True)


@axes(name=OTHER_WEIGHTS, way=["export", "core"])
def test_near_misses_of_what_is_around(name: str, way: str) -> None:
    rule, function = OTHER_WEIGHTS[name]
    check(way, [function], [rule], torch.float64)


@pytest.mark.parametrize("name", GROUPS_AROUND)
def test_near_misses_around_groups(name: str) -> None:
    check("export", [GROUPS_AROUND[name]], ["group_norm"], torch.float64)


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_near_misses_in_float32(name: str) -> None:
    check("export", [IN_FLOAT32[name]], ["rms_norm"], torch.float32)


@axes(name=IN_FLOAT64, way=["export", "core"])
def test_near_misses_in_float64_keep_its_digits(name: str, way: str) -> None:
    args = inputs(torch.float32)
    _, result = WAYS[way](IN_FLOAT64[name], args, norm.RULES)
    tolerance = 1e-12 if result.dtype == torch.float64 else 1e-7
    torch.testing.assert_close(result, IN_FLOAT64[name](*args), atol=tolerance, rtol=tolerance)


def test_there_are_several_hundred() -> None:
    assert len(set(spellings())) == len(list(spellings())) > 500


# --- sums and gradients ---------------------------------------------------------------------------


def test_a_sum_cut_into_other_rows_stays() -> None:
    def function(x: Tensor, y: Tensor, w: Tensor) -> Any:
        return Spelling()((x + y).reshape(-1, 2), y, w, w)

    x, y, *_ = inputs(torch.float64)
    report, result = core(function, [x, y, x.flatten()[:2]], norm.RULES)
    assert fired(report) == ["rms_norm"]
    torch.testing.assert_close(result, function(x, y, x.flatten()[:2]))


@pytest.mark.parametrize("case", [Spelling(total="both"), Spelling(moments="var", bias=True)])
def test_gradients(case: Spelling) -> None:
    """Before autograd a norm is one operator, with a formula for its gradient."""

    def step(function: Callable[..., Any]) -> list[Tensor]:
        args = [x.requires_grad_() for x in inputs(torch.float64)]
        found = function(*args)
        results = found if isinstance(found, tuple) else (found,)
        loss = sum((x * x.detach().cos()).sum() for x in results)
        grads = torch.autograd.grad(loss, args, allow_unused=True)
        return [grad for grad in grads if grad is not None]

    reports: list[Report] = []

    def rewritten(*args: Tensor) -> Any:
        module = make_fx(case, pre_dispatch=True)(*args)
        reports.append(rewrite(module, norm.RULES))
        return module(*args)

    for ours, theirs in zip(step(rewritten), step(case), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    assert fired(reports[0]) == [case.rule]


def biased_groups(x: Tensor, b: Tensor) -> Tensor:
    y = x.reshape(x.shape[0], 2, x.shape[1] // 2 * x.shape[2])
    y = y - y.mean(-1, keepdim=True)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)
    return y.reshape(x.shape) + b[:, None]


@pytest.mark.parametrize("length", [0, 5])
def test_gradients_of_a_group_norm_with_a_bias_alone(length: int) -> None:
    """Torch's own has none of a bias without a weight, and NaN without elements."""
    args = [torch.randn(*s, dtype=torch.float64) for s in ((3, 4, length), (4,))]
    gm = make_fx(biased_groups, pre_dispatch=True)(*args)
    assert fired(rewrite(gm, norm.group_norm)) == ["group_norm"] * (length > 0)
    found, expected = (
        torch.autograd.grad(f(*leaves).square().sum(), leaves)
        for f in (gm, biased_groups)
        for leaves in [[x.requires_grad_() for x in args]]
    )
    torch.testing.assert_close(found, expected)


# --- InstanceNorm ---------------------------------------------------------------------------------


def image(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Channels of other means and deviations."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = torch.arange(1, shape[1] + 1).reshape(-1, *(1 for _ in shape[2:]))
    return (made * spread - spread).to(dtype)


def instance_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.instance_norm(x, weight=w, bias=b, eps=1e-3)


INSTANCES: dict[str, Callable[..., Tensor]] = {
    "with weight and bias": instance_norm,
    "of nothing else": lambda x, w, b: F.instance_norm(x),
    "with a weight": lambda x, w, b: F.instance_norm(x, weight=w, momentum=0.3),
    "with a bias": lambda x, w, b: F.instance_norm(x, bias=b),
    "without cuDNN": lambda x, w, b: torch.instance_norm(
        x, w, b, None, None, True, 0.1, 1e-3, False
    ),
    "channels last": lambda x, w, b: F.instance_norm(
        x.to(memory_format=torch.channels_last), weight=w
    ).view(3, -1),
    "weights afterwards": lambda x, w, b: F.instance_norm(x) * w[:, None, None] + b[:, None, None],
}  # fmt: skip


@axes(name=INSTANCES, way=[as_exported, traced])
def test_instance_norm(name: str, way: Callable[..., tuple[Report, Any]]) -> None:
    args = [image(3, 4, 5, 2), image(1, 4)[0], image(1, 4)[0].cos()]
    report, result = way(INSTANCES[name], args, norm.RULES)
    assert fired(report) == ["group_norm"], str(report)
    expected = INSTANCES[name](*args)
    torch.testing.assert_close(result, expected, atol=1e-12, rtol=1e-12)
    assert result.stride() == expected.stride()


@axes(
    layer_and_shape=[
        (torch.nn.InstanceNorm1d, (3, 4, 5)),
        (torch.nn.InstanceNorm1d, (4, 5)),
        (torch.nn.InstanceNorm2d, (3, 4, 5, 2)),
        (torch.nn.InstanceNorm3d, (3, 4, 2, 1, 2)),
    ],
    affine=[False, True],
)
def test_layers_of_instance_norm(
    layer_and_shape: tuple[type[Any], Sequence[int]], affine: bool
) -> None:
    layer, shape = layer_and_shape
    module = layer(4, affine=affine, dtype=torch.float64)
    x = torch.randn(shape, dtype=torch.float64)
    program = torch.export.export(module, (x,))
    assert fired(export.rewrite(program, norm.RULES)) == ["group_norm"]
    torch.testing.assert_close(program.module()(x), module(x), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_instance_norm_in_narrow_types(dtype: torch.dtype) -> None:
    args = [image(2, 8, 16, 16, dtype=dtype), image(1, 8, dtype=dtype)[0]]
    report, result = as_exported(instance_norm, [*args, args[1].cos()], norm.RULES)
    assert fired(report) == ["group_norm"] and result.dtype == dtype
    tolerance = TOLERANCES[dtype]
    expected = instance_norm(*args, args[1].cos())
    torch.testing.assert_close(result, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mean", [0, 100])
def test_instance_norm_of_half_types_is_nearer(mean: int, dtype: torch.dtype) -> None:
    """To the result in float64 than eager's, which rounds more often."""
    args = [(x + mean).to(dtype) for x in (image(2, 8, 16, 16), image(1, 8)[0], image(1, 8)[0])]
    report, result = as_exported(instance_norm, args, norm.RULES)
    assert fired(report) == ["group_norm"] and result.dtype == dtype
    exact = instance_norm(*(x.double() for x in args))
    ours, theirs = ((y - exact).abs() for y in (result, instance_norm(*args)))
    assert ours.mean() < theirs.mean() and ours.max() <= theirs.max()


NEAR_INSTANCES: dict[str, Callable[..., Tensor]] = {
    "statistics": lambda x, w, b: F.instance_norm(x, w * 1, b.exp()),
    "statistics instead of the input's": lambda x, w, b: F.instance_norm(
        x, w, b.exp(), use_input_stats=False
    ),
    "rows": lambda x, w, b: torch.instance_norm(
        x[..., 0, 0], w, b, None, None, True, 0.1, 1e-3, True
    ),
    "no channels": lambda x, w, b: F.instance_norm(x[:, :0]),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_INSTANCES)
def test_near_misses_of_instance_norm(name: str) -> None:
    args = [image(3, 4, 5, 2), image(1, 4)[0], image(1, 4)[0].cos()]
    report, _ = as_exported(NEAR_INSTANCES[name], args, norm.RULES)
    assert not fired(report) and not report.refusals, str(report)


def test_infinite_weights_of_groups() -> None:
    """Torch's GroupNorm gives NaN for -inf, as a rule may that says `reassociated`."""
    x, y, w, b = inputs(torch.float64)
    args = [x, y, torch.full_like(w, torch.inf), b]
    report, result = as_exported(group_norm, args, norm.RULES)
    assert fired(report) == ["group_norm"]
    assert result.isnan().any()
    report, result = traced(group_norm, args, norm.RULES, exactness="rounding")
    assert {r.kind for r in report.refusals} == {"exactness"}
    assert result.isinf().all()


def test_groups_that_are_left_to_eager() -> None:
    """There torch's GroupNorm returns NaN, or rounding errors, where eager returns 0."""
    x, w = image(3, 4, 5, 2), image(1, 4)[0]
    rounding = "torch's operator returns rounding errors where x - mean x is 0"
    cases: list[tuple[Callable[..., Tensor], Tensor, str]] = [
        (lambda x, w: F.instance_norm(x, weight=w, eps=0), x.sign(), rounding),
        (lambda x, w: F.instance_norm(x, weight=w, eps=1e-50), x, rounding),
        (
            lambda x, w: torch.instance_norm(x, w, w, None, None, True, 0.1, 1e-5, True),
            x[:, :, :1, :1],
            rounding,
        ),
        (lambda x, w: F.instance_norm(x, weight=w), x[:, :, :0], "torch's gradient of the weight"),
    ]
    for function, value, reason in cases:
        report, _ = as_exported(function, [value, w], norm.RULES)
        assert not fired(report)
        assert [r.reason[: len(reason)] for r in report.refusals] == [reason]


def test_instance_norm_of_symbolic_sizes() -> None:
    module = torch.nn.InstanceNorm2d(4, dtype=torch.float64)
    sizes = {0: torch.export.Dim("n", min=2), 2: torch.export.Dim("h", min=2)}
    program = torch.export.export(module, (image(3, 4, 5, 2),), dynamic_shapes=(sizes,))
    assert fired(export.rewrite(program, norm.RULES)) == ["group_norm"]
    x = image(2, 4, 7, 2)
    torch.testing.assert_close(program.module()(x), module(x), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ["with weight and bias", "with a weight", "with a bias"])
def test_gradients_of_instance_norm(name: str) -> None:
    """Before autograd, in graphs that run as they are."""
    args = [image(3, 4, 5, 2), image(1, 4)[0], image(1, 4)[0].cos()]
    gm = make_fx(INSTANCES[name], pre_dispatch=True)(*args)
    assert fired(rewrite(gm, norm.RULES)) == ["group_norm"]
    leaves = [x.requires_grad_() for x in args]
    ours, theirs = (
        torch.autograd.grad(f(*leaves).cos().sum(), leaves, allow_unused=True)
        for f in (gm, INSTANCES[name])
    )
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("samples", "least"), [(10, 1), pytest.param(30, 4, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("rule", list(norm.RULES), ids=lambda rule: rule.name)
def test_verify(rule: Any, samples: int, least: int) -> None:
    verification = verify(rule, samples=samples, nonfinite=False)
    assert verification.trials[0].fired >= least
    for finding in verification.findings:
        assert isinstance(finding, (Bitwise, UpToRounding, Unexercised, Refused)), finding


class SymbolicEpsilon(torch.nn.Module):
    def __init__(self, centered: bool, summed: bool) -> None:
        super().__init__()
        self.centered, self.summed = centered, summed

    def forward(self, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        s = x + y if self.summed else x
        z = s - s.mean(-1, keepdim=True) if self.centered else s
        n = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + x.shape[0])
        return n * w, s + (0 if self.summed else y)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("summed", [False, True])
def test_an_epsilon_that_is_a_symbolic_size(centered: bool, summed: bool) -> None:
    """Torch's operators take a number: these norms stay as they are."""
    x, y, w = torch.randn(4, 16), torch.randn(4, 16), torch.randn(16)
    rows = {0: torch.export.Dim("rows", min=2)}
    program = torch.export.export(
        SymbolicEpsilon(centered, summed), (x, y, w), dynamic_shapes=(rows, rows, None)
    )
    report = export.rewrite(program, norm.RULES)
    assert len(report) == 0
    assert {refusal.kind for refusal in report.refusals} == {"symbolic"}
