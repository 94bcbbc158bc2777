"""Trace lines: the result of one version for one workload, appended to a file."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import torch

import pypm
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fields import Plain
from pypm.kept_figures import processor
from pypm.roofline import Score

__all__ = ["Correctness", "Performance", "Status", "Trace", "append"]


class Status(StrEnum):
    """The outcome of a version for a workload."""

    PASSED = "PASSED"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    COMPILE_ERROR = "COMPILE_ERROR"
    TIMEOUT = "TIMEOUT"
    REWARD_HACK = "REWARD_HACK"
    INVALID_REFERENCE = "INVALID_REFERENCE"


@dataclass(frozen=True, slots=True)
class Correctness:
    """The distance of outputs from the reference's, the largest of all elements."""

    max_relative_error: float = 0.0
    max_absolute_error: float = 0.0
    has_nan: bool = False
    has_inf: bool = False

    def worse(self, other: Correctness) -> Correctness:
        """Return the larger of each error."""
        return Correctness(
            max(self.max_relative_error, other.max_relative_error),
            max(self.max_absolute_error, other.max_absolute_error),
            self.has_nan or other.has_nan,
            self.has_inf or other.has_inf,
        )


@dataclass(frozen=True, slots=True)
class Performance:
    """Medians of the timed runs."""

    latency_ms: float
    reference_latency_ms: float
    speedup_factor: float
    """The time of the reference over that of the version."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The result of one version for one workload."""

    definition: str
    workload: Mapping[str, object]
    """The workload as in its file."""
    solution: str
    """The name of a solution, or "reference", "torch.compile" or "pypm"."""
    status: Status
    log: str = ""
    """The reason of a failure, and the end of what the process printed."""
    correctness: Correctness | None = None
    performance: Performance | None = None
    score: Score | None = None
    bound_ms: float | None = None
    """The time below which no version can be on this machine, if it is known."""
    baseline_ms: float | None = None
    """The time of the reference compiled, if it passed."""
    speedup: float | None = None
    """The time of the reference compiled over that of the version: the median over all turns."""
    rules: tuple[str, ...] = ()
    """The rules that were applied."""
    seconds: Sequence[float] = ()
    """The timed calls in turn; a trace line has their median alone."""
    timestamp: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    def as_dict(self) -> Plain:
        """Return the trace in the form of a trace line."""
        evaluation: dict[str, object] = {
            "status": self.status.value,
            "environment": _environment(),
            "timestamp": self.timestamp,
            "log": self.log,
            "correctness": self.correctness and _plain(asdict(self.correctness)),
            "performance": self.performance and asdict(self.performance),
            "pypm": {
                "score": self.score and self.score.value,
                "flags": [*self.score.flags] if self.score else [],
                "bound_ms": self.bound_ms,
                "baseline_ms": self.baseline_ms,
                "speedup": self.speedup,
                "rules": [*self.rules],
            },
        }
        return {
            "definition": self.definition,
            "workload": self.workload,
            "solution": self.solution,
            "evaluation": evaluation,
        }


def append(traces: Sequence[Trace], path: Path) -> None:
    """Append traces to a file, each as a line of its own; without any, try whether it can be done.

    Raises PyPMError if the file cannot be written.
    """
    lines = [json.dumps(trace.as_dict(), allow_nan=False).encode() + b"\n" for trace in traces]
    try:
        with path.open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            is_cut = size > 0 and file.read() != b"\n"  # a run that was interrupted
            file.write(b"\n" * is_cut + b"".join(lines))
    except OSError as error:
        raise PyPMError(Diagnostic(f"`{path}` cannot be written: {error}")) from None


def _environment() -> Plain:
    libraries = {
        "torch": torch.__version__,
        "pypm": pypm.__version__,
        "python": platform.python_version(),
    }
    return {"hardware": processor(), "libs": libraries}


def _plain(values: Plain) -> Plain:
    """Return values with texts for infinities and NaN, which JSON lacks."""
    found = dict(values)
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            found[name] = "NaN" if math.isnan(value) else "Infinity"
    return found
