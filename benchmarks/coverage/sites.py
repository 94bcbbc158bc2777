"""Attention sites of one model in one variant: found by PyPM, by Inductor alone; and the error."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.fx_passes.joint_graph import joint_graph_passes

from benchmarks.coverage.models import Entry, attended, build, inputs, sites_there
from pypm.fx import Report, first
from pypm.integrations import inductor
from pypm.rules import attention

__all__ = ["Sites", "Variant", "compiled", "distance", "measure", "run", "variants"]

SIZES: Final = ((2, 16), (3, 21))
"""Batch and tokens of the two runs with dynamic shapes: of images and sounds the batch alone.

Others are run with the first.
"""
FUSED: Final = ("_scaled_dot_product", "aten.scaled_dot_product_attention", "flex_attention")


@dataclass(frozen=True)
class Variant:
    """How a model is compiled."""

    mask: bool = False
    dynamic: bool = False
    train: bool = False

    def __str__(self) -> str:
        how = "train" if self.train else "dynamic" if self.dynamic else "static"
        return how + (", mask" if self.mask else "")


def variants(entry: Entry) -> Iterator[Variant]:
    """Those that a model has."""
    for mask in (False, True) if entry.masked else (False,):
        yield Variant(mask)
        yield Variant(mask, dynamic=True)
        yield Variant(mask, train=True)


@dataclass(frozen=True)
class Sites:
    """What was found. The error is relative to the largest number eager computes.

    Where a model calls SDPA by itself, the site counts as found.
    """

    there: int
    inductor: int
    pypm: int
    error: float
    report: Report


def measure(entry: Entry, variant: Variant, *, layers: int, dtype: torch.dtype) -> Sites:
    """Compile one model up to the code generator, twice, and run what PyPM made of it.

    Where gradients are wanted PyPM runs before autograd: after it, the scores are kept.
    """
    there = sites_there(entry, layers)
    if not there:
        return Sites(0, 0, 0, 0.0, Report())

    def fresh() -> nn.Module:
        return build(entry, layers=layers, dtype=dtype, train=variant.train)

    given = [
        inputs(entry, batch=batch, length=length, mask=variant.mask, dtype=dtype)
        for batch, length in SIZES[: 2 if variant.dynamic else 1]
    ]
    if variant.dynamic and not entry.masked:
        for one, other in zip(given[0].values(), given[1].values(), strict=True):
            if one.shape != other.shape:
                torch._dynamo.mark_dynamic(one, 0)
        variant = replace(variant, dynamic=False)
    counting = _Alone()
    rewriting = inductor.Pass(
        attention.RULES, "pre_grad" if variant.train else "joint", choose=first
    )
    model = fresh()
    if variant.train:
        run(compiled(fresh(), variant, {"joint_custom_pre_pass": counting}), given[0], variant)
        patches = rewriting.options()
    else:
        patches = {"joint_custom_pre_pass": [counting, rewriting]}
    ours_compiled = compiled(model, variant, patches)
    error = 0.0
    for arguments in given:
        ours = run(ours_compiled, arguments, variant)
        eager = run(fresh(), arguments, variant)
        error = max(error, distance(ours, eager))
    report = rewriting.report()
    return Sites(there, counting.count, counting.called + len(report), error, report)


class _Alone(CustomGraphPass):
    """Lets Inductor's own joint passes run on a copy of the graph, and counts attention there.

    `called` is what there is before.
    """

    def __init__(self) -> None:
        self.called = self.count = 0

    def __call__(self, graph: fx.Graph) -> None:
        assert graph.owning_module is not None
        module = fx.GraphModule(graph.owning_module, copy.deepcopy(graph))
        with torch._inductor.config.patch(
            joint_custom_pre_pass=None, joint_custom_post_pass=None, pattern_matcher=True
        ):
            joint_graph_passes(module)
        self.called, self.count = _fused(graph), _fused(module.graph)

    def uuid(self) -> None:
        return None


def _fused(graph: fx.Graph) -> int:
    return sum(
        node.op == "call_function"
        and "backward" not in str(node.target)
        and any(name in str(node.target) for name in FUSED)
        for node in graph.nodes
    )


def compiled(model: nn.Module, variant: Variant, patches: dict[str, Any]) -> Any:
    """`torch.compile` up to the code generator, in whose place the graphs are run as they are."""
    torch._dynamo.reset()
    patches = {**patches, "pattern_matcher": False, "fx_graph_cache": False}

    def run_as_it_is(module: fx.GraphModule, *_: Any, **__: Any) -> Any:
        return make_boxed_func(copy.copy(module).forward)

    def backend(module: fx.GraphModule, examples: list[Any]) -> Any:
        with torch._functorch.config.patch(enable_autograd_cache=False):
            return compile_fx(module, examples, inner_compile=run_as_it_is, config_patches=patches)

    return torch.compile(model, backend=backend, dynamic=variant.dynamic or None)


def run(call: Any, given: dict[str, Tensor], variant: Variant) -> list[Tensor]:
    """The result; in training, with the gradients of its mean square."""
    with _gradients(variant.train):
        torch.manual_seed(0)
        result = attended(given, call(**given))
        if not variant.train:
            return [result]
        result.double().square().mean().backward()
    gradients = [p.grad for p in call.parameters() if p.grad is not None]
    return [result.detach(), *gradients]


@contextmanager
def _gradients(wanted: bool) -> Iterator[None]:
    with torch.set_grad_enabled(wanted):
        yield


def distance(ours: list[Tensor], eager: list[Tensor]) -> float:
    """Of the result relative to its largest number, and of the gradients relative to theirs.

    Infinite where a difference is no finite number.
    """
    largest = 0.0
    for part in (slice(1), slice(1, None)):
        pairs = [(a.double(), b.double()) for a, b in zip(ours[part], eager[part], strict=True)]
        if not all((a - b).isfinite().all() for a, b in pairs):
            return math.inf
        size = max((b.abs().max().item() for _, b in pairs), default=0.0) or 1.0
        error = max(((a - b).abs().max().item() for a, b in pairs), default=0.0)
        largest = max(largest, error / size)
    return largest
