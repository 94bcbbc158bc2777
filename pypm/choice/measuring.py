"""Measuring what `torch.compile` makes of regions and replacements, to choose."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, cycle
from math import inf
from operator import attrgetter
from time import perf_counter
from typing import Final

import torch
from torch import Tensor, fx

from pypm.choice import gpu_times
from pypm.choice.execution import (
    Compiled,
    Input,
    Unknown,
    apart,
    compiled,
    concrete,
    copies,
    example,
    fill_with_largest,
    gpu_of,
    key_of,
    real_inputs,
)
from pypm.choice.fused_around import in_its_surroundings
from pypm.choice.kept_times import Answers, figures
from pypm.choice.operator_times import OperatorTimes, on_the_cpu, work
from pypm.choice.sizes import HINTS, Sizes, ends
from pypm.choice.sparing import Spared, Sparing
from pypm.core.rules import ON_REQUEST
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx import Appraisal, Candidate, metadata
from pypm.kept_figures import processor
from pypm.sources import sources_hash
from pypm.timing import Call, free_memory_returned, in_turn, interleave, shortest
from pypm.torch_internals import inductor_config

__all__ = ["Measured", "measured", "surroundings", "worthwhile"]

MARGIN: Final = 0.03
"""A replacement is faster if the median of its times, each over the region's in the same round, is
less than one by this, and three in four of them are less than one."""
ALIKE: Final = 0.03
"""The most by which a ratio of times differs from one where both are as fast, as long as the memory
that they take is at hand."""
NO_SLOWER: Final = 1.02
"""The ratio of times up to which a replacement is as fast at the ends of symbolic sizes."""
WORST: Final = 0.95
"""The least speed, beside that of the region, of a replacement whose time depends on the contents
of its inputs, where these leave nothing out."""
FIGURES: Final = ("before", "ratio", "upper", "rounds")
"""Numbers of an answer: the seconds of the region, the middle of the ratios of both times and their
upper quartile, and the rounds; 0 rounds if operators were timed one by one."""
ALONE: Final = 0.05
"""The seconds for which a region is timed before what replaces it is compiled."""
ROUNDS: Final = 200
"""The most rounds of one measurement."""
SETTINGS: Final = (
    "coordinate_descent_tuning",
    "cpp_wrapper",
    "epilogue_fusion",
    "layout_optimization",
    "max_autotune",
    "max_autotune_gemm",
    "shape_padding",
    "combo_kernels",
    "max_autotune_pointwise",
    "triton.cudagraphs",
    "triton.multi_kernel",
    "triton.prefer_nd_tiling",
)
"""Options of Inductor on which the time of a compiled graph depends."""


class Measured:
    """Measures what rewrites save; `measured` and `worthwhile` make one."""

    def __init__(self, seconds: float, *, only_uncertain: bool) -> None:
        if not seconds >= 0:
            raise PyPMError(Diagnostic(f"`seconds` is a time from 0 on, not {seconds!r}"))
        self._answers = Answers()
        self._bounds: dict[str, float | None] = {}
        self._operators = OperatorTimes()
        self._regions: dict[str, Compiled] = {}
        self._alone: dict[str, float] = {}
        self._seconds = seconds
        self._only_uncertain = only_uncertain
        self._sparing = Sparing() if only_uncertain else None

    def __call__(self, candidate: Candidate) -> Appraisal:
        pays = candidate.rule.pays
        if self._only_uncertain and pays == "always":
            return Appraisal(inf)
        gpu = gpu_of(candidate.values)
        if self._only_uncertain and gpu is None and _accelerators(candidate):
            return self._untimed(candidate, "nothing is timed on this device")
        region, candidate = candidate, in_its_surroundings(candidate)
        # A part of the same operators takes no longer, and may be too little to be measured.
        if _does_less(candidate):
            return Appraisal(inf, "it leaves out operators and adds none")
        try:
            key = self._key(candidate)
            names = FIGURES if gpu is None else (*FIGURES, *gpu_times.HOST_FIGURES)
            found = self._answers.get(key, names)
            if found is None and self._sparing is not None:
                self._sparing.recall(candidate, key)
            if found is None and not self._seconds:
                return self._untimed(candidate, f"not timed yet on {_machine(candidate)}")
            if found is None:
                found = self._answers.put(key, apart(lambda: self._spared_or_timed(candidate)))
        except Spared as spared:
            if self._sparing is not None:
                self._sparing.keep(candidate, key, spared)
            return Appraisal(-inf, str(spared))
        except Unknown as error:
            return Appraisal(-inf, f"it cannot be timed: {error}")
        except Exception as error:
            what = (str(error).strip().splitlines() or [""])[0]
            return Appraisal(-inf, f"timing it raised {type(error).__name__}: {what}")
        if self._sparing is not None:
            self._sparing.found(candidate, found["before"] * found["ratio"])
        least = self._bound(region, key)
        worth = _appraisal(found, _machine(candidate), least, by_data=candidate.by_data)
        if self._sparing is not None and worth.saved > 0:
            self._sparing.faster(region)
        return worth

    def _untimed(self, candidate: Candidate, why: str) -> Appraisal:
        """Return the worth of a rewrite of which no time is known, by what its rule says."""
        is_fused = _accelerators(candidate) and not _multiplies(candidate.graphs[0])
        if self._only_uncertain and is_fused:
            return Appraisal(-inf, f"{why}, and the compiler fuses it")
        return Appraisal(-inf if candidate.rule.pays in ON_REQUEST else inf, why)

    def identity(self) -> str:
        """Return what choices depend on, beside the graph and the rules."""
        kept = self._answers.identity() if self._seconds else self._answers.listing()
        return f"measured {self._only_uncertain} {surroundings()} {kept}"

    def _key(self, candidate: Candidate) -> str:
        values = candidate.values
        points = [example(values, sizes) for sizes in (HINTS, *_ends(candidate))]
        parts = (candidate.signature, *points, surroundings(), sources_hash())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _bound(self, candidate: Candidate, key: str) -> float | None:
        """Return the seconds that the region takes at best, if this is a CPU that was probed.

        The figure is for the report alone: finding it may fail, and stops no compilation.
        """
        from pypm.roofline.probe import probed_machine

        if key not in self._bounds:
            machine = probed_machine(torch.get_num_threads())
            self._bounds[key] = None
            if machine is not None and not _accelerators(candidate):
                from pypm.roofline import bound

                with suppress(Exception):
                    self._bounds[key] = bound(candidate.before, machine).seconds
        return self._bounds[key]

    def _spared_or_timed(self, candidate: Candidate) -> dict[str, float]:
        """Return the times of a candidate. Raises Spared if it is not timed."""
        if self._sparing is None:
            return self._at_all_sizes(candidate)
        self._sparing.check_inside(candidate)
        if not _accelerators(candidate):  # estimates are those of a CPU
            self._sparing.check_share(candidate)
        began = perf_counter()
        try:
            return self._at_all_sizes(candidate)
        finally:
            count = 1 + len(_ends(candidate))
            self._sparing.spent(candidate, (perf_counter() - began) / count)

    def _at_all_sizes(self, candidate: Candidate) -> dict[str, float]:
        """Return the times at the hints; those at an end of the sizes if it is slower there."""
        found = self._times(candidate)
        if _ratio(found) < 1:
            others = (self._times(candidate, sizes) for sizes in _ends(candidate))
            found = next((other for other in others if _ratio(other) > NO_SLOWER), found)
        return found

    def _times(self, candidate: Candidate, sizes: Sizes = HINTS) -> dict[str, float]:
        inputs = real_inputs(candidate.values, sizes)
        before, after = (concrete(made, inputs) for made in (candidate.before, candidate.after))
        key = f"{key_of(before)} {surroundings()}"  # before the compiler changes the graph
        gpu = gpu_of(inputs)
        if gpu is not None:
            if self._sparing is not None:
                self._sparing.check_compiling(candidate)
            pair = self._compiled(key, before, inputs), compiled(after, inputs)
            compare = partial(gpu_times.compared, *pair, inputs, gpu, self._seconds)
            return _worst(compare(), compare, candidate, inputs)
        # Operators one by one bound both sides from above and below, in milliseconds; compiling
        # both takes seconds. By data, only a loss is sure: contents may leave work out.
        known = self._operators.compared(before, after, inputs)
        if known is not None and _is_sure(known, candidate):
            return known
        is_new = key not in self._alone
        if self._sparing is not None and is_new:
            at_most = self._operators.at_most(before, inputs)
            at_best = self._operators.at_best(after, inputs)
            self._sparing.check_compiling(candidate, at_most, at_best)
        region, turns = self._compiled(key, before, inputs), cycle(copies(inputs))
        if is_new:  # timed once, so that rewrites of equal regions compare
            self._alone[key] = shortest(in_turn(region, turns), ALONE)
        alone = self._alone[key]
        known = self._operators.beside(alone, after, inputs)
        if known is not None and _is_sure(known, candidate):
            return known
        if self._sparing is not None:
            at_best = self._operators.at_best(after, inputs)  # some were timed once more
            check = self._sparing.check_saving if is_new else self._sparing.check_compiling
            check(candidate, alone, at_best)
        replacement = compiled(after, inputs)
        calls = {"before": in_turn(region, turns), "after": in_turn(replacement, turns)}
        found = self._compared(calls)
        if abs(found["ratio"] - 1) <= ALIKE and on_the_cpu(inputs):
            new = self._compared(calls, free_memory_returned)
            found = {name: (found[name] + new[name]) / 2 for name in FIGURES}
        return _worst(found, partial(self._compared, calls), candidate, inputs)

    def _compiled(self, key: str, region: fx.GraphModule, inputs: Sequence[Input]) -> Compiled:
        """Return a region compiled, once for equal graphs: several rules may take it."""
        if key not in self._regions:
            self._regions[key] = compiled(region, inputs)
        return self._regions[key]

    def _compared(
        self, calls: Mapping[str, Call], prepare: Call = lambda: None
    ) -> dict[str, float]:
        for call in calls.values():  # each once, so that no first round is cold
            call()
        times = interleave(
            calls,
            seconds=self._seconds,
            rounds=ROUNDS,
            threads=torch.get_num_threads(),
            prepare=prepare,
        )
        return figures(times)


def measured(*, seconds: float = 0.2) -> Measured:
    """Return a choice that times regions and replacements as `torch.compile` makes them.

    Arguments:
        seconds: how long each pair is timed, in interleaved rounds, on as many threads as torch
            computes on; on a GPU a tenth of it. With 0 nothing is timed: where no time is kept,
            rules that pay sometimes are not applied, and others are.

    Times are kept beside Inductor's caches, by graph, machine, versions and options, and cleared
    with them. Bounds are known once `this_machine` has probed the machine. Symbolic sizes are timed
    at their hints, and at the ends of their ranges, where a rewrite must be no slower. What cannot
    be timed is left as it is. Raises PyPMError for negative `seconds`.
    """
    return Measured(seconds, only_uncertain=False)


def worthwhile(*, seconds: float = 0.2) -> Measured:
    """Return the choice that `torch.compile` is given by default: rules that always pay are
    applied, all others only where they are measured to be faster, as by `measured`.

    Where no time is known on a GPU, since `seconds` is 0, or on an accelerator that is not timed,
    rules that pay mostly are applied to regions with matrix products. A region without any is left:
    the compiler makes one kernel of it. Rules that pay sometimes are not applied.
    """
    return Measured(seconds, only_uncertain=True)


def _ends(candidate: Candidate) -> list[Sizes]:
    inside = map(metadata, chain.from_iterable(graph.nodes for graph in candidate.graphs))
    return ends(candidate.values, inside)


def _is_sure(known: Mapping[str, float], candidate: Candidate) -> bool:
    """Return whether times of operators decide: by data, a gain may be these inputs' alone."""
    return not candidate.by_data or known["ratio"] >= 1 / WORST


