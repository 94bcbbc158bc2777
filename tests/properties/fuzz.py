"""Many pairs through all engines, and for every twenty pairs a graph through the search in
graphs, and a program of patterns that take patterns through elaboration:
`make fuzz`, or `python -m tests.properties.fuzz PAIRS [SEED]`.

Prints how often the pairs match, have several answers, and so on; a disagreement is made small,
printed as a line for `regressions.txt`, and ends the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, repeat
from time import monotonic, time_ns

from tests.properties.engines import Report, compare, problem_of
from tests.properties.generate import Case, cases
from tests.properties.graphs import Compared, site
from tests.properties.graphs import compare as compare_site
from tests.properties.oracle import Dialogue, as_text, ask, build
from tests.properties.parameters import compare as compare_programs
from tests.properties.shrink import shrink

BATCH = 1_000
PAIRS_A_GRAPH = 20
EVERY = 20.0
"""Seconds between two lines of progress."""


def batch(seed: str, count: int) -> tuple[Report, list[str]]:
    """A report, and its disagreements as text: cases hold functions, which stay in a process."""
    report = compare(cases(seed, count))
    shown = [show(case, problem) for case, problem in report.problems[:1]]
    report.problems.clear()
    return report, shown


def batches(seed: str, pairs: int) -> Iterator[tuple[str, int]]:
    for start in range(0, pairs, BATCH):
        yield f"{seed}/{start}", min(BATCH, pairs - start)


def fuzz(pairs: int, seed: str) -> list[str]:
    """Compare so many pairs, on every processor, up to the first disagreements; gives these."""
    report, problems, began, shown = Report(), list[str](), monotonic(), monotonic()
    workers = os.cpu_count() or 1
    with ProcessPoolExecutor(workers) as pool:
        waiting = batches(seed, pairs)
        running = [pool.submit(batch, *some) for some in islice(waiting, 2 * workers)]
        while running:
            part, disagreements = running.pop(0).result()
            report.add(part)
            problems += disagreements
            running += [pool.submit(batch, *some) for some in islice(waiting, 1)]
            if problems:
                waiting = iter(())
            if monotonic() - shown > EVERY:
                shown = monotonic()
                rate = report.shares["pairs"] / (shown - began)
                print(f"{report.shares['pairs']:,} pairs, {rate:,.0f}/s", flush=True)
    print(f"{report}; {report.shares['pairs'] / (monotonic() - began):,.0f} pairs/s")
    return problems


def graphs(seed: str, first: int, count: int) -> Compared:
    """How the search in graphs does on some sites, up to the first disagreement."""
    compared = Compared()
    for number in range(first, first + count):
        compared.add(compare_site(site(f"{seed}/{number}")))
        if compared.problem:
            compared.problem = f"graph {number}: {compared.problem}"
            break
    return compared


def fuzz_graphs(count: int, seed: str) -> list[str]:
    """Compare so many graphs, on every processor; gives the first disagreement."""
    compared, began = Compared(), monotonic()
    firsts = range(0, count, BATCH)
    sizes = [min(BATCH, count - first) for first in firsts]
    with ProcessPoolExecutor() as pool:
        for part in pool.map(graphs, repeat(seed), firsts, sizes):
            compared.add(part)
    print(f"{compared}; {count / (monotonic() - began):,.0f} graphs/s")
    return [compared.problem] if compared.problem else []


def fuzz_programs(pairs: int, seed: str) -> list[str]:
    """Compare so many pairs of a program of patterns that take patterns, and a term."""
    began = monotonic()
    compared = compare_programs(seed, pairs)
    print(f"{compared}; {pairs / (monotonic() - began):,.0f} pairs/s")
    return [compared.problem] if compared.problem else []


def show_speed(pairs: int = 50_000) -> None:
    """The oracle alone, as Python sees it."""
    some = [as_text(case.patterns, case.terms) for case in cases("speed", pairs)]
    queries = [f"run\t500\t{text}" for text in some]
    speeds = []
    for ask_all in (ask, one_by_one):
        began = monotonic()
        ask_all(queries)
        speeds.append(f"{pairs / (monotonic() - began):,.0f}")
    print(f"the oracle answers {speeds[0]} pairs/s in batch, {speeds[1]} one by one")


def one_by_one(queries: list[str]) -> None:
    with Dialogue() as dialogue:
        for query in queries:
            dialogue.ask(query)


def show(case: Case, problem: str) -> str:
    case = shrink(case, lambda smaller: problem_of(smaller) != "")
    return f"{as_text(case.patterns, case.terms)}\n    {problem_of(case) or problem}"


def main(pairs: int = 1_000_000, seed: str = "") -> int:
    if problem := build():
        print(problem, file=sys.stderr)
        return 1
    show_speed()
    seed = seed or str(time_ns())
    print(f"{pairs:,} pairs, seed {seed}", flush=True)
    problems = fuzz(pairs, seed) + fuzz_graphs(pairs // PAIRS_A_GRAPH, seed)
    problems += fuzz_programs(pairs // PAIRS_A_GRAPH, seed)
    for problem in problems:
        print(f"\n{problem}")
    print("a disagreement" if problems else "no disagreement")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*(int(pairs) for pairs in sys.argv[1:2]), *sys.argv[2:3]))
