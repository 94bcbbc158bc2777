"""`python -m benchmarks.coverage.packs`: layers of every family in the corpus, those found, errors.

Models are exported and rewritten by one pack at a time.
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode

from benchmarks.coverage.layers import FAMILIES as LAYERS
from benchmarks.coverage.layers import layers_there
from benchmarks.coverage.models import CORPUS, Entry, attended, available, build, inputs
from benchmarks.coverage.sites import distance
from benchmarks.results import Results, option
from pypm import RuleSet
from pypm.fx import Report
from pypm.integrations import export
from pypm.rules import activation, norm

WIDTH: Final = 160
"""Columns, where the output is no terminal."""
PACKS: Final[Mapping[str, RuleSet]] = {
    "norm": norm.RULES,
    "activation": activation.RULES,
}
CASTING: Final = ("diffusers/wan",)
"""Models with other casts to float32 than those in `CASTS`: in float64 other rules apply."""
CASTS: Final = {torch.Tensor.to, torch.Tensor.float, F.softmax}


@dataclass(frozen=True)
class Family:
    """What is counted: layers, the pack that finds them, and the operators that they may be."""

    name: str
    pack: str
    operators: tuple[str, ...] = ()


FAMILIES: Final = (
    Family("norm", "norm", operators=("layer_norm", "group_norm", "rms_norm")),
    Family("activation", "activation", operators=("gelu", "silu")),
)


@dataclass(frozen=True)
class Layers:
    """Of one family in one model: rewrites, operators that need none, and layers there are.

    Those that a rule found and declined are counted apart. The error is relative to the largest
    number eager computes.
    """

    family: str
    rewritten: int
    whole: int
    declined: int
    there: int | None
    error: float

    def __str__(self) -> str:
        of = "" if self.there is None else f" of {self.there}"
        whole = f" + {self.whole}" if self.whole else ""
        declined = f", {self.declined} declined" if self.declined else ""
        shown = self.rewritten or self.whole or self.there or self.declined
        return f"{self.rewritten}{whole}{of}{declined}" if shown else ""


class _Widened(TorchFunctionMode):
    """What is float64 and cast to float32 stays as it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in CASTS and args[0].dtype == torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            args = [torch.float64 if x is torch.float32 else x for x in args]
            if kwargs.get("dtype") is torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Captured:
    """A model as a program, what it is called with, and what it computes."""

    program: ExportedProgram
    given: dict[str, Tensor]
    eager: Tensor

    def rewritten(self, rules: RuleSet) -> tuple[ExportedProgram, Report, float]:
        """A rewritten copy, what was done to it, and its distance from eager."""
        ours = copy.deepcopy(self.program)
        with torch.no_grad():
            report = export.rewrite(ours, rules)
            result = attended(self.given, ours.module()(**self.given))
        return ours, report, distance([result], [self.eager])


def captured(entry: Entry, layers: int, dtype: torch.dtype) -> Captured:
    """In float64 the model's casts to float32 are left out."""
    with _Widened() if dtype == torch.float64 else nullcontext(), torch.no_grad():
        model, given = build(entry, layers=layers, dtype=dtype), inputs(entry, dtype=dtype)
        _vary(model)
        program = torch.export.export(model, (), given, strict=False)
        return Captured(program, given, attended(given, model(**given)))


def _vary(model: nn.Module) -> None:
    """Draw anew what is one number repeated: with zeros and ones, an exchange would not show."""
    made = torch.Generator().manual_seed(0)
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if weight.is_floating_point() and weight.dim() and (weight == weight.flatten()[0]).all():
            drawn = torch.randn(weight.shape, generator=made, dtype=weight.dtype).mul(0.1)
            weight.add_(drawn.abs() if name.endswith("running_var") else drawn)


def measure(entry: Entry, layers: int, packs: Sequence[str]) -> tuple[list[Layers], list[Report]]:
    """Of every family in these packs; layers are counted in float32, errors are float64's."""
    there = layers_there(build(entry, layers=layers), inputs(entry))
    single, double = (captured(entry, layers, dtype) for dtype in (torch.float32, torch.float64))
    found, reports = [], []
    for pack in packs:
        program, report, _ = single.rewritten(PACKS[pack])
        _, again, error = double.rewritten(PACKS[pack])
        operators = _kept(single.program, program)
        for family in FAMILIES:
            if family.pack == pack:
                found.append(
                    Layers(
                        family.name,
                        len(report),
                        sum(operators[name] for name in family.operators),
                        _declined(report),
                        there[family.name] if family.name in LAYERS else None,
                        error,
                    )
                )
        reports.append(report)
        if entry.name not in CASTING:
            wide, narrow = (len(each) + _declined(each) for each in (again, report))
            assert wide == narrow, f"{entry.name}, {pack}, in float64: {again}"
    return found, reports


def _declined(report: Report) -> int:
    return sum(r.count for r in report.refusals if r.kind == "declined")


def _kept(before: ExportedProgram, after: ExportedProgram) -> Counter[str]:
    """The operators that are in both, by the names of their packets."""
    old = {node.name for node in before.graph.nodes}
    targets = [n.target for n in after.graph.nodes if n.op == "call_function" and n.name in old]
    return Counter(t.overloadpacket.__name__ for t in targets if hasattr(t, "overloadpacket"))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage.packs", description=__doc__
    )
    parser.add_argument("models", nargs="*", help="names from the corpus; all, if left out")
    parser.add_argument("--layers", type=int, default=2, help="at most so many; 0: real depth")
    parser.add_argument("--packs", default=",".join(PACKS), help="some of them: norm,activation")
    parser.add_argument("--why", action="store_true", help="print what was refused, and why")
    option(parser)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    packs = options.packs.split(",")
    for unknown in (*set(packs) - PACKS.keys(), *set(options.models) - {e.name for e in CORPUS}):
        parser.error(f"{unknown!r} is neither a pack nor a model that is counted")
    rows: dict[str, list[Layers]] = {}
    for entry in CORPUS:
        if options.models and entry.name not in options.models:
            continue
        if not available(entry):
            console.print(f"[dim]{entry.name}: its package is not installed")
            continue
        rows[entry.name], reports = measure(entry, options.layers, packs)
        line = ", ".join(f"{found.family} {found}" for found in rows[entry.name] if str(found))
        console.print(f"[dim]{entry.name}: {line}", highlight=False)
        for refusal in (r for report in reports for r in report.refusals if options.why):
            console.print(
                f"  {refusal.rule}: {refusal.reason}, at {refusal.node}, {refusal.count} times",
                markup=False,
            )
    _add(Results(options.output), rows)


def _add(results: Results, rows: Mapping[str, Sequence[Layers]]) -> None:
    """Add a row for each model, and in each cell what was found of what there is."""
    names = list(dict.fromkeys(found.family for row in rows.values() for found in row))
    results.table("model", *names, "largest error")
    for name, row in rows.items():
        if any(map(str, row)):
            results.row(name, *map(str, row), f"{max(found.error for found in row):.0e}")


if __name__ == "__main__":
    main()
