"""Attention of diffusers' models: every site is found, at export and at Inductor's hooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor

from benchmarks.coverage.models import CORPUS, attended, build, inputs
from pypm.integrations import export
from pypm.rules import attention
from tests.axes import axes
from tests.rules.capture import compile_to_graphs, exported

pytest.importorskip("diffusers", reason="no diffusers: `make env` installs it")
processors: Any = pytest.importorskip("diffusers.models.attention_processor")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

ENTRIES: Final = {e.name.removeprefix("diffusers/"): e for e in CORPUS if e.diffusers}
SITES: Final = {
    "unet": 8, "unet-added-kv": 4, "autoencoder": 2, "dit": 2, "sd3": 3, "flux": 2, "wan": 4,
}  # fmt: skip
WRITTEN_OUT: Final = ("unet", "unet-added-kv", "autoencoder", "dit")
"""Models with a processor that writes attention out; the others call SDPA alone."""
QUICK: Final = ("dit", "autoencoder", "flux")
"""Exported in quick runs: what UNets have beside these are processors, of which each is tried."""
OTHERS: Final = [name for name in ENTRIES if name not in QUICK]
MOST: Final = 63
"""Of a dynamic batch: torch guards it so where a model scales by interpolation."""
FLOAT32: Final = {"unet-added-kv": 1e-6, "autoencoder": 1e-6, "wan": 1e-6}
"""Tolerances of models that compute a part in float32: softmax, and Wan's norms."""


def model_of(name: str, how: str = "eager") -> torch.nn.Module:
    """Return the model in float64, with random weights large enough that attention matters."""
    made = build(ENTRIES[name], attention=how, dtype=torch.float64)
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return made


def given_to(name: str, batch: int = 2) -> dict[str, Tensor]:
    return inputs(ENTRIES[name], batch=batch, dtype=torch.float64)


def run(call: Any, given: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return attended(given, call(**given))


def agrees(name: str, found: Tensor, expected: Tensor) -> None:
    tolerance = FLOAT32.get(name, 1e-9)
    scale = expected.abs().max()
    torch.testing.assert_close(found / scale, expected / scale, atol=tolerance, rtol=tolerance)


def calls_in(program: torch.export.ExportedProgram) -> int:
    targets = [str(node.target) for node in program.graph.nodes]
    return sum(target.startswith("aten.scaled_dot_product_attention") for target in targets)


@axes(OTHERS, name=[*QUICK, *OTHERS], is_dynamic=[False, True])
def test_exported(name: str, is_dynamic: bool) -> None:
    model, given, other = model_of(name), given_to(name), given_to(name, 3)
    batch = torch.export.Dim("batch", min=2, max=MOST)
    shapes = {
        key: {0: batch} if is_dynamic and value.shape != other[key].shape else None
        for key, value in given.items()
    }
    with torch.no_grad():
        program = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False)
    report = export.rewrite(program, attention.RULES)
    found = SITES[name] if name in WRITTEN_OUT else 0
    assert (report.count("sdpa"), len(report)) == (found, found), report
    assert calls_in(program) == SITES[name]
    for each in (given, other) if is_dynamic else (given,):
        agrees(name, run(program.module(), each), run(model, each))


def hooks() -> Iterator[ParameterSet]:
    """In quick runs without UNets, whose processors take the same two inputs alone, below."""
    for name, stage in product(WRITTEN_OUT, ("joint", "pre_grad")):
        is_quick = name == "dit"
        yield pytest.param(name, stage, marks=() if is_quick else pytest.mark.soak)


@pytest.mark.parametrize(("name", "stage"), [*hooks()])
def test_at_a_hook(name: str, stage: str) -> None:
    model, given = model_of(name), given_to(name)
    compiled, hook = compile_to_graphs(model, attention.RULES, stage)
    agrees(name, run(compiled, given), run(model, given))
    report = hook.reports[-1]
    assert (report.count("sdpa"), len(report)) == (SITES[name],) * 2, report


