"""Benchmark of an exported program: eager, compiled, and compiled with rules, interleaved."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec
from torch.types import IntLikeType

from pypm.core.rules import Exactness, RuleSet
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx import Choice, Report, first
from pypm.fx.values.symbolic import hint
from pypm.fx.values.user_input import check_program
from pypm.integrations import inductor
from pypm.timing import Times, interleave, on_threads
from pypm.torch_internals import pytree

__all__ = ["VERSIONS", "Bench", "bench", "inputs_of"]

EAGER: Final = "eager"
COMPILED: Final = "torch.compile"
VERSIONS: Final = (EAGER, COMPILED, "with the rules")
ROUNDS: Final = 1000

Inputs: TypeAlias = tuple[tuple[object, ...], dict[str, object]]


@dataclass(frozen=True)
class Bench:
    """Times of each version, the distance of its outputs from eager's, and the rules' report."""

    times: Times
    differences: Mapping[str, float]
    """The largest absolute difference of an output, also for whole numbers and truth values."""
    report: Report
    threads: int

    def as_dict(self) -> dict[str, Any]:
        versions = {
            name: {
                "median_seconds": self.times.median(name),
                "speedup": self.times.speedup(COMPILED, name),
                "difference": self.differences[name],
            }
            for name in VERSIONS
        }
        rounds = len(self.times.seconds[EAGER])
        return {
            "versions": versions,
            "rounds": rounds,
            "threads": self.threads,
            "report": self.report.as_dict(),
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        data = self.as_dict()
        lines = [str(self.report), "", f"{'':16}{'median':>12}{'speedup':>9}{'difference':>12}"]
        for name, found in data["versions"].items():
            milliseconds = f"{1e3 * found['median_seconds']:.3f} ms"
            numbers = f"{found['speedup']:>8.2f}x{found['difference']:>12.1e}"
            lines.append(f"{name:16}{milliseconds:>12}{numbers}")
        rounds, threads = data["rounds"], self.threads
        lines += [
            f"medians of {rounds} round{'s' * (rounds != 1)} on {threads} "
            f"thread{'s' * (threads != 1)}; speedup over torch.compile, difference from eager"
        ]
        return "\n".join(lines)


def bench(
    program: ExportedProgram,
    rules: RuleSet,
    *,
    stage: str = "joint",
    seconds: float = 10.0,
    threads: int = 1,
    choose: Choice = first,
    exactness: Exactness = "reassociated",
) -> Bench:
    """Time a program without gradients: eager, compiled, and compiled with rules.

    Arguments:
        program: the program, run on the inputs that it was exported with, or else on random ones.
        rules: the rule set.
        stage: the hook of Inductor, a key of `pypm.integrations.inductor.STAGES`.
        seconds: the time for all interleaved runs; each version runs once before, for its outputs.
        threads: the number of threads that torch computes on.
        choose: as for `pypm.fx.rewrite`. By default rules are applied wherever they may be, so that
            what they gain and lose is seen; `pypm.choice.worthwhile()` is the default of a pass.
        exactness: the least word of a rule that is accepted, as for `pypm.fx.rewrite`.

    No compiled code comes from a cache, so the rules' report is that of this run. Raises PyPMError
    if the program has no inputs or does not run on them, and for an unknown
    stage or exactness.
    """
    check_program(program, "pypm.tools.bench.bench")
    inputs = inputs_of(program)
    rewriting = inductor.Pass(rules, stage, choose=choose, exactness=exactness)
    calls: dict[str, Callable[[], object]] = {}
    outputs = {}
    with on_threads(threads), torch.no_grad(), inductor.uncached():
        for name in VERSIONS:
            options = rewriting.options() if name == VERSIONS[-1] else None
            calls[name] = _call(program, inputs, name != EAGER, options)
            torch.manual_seed(0)
            outputs[name] = _outputs(name, calls[name])
        times = interleave(calls, seconds=seconds, rounds=ROUNDS, threads=threads)
    differences = {name: _difference(outputs[EAGER], found) for name, found in outputs.items()}
    return Bench(times, differences, rewriting.report(), threads)


def _call(
    program: ExportedProgram, inputs: Inputs, compiled: bool, options: dict[str, Any] | None
) -> Callable[[], object]:
    """Return a call of a version that shares no state with the others, since it may write it."""
    module = program.module()
    for name, buffer in [*module.named_buffers()]:
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, buffer.clone())
    run = torch.compile(module, options=options) if compiled else module
    args, kwargs = pytree.tree_map_only(Tensor, torch.clone, inputs)

    def call() -> object:
        result = run(*args, **kwargs)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return result

    return call


def _outputs(name: str, call: Callable[[], object]) -> list[Tensor]:
    try:
        results = pytree.tree_leaves(call())
    except Exception as error:
        cause = getattr(error, "inner_exception", error)  # where torch.compile wraps it
        if isinstance(cause, PyPMError):
            raise cause from None
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise PyPMError(Diagnostic(f"the program does not run, {name}: {what}")) from error
    return [result.clone() for result in results if isinstance(result, Tensor)]


def _difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the largest absolute difference; equal infinities and two NaNs do not differ."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        wide = torch.complex128 if a.is_complex() else torch.float64
        x, y = a.to(wide), b.to(wide)
        same = (x == y) | (x.isnan() & y.isnan())
        found = torch.where(same, 0.0, (x - y).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
        worst = max(worst, found.max().item() if found.numel() else 0.0)
    return worst


# --- inputs -------------------------------------------------------------------------------------


def inputs_of(program: ExportedProgram) -> Inputs:
    """Return the inputs that the program was exported with, else random ones.

    Samples are normal numbers, or zeros for inputs that may be indices.
    """
    if program.example_inputs is not None:
        args, kwargs = program.example_inputs
        return tuple(args), dict(kwargs)
    nodes = {node.name: node for node in program.graph.nodes}
    specs = program.graph_signature.input_specs
    generator = torch.Generator().manual_seed(0)
    given = [s for s in specs if s.kind is InputKind.USER_INPUT]
    leaves = [_drawn(spec, nodes, generator) for spec in given]
    structure = program.call_spec.in_spec
    assert structure is not None
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    return args, kwargs


def _drawn(spec: InputSpec, nodes: Mapping[str, fx.Node], generator: torch.Generator) -> object:
    """Return a sample of an input, as the program's metadata describes it; zeros if it may be an
    index.
    """
    if isinstance(spec.arg, ConstantArgument):
        return spec.arg.value
    value = nodes[spec.arg.name].meta["val"]
    if not isinstance(value, Tensor):
        return _known(value, spec)
    shape = [_known(size, spec) for size in value.shape]
    if not (value.is_floating_point() or value.is_complex()):
        return torch.zeros(shape, dtype=value.dtype, device=value.device)
    wide = torch.complex64 if value.is_complex() else torch.float32
    return torch.randn(shape, dtype=wide, generator=generator).to(value.device, value.dtype)


def _known(size: IntLikeType, spec: InputSpec) -> int:
    """Return a size; for a dynamic one, that of the export."""
    found = hint(size)
    if found is None:
        help = "export it with example inputs, and keep them when it is saved"
        what = f"the size of input `{spec.arg.name}` is not known"
        raise PyPMError(Diagnostic(what, help=help))
    return int(found)
