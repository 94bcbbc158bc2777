"""Interleaved timings: every contender runs once a round on a fresh subject, on one thread."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Prepare", "Times", "interleave", "timed"]


@dataclass(frozen=True)
class Times:
    """Seconds of the first run, and of those in the rounds."""

    first: float
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


T = TypeVar("T")
Prepare = Callable[[], Callable[[], T]]
"""Makes a fresh subject, outside of the time, and gives the call to be timed."""


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds one call takes of its thread, and its result. The collector is off, as in `timeit`.

    The thread's own time leaves out what other processes take of the processor.
    """
    gc.collect()
    gc.disable()
    try:
        start = time.thread_time()
        result = call()
        return time.thread_time() - start, result
    finally:
        gc.enable()


def interleave(
    contenders: Mapping[str, Prepare[T]],
    *,
    seconds: float,
    rounds: int,
    check: Callable[[str, T], None],
) -> dict[str, Times]:
    """Time each contender, round by round; the order turns around every round.

    The first run of each is kept apart; who takes three times `seconds` in it does not run
    again. Who takes a third of them runs once more, the others in three rounds at least, and then
    until `seconds` have passed or `rounds` are done.
    """
    first: dict[str, float] = {}
    later: dict[str, list[float]] = {name: [] for name in contenders}

    def run(name: str) -> float:
        took, result = timed(contenders[name]())
        check(name, result)
        return took

    for name in contenders:
        first[name] = run(name)
    slow = [name for name in contenders if first[name] > seconds / 3]
    quick = [name for name in contenders if name not in slow]
    for name in slow:
        later[name].append(first[name] if first[name] > 3 * seconds else run(name))
    began = time.perf_counter()
    for turn in range(rounds if quick else 0):
        if turn >= 3 and time.perf_counter() - began > seconds:
            break
        for name in quick if turn % 2 else reversed(quick):
            later[name].append(run(name))
    return {name: Times(first[name], tuple(later[name])) for name in contenders}