@axes(WRITTEN_OUT[:3], name=["dit", *WRITTEN_OUT[:3]])
def test_processors_that_call_the_kernel(name: str) -> None:
    model, given = model_of(name, "sdpa"), given_to(name)
    with torch.no_grad():
        program = torch.export.export(model, (), given, strict=False)
    assert len(export.rewrite(program, attention.RULES)) == 0
    assert calls_in(program) == SITES[name]
    agrees(name, run(program.module(), given), run(model, given))


# --- one layer, by each processor that writes attention out --------------------------------------

WIDTH: Final = 16
ADDED: Final = {"added_kv_proj_dim": WIDTH, "norm_num_groups": 4}
PROCESSORS: Final[Mapping[str, tuple[tuple[Any, ...], dict[str, Any], int]]] = {
    "AttnProcessor": ((), {}, 1),
    "AttnAddedKVProcessor": ((), ADDED, 1),
    "SlicedAttnProcessor": ((2,), {}, 2),
    "SlicedAttnAddedKVProcessor": ((2,), ADDED, 2),
    "CustomDiffusionAttnProcessor": ((True, True, WIDTH, WIDTH), {}, 1),
    "IPAdapterAttnProcessor": ((WIDTH, WIDTH), {}, 2),
}
"""Its arguments, options of the layer, and sites."""


def layer(name: str, dtype: torch.dtype, **more: bool) -> torch.nn.Module:
    arguments, options, _ = PROCESSORS[name]
    torch.manual_seed(0)
    made = processors.Attention(query_dim=WIDTH, heads=2, dim_head=8, **options, **more)
    made.set_processor(getattr(processors, name)(*arguments))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.to(dtype).eval()


def layer_inputs(name: str, dtype: torch.dtype) -> list[Any]:
    made = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, n, WIDTH, generator=made).to(dtype) for n in (6, 9))
    if name == "IPAdapterAttnProcessor":
        return [x, (y[:, :5], [y[:, 5:]])]
    return [x.mT.contiguous() if "Added" in name else x, y]


@axes(name=PROCESSORS, stage=["joint", "pre_grad"])
def test_every_processor(name: str, stage: str) -> None:
    model, given = layer(name, torch.float64), layer_inputs(name, torch.float64)
    compiled, hook = compile_to_graphs(model.requires_grad_(False), attention.RULES, stage)
    torch.testing.assert_close(compiled(*given), model(*given), atol=1e-9, rtol=1e-9)
    report = hook.reports[-1]
    assert (report.count("sdpa"), len(report)) == (PROCESSORS[name][2],) * 2, report


@pytest.mark.parametrize(
    "name", ["AttnProcessor", "SlicedAttnAddedKVProcessor", "IPAdapterAttnProcessor"]
)
def test_gradients(name: str) -> None:
    model, given = layer(name, torch.float64), layer_inputs(name, torch.float64)
    compiled, hook = compile_to_graphs(model, attention.RULES, "pre_grad")
    ours, theirs = (
        torch.autograd.grad(
            call(*given).square().sum(), list(model.parameters()), allow_unused=True
        )
        for call in (compiled, model)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
    assert hook.reports[-1].count("sdpa") == PROCESSORS[name][2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_scores_that_are_computed_in_float32(dtype: torch.dtype) -> None:
    """`upcast_attention`: in float64 the scores are narrower than the values, and stay so."""
    name, is_narrower = "AttnProcessor", dtype == torch.float64
    model = layer(name, dtype, upcast_attention=True).requires_grad_(False)
    given = layer_inputs(name, dtype)
    report, found = exported(model, given, attention.RULES)
    assert (report.count("sdpa"), len(report)) == (not is_narrower,) * 2, report
    reason = "query, key and value do not have one floating-point type"
    assert (reason in {refusal.reason for refusal in report.refusals}) == is_narrower
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, model(*given), atol=tolerance, rtol=tolerance)
