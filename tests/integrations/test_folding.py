"""Layers folded into constant weights, in exported programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from pypm.diagnostics import PyPMError
from pypm.integrations import export
from pypm.rules import convolution

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

LAYERS: Final = ("linear.", "conv1d.", "conv2d.", "conv_transpose1d.", "conv_transpose2d.")
Made = Callable[[], nn.Module]
FOLDED: Final[dict[str, tuple[Made, tuple[int, ...]]]] = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)), (1, 4, 5, 5)),
    "linear": (lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), (5, 4)),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 8, 3, 2, 1, 1), nn.BatchNorm2d(8)),
        (2, 4, 5, 5),
    ),
    "transposed, in groups": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)),
        (2, 4, 5, 5),
    ),
    "transposed, 1d": (
        lambda: nn.Sequential(nn.ConvTranspose1d(4, 8, 3, bias=False), nn.BatchNorm1d(8)),
        (2, 4, 5),
    ),
    "maps": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)), (2, 5, 4)),
    "three maps": (
        lambda: nn.Sequential(
            nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False), nn.Linear(4, 6)
        ),
        (2, 5, 4),
    ),
}
LEFT: Final[dict[str, tuple[Made, tuple[int, ...]]]] = {
    "rows are channels": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(5)),
        (2, 5, 4),
    ),
    "few values between": (lambda: nn.Sequential(nn.Linear(16, 2), nn.Linear(2, 16)), (5, 16)),
    "an activation between": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)),
        (5, 4),
    ),
    "moments of the batch": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)),
        (2, 4, 5, 5),
    ),
}


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


@pytest.mark.parametrize("name", FOLDED)
def test_one_layer_is_left(name: str) -> None:
    build, shape = FOLDED[name]
    program, x = exported(build(), *shape)
    before = str(program.graph)
    folded = export.fold(program, convolution.ONCE)
    (target,) = targets(folded.module)
    assert target.startswith(LAYERS) and len(folded.report) >= 1
    expected = program.module()(x)
    torch.testing.assert_close(folded.module(x), expected, atol=1e-12, rtol=1e-12)
    assert 0 < folded.moved < 1e-12
    assert str(program.graph) == before


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    build, shape = LEFT[name]
    program, _ = exported(build(), *shape)
    folded = export.fold(program, convolution.ONCE)
    assert (len(folded.report), folded.moved) == (0, 0.0)


@pytest.mark.parametrize("wrapped", [weight_norm, spectral_norm])
@pytest.mark.parametrize("layer", [nn.Conv1d, nn.ConvTranspose1d, nn.Linear])
def test_weights_are_computed_once(layer: Any, wrapped: Any) -> None:
    made = layer(4, 8) if layer is nn.Linear else layer(4, 8, 3)
    program, x = exported(wrapped(made), 2, 4, *([] if layer is nn.Linear else [9]))
    folded = export.fold(program, [])
    (target,) = targets(folded.module)
    assert target.startswith(LAYERS)
    assert len(folded.module.state_dict()) == 2
    torch.testing.assert_close(folded.module(x), program.module()(x), atol=0, rtol=0)


def test_a_resnet_has_no_batch_norm_left() -> None:
    """Also where a weight is too large to be scaled in each run."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=5
    )
    program, x = exported(transformers.ResNetForImageClassification(config), 2, 3, 32, 32)
    assert len(export.rewrite(program.run_decompositions({}), convolution.RULES)) < 8
    folded = export.fold(program, convolution.ONCE)
    assert len(folded.report) == 8
    assert not any("norm" in target or "mul" in target for target in targets(folded.module))
    expected = program.module()(x).logits
    torch.testing.assert_close(folded.module(x).logits, expected, atol=1e-10, rtol=1e-10)


def test_results_that_would_move_too_far_stay() -> None:
    """In bfloat16 the scaled weights are rounded."""
    build, shape = FOLDED["convolution"]
    program, x = exported(build(), *shape, dtype=torch.bfloat16)
    folded = export.fold(program, convolution.ONCE)
    assert len(folded.report) == 0 and folded.moved > 1e-4
    torch.testing.assert_close(folded.module(x), program.module()(x), atol=0, rtol=0)
    assert len(export.fold(program, convolution.ONCE, tolerance=0.1).report) == 1


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
    program, x = exported(
        nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.ReLU(inplace=True)), 2, 4, 9
    )
    folded = export.fold(program, convolution.ONCE)
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
