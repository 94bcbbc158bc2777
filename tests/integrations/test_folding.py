"""Constants of exported programs, computed once."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from pypm import PyPMError, pattern, rule
from pypm.fx import aten
from pypm.integrations import export
from tests.axes import axes

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

LAYERS: Final = ("linear.", "conv1d.", "conv_transpose1d.")


@pattern
def Scaled(x, w, scale):
    return aten.linear(x, w) * scale


@rule(Scaled)
def scaled(x, w, scale):
    return functional.linear(x, w * scale[:, None])


class ScaledLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.ones(8, 4)), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight) * self.scale


def exported(model: nn.Module, *shape: int, dtype: torch.dtype = torch.float64) -> Any:
    """Return the program and its input, with weights and statistics that are not the first ones."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    model, x = model.to(dtype).eval(), torch.randn(*shape).to(dtype)
    return torch.export.export(model, (x,)), x


def targets(module: torch.fx.GraphModule) -> list[str]:
    called = [str(n.target) for n in module.graph.nodes if n.op == "call_function"]
    return [target.removeprefix("aten.") for target in called]


def test_what_a_rule_computes_of_weights_is_computed_once() -> None:
    program, x = exported(ScaledLinear(), 5, 4)
    before = str(program.graph)
    folded = export.fold(program, scaled)
    assert targets(folded.module) == ["linear.default"] and len(folded.report) == 1
    expected = program.module()(x)
    torch.testing.assert_close(folded.module(x), expected, atol=1e-12, rtol=1e-12)
    assert 0 < folded.moved < 1e-12
    assert str(program.graph) == before


@axes(layer=[nn.Conv1d, nn.ConvTranspose1d, nn.Linear], wrapped=[weight_norm, spectral_norm])
def test_weights_are_computed_once(layer: Any, wrapped: Any) -> None:
    made = layer(4, 8) if layer is nn.Linear else layer(4, 8, 3)
    program, x = exported(wrapped(made), 2, 4, *([] if layer is nn.Linear else [9]))
    folded = export.fold(program, [])
    (target,) = targets(folded.module)
    assert target.startswith(LAYERS)
    assert len(folded.module.state_dict()) == 2
    torch.testing.assert_close(folded.module(x), program.module()(x), atol=0, rtol=0)


def test_results_that_would_move_too_far_stay() -> None:
    """In bfloat16 the scaled weights are rounded."""
    program, x = exported(ScaledLinear(), 5, 4, dtype=torch.bfloat16)
    folded = export.fold(program, scaled)
    assert len(folded.report) == 0 and folded.moved > 1e-4
    torch.testing.assert_close(folded.module(x), program.module()(x), atol=0, rtol=0)
    assert len(export.fold(program, scaled, tolerance=0.1).report) == 1


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x * (self.count + 1)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return found


def test_what_cannot_be_folded() -> None:
    program, _ = exported(Counts(), 3)
    with pytest.raises(PyPMError, match="writes to an input or a buffer"):
        export.fold(program, [])
    program, _ = exported(Branches(), 3)
    with pytest.raises(PyPMError, match=r"higher_order\.cond`, whose effects are unknown"):
        export.fold(program, [])
    program, _ = exported(nn.Linear(3, 3), 3)
    program.example_inputs = None
    with pytest.raises(PyPMError, match="no example inputs"):
        export.fold(program, [])


def test_a_write_between_operators_is_no_obstacle() -> None:
    program, x = exported(nn.Sequential(ScaledLinear(), nn.ReLU(inplace=True)), 5, 4)
    folded = export.fold(program, scaled)
    assert len(folded.report) == 1
    torch.testing.assert_close(folded.module(x), program.module()(x), atol=1e-12, rtol=1e-12)


class Numbered(nn.Module):
    """A buffer has the name that the first constant would have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_buffer("_constant_0", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.exp() + self._constant_0


def test_buffers_keep_their_names() -> None:
    program, x = exported(Numbered(), 3)
    folded = export.fold(program, [])
    assert {*folded.module.state_dict()} == {"_constant_0", "_constant_1"}
    torch.testing.assert_close(folded.module(x), program.module()(x), atol=0, rtol=0)
