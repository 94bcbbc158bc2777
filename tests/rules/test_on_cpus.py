"""Rules that have a kernel in C++ alone: candidates, on CPUs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.rules import Rule
from pypm.fx import every, first, rewrite
from pypm.kernels.support import native
from pypm.kernels.support.devices import as_on_a_gpu
from pypm.rules import epilogue, quantization, rotary
from pypm.rules.quantization import add_rms_norm_quantized
from pypm.rules.rotary import rotary_of_both
from tests.rules import test_epilogue, test_quantization, test_rotary
from tests.rules.capture import HOOKS, compile_to_graphs

torch.set_num_threads(1)

Function = Callable[..., Any]
NORM: Final = test_quantization.Spelling()
TURNED: Final = test_rotary.of_both(test_rotary.TURNS["slices"])
CASES: Final[dict[str, tuple[Rule, Any, Function, Callable[[torch.dtype], list[Tensor]]]]] = {
    "norm": (add_rms_norm_quantized, quantization, NORM, test_quantization.inputs),
    "rotary": (rotary_of_both, rotary, TURNED, test_rotary.values),
    "rows": (epilogue.linear_of_few_rows, epilogue, test_epilogue.layer, test_epilogue.few),
}
TOLERANCES: Final = {torch.float32: 1e-6, torch.bfloat16: 4e-2, torch.float64: 1e-12}
named = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def _however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (epilogue, quantization, rotary):
        monkeypatch.setattr(module, "FEW", 0)


def reported(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> list[str]:
    rule, _, function, inputs = CASES[name]
    gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*inputs(dtype))
    report = rewrite(gm, rule, **{"choose": every, **options})
    return [refusal.reason for refusal in report.refusals] if not len(report) else []


@named
@pytest.mark.parametrize("stage", HOOKS)
def test_they_are_fused(stage: str, name: str) -> None:
    rule, _, function, inputs = CASES[name]
    for dtype in [*TOLERANCES][: {"norm": 1, "rows": 2}.get(name)]:
        compiled, hook = compile_to_graphs(function, rule, stage, choose=every)
        args = inputs(dtype)
        found, expected = compiled(*args), function(*args)
        assert len(hook.report()) == 1, str(hook.report())
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
            least = 1.0 if theirs.dtype == torch.int8 else TOLERANCES[dtype]
            assert (ours.double() - theirs.double()).abs().max() <= least


@named
def test_only_where_a_choice_finds_it_faster(name: str) -> None:
    rule, _, function, inputs = CASES[name]
    gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*inputs(torch.float32))
    assert len(rewrite(copy.deepcopy(gm), rule, choose=first)) == 0
    assert len(rewrite(gm, rule, choose=every)) == 1


@named
def test_a_few_elements_are_declined(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CASES[name][1], "FEW", 10**6)
    assert any("fewer than 1,000,000 elements" in reason for reason in reported(name))


@named
def test_other_types_and_machines_without_a_compiler(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any("the kernel in C++ is for" in reason for reason in reported(name, torch.float16))
    with as_on_a_gpu():
        assert "the kernel is for CPUs" in reported(name)
    monkeypatch.setattr(native, "_has_compiler", lambda: False)
    assert any("needs a compiler" in reason for reason in reported(name))
