"""Many random models: `python -m tests.rules.fuzz_models MODELS [SEED]`.

Prints how much was rewritten, and what Inductor's own attention patterns made of the same graphs.
A model that PyPM breaks is made small, printed, and ends the run; one that Inductor's patterns
break is counted, and the first is made small and printed, too.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from time import monotonic, time_ns

import torch

from tests.rules.model_checks import Outcome, check, problem_of, shrink
from tests.rules.random_models import draw_plan

BATCH = 10
BATCHES_A_PROCESS = 20
"""Compilers keep things: processes are renewed."""
EVERY = 20.0
"""Seconds between two lines of progress."""


def batch(first: int, count: int) -> tuple[Counter[str], list[int], list[int]]:
    """Counts; the seeds of models that PyPM breaks, and of those that Inductor's patterns break."""
    _prepare()
    found, ours, theirs = Outcome(), list[int](), list[int]()
    for seed in range(first, first + count):
        outcome = check(draw_plan(seed), beside=True)
        found.add(outcome)
        ours += [seed] * bool(outcome.problems)
        theirs += [seed] * bool(outcome.inductor)
    return found.shares, ours, theirs


def _prepare() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)


def fuzz(models: int, seed: int) -> tuple[Counter[str], list[int], list[int]]:
    """Check so many models, on every processor, up to the first that PyPM breaks."""
    shares, ours, theirs = Counter[str](), list[int](), list[int]()
    began = shown = monotonic()
    workers = os.cpu_count() or 1
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.rules.model_checks"])
    waiting = ((seed + at, min(BATCH, models - at)) for at in range(0, models, BATCH))
    with ProcessPoolExecutor(workers, context, max_tasks_per_child=BATCHES_A_PROCESS) as pool:
        running = [pool.submit(batch, *some) for some in islice(waiting, 2 * workers)]
        while running:
            counted, broken, beside = running.pop(0).result()
            shares += counted
            ours += broken
            theirs += beside
            if not ours:
                running += [pool.submit(batch, *some) for some in islice(waiting, 1)]
            if monotonic() - shown > EVERY:
                shown = monotonic()
                rate = shares["models"] / (shown - began)
                print(f"{shares['models']:,} models, {rate:.2f}/s", flush=True)
    return shares, ours, theirs


def show(seed: int, *, inductors: bool = False) -> None:
    plan = draw_plan(seed)
    small = shrink(plan, lambda smaller: problem_of(smaller, inductors=inductors))
    whose = "Inductor's patterns" if inductors else "PyPM"
    print(f"\n{whose}: {problem_of(small, inductors=inductors)}\n{small}", flush=True)


def main(models: int = 1_000, seed: int | None = None) -> int:
    seed = time_ns() % 10**9 if seed is None else seed
    print(f"{models:,} models, seed {seed}", flush=True)
    began = monotonic()
    shares, ours, theirs = fuzz(models, seed)
    for name, count in sorted(shares.items()):
        print(f"  {name}: {count:,}")
    print(f"  share of graphs with a rewrite: {_share(shares, 'graphs with a rewrite', 'graphs')}")
    print(f"  share of attention fused: {_share(shares, 'attention fused', 'attention layers')}")
    print(f"  {monotonic() - began:.0f} s")
    _prepare()
    if theirs:
        print(f"  Inductor's patterns break the models of seeds {_some(theirs)}")
        show(theirs[0], inductors=True)
    for broken in ours[:3]:
        show(broken)
    print(f"PyPM breaks the models of seeds {_some(ours)}" if ours else "PyPM breaks none")
    return 1 if ours else 0


def _share(shares: Counter[str], part: str, whole: str) -> str:
    return f"{shares[part] / max(shares[whole], 1):.0%}"


def _some(seeds: list[int]) -> str:
    return ", ".join(map(str, seeds[:20])) + (", ..." if len(seeds) > 20 else "")


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
