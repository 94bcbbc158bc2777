"""Points one after the other, each in a process that ends when its time is up."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Final

from benchmarks.models.point import EAGER, Event, Limits, run
from benchmarks.models.wide import Point

__all__ = ["Record", "run_all", "speedup"]

Record = dict[str, Any]
"""What is kept of a point, as JSON."""
GRACE: Final = 1.2
"""A point that has taken so many times its budget is stopped."""


def run_all(points: Sequence[Point], limits: Limits) -> Iterator[Record]:
    """A record for each point; interrupted, it leaves the one at hand as far as it came.

    A point is left out where two runs of eager would take more than its budget, to judge by the
    last smaller one.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        yield from _run_all(points, limits, cache)


def _run_all(points: Sequence[Point], limits: Limits, cache: str) -> Iterator[Record]:
    known: dict[tuple[str, str], tuple[int, float]] = {}
    for point in points:
        kind = point.model, point.dtype
        size, took = known.get(kind, (1, 0.0))
        guess = took * point.size / size
        record = _empty(point)
        if 2 * guess > limits.budget:
            record["skipped"] = f"a run of eager would take about {guess:.0f} s"
            known[kind] = point.size, guess
            yield record
            continue
        try:
            _fill(record, point, limits, cache)
        except KeyboardInterrupt:
            record["skipped"] = "interrupted"
            yield _done(record, limits)
            raise
        yield _done(record, limits)
        eager = record["versions"].get(EAGER, {})
        if "first_s" in eager:
            known[kind] = point.size, min([eager["first_s"], *eager["rounds_s"].values()])


def speedup(record: Record, slow: str, fast: str) -> float | None:
    """How many times faster `fast` is: the median of the ratios within a round."""
    rounds = [record["versions"].get(name, {}).get("rounds_s", {}) for name in (slow, fast)]
    both = [turn for turn in rounds[0] if turn in rounds[1]]
    return median(rounds[0][turn] / rounds[1][turn] for turn in both) if both else None


def _empty(point: Point) -> Record:
    about = {"model": point.model, "dtype": point.dtype, "batch": point.batch}
    more = {"length": point.length, "mask": point.mask, "layers": point.layers}
    return {"label": str(point), **about, **more, "packs": point.packs, "versions": {}}


def _fill(record: Record, point: Point, limits: Limits, cache: str) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.models.point", "transformers"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(point, limits, cache, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        _receive(record, ours, time.monotonic() + GRACE * limits.budget)
    finally:
        if process.is_alive():
            process.join(1.0)
        process.kill()
        process.join()
        ours.close()


def _receive(record: Record, connection: Connection, deadline: float) -> None:
    while True:
        if not connection.poll(max(0.0, deadline - time.monotonic())):
            record["skipped"] = "stopped: out of time"
            return
        try:
            _add(record, connection.recv())
        except EOFError:
            return


def _add(record: Record, event: Event) -> None:
    if "version" not in event:
        record.update(event)
        return
    about = {key: value for key, value in event.items() if key not in ("version", "round")}
    found = record["versions"].setdefault(event["version"], {"rounds_s": {}})
    if "round" in event:
        found["rounds_s"][str(event["round"])] = event["took_s"]
    else:
        found.update(about)


def _done(record: Record, limits: Limits) -> Record:
    """With medians, ratios, and a word on every version that there is nothing from."""
    for name in limits.versions:
        found = record["versions"].setdefault(name, {"rounds_s": {}})
        if found["rounds_s"]:
            found["median_s"] = median(found["rounds_s"].values())
        elif not found.keys() & {"failed", "skipped"}:
            found["skipped"] = record.get("failed") or record.get("skipped", "its process ended")
    for base in (EAGER, "compile", "compile, frozen"):
        ratios = {name: speedup(record, base, name) for name in limits.versions if name != base}
        record[f"over {base}"] = {name: ratio for name, ratio in ratios.items() if ratio}
    return record
