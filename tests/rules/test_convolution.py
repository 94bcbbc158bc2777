"""Convolutions with what scales and shifts their channels: folded, or left alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.fx import Report
from pypm.integrations import export
from pypm.rules import convolution
from tests.rules.capture import HOOKS, WAYS, compile_to_graphs, exported, hooked

torch.set_num_threads(1)

C: Final = 6
TOLERANCES: Final = {torch.float64: 1e-12, torch.float32: 1e-5}


def values(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, w, and for each of the six channels: bias, scale, shift, mean, variance."""
    made = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64)

    channels = [normal(C), normal(C), normal(C), normal(C), normal(C).square() + 0.5]
    return [x.to(dtype) for x in (normal(2, 4, 17, 17), normal(C, 4, 3, 3) / 4, *channels)]


Given = tuple[Tensor, ...]


def norm(y: Tensor, scale: Any, shift: Any, mean: Tensor, var: Tensor, eps: float = 1e-3) -> Tensor:
    return F.batch_norm(y, mean, var, scale, shift, False, 0.1, eps)


FOLDED: Final[dict[str, Callable[..., Tensor]]] = {
    "batch norm": lambda x, w, b, *c: norm(F.conv2d(x, w), *c),
    "with bias": lambda x, w, b, *c: norm(F.conv2d(x, w, b), *c),
    "with activation": lambda x, w, b, *c: norm(F.conv2d(x, w, b), *c).relu(),
    "not affine": lambda x, w, b, s, t, m, v: norm(F.conv2d(x, w, b), None, None, m, v),
    "twice": lambda x, w, b, *c: norm(norm(F.conv2d(x, w), *c), *c),
    "strided": lambda x, w, b, *c: norm(F.conv2d(x, w, b, 2, 1, 2), *c),
    "same": lambda x, w, b, *c: norm(F.conv2d(x, w, b, padding="same"), *c),
    "grouped": lambda x, w, b, *c: norm(F.conv2d(x, w[:, :2], b, groups=2), *c),
    "1d": lambda x, w, b, *c: norm(F.conv1d(x.flatten(2), w[..., 0], b), *c),
    "3d": lambda x, w, b, *c: norm(F.conv3d(x[:, :, None], w[:, :, None], b), *c),
    "frozen": lambda x, w, b, s, t, m, v: (
        F.conv2d(x, w) * s.view(1, -1, 1, 1) + t.view(1, -1, 1, 1)
    ),
    "by hand": lambda x, w, b, s, t, m, v: (
        (F.conv2d(x, w, b) - m.view(-1, 1, 1)) / v.sqrt().view(-1, 1, 1) * s[:, None, None]
    ),
    "numbers": lambda x, w, b, *c: (F.conv2d(x, w) - 0.5) * 2 / 3 + 1,
    "one for all": lambda x, w, b, s, *c: F.conv2d(x, w, b) * s[:1] + s[0],
}


def run(way: str, function: Callable[..., Any], args: list[Tensor]) -> tuple[Report, Any]:
    if way in HOOKS:
        return hooked(function, args, convolution.RULES, way)
    if way == "symbolic_trace":  # takes no star
        names = "x, w, b, s, t, m, v"
        function = eval(f"lambda {names}: function({names})", {"function": function})
    return WAYS[way](function, args, convolution.RULES)