def _ratio(found: Mapping[str, float]) -> float:
    return gpu_times.in_one(found)["ratio"]


def _worst(
    found: dict[str, float], compare: Callable[[], dict[str, float]], candidate: Candidate,
    inputs: Sequence[Input],
) -> dict[str, float]:  # fmt: skip
    """Return a comparison of calls on some inputs; by data, the worse one of it and another."""
    if not candidate.by_data:
        return found
    fill_with_largest(inputs)  # lengths and positions that leave nothing out
    return max(found, compare(), key=_ratio)


def _multiplies(graph: fx.Graph) -> bool:
    """Return whether a graph has matrix products, or operators of which that is not known."""
    from pypm.choice.estimates import has_products

    return has_products([node for node in graph.nodes if node.op.startswith("call_")])


def _accelerators(candidate: Candidate) -> list[torch.device]:
    """Return the devices beside the CPU that hold inputs, each once."""
    devices = (value.device for value in candidate.values if isinstance(value, Tensor))
    return [*dict.fromkeys(device for device in devices if device.type != "cpu")]


def _machine(candidate: Candidate) -> str:
    """Return the names of the accelerators that hold inputs; without any, that of the processor."""
    has_cuda = torch.cuda.is_available()
    names = [
        torch.cuda.get_device_name(device) if device.type == "cuda" and has_cuda else device.type
        for device in _accelerators(candidate)
    ]
    return ", ".join(dict.fromkeys(names)) or processor()


