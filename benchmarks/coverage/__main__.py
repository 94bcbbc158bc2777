"""`python -m benchmarks.coverage`: attention sites in every model of the corpus, as a table."""

from __future__ import annotations

import argparse
import logging
import time
import warnings

import torch
from rich.console import Console

from benchmarks.coverage.models import CORPUS, available
from benchmarks.coverage.sites import Sites, Variant, measure, variants
from benchmarks.results import Results, option

Found = dict[tuple[str, Variant], Sites]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("models", nargs="*", help="names from the corpus; all, if left out")
    parser.add_argument("--layers", type=int, default=2, help="at most so many; 0: real depth")
    parser.add_argument("--variants", default="", help='some of them: "static;train, mask"')
    parser.add_argument("--dtype", default="float32", help="of the weights")
    parser.add_argument("--why", action="store_true", help="print what PyPM refused, and why")
    option(parser)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    console = Console()
    wanted = set(filter(None, options.variants.split(";")))
    found: Found = {}
    for entry in CORPUS:
        if options.models and entry.name not in options.models:
            continue
        if not available(entry):
            console.print(f"[dim]{entry.name}: its package is not installed")
            continue
        for variant in variants(entry):
            if wanted and str(variant) not in wanted:
                continue
            began = time.perf_counter()
            sites = measure(
                entry, variant, layers=options.layers, dtype=getattr(torch, options.dtype)
            )
            found[entry.name, variant] = sites
            seconds = time.perf_counter() - began
            console.print(f"[dim]{_line(entry.name, variant, sites)} in {seconds:.0f} s")
            if not sites.there:
                break
            for refusal in sites.report.refusals if options.why else ():
                console.print(
                    f"  {refusal.rule}: {refusal.reason}, at {refusal.node}, {refusal.count} times",
                    markup=False,
                )
    _add(Results(options.output), found)


def _line(name: str, variant: Variant, sites: Sites) -> str:
    return (
        f"{name}, {variant}: {sites.there} sites, {sites.inductor} by Inductor, "
        f"{sites.pypm} by PyPM, error {sites.error:.1e}"
    )


def _add(results: Results, found: Found) -> None:
    """Add a row for each model; in each cell what Inductor finds alone, and what PyPM finds."""
    columns = sorted({v for _, v in found}, key=lambda v: (v.train, v.dynamic, v.mask))
    caption = "Attention sites: found by Inductor alone / by PyPM."
    results.table("model", "sites", *map(str, columns), "largest error", caption=caption)
    for name in dict.fromkeys(name for name, _ in found):
        row = {v: s for (n, v), s in found.items() if n == name}
        there = max(s.there for s in row.values())
        cells = [f"{row[v].inductor} / {row[v].pypm}" if v in row else "" for v in columns]
        results.row(name, there, *cells, f"{max(s.error for s in row.values()):.0e}")
    totals = (
        (sum(s.inductor for (_, w), s in found.items() if v == w),
         sum(s.pypm for (_, w), s in found.items() if v == w),
         sum(s.there for (_, w), s in found.items() if v == w))
        for v in columns
    )  # fmt: skip
    results.row("all", "", *(f"{a} / {b} of {n}" for a, b, n in totals), "")


if __name__ == "__main__":
    main()
