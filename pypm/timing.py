"""Interleaved timings: every callable runs once a round, so that drift hits all alike."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import torch

__all__ = [
    "Call",
    "Times",
    "free_memory_returned",
    "in_turn",
    "interleave",
    "on_threads",
    "shortest",
]

Call: TypeAlias = Callable[[], object]
"""A function that is timed."""
Taken = TypeVar("Taken")
Timed = TypeVar("Timed", bound=Call)


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
        return statistics.median(self.ratios(slow, fast))

    def ratios(self, one: str, other: str) -> list[float]:
        """Return the time of one callable over that of another, for each round.

        Raises KeyError for an unknown name.
        """
        pairs = zip(self.seconds[one], self.seconds[other], strict=True)
        return [a / b for a, b in pairs]


def elapsed(call: Call) -> float:
    """Return the seconds that pass until a call returns."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleave(
    calls: Mapping[str, Timed],
    *,
    seconds: float,
    rounds: int,
    say: Callable[[str], None] = lambda doing: None,
    threads: int = 1,
    prepare: Call = lambda: None,
    spent: Callable[[Timed], float] = elapsed,
) -> Times:
    """Time callables, interleaved and in alternating order, without gradients.

    Arguments:
        calls: the callables by name; they must be warm.
        seconds: the time after which no new round begins.
        rounds: the largest number of rounds; at least one runs.
        say: called with a line of progress for each round.
        threads: the number of threads that torch computes on.
        prepare: called before each call, and not timed.
        spent: makes a call, and returns the seconds that count for it.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    with on_threads(threads), torch.no_grad():
        for turn in range(rounds):
            if turn and time.perf_counter() - began > seconds:
                break
            for name in list(calls)[:: -1 if turn % 2 else 1]:
                say(f"round {turn + 1}: {name}")
                prepare()
                found[name].append(spent(calls[name]))
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


def in_turn(call: Callable[[Taken], object], taken: Iterator[Taken]) -> Call:
    """Return a function that calls another with what comes next."""
    return partial(next, map(call, taken))


def free_memory_returned() -> None:
    """Return the memory that C's library keeps free to the system, where the library can do so.

    What is allocated next then takes as long as in a program that allocates much else in between:
    the system clears each page at the first write.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def shortest(call: Call, seconds: float) -> float:
    """Return the least time of a call, tried at least twice and for some seconds in all."""
    best = float("inf")
    end = time.perf_counter() + seconds
    for trial in range(1_000_000):
        start = time.perf_counter()
        call()
        stop = time.perf_counter()
        best = min(best, stop - start)
        if stop > end and trial:
            break
    return best
