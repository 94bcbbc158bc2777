"""One point, in a process of its own: each version is made, checked against eager, and timed."""

from __future__ import annotations

import logging
import os
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Final

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from benchmarks.coverage.models import attended
from benchmarks.models.wide import Point
from pypm.integrations import inductor

__all__ = ["EAGER", "VERSIONS", "Event", "Limits", "Version", "run"]

EAGER: Final = "eager"
Event = dict[str, Any]
"""What is found out, one thing at a time: a process that is stopped leaves what it has sent."""


@dataclass(frozen=True)
class Version:
    """One way to run a model."""

    compiled: bool = True
    pypm: bool = False
    by_hand: bool = False
    frozen: bool = False


VERSIONS: Final = {
    EAGER: Version(compiled=False),
    "PyPM": Version(pypm=True),
    "compile": Version(),
    "SDPA": Version(by_hand=True),
    "PyPM, frozen": Version(pypm=True, frozen=True),
    "compile, frozen": Version(frozen=True),
    "SDPA, frozen": Version(by_hand=True, frozen=True),
}
"""In the order in which they are made: a slow point goes without the last ones."""


@dataclass(frozen=True)
class Limits:
    """`budget` is for all of a point, in seconds; `rounds` and `seconds` are for its rounds.

    Of `versions` eager must be one: the others are held against it.
    """

    budget: float
    rounds: int
    seconds: float
    versions: tuple[str, ...] = tuple(VERSIONS)


def run(point: Point, limits: Limits, cache: str, connection: Connection) -> None:
    """Send what is found out about a point, and end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    torch._dynamo.config.recompile_limit = 64
    try:
        with torch.no_grad():
            _Run(point, limits, connection.send).run()
    except Exception as problem:
        connection.send({"failed": _reason(problem)})
    finally:
        connection.close()


class _Run:
    def __init__(self, point: Point, limits: Limits, send: Callable[[Event], None]) -> None:
        self.point = point
        self.limits = limits
        self.send = send
        self.began = time.perf_counter()
        self.inputs = point.inputs()
        self.calls: dict[str, Callable[[], Any]] = {}
        self.first: dict[str, float] = {}
        self.expected = torch.empty(0)
        self.unchanged = False

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    def run(self) -> None:
        self.send({"sites": self.point.sites})
        for name in self.limits.versions:
            version = VERSIONS[name]
            why_not = self.why_not(name, version)
            if why_not:
                self.send({"version": name, "skipped": why_not})
                continue
            try:
                self.make(name, version)
            except Exception as problem:
                if name == EAGER:
                    raise
                self.calls.pop(name, None)
                self.send({"version": name, "failed": _reason(problem)})
            if self.unchanged:
                self.send({"skipped": "nothing was rewritten: PyPM is torch.compile"})
                return
        self.time()

    def why_not(self, name: str, version: Version) -> str:
        if version.by_hand and not self.point.by_hand:
            return "the model has no build with SDPA"
        if name in (EAGER, "PyPM"):
            return ""
        round_of_all = sum(min(self.first[EAGER], first) for first in self.first.values())
        needed = max(self.first.values()) + self.first[EAGER] + round_of_all
        return "" if self.spent + needed <= self.limits.budget else "out of time"

    def make(self, name: str, version: Version) -> None:
        """Build, run for the first time, and hold the result against eager's."""
        model: Any = self.point.build("sdpa" if version.by_hand else "eager")
        packs = [import_module(f"pypm.rules.{name}").RULES for name in self.point.packs]
        rewriting = inductor.Pass(packs, stage="joint")
        if version.compiled:
            # Dynamo gives code it has to any wrapper with equal options.
            options: Any = {"freezing": version.frozen}
            model = torch.compile(
                model, options=rewriting.options(**options) if version.pypm else options
            )

        def call() -> Any:
            frozen = torch._inductor.config.patch(freezing=True)
            with frozen if version.frozen else nullcontext():
                return model(**self.inputs)

        graphs = counters["stats"]["unique_graphs"]
        start = time.perf_counter()
        result = attended(self.inputs, call()).double()
        self.first[name] = time.perf_counter() - start
        if version.compiled and counters["stats"]["unique_graphs"] == graphs:
            raise RuntimeError("nothing was compiled for it")
        self.calls[name] = call
        if name == EAGER:
            self.expected = result
        found: Event = {"version": name, "first_s": self.first[name]}
        found["error"] = _distance(result, self.expected)
        if version.pypm:
            report = rewriting.report()
            found["rewrites"] = _count([record.rule for record in report.rewrites])
            found["pypm_s"] = report.seconds
            self.unchanged = bool(rewriting.reports) and not report.rewrites
            if not rewriting.reports:
                found["note"] = report.note
        self.send(found)

    def time(self) -> None:
        """In turn, in an order that turns around every round."""
        began = self.spent
        for turn in range(self.limits.rounds):
            if turn and self.spent - began > self.limits.seconds:
                return
            for name in list(self.calls)[:: -1 if turn % 2 else 1]:
                if turn and self.spent > self.limits.budget:
                    return
                start = time.perf_counter()
                self.calls[name]()
                took = time.perf_counter() - start
                self.send({"version": name, "round": turn, "took_s": took})


def _distance(result: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number that eager computes."""
    if result.shape != expected.shape:
        raise ValueError(f"the result has shape {tuple(result.shape)}, not {tuple(expected.shape)}")
    size = expected.abs().max().item() or 1.0
    return float((result - expected).abs().max().item() / size)


def _count(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names)}


def _reason(problem: Exception) -> str:
    lines = str(problem).strip().splitlines() or [""]
    return f"{type(problem).__name__}: {lines[0]}"
