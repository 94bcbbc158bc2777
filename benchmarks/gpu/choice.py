"""The default choice on a GPU: `python -m benchmarks.gpu.choice`.

Models of two layers at real width, blocks of experts, and attention written out: as `torch.compile`
makes them alone, with the default choice, and with every legal rewrite, or as attention is written
by hand. The time of a version is the larger one of device and host, as of a call among many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any, Final, TypeAlias
from unittest import mock

import torch
from torch import Tensor

from benchmarks.choice import (
    COMPILED,
    DEFAULT,
    HEAD,
    Point,
    kernel,
    uncached,
    with_its_own_code,
    written_out,
)
from benchmarks.gpu.lines import OK, Lines, Row, run
from benchmarks.gpu.times import Both, Version, both, gpu
from pypm.choice import first, sparing
from pypm.integrations import inductor
from pypm.rules import inference
from pypm.torch_internals import pytree

LEGAL, BY_HAND = "every legal rewrite", "by hand"
SLOWER: Final = 0.97
"""The least speed over `torch.compile` alone that is within noise."""
COLUMNS: Final = (
    "compile alone, s", "default, s", "alone: device, us", "host", "default: device", "host",
    "gain", "gain, captured", "over the best", "rules",
)  # fmt: skip

Arguments: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass
class Compared:
    """A function that is compiled in several ways and called on the same arguments."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    calls: dict[str, Callable[..., Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    rules: Sequence[str] = ()

    def __post_init__(self) -> None:
        torch._dynamo.reset()

    def compile(self, name: str, function: Callable[..., Any], choose: Any, **more: Any) -> None:
        """Compile a version: without rules if `choose` is ALONE, by default if it is None."""
        hook = None if choose is ALONE else inductor.Pass(inference.RULES, choose=choose)
        options = {**({} if hook is None else hook.options()), **more}
        if isinstance(function, FunctionType):
            function = with_its_own_code(function)
        compiled: Any = torch.compile(function, options=options or None, dynamic=False)
        began = time.perf_counter()
        compiled(*self.args, **self.kwargs)
        torch.cuda.synchronize()
        self.seconds[name] = time.perf_counter() - began
        self.calls[name] = partial(compiled, **self.kwargs)
        if hook is not None and name == DEFAULT:
            self.rules = [*dict.fromkeys(each.rule for each in hook.report().rewrites)]

    def check(self, tolerance: float) -> None:
        """Raise AssertionError unless all versions return the same, beside their largest value."""
        found = {n: first_of(call(*self.args)).float() for n, call in self.calls.items()}
        most = float(found[COMPILED].abs().max())
        for name, each in found.items():
            off = float((each - found[COMPILED]).abs().max())
            assert off <= tolerance * most, f"{name} differs by {off / most:.2g} of the largest"

    def row(self) -> Row:
        versions: dict[str, Version] = {n: (call, self.args) for n, call in self.calls.items()}
        times = both(versions)
        alone, default = times[COMPILED], times[DEFAULT]
        gain = alone.larger / default.larger
        best = min(each.larger for each in times.values())
        return [
            self.seconds[COMPILED], self.seconds[DEFAULT], *cells(alone), *cells(default),
            gain, alone.device / default.device, best / default.larger,
            ", ".join(self.rules) or "-", OK if gain >= SLOWER else "slower",
        ]  # fmt: skip


ALONE: Final = object()


def cells(both: Both) -> list[float]:
    return [1e3 * both.device, 1e3 * both.host]


def first_of(output: Any) -> Tensor:
    tensor: Tensor = next(x for x in pytree.tree_leaves(output) if isinstance(x, Tensor))
    return tensor.clone()


# --- models --------------------------------------------------------------------------------------

MODELS: Final = (("bert", 512, True), ("llama-gqa", 512, False))
CAPTURED: Final = (("gpt2", 512, False), ("qwen2", 2048, False))
"""Models of the corpus, their tokens, and whether they have a mask; those that are captured."""


def model(name: str, tokens: int, has_mask: bool) -> tuple[Any, dict[str, Tensor]]:
    """Return a model on the GPU in bfloat16, and what it is called with."""
    from benchmarks.models.wide import Point as Wide

    point = Wide(name, "bfloat16", 1, tokens, has_mask)
    given = {key: value.to(gpu()) for key, value in point.inputs().items()}
    return point.build("eager").to(gpu()), given


def of_model(name: str, tokens: int, has_mask: bool) -> Row:
    module, given = model(name, tokens, has_mask)
    compared = Compared([], given)
    for version, choose in ((COMPILED, ALONE), (DEFAULT, None), (LEGAL, first)):
        compared.compile(version, module, choose)
    compared.check(0.05)
    return compared.row()


