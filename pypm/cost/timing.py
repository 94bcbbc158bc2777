"""Interleaved timings: every callable runs once a round, so that drift hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

__all__ = ["Times", "interleave", "on_threads"]


@dataclass(frozen=True)
class Times:
    """Seconds of each callable, for each round."""

    seconds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def speedup(self, slow: str, fast: str) -> float:
        """Return how many times faster `fast` is: the median of the ratios within a round.

        Both are names of callables. Raises KeyError for another name.
        """
        pairs = zip(self.seconds[slow], self.seconds[fast], strict=True)
        return statistics.median(a / b for a, b in pairs)


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    rounds: int,
    say: Callable[[str], None] = lambda doing: None,
    threads: int = 1,
) -> Times:
    """Time callables, interleaved and in alternating order, without gradients.

    Arguments:
        calls: the callables by name; they must be warm.
        seconds: the time after which no new round begins.
        rounds: the largest number of rounds; at least one runs.
        say: called with a line of progress for each round.
        threads: the number of threads that torch computes on.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    with on_threads(threads), torch.no_grad():
        for turn in range(rounds):
            if turn and time.perf_counter() - began > seconds:
                break
            for name in list(calls)[:: -1 if turn % 2 else 1]:
                say(f"round {turn + 1}: {name}")
                start = time.perf_counter()
                calls[name]()
                found[name].append(time.perf_counter() - start)
    return Times(found)


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Set the number of threads that torch computes on inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
