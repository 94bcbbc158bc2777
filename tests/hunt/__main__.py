"""Random graphs over all packs: `python -m tests.hunt GRAPHS [SEED]`.

Prints how often each rule fired, and of what went wrong the smallest graphs that were found; if it
is interrupted, or torch ends a process, of what was tried so far.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from time import monotonic, time_ns

from tests.hunt.bases import RULES
from tests.hunt.graphs import Case, Found, batch, drawn, smaller, tried

BATCH = 200
AHEAD = 8
SHOWN = 8
EVERY = 60.0
"""Seconds between lines of progress."""


def shrunk(case: Case) -> tuple[Case, Found]:
    """The simplest case that is found near one that fails."""
    found = tried(case)
    while True:
        for near in smaller(case):
            again = tried(near)
            if again.problem:
                case, found = near, again
                break
        else:
            return case, found


def show(seed: int) -> None:
    case, found = shrunk(drawn(seed))
    before, after = found.graphs
    print(f"\n{case}\n  {found.problem}\n{before}\n--- becomes\n{after}", flush=True)


def main(graphs: int = 200_000, seed: int | None = None) -> int:
    seed = time_ns() % 10**6 * 10**6 if seed is None else seed
    print(f"{graphs:,} graphs, seed {seed}", flush=True)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of the workers
    began = shown = monotonic()
    made, done, fired, wrong = 0, 0, Counter[str](), list[tuple[int, str]]()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        jobs = deque(pool.submit(batch, seed + i * BATCH, BATCH) for i in range(AHEAD))
        following = count(seed + AHEAD * BATCH, BATCH)
        with suppress(KeyboardInterrupt, BrokenProcessPool):
            while made < graphs:
                some, rules, broken = jobs.popleft().result()
                if not some:
                    sys.exit(f"torch runs no graph of seeds {seed + done} to {seed + done + BATCH}")
                done += BATCH
                jobs.append(pool.submit(batch, next(following), BATCH))
                made, fired, wrong = made + some, fired + rules, wrong + broken
                if monotonic() - shown > EVERY:
                    shown = monotonic()
                    rate = made / (shown - began)
                    seeds = [at for at, _ in wrong]
                    print(f"{made:,} graphs, {rate:.0f}/s, wrong {seeds}", flush=True)
        for job in jobs:
            job.cancel()
    for name in sorted(RULES, key=lambda name: fired[RULES[name].name]):
        print(f"  {fired[RULES[name].name] / made:7.2%}  {name}")
    print(f"{made:,} graphs in {monotonic() - began:.0f} s, {len(wrong)} wrong", flush=True)
    if made < graphs:
        print(f"ended before {graphs:,}, in seeds {seed + done} to {seed + done + AHEAD * BATCH}")
    kinds = {problem.split(":")[0] + str(len(problem) // 40): at for at, problem in wrong}
    for broken in [*kinds.values()][:SHOWN]:
        show(broken)
    print("PyPM breaks the graphs of seeds", [at for at, _ in wrong][:50]) if wrong else None
    return 1 if wrong or made < graphs else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