@pytest.mark.parametrize("way", [*WAYS, *HOOKS])
@pytest.mark.parametrize("name", FOLDED)
def test_folded(name: str, way: str) -> None:
    function = FOLDED[name]
    for dtype, tolerance in TOLERANCES.items():
        args = values(dtype)
        report, result = run(way, function, args)
        assert [record.rule for record in report.rewrites] == ["fold"], str(report)
        torch.testing.assert_close(result, function(*args), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("way", ["export", "joint"])
def test_bfloat16(way: str) -> None:
    """The scaled weight is rounded as the weight was: as near to float64 as eager is, or nearly."""
    function, args = FOLDED["with bias"], values(torch.bfloat16)
    report, result = run(way, function, args)
    assert len(report) == 1, str(report)
    assert result.dtype == torch.bfloat16
    exact = function(*(x.double() for x in args))
    ours, theirs = ((y - exact).abs().mean() for y in (result, function(*args)))
    assert ours <= 1.5 * theirs


MISSES: Final[dict[str, Callable[..., Any]]] = {
    "in training": lambda x, w, b, s, t, m, v: F.batch_norm(
        F.conv2d(x, w), m.clone(), v.clone(), s, t, True
    ),
    "of the batch": lambda x, w, b, s, t, m, v: F.batch_norm(
        F.conv2d(x, w), None, None, s, t, True
    ),
    "a number for each column": lambda x, w, b, s, *c: F.conv2d(x, w)[..., :C] * s,
    "columns": lambda x, w, b, *c: F.conv2d(x, w) * x[0, 0, 0, :15],
    "rows": lambda x, w, b, *c: F.conv2d(x, w) * x[0, 0, 0, :15].view(-1, 1),
    "each image": lambda x, w, b, *c: F.conv2d(x, w) * x[:, 0, 0, 0].view(2, 1, 1, 1),
    "each image and channel": lambda x, w, b, s, *c: (
        F.conv2d(x, w) * (x[:, 0, 0, 0].view(2, 1, 1, 1) * s.view(1, -1, 1, 1))
    ),
    "transposed": lambda x, w, b, *c: norm(F.conv_transpose2d(x, w.transpose(0, 1), b), *c),
    "without a batch": lambda x, w, b, s, *c: F.conv2d(x[0], w) * s.view(1, -1, 1)[:, :1],
    "a subtrahend": lambda x, w, b, s, *c: s.view(-1, 1, 1) - F.conv2d(x, w),
    "a divisor": lambda x, w, b, s, *c: s.view(-1, 1, 1) / F.conv2d(x, w),
    "an activation between": lambda x, w, b, *c: norm(F.conv2d(x, w).relu(), *c),
    "nothing to fold": lambda x, w, b, *c: F.conv2d(x, w, b).relu(),
    "used again": lambda x, w, b, *c: [(norm(y, *c), y) for y in [F.conv2d(x, w)]],
    "more channels by a factor": lambda x, w, b, s, *c: F.conv2d(x, w[:1]) * s.view(-1, 1, 1),
    "more channels by a sum": lambda x, w, b, s, *c: F.conv2d(x, w[:1]) + s.view(-1, 1, 1),
    "divided by zero": lambda x, w, *c: F.conv2d(x, w) / 0,
    "divided by zero in the end": lambda x, w, *c: F.conv2d(x, w) / 0.0 * 2,
    "infinite": lambda x, w, *c: F.conv2d(x, w) * math.inf,
    "no number": lambda x, w, *c: F.conv2d(x, w) * math.nan,
    "too large": lambda x, w, *c: F.conv2d(x, w) * 1e150 * 1e150,
    "too small": lambda x, w, *c: F.conv2d(x, w) / 1e150 / 1e150 * 1e150,
    "integers": lambda x, w, *c: F.conv2d(x.long(), w.long()) * 3 + 1,
    "integers and a fraction": lambda x, w, *c: F.conv2d(x.long(), w.long()) * 0.5,
    "a complex factor": lambda x, w, *c: F.conv2d(x, w) * 2j,
    "complex factors": lambda x, w, b, s, *c: F.conv2d(x, w) * torch.complex(s, s).view(-1, 1, 1),
    "divided and rounded": lambda x, w, b, s, *c: torch.div(
        F.conv2d(x, w), s.view(-1, 1, 1), rounding_mode="floor"
    ),
}


@pytest.mark.parametrize("way", ["export", "decomposed"])
@pytest.mark.parametrize("name", MISSES)
def test_near_misses(name: str, way: str) -> None:
    report, _ = run(way, MISSES[name], values())
    assert len(report) == 0, str(report)


@pytest.mark.parametrize("shape", [(), (1,), (C, C), (1, C)], ids=str)
@pytest.mark.parametrize("rest", [lambda y, w: y * 2, F.linear], ids=["scaled", "two maps"])
def test_near_misses_of_a_bias(rest: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    """`linear` adds whatever can be broadcast."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return rest(torch.ops.aten.linear(x, w, b), w)

    args = [torch.randn(s) for s in ((C, C), (C, C), shape)]
    report, result = exported(function, args, convolution.ONCE)
    assert len(report) == 0, str(report)
    torch.testing.assert_close(result, function(*args))


def test_the_last_division_by_zero_stays() -> None:
    args = values()
    function = lambda x, w, b, s, *c: F.conv2d(x, w, b) * s.view(-1, 1, 1) / 0  # noqa: E731
    report, result = run("export", function, args)
    assert [record.root for record in report.rewrites] == ["mul"], str(report)
    torch.testing.assert_close(result, function(*args))
    assert result.isinf().any()


def test_a_symbolic_size_is_no_factor() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return F.conv2d(x, w) * (x.shape[0] / 3) + 1

    args = tuple(values()[:2])
    sizes = {"x": {0: torch.export.Dim("n", min=2)}, "w": None}
    program = torch.export.export(Model(), args, dynamic_shapes=sizes)
    report = export.rewrite(program, convolution.RULES)
    assert (len(report), {r.kind for r in report.refusals}) == (0, {"declined"}), str(report)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_strides_are_those_of_eager(dimensions: int) -> None:
    """Also where `torch.export` notes others than oneDNN gives: dilated, channels last."""
    convolution_of = (F.conv1d, F.conv2d, F.conv3d)[dimensions - 1]
    x, w = torch.randn(9, 11, 11, 11, 4).movedim(-1, 1), torch.randn(6, 4, 3, 3, 3)
    for _ in range(3 - dimensions):
        x, w = x[..., 0], w[..., 0]

    def function(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
        return convolution_of(x, w, padding="same", dilation=2) * c

    args = [x, w, torch.randn(6, *(1 for _ in range(dimensions)))]
    report, result = WAYS["export"](function, args, convolution.RULES)
    assert len(report) == 1, str(report)
    assert result.stride() == function(*args).stride()


def test_a_large_weight_is_not_scaled_for_few_values() -> None:
    args = values()
    args[0] = args[0][:1, :, :6, :6]
    report, _ = run("export", FOLDED["batch norm"], args)
    assert [r.kind for r in report.refusals] == ["declined"], str(report)


def test_gradients_pass() -> None:
    args = values()
    for x in args[:5]:
        x.requires_grad_()
    function = FOLDED["with bias"]
    report, result = run("pre_grad", function, args)
    assert len(report) == 1
    ours, theirs = (torch.autograd.grad(y.cos().sum(), args[:5]) for y in (result, function(*args)))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["with bias", "with activation", "frozen", "numbers"])
def test_second_gradients_pass(name: str) -> None:
    """They differ by roundings alone: in float64 by less than a part in a trillion."""
    args = values()
    for x in args[:3]:
        x.requires_grad_()
    function = FOLDED[name]
    report, result = run("symbolic_trace", function, args)
    assert len(report) == 1
    found = []
    for y in (result, function(*args)):
        first = torch.autograd.grad(y.exp().sum(), args[:2], create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(x.square().sum() for x in first), args[:2])])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-9)


# --- a model -------------------------------------------------------------------------------------


def resnet() -> Any:
    """Eight convolutions, each with a batch norm whose statistics are not the initial ones."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=5
    )
    model = transformers.ResNetForImageClassification(config).double()
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return model.requires_grad_(False).eval()


SITES: Final = 8


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("stage", HOOKS)
def test_resnet_at_the_hooks(stage: str, dynamic: bool) -> None:
    model = resnet()
    compiled, passed = compile_to_graphs(model, convolution.RULES, stage, dynamic=dynamic)
    for batch in (2, 3) if dynamic else (2,):
        images = torch.randn(batch, 3, 96, 96, dtype=torch.float64)
        ours, theirs = compiled(images).logits, model(images).logits
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    assert len(passed.reports[0]) == SITES, str(passed.report())


def test_resnet_exported() -> None:
    model, images = resnet(), torch.randn(2, 3, 96, 96, dtype=torch.float64)
    program = torch.export.export(model, (images,))
    report = export.rewrite(program, convolution.RULES)
    assert len(report) == SITES, str(report)
    result = program.module()(images).logits
    torch.testing.assert_close(result, model(images).logits, atol=1e-10, rtol=1e-10)


def test_resnet_in_training_is_left_alone() -> None:
    model, images = resnet().train(), torch.randn(2, 3, 96, 96, dtype=torch.float64)
    compiled, passed = compile_to_graphs(model, convolution.RULES, "pre_grad")
    compiled(images)
    assert len(passed.report()) == 0, str(passed.report())
