"""Tile programs judged: emulated beside the reference in float64, built for Hopper, and timed.

Without a Hopper GPU there are no times, but the cycles of a model (`pypm.tiles.modelled`), and what
the assembler says: a kernel that spills registers, or whose products are serialized, is refused. A
candidate is a program as text and numbers; no code of its own is run.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeAlias

import torch
from torch import Tensor

from pypm.choice.gpu_times import timed
from pypm.diagnostics import Diagnostic, PyPMError, did_you_mean
from pypm.evolve import Candidate, ConfigurationVerdict, SearchTask, Verdict
from pypm.evolve.verdicts import RIGHT
from pypm.evolve.workloads import problem_of
from pypm.problems.contender import input_of
from pypm.problems.formats.workload import Workload
from pypm.problems.judging import compare
from pypm.problems.traces import Status
from pypm.problems.worker.inputs import inputs_maker
from pypm.problems.worker.versions import Function, WideFunction, function_of, loaded
from pypm.roofline import hardware
from pypm.tiles.build import built
from pypm.tiles.emit import Emitted, emitted
from pypm.tiles.emulator import Fault, emulate
from pypm.tiles.launch import MULTIPROCESSORS, launched
from pypm.tiles.modelled import modelled_cycles
from pypm.tiles.operator import flops, inputs_of
from pypm.tiles.partition import Rings, partitioned
from pypm.tiles.program import DTYPES, DotTiles, LoadTile, TileAxis, TileProgram
from pypm.tiles.reading import parsed
from pypm.tiles.timeline import OPERATIONS

__all__ = ["TileJudge"]

Files: TypeAlias = Mapping[str, bytes]
Kernels: TypeAlias = Mapping[str, Emitted]
Tensors: TypeAlias = dict[str, Tensor]
_SCHEDULES: Final = (0.5, 1.0)
"""Lateness of the emulator in the runs of a configuration."""
_BLOCKS: Final = 3
"""More blocks than that on an axis are not emulated, but two and the part of one at the end."""
_SECONDS: Final = 4.0
"""The time of a comparison on a CPU, of which a GPU takes a tenth."""
_DEVICE: Final = "cuda"
_CANDIDATE, _INCUMBENT = "candidate", "incumbent"


class TileJudge:
    """Judges candidates of a task for Hopper, in this process."""

    def __init__(self, task: SearchTask) -> None:
        """Read the task's files. Raises PyPMError if one is wrong, or Triton is not installed."""
        if find_spec("triton") is None:
            help = "`pip install triton`, which needs no GPU"
            raise PyPMError(Diagnostic("tile programs are built by Triton", help=help))
        self._task = task
        self._definition, self._workloads = problem_of(task)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "reference.py")
            path.write_text(self._definition.reference, encoding="utf-8")
            found = loaded(path, "tile_reference")
        types = [spec.dtype for spec in self._definition.outputs.values()]
        self._reference = WideFunction(function_of(found, "run"), types)
        name = self._definition.custom_inputs
        self._custom: Function | None = function_of(found, name) if name else None

    def judge(
        self, candidate: Files, incumbent: Files | None, known: Verdict | None, is_final: bool
    ) -> Verdict:
        """Return the verdict of a candidate, as `pypm.evolve.Judge` has it."""
        margin = self._task.margin
        try:
            kernel = self._kernel(candidate)
            said = _built(kernel)
            if not _on_hopper() and (said.spilled or said.is_serialized):
                return Verdict(reason=f"the kernel spills or is serialized: {said}", margin=margin)
            other = None if incumbent is None else self._kernel(incumbent)
            found = [*self._configurations(kernel, other)]
        except PyPMError as error:
            return Verdict(reason=str(error), margin=margin)
        return Verdict(found, margin=margin, notes={"build": str(said)})

    def close(self) -> None:
        """There are no processes to end."""

    # --- candidates ------------------------------------------------------------------------------

    def _kernel(self, files: Files) -> Emitted:
        """Return the kernel of a candidate.

        Raises PyPMError if it is no tile program, has no place on the machine, or takes other
        tensors than the definition has.
        """
        candidate = Candidate.of(files)
        if candidate.tiles is None:
            help = 'write `tiles = "product.tiles"` into `candidate.toml`'
            raise PyPMError(Diagnostic("the candidate is no tile program", help=help))
        text = files[candidate.tiles.file].decode("utf-8", "replace")
        program = _with_blocks(parsed(text), candidate.tiles.blocks)
        specs = {**self._definition.inputs, **self._definition.outputs}
        wanted = {n: (spec.shape, getattr(torch, spec.dtype)) for n, spec in specs.items()}
        given = {o.name: (o.sizes, DTYPES[o.dtype]) for o in program.operands}
        if given != wanted or {*program.results} != {*self._definition.outputs}:
            help = "operands have the names, axes and types of the inputs and outputs"
            raise PyPMError(Diagnostic("the program is of another computation", help=help))
        return emitted(partitioned(program, Rings(**candidate.tiles.rings)))

    def _configurations(
        self, kernel: Emitted, incumbent: Emitted | None
    ) -> Iterator[ConfigurationVerdict]:
        """Yield the verdicts of configurations, until one is wrong."""
        for workload, is_held_out in self._workloads:
            name = workload.uuid
            status, reason = self._outcome(kernel, workload)
            if status is not Status.PASSED:
                yield ConfigurationVerdict(name, is_held_out, status.value, reason)
                return
            versions = {_CANDIDATE: kernel}
            if incumbent is not None:
                versions[_INCUMBENT] = incumbent
            yield self._compared(versions, workload, is_held_out)

    # --- right -----------------------------------------------------------------------------------

    def _outcome(self, kernel: Emitted, workload: Workload) -> tuple[Status, str]:
        """Return what the emulator says of a kernel, for fewer blocks of a workload."""
        small = replace(workload, sizes=self._fewer(kernel.source.program, workload))
        for lateness in _SCHEDULES:
            seed = secrets.randbits(31)
            operands = self._operands(small, seed)
            expected = self._expected(operands)
            try:
                emulate(kernel, operands, programs=2, seed=seed, lateness=lateness)
            except (Fault, ValueError) as error:
                return Status.RUNTIME_ERROR, str(error)
            for name, exact in expected.items():
                errors, is_right = compare(operands[name], exact, workload.tolerance)
                if not is_right:
                    off = f"`{name}` is off by {errors.max_absolute_error:.3g}"
                    return Status.INCORRECT_NUMERICAL, off
        return Status.PASSED, ""

    def _fewer(self, program: TileProgram, workload: Workload) -> dict[str, int]:
        """Return sizes of few blocks on each axis, with parts of blocks where there are some."""
        blocks = {axis.of: axis.block for axis in program.axes.values()}
        given = {name: workload.sizes[name] for name in workload.axes}
        for name, size in given.items():
            block = blocks.get(name, size)
            if size > _BLOCKS * block:
                given[name] = (_BLOCKS - 1) * block + size % block
        return self._definition.sizes(given, f"fewer blocks of `{workload.uuid}`")

    def _operands(self, workload: Workload, seed: int) -> Tensors:
        """Return the operands of a kernel, with results that are not there yet."""
        definition = self._definition
        specs = [input_of(name, workload, definition) for name in definition.inputs]
        inputs = inputs_maker(specs, workload.sizes, self._custom)(seed)
        named = zip(definition.inputs, inputs, strict=True)
        found = {name: x for name, x in named if isinstance(x, Tensor)}
        for name, spec in definition.outputs.items():
            shape = spec.sizes(workload.sizes) or ()
            found[name] = _unset(torch.empty(shape, dtype=getattr(torch, spec.dtype)))
        return found

    def _expected(self, operands: Tensors) -> Tensors:
        """Return the results of the reference in float64, rounded to their types."""
        found = self._reference(*(operands[name] for name in self._definition.inputs))
        assert isinstance(found, list)
        return dict(zip(self._definition.outputs, found, strict=True))

    # --- better ----------------------------------------------------------------------------------

    def _compared(
        self, versions: Kernels, workload: Workload, is_held_out: bool
    ) -> ConfigurationVerdict:
        """Return the figures of a candidate, and of the incumbent if there is one."""
        kernel, name = versions[_CANDIDATE], workload.uuid
        program = kernel.source.program
        shapes = [self._definition.inputs[o.name].sizes(workload.sizes) for o in inputs_of(program)]
        operations = flops([shape or () for shape in shapes], str(program), ())
        if _on_hopper():
            seconds = self._seconds(versions, workload)
            each = seconds[_CANDIDATE]
            middle = sorted(each)[len(each) // 2]
            score = operations / hardware("H100 SXM").rate(_type_of(program)) / middle
            found = ConfigurationVerdict(name, is_held_out, RIGHT, "", score, 1e3 * middle)
        else:
            cycles = {n: _cycles(v, tuple(workload.sizes.items())) for n, v in versions.items()}
            seconds = {n: [each] * self._task.rounds for n, each in cycles.items()}
            score = operations / (OPERATIONS * MULTIPROCESSORS) / cycles[_CANDIDATE]
            reason = f"{cycles[_CANDIDATE]:,.0f} cycles by the model"
            found = ConfigurationVerdict(name, is_held_out, RIGHT, reason, score)
        pairs = zip(seconds.get(_INCUMBENT, ()), seconds[_CANDIDATE], strict=False)
        return replace(found, gains=tuple(a / b for a, b in pairs))

    def _seconds(
        self, versions: Mapping[str, Emitted], workload: Workload
    ) -> dict[str, list[float]]:
        """Return the seconds of each round on the GPU, in which all versions are called."""
        operands = self._operands(workload, secrets.randbits(31))
        given = [x.to(_DEVICE) for x in operands.values()]
        calls = {
            name: (partial(_launched, kernel, [*operands]), given)
            for name, kernel in versions.items()
        }
        return {**timed(calls, torch.device(_DEVICE), _SECONDS)[0].seconds}


def _with_blocks(program: TileProgram, blocks: Mapping[str, int]) -> TileProgram:
    """Return a program whose axes have other blocks. Raises PyPMError for an axis it lacks."""
    axes = [*program.grid, *([program.loop] if program.loop else [])]
    for name in blocks:
        if name not in {axis.name for axis in axes}:
            help = did_you_mean(name, [axis.name for axis in axes]) or "it has other axes"
            raise PyPMError(Diagnostic(f"the program has no axis `{name}`", help=help))

    def changed(axis: TileAxis) -> TileAxis:
        return replace(axis, block=blocks.get(axis.name, axis.block))

    loop = program.loop and changed(program.loop)
    return replace(program, grid=tuple(map(changed, program.grid)), loop=loop)


_built: Final = lru_cache(maxsize=256)(built)


@lru_cache(maxsize=256)
def _cycles(kernel: Emitted, sizes: tuple[tuple[str, int], ...]) -> float:
    return modelled_cycles(kernel, dict(sizes), MULTIPROCESSORS)


def _on_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def _launched(kernel: Emitted, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    launched(kernel, dict(zip(names, tensors, strict=True)))


def _type_of(program: TileProgram) -> str:
    """Return the type of what products read, as hardware names it."""
    loads = {s.name: s.operand for s in program.statements if isinstance(s, LoadTile)}
    dots = [s for s in program.statements if isinstance(s, DotTiles)]
    read = [loads[name] for dot in dots for name in (dot.left, dot.right) if name in loads]
    return str(DTYPES[program.operand(read[0]).dtype]).removeprefix("torch.")


def _unset(x: Tensor) -> Tensor:
    """Fill a tensor with NaN, or the largest number, and return it."""
    return x.fill_(torch.nan if x.is_floating_point() else torch.iinfo(x.dtype).max)
