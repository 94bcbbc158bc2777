"""Rules of every pack, on graphs whose inputs have other layouts or types than they are meant for.

A rewritten graph shows what the graph shows: values, shapes, promised strides, and shared memory. A
rule declines operands that its kernels do not take, and never raises.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from typing import Final

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import pypm.rules
from pypm import pattern, rule
from pypm.fx import INDUCTOR, UnsupportedType, aten, rewrite
from pypm.kernels.attention.dense import attention, attention_with_sinks, reference
from pypm.kernels.attention_gradients import attention_and_gradients
from tests.layouts import LAYOUTS
from tests.rules.other_inputs import PARTS, in_layout, in_type

torch.set_num_threads(1)

REPRESENTATIVES: Final = (
    "whole", "sdpa", "differential_attention", "lstm_layer",
    "product_in_float32", "grouped_experts", "product_and_epilogue", "group_norm",
    "rms_norm", "add_rms_norm_quantized", "last_state", "rotary_of_both",
    "attention_by_fixed_weights",
)  # fmt: skip
"""A rule of each pack, or a few; `python -m tests.rules.other_inputs` tries all of them."""
SLOW: Final = {
    *("last_state", "lstm_layer", "differential_attention"),
    *("attention_by_fixed_weights", "rotary_of_both"),
}
"""Those that are tried on one layout."""
TYPES: Final = (torch.float8_e4m3fn, torch.complex64, torch.int64, torch.bool)
"""Types that few kernels take; the command tries more."""


def test_every_pack_has_a_representative() -> None:
    """That of vLLM takes operators that only vLLM registers, that of stacks dozens of them."""
    for module in pkgutil.iter_modules(pypm.rules.__path__):
        rules = getattr(importlib.import_module(f"pypm.rules.{module.name}"), "RULES", None)
        if rules and module.name not in ("vllm", "events"):
            assert {each.name for each in rules} & {*REPRESENTATIVES}, module.name


FEW: Final = ("transposed", "with_gaps", "expanded", "overlapping", "empty")
"""Layouts of quick runs; each operator is tried in all of them by itself, in tests/kernels."""


@pytest.mark.parametrize(
    "layouts", [FEW, pytest.param([*LAYOUTS.keys()], marks=pytest.mark.soak)], ids=["few", "all"]
)
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_layouts(name: str, layouts: Sequence[str]) -> None:
    assert in_layout(name, "contiguous").fired
    for layout in ("overlapping",) if name in SLOW else layouts:
        found = in_layout(name, layout)
        assert not found.problem, f"{layout}: {found.problem}\n{found.graphs[0]}"


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_types(name: str) -> None:
    for dtype in TYPES:
        for part in PARTS if dtype == TYPES[0] else ("the last",):
            found = in_type(name, dtype, part)
            assert not found.problem, f"{dtype}, {part}: {found.problem}\n{found.graphs[0]}"


@pytest.mark.parametrize("layout", ["contiguous", "expanded", "overlapping"])
def test_attention_of_queries_that_overlap(layout: str) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(3))
    q = LAYOUTS[layout](q)
    expected = reference(q, k, v)
    torch.testing.assert_close(attention(q, k, v), expected)
    sinks = torch.full((2, 3, 5, 1), -torch.inf, dtype=torch.float64)
    torch.testing.assert_close(attention_with_sinks(q, k, v, sinks), expected)
    found = attention_and_gradients(q, k, v, None, v, scale=8**-0.5, causal=False, filled=False)
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    gradients = torch.autograd.grad(reference(*given), given, v)
    torch.testing.assert_close(found, (expected, *gradients))


# --- bodies whose operators do not take a type ---------------------------------------------------


@pattern
def ExpOfProduct(x, y):
    return aten.exp(x * y)


def reasons(body: object, *inputs: Tensor) -> list[tuple[str, str]]:
    gm = make_fx(lambda x, y: (x * y).exp(), tracing_mode="fake")(*inputs)
    before = str(gm.graph)
    report = rewrite(gm, rule(ExpOfProduct)(body), dialect=INDUCTOR)  # type: ignore[arg-type, type-var]
    assert str(gm.graph) == before
    return [(refusal.kind, refusal.reason) for refusal in report.refusals]


def test_an_operator_of_torch_that_does_not_take_a_type() -> None:
    def promoted(x, y):
        return (x * y).exp().to(torch.promote_types(x.dtype, torch.float8_e4m3fn))

    (reason,) = reasons(promoted, torch.ones(2), torch.ones(2))
    assert reason == (
        "declined",
        "Promotion for Float8 Types is not supported, attempted to promote Float and Float8_e4m3fn",
    )


def test_an_operator_of_pypm_that_does_not_take_a_type() -> None:
    def turned(x, y):
        angles = y.to(torch.int64)
        return torch.ops.pypm.rotary([x], angles, angles, False)[0]

    (reason,) = reasons(turned, torch.ones(1, 1, 2, 4), torch.ones(2, 4))
    assert reason == (
        "declined",
        "`pypm::rotary`: `cos` is int64; it must be of a floating-point type: "
        "[*angles, turned] float",
    )


def test_a_kernel_that_does_not_take_a_type() -> None:
    def refused(x, y):
        raise UnsupportedType("no kernel for float32")

    assert reasons(refused, torch.ones(2), torch.ones(2)) == [("declined", "no kernel for float32")]
