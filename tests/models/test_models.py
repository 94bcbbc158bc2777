"""BERT, GPT-2 and Llama with eager attention: every site is fused, and the results agree.

Of one layer each, and Llama of two as well: its layers share a mask.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pypm.fx import first
from pypm.integrations import export, inductor
from pypm.rules import attention, epilogue
from tests.axes import axes
from tests.compiled import fresh_graphs
from tests.models.build import NAMES, attended, build, inputs
from tests.rules.capture import compile_to_graphs

pytest.importorskip("transformers")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2}


def logits(model: Any, given: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return attended(given, model(**given).logits)


def assert_agrees(ours: Tensor, eager: Tensor, tolerance: float | None = None) -> None:
    tolerance = TOLERANCES[eager.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(ours, eager, atol=tolerance, rtol=tolerance)


# --- inference -----------------------------------------------------------------------------------

VARIANTS = {
    "float64, padded": (torch.float64, 2, "right", False),
    "float32": (torch.float32, 1, "none", False),
    "bfloat16, padded": (torch.bfloat16, 1, "left", False),
    "dynamic": (torch.float32, 2, "left", True),
}


@axes(
    ["bert", "gpt2", VARIANTS["dynamic"]],
    name=["llama", "bert", "gpt2"],
    variant=VARIANTS.values(),
    layers=[1, 2],
)
def test_every_site_at_the_joint_hook(
    name: str, variant: tuple[torch.dtype, int, str, bool], layers: int
) -> None:
    """Of the others as well with both sets of rules, below; with a dynamic length, ModernBERT's."""
    dtype, batch, padding, dynamic = variant
    model = build(name, dtype, layers=layers)
    compiled, rewritten = compile_to_graphs(model, attention.RULES, dynamic=dynamic)
    inexact = name == "llama" and dtype == torch.float64  # it computes weights in float32
    for length in (12, 17) if dynamic else (12,):
        given = inputs(batch, length, padding=padding)
        tolerance = TOLERANCES[torch.float32 if inexact else dtype]
        assert_agrees(logits(compiled, given), logits(model, given), tolerance)
    assert [len(report) for report in rewritten.reports] == [layers], str(rewritten.report())
    assert rewritten.report().unchecked == 0


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", torch.bfloat16),
        pytest.param("llama", torch.float32, marks=pytest.mark.soak),
        pytest.param("gpt2", torch.bfloat16, marks=pytest.mark.soak),
        pytest.param("gpt2", torch.float32, marks=pytest.mark.soak),
    ],
)
def test_compiled_to_the_end(name: str, dtype: torch.dtype) -> None:
    model = build(name, dtype, layers=1)
    rewritten = inductor.Pass(attention.RULES, "joint", choose=first)
    compiled = torch.compile(model, options=rewritten.options())
    given = inputs(2, padding="left")
    with fresh_graphs():
        assert_agrees(logits(compiled, given), logits(model, given))
    assert len(rewritten.report()) == 1


@axes(["none"], name=["llama", "bert", "gpt2"], padding=["left", "none"], layers=[1, 2])
def test_exported(name: str, padding: str, layers: int) -> None:
    model, given = build(name, layers=layers), inputs(2, padding=padding)
    with torch.no_grad():
        program = torch.export.export(model, (), given, strict=False)
    report = export.rewrite(program, attention.RULES)
    assert (len(report), report.unchecked) == (layers, 0), str(report)
    program.graph.lint()
    assert_agrees(logits(program.module(), given), logits(model, given))


# --- epilogues -----------------------------------------------------------------------------------

LINEARS = {"bert": 6 + 2, "gpt2": 4 + 1, "llama": 7 + 1}
"""Of a layer, and of the rest."""


@pytest.mark.parametrize("name", NAMES)
def test_both_rule_sets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every linear is taken, and the result is about as near to float64 as eager's, or nearer."""
    monkeypatch.setattr(epilogue, "has_fast_bfloat16", lambda: False)
    model, given = build(name, torch.bfloat16, layers=1), inputs(2, padding="right")
    rules = [attention.RULES, epilogue.RULES]
    compiled, rewritten = compile_to_graphs(model, rules)
    ours, eager = logits(compiled, given), logits(model, given)
    report = rewritten.report()
    assert report.count("sdpa") == 1
    assert report.count("product_in_float32") == LINEARS[name], str(report)
    wide = logits(model.double(), given)
    assert (ours - wide).abs().mean() <= 1.2 * (eager - wide).abs().mean()


# --- training ------------------------------------------------------------------------------------


def step(call: Any, model: torch.nn.Module, given: dict[str, Tensor]) -> list[Tensor]:
    """The loss and the gradients of one step."""
    model.zero_grad()
    torch.manual_seed(0)
    loss = call(**given).loss
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@axes(name=NAMES, stage=["pre_grad", "joint"])
def test_training(name: str, stage: str) -> None:
    """Before autograd every site is fused; after it, the scores are kept for the backward.

    Losses are computed in float32, by the models themselves.
    """
    model = build(name, torch.float64, train=True, layers=1)
    given = inputs(2, padding="right", labels=True)
    compiled, rewritten = compile_to_graphs(model, attention.RULES, stage)
    ours, theirs = step(compiled, model, given), step(model, model, given)
    assert len(ours) == len(theirs) > 10
    for mine, eager in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, eager, atol=1e-6, rtol=1e-5)
    assert len(rewritten.reports[-1]) == (stage == "pre_grad"), str(rewritten.report())


@axes(["gpt2"], name=["bert", "gpt2"], stage=["pre_grad", "joint"])
def test_dropout_keeps_attention_as_it_is(name: str, stage: str) -> None:
    model = build(name, train=True, dropout=0.2, layers=1)
    given = inputs(2, padding="left", labels=True)
    compiled, rewritten = compile_to_graphs(model, attention.RULES, stage)
    found = step(compiled, model, given)
    assert all(part.isfinite().all() for part in found)
    assert len(rewritten.report()) == 0, str(rewritten.report())


@pytest.mark.parametrize(
    ("stage", "fast"),
    [
        ("pre_grad", False),
        pytest.param("pre_grad", True, marks=pytest.mark.soak),  # as in tests/rules
        ("joint", False),
    ],
)
def test_training_with_epilogues(fast: bool, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients pass through the regions and through the kernel."""
    monkeypatch.setattr(epilogue, "has_fast_bfloat16", lambda: fast)
    if fast:
        from tests.rules.test_epilogue import stand_in

        monkeypatch.setattr(epilogue, "linear_pointwise", stand_in)
    model = build("gpt2", torch.bfloat16, train=True, layers=1)
    given = inputs(2, labels=True)
    compiled, rewritten = compile_to_graphs(model, epilogue.RULES, stage)
    ours, theirs = step(compiled, model, given), step(model, model, given)
    for mine, eager in zip(ours, theirs, strict=True):
        scale = eager.abs().max().item() + 1e-3
        torch.testing.assert_close(mine / scale, eager / scale, atol=5e-2, rtol=0)
    assert all(report.unchecked == 0 for report in rewritten.reports)