def captured(name: str, tokens: int, has_mask: bool) -> Row:
    """Time a model that `torch.compile` itself runs as CUDA graphs, call by call."""
    module, given = model(name, tokens, has_mask)
    compared = Compared([], given)
    for version, choose in ((COMPILED, ALONE), (DEFAULT, None)):
        compared.compile(version, module, choose, **{"triton.cudagraphs": True})
    compared.check(0.05)
    alone, default = (waited_for(compared.calls[n]) for n in (COMPILED, DEFAULT))
    gain = alone / default
    rules = ", ".join(compared.rules) or "-"
    return [1e6 * alone, 1e6 * default, gain, rules, OK if gain >= SLOWER else "slower"]


def waited_for(call: Callable[[], Any], rounds: int = 20, calls: int = 10) -> float:
    """Return the seconds of a call among others, whose end is awaited; the least of some rounds."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(calls):
            torch.compiler.cudagraph_mark_step_begin()
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / calls)
    return min(found[1:])


# --- regions -------------------------------------------------------------------------------------

BLOCKS: Final = {"mixtral": (64, 2048, 8, 2), "deepseek_v3": (512, 1024, 32, 8)}
"""By the model: tokens, width, experts, and those of a token."""
ATTENTION: Final = (
    ((1, 32, 8, 512, 512), True), ((1, 32, 8, 1, 4096), False), ((8, 12, 12, 512, 512), False),
    ((8, 32, 8, 1, 1024), True), ((1, 32, 8, 2048, 2048), False), ((64, 4, 4, 16, 16), False),
)  # fmt: skip
"""Batch, heads, heads of keys, queries and keys, and whether there is a mask."""
BUDGET: Final = 20.0
"""The seconds to time attention, which is no model that would bound them."""


def of_block(name: str, tokens: int, width: int, experts: int, chosen: int) -> Row:
    from benchmarks.experts import block

    module = block(name, width, experts, chosen).to(gpu(), torch.bfloat16)
    x = torch.randn(1, tokens, width, device=gpu(), dtype=torch.bfloat16)
    compared = Compared([x])
    for version, choose in ((COMPILED, ALONE), (DEFAULT, None)):
        compared.compile(version, module, choose)
    compared.check(0.1)  # near ties, the router may choose another expert
    return compared.row()


def of_attention(shape: tuple[int, int, int, int, int], has_mask: bool) -> Row:
    args = [x.to(gpu()) for x in Point(shape, has_mask, torch.bfloat16).inputs()]
    compared = Compared(args)
    compared.compile(COMPILED, written_out, ALONE)
    with mock.patch.object(sparing, "LEAST", BUDGET):
        compared.compile(DEFAULT, written_out, None)
    compared.compile(BY_HAND, kernel, ALONE)
    compared.check(0.05)
    return compared.row()


def choice(lines: Lines) -> None:
    """Measure whole models first, since the promise is for them."""
    with uncached():
        lines.begin("model, bfloat16", *COLUMNS, name="models")
        for case in MODELS:
            lines.line(called(*case), partial(of_model, *case))
            add_figures(lines, "models")
        lines.begin("attention, bfloat16", *COLUMNS, name="attention")
        for shape, has_mask in ATTENTION:
            batch, heads, groups, queries, keys = shape
            mask = ", mask" if has_mask else ""
            name = f"{batch}x{heads}/{groups}x{queries}x{keys}x{HEAD}{mask}"
            lines.line(name, partial(of_attention, shape, has_mask))
            add_figures(lines, "attention")
        lines.begin("block, tokens", *COLUMNS, name="blocks")
        for name, (tokens, *sizes) in BLOCKS.items():
            lines.line(f"{name}, {tokens}", partial(of_block, name, tokens, *sizes))
        for row in lines.rows():
            if isinstance(row[7], float):
                lines.figure(f"gain of {row[0]}", row[7])
        lines.begin("model, captured", "alone, us", "default, us", "gain", "rules", name="captured")
        for case in CAPTURED:
            lines.line(called(*case), partial(captured, *case))
            lines.least_and_largest(3, "captured")


def called(model: str, tokens: int, has_mask: bool) -> str:
    return f"{model} 1x{tokens}{', mask' if has_mask else ''}"


def add_figures(lines: Lines, name: str) -> None:
    lines.least_and_largest(7, name)
    lines.least_and_largest(8, f"{name}, device")
    lines.least_and_largest(9, f"{name}, over the best")


if __name__ == "__main__":
    run(choice, __doc__ or "")