def _appraisal(
    found: Mapping[str, float], machine: str, least: float | None, *, by_data: bool
) -> Appraisal:
    """Return the worth of a rewrite by its times; `by_data` if they depend on contents of inputs.

    Random inputs leave nothing out. If the time is proportional to what contents leave, and any
    part is as likely as another, the mean time is half of it.
    """
    known = gpu_times.in_one(found)
    before, ratio = known["before"], known["ratio"]
    where = "measured" if known["rounds"] else "by its operators, run one by one,"
    if by_data:
        where = f"at worst, {where}"
        is_faster = ratio < 1 / WORST
        saved = before * (1 - ratio / 2)
    else:
        is_faster = ratio < 1 - MARGIN and known["upper"] < 1
        saved = before * (1 - ratio)
    return Appraisal(
        saved if is_faster else min(0.0, saved),
        f"{where} on {machine}",
        before,
        before * ratio,
        least,
        **gpu_times.sides(found),
    )


def _does_less(candidate: Candidate) -> bool:
    """Return whether the replacement computes some of what the region does, and nothing else."""
    before, after = map(work, candidate.graphs)
    return after < before


def surroundings() -> str:
    """Return all that times depend on beside the graph: machine, torch, threads and options, the
    precision of float32 products, the kernels of attention that are on, and the compiler that
    kernels are built with.
    """
    on = (
        torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
    )
    options = [*map(_setting, SETTINGS), *on]
    devices = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    threads = torch.get_num_threads()
    precision, compiler = torch.get_float32_matmul_precision(), os.environ.get("CXX")
    return f"{processor()} {devices} {torch.__version__} {threads} {options} {precision} {compiler}"


def _setting(name: str) -> str:
    """Return an option of Inductor with its value, if this version has such an option."""
    with suppress(AttributeError):
        return f"{name}={attrgetter(name)(inductor_config)}"
    return name
