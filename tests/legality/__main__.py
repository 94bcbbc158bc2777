"""Random graphs before three judges of legality: `python -m tests.legality GRAPHS [SEED]`.

Fails if PyPM allows a rewrite that the judge extracted from Coq refuses, if one that either allows
changes the outcome, or if PyPM refuses more than 4 % of those that Coq's judge accepts.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import time_ns

from tests.legality.trial import Counts, judged
from tests.properties.oracle import require_oracle

BATCH = 500
SHOWN = 20


def main(graphs: int = 200_000, seed: int | None = None) -> int:
    require_oracle()
    seed = time_ns() % 10**6 * 10**6 if seed is None else seed
    print(f"{graphs:,} graphs, seed {seed}", flush=True)
    counts = Counts()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        while counts.graphs < graphs:
            batches = [range(at, at + BATCH) for at in range(seed, seed + 8 * BATCH, BATCH)]
            for some in pool.map(judged, batches):
                counts += some
            seed += 8 * BATCH
            print(f"{counts.graphs:,} graphs, {len(failures(counts))} failures", flush=True)
    share = counts.refused.total() / counts.legal
    print(
        f"PyPM rewrites {counts.rewritten:,} graphs; exceptions: {counts.private:,} views of memory"
        f" that the region makes, {counts.redrawn:,} draws in another order"
    )
    print(f"legal by hand {counts.legal:,}; PyPM refuses {share:.2%}: {dict(counts.refused)}")
    print(
        f"illegal by hand {counts.illegal:,}; the outcome of {counts.differing:,} differs on one"
        f" input: {dict(counts.conditions)}"
    )
    print(
        f"neither: {counts.restrided:,} equations that hold up to strides,"
        f" {counts.unaliased:,} tensors in the place of their alias"
    )
    for failure in failures(counts)[:SHOWN]:
        print(failure)
    return 1 if failures(counts) or share > 0.04 else 0


def failures(counts: Counts) -> list[str]:
    """Return a line for each case that contradicts the theorem or PyPM's promise."""
    named = {
        "PyPM allows what Coq's judge refuses": counts.unproved,
        "PyPM changes the outcome": counts.wrong,
        "Coq's judge allows what changes the outcome": counts.disproved,
    }
    return [f"{what}: seed {at}, {how}" for what, found in named.items() for at, how in found]


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
