"""Traces as a table: the versions of each workload beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pypm.problems.traces import Trace

__all__ = ["table"]

_HEADER = ("workload", "version", "median", "over compiled", "at best", "score", "")


def table(traces: Iterable[Trace]) -> str:
    """Return a table with a row for each trace, and below it the reasons of failures."""
    found = [*traces]
    rows = [_HEADER, *map(_row, found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = [_aligned(row, widths) for row in rows]
    for trace in found:
        if trace.performance is None:
            reason = trace.log.strip().splitlines() or ["no reason is known"]
            lines += ["", f"{_place(trace)}, {trace.solution}: {trace.status}"]
            lines += [f"  {line}" for line in reason[-5:]]
        for flag in trace.score.flags if trace.score else ():
            lines += ["", f"{_place(trace)}, {trace.solution}: {flag}"]
    return "\n".join(lines)


def _row(trace: Trace) -> tuple[str, ...]:
    at_best = "-" if trace.bound_ms is None else f"{trace.bound_ms:.3g} ms"
    if trace.performance is None:
        return _place(trace), trace.solution, str(trace.status), "-", at_best, "-", ""
    value = trace.score.value if trace.score else None
    return (
        _place(trace),
        trace.solution,
        f"{trace.performance.latency_ms:.3f} ms",
        "-" if trace.speedup is None else f"{trace.speedup:.2f}x",
        at_best,
        "-" if value is None else f"{value:.2f}",
        ", ".join(trace.rules),
    )


def _place(trace: Trace) -> str:
    """Return a workload by the sizes that it gives, or its identifier."""
    axes = trace.workload.get("axes")
    if isinstance(axes, dict) and axes:
        return " ".join(f"{name}={size}" for name, size in axes.items())
    return str(trace.workload.get("uuid"))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row: names and rules to the left, numbers to the right."""
    cells = [
        text.ljust(width) if i in (0, 1, len(row) - 1) else text.rjust(width)
        for i, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
