"""Norms of sums and quantized activations as tile programs: values, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import RuleSet
from pypm.fx import rewrite
from pypm.rules.tiles.rows import tiled_activation_in_steps, tiled_norm, tiled_norm_in_steps
from pypm.tiles.operator import emulated
from tests.rules.capture import WAYS, fired, hooked, whole_operators
from tests.tiles.cases import TOLERANCES, assert_near

torch.set_num_threads(1)

RULES: Final = RuleSet(
    tuple(
        replace(rule, pays="always")
        for rule in (tiled_norm_in_steps, tiled_activation_in_steps, tiled_norm)
    )
)
DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
COLUMNS: Final = 96
Function = Callable[..., Any]


def inputs(dtype: torch.dtype = torch.bfloat16, columns: int = COLUMNS) -> list[Tensor]:
    """Two tensors of rows, a weight and a bias."""
    x, y = (torch.randn(2, 5, columns).to(dtype) for _ in "xy")
    w, b = (torch.randn(columns).to(dtype) for _ in "wb")
    return [x, y, w, b]


def rms(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    h = x + y
    f = h.double() if h.dtype == torch.float64 else h.float()
    return w * (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype), h


def rms_from_one(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    h = x + y
    return F.rms_norm(h, (COLUMNS,), None, 1e-6) * (1 + w), h


def layer(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    h = x + y
    return F.layer_norm(h, (COLUMNS,), w, b), h


def not_rounded(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    h = x + y
    f = h.double() if h.dtype == torch.float64 else h.float()
    return w * (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)), h


def alone(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return layer(x, y, w, b)[0]


def steps_of(z: Tensor, top: float, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    wide = z if z.dtype == torch.float64 else z.float()
    steps = wide.abs().amax(-1, keepdim=True).clamp(min=1e-5) / top
    numbers = wide / steps
    numbers = numbers.round() if kind == torch.int8 else numbers
    return numbers.clamp(-top, top).to(kind), steps


def quantized(function: Function, top: float, kind: torch.dtype) -> Function:
    """What a function returns first, in steps of its rows, and the rest."""

    def in_steps(*args: Tensor) -> tuple[Tensor, ...]:
        found = function(*args)
        first, *rest = found if isinstance(found, tuple) else (found,)
        return (*steps_of(first, top, kind), *rest)

    return in_steps


def gated(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(x) * y


def ungated(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


INT8: Final = (127.0, torch.int8)
FP8: Final = (448.0, torch.float8_e4m3fn)
FIRES: Final[dict[str, tuple[Function, str]]] = {
    "RMSNorm": (rms, "tiled_norm"),
    "RMSNorm with weights from 1": (rms_from_one, "tiled_norm"),
    "LayerNorm": (layer, "tiled_norm"),
    "the sum is not used": (alone, "tiled_norm"),
    "RMSNorm in int8": (quantized(rms, *INT8), "tiled_norm_in_steps"),
    "RMSNorm in int8, not rounded before": (
        quantized(not_rounded, *INT8), "tiled_norm_in_steps"
    ),
    "LayerNorm in fp8": (quantized(layer, *FP8), "tiled_norm_in_steps"),
    "gate in fp8": (quantized(gated, *FP8), "tiled_activation_in_steps"),
    "GELU in int8": (quantized(ungated, *INT8), "tiled_activation_in_steps"),
}  # fmt: skip


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FIRES)
def test_values(name: str, dtype: str) -> None:
    function, rule = FIRES[name]
    args, way = inputs(DTYPES[dtype]), WAYS["export" if dtype == "bf16" else "decomposed"]
    report, by_torch = way(function, args, RULES)
    assert fired(report) == [rule], str(report)
    with emulated() as runs:
        _, by_text = way(function, args, RULES)
    assert [run.digest for _, run in runs] == [kernel.digest for kernel, _ in runs] != []
    # the sum is rounded before the norm: the exact one is of what was rounded
    wide = [(args[0] + args[1]).double(), torch.zeros((), dtype=torch.float64)]
    if rule == "tiled_activation_in_steps":
        wide = [x.double() for x in args[:2]]
    exact = function(*wide, *(x.double() for x in args[2:]))
    assert_near(by_torch, exact, TOLERANCES[dtype])
    assert_near(by_text, exact, TOLERANCES[dtype])


# --- near misses ---------------------------------------------------------------------------------


def reasons(function: Function, args: list[Tensor]) -> set[str]:
    """Why nothing was rewritten."""
    report = rewrite(whole_operators(function, args), RULES)
    assert not report.rewrites, str(report)
    return {refusal.reason for refusal in report.refusals}


def in_other_steps(
    z: Tensor, least: float, most: float, top: float = 127.0
) -> tuple[Tensor, Tensor]:
    steps = z.float().abs().amax(-1, keepdim=True) / top
    return (z.float() / steps).round().clamp(least, most).to(torch.int8), steps


def steps_in_its_type(x: Tensor, y: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    z = F.silu(x) * y
    steps = z.abs().amax(-1, keepdim=True) / 127.0
    return (z / steps).round().clamp(-128, 127).to(torch.int8), steps


def quantized_and_kept(x: Tensor, y: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    z = F.silu(x) * y
    return (*steps_of(z, *INT8), z)


MISSES: Final[dict[str, tuple[Function, str | None]]] = {
    "no sum": (lambda x, y, w, b: F.layer_norm(x, (COLUMNS,), w, b), None),
    "a broadcast sum": (lambda x, y, w, b: layer(x, b, w, b), None),
    "a sum of types": (lambda x, y, w, b: layer(x, y.float(), w.float(), b.float()), None),
    "a wider norm": (
        lambda x, y, w, b: F.layer_norm((x + y).float(), (COLUMNS,), w.float(), b.float()), None
    ),
    "a result in float32": (lambda x, y, w, b: not_rounded(x, y, w.float(), b)[0],
        "a result has another type than the rows"),
    "a norm over two dimensions": (
        lambda x, y, w, b: F.layer_norm(x + y, (5, COLUMNS), None, None), None
    ),
    "float64": (lambda x, y, w, b: rms(*(z.double() for z in (x, y, w, b)))[0], "float64"),
    "other limits": (
        lambda x, y, w, b: in_other_steps(F.silu(x) * y, -127.5, 127), None
    ),
    "limits in the wrong order": (
        lambda x, y, w, b: in_other_steps(F.silu(x) * y, 5, -5), None
    ),
    "negative steps": (
        lambda x, y, w, b: in_other_steps(F.silu(x) * y, -5, 5, -127.0), None
    ),
    "steps in bfloat16": (steps_in_its_type, "the steps are torch.bfloat16"),
    "the activation is used": (quantized_and_kept, "is also used by"),
    "steps of all rows": (
        lambda x, y, w, b: (F.silu(x) / (F.silu(x).abs().amax() / 127)).round().clamp(-128, 127)
        .to(torch.int8), None,
    ),
    "another gate": (lambda x, y, w, b: quantized(lambda *_: F.silu(x) * w, *INT8)(), None),
}  # fmt: skip


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", MISSES)
def test_near_misses(name: str) -> None:
    function, reason = MISSES[name]
    found = reasons(function, inputs())
    assert reason is None or any(reason in each for each in found), found


@pytest.mark.usefixtures("hopper")
def test_rows_that_are_too_long_or_apart() -> None:
    assert "9,000 elements" in str(reasons(gated_steps, inputs(columns=9000)))
    args = [x[..., 1:97] if x.dim() > 1 else x for x in inputs(columns=COLUMNS + 4)]
    found = reasons(gated_steps, args)
    assert found == {"a stride of `x` is no multiple of 8 elements"}


def gated_steps(x: Tensor, y: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = quantized(gated, *INT8)(x, y, x, y)
    return found


@pytest.mark.usefixtures("hopper")
def test_halves_of_rows_are_read_where_they_are() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return gated_steps(*x.chunk(2, -1))

    (x,) = args = [torch.randn(7, 2 * COLUMNS).bfloat16()]
    report, found = WAYS["export"](function, args, RULES)
    assert fired(report) == ["tiled_activation_in_steps"]
    with emulated() as runs:
        _, again = WAYS["export"](function, args, RULES)
    assert len(runs) == 1
    assert_near(found, gated_steps(*x.double().chunk(2, -1)), 2e-2)
    assert_near(again, found, 1e-6)


def test_not_on_a_cpu() -> None:
    assert reasons(layer, inputs()) == {"the kernel is for GPUs"}


@pytest.mark.usefixtures("gpu")
def test_not_where_the_gpu_is_not_filled() -> None:
    assert reasons(layer, inputs()) == {
        "2.5 full tiles leave some of 132 multiprocessors without work"
    }


@pytest.mark.usefixtures("hopper")
def test_not_in_training() -> None:
    args = inputs()
    args[2].requires_grad_()
    report, _ = hooked(layer, args, RULES, "pre_grad")
    assert not report.rewrites
    assert {r.reason for r in report.refusals} == {"the kernel has no gradients of its own"}


@pytest.mark.usefixtures("hopper")
def test_sizes_that_are_not_known() -> None:
    assert not rewrite(fx.symbolic_trace(layer), RULES).rewrites
    for function in (layer, gated_steps):
        module = make_fx(function, tracing_mode="symbolic", pre_dispatch=True)(*inputs())
        report = rewrite(module, RULES)
        assert {refusal.reason for refusal in report.refusals} == {"the sizes are not known"}
