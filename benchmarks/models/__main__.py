"""`python -m benchmarks.models`: what PyPM gains on models of the corpus at real widths.

Each model is run as eager, under torch.compile, under torch.compile with PyPM, and with SDPA
written by hand under torch.compile, the compiled ones also with frozen weights.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console

from benchmarks.coverage.models import available
from benchmarks.models.point import EAGER, VERSIONS, Limits
from benchmarks.models.running import Record, run_all, speedup
from benchmarks.models.tables import fused, left_out, line, ratios, times
from benchmarks.models.wide import ENTRIES, WIDE, Point, points
from benchmarks.results import Results, option, said
from pypm.kernels.linear import has_fast_bfloat16

DTYPES = ("bfloat16", "float32", "float16", "float64")
PACKS = ("attention", "epilogue", "norm", "quantization", "activation", "rotary", "inference")
"""Modules of `pypm.rules` that can be timed."""
WIDTH = 120
"""Columns, where the output is no terminal."""
MASKS = {"no": [False], "yes": [True], "both": [False, True]}


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in WIDE]
    if unknown:
        parser.error(f"no model is called {unknown[0]!r}: there are {', '.join(WIDE)}")
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    began = time.perf_counter()
    missing = _missing(options.models)
    for name, why in missing.items():
        console.print(f"[dim]{name}: skipped: {why}")
    chosen, limits = _chosen(options, missing)
    results = Results(options.output)
    results.document |= {"records": (records := list[Record]()), "limits": vars(limits)}
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, signal.default_int_handler)
    try:
        for record in run_all(chosen, limits):
            records.append(record)
            _add(results, records)
            console.print(f"[dim]{time.perf_counter() - began:5.0f} s  {line(record)}")
            console.file.flush()
    except KeyboardInterrupt:
        console.print("[dim]interrupted")
    if not records:
        return
    fast = "fast" if has_fast_bfloat16() else "slow"
    console.print(f"\n{said(results.document)}\n{fast} bfloat16 products")
    for table in (times, ratios, fused):
        console.print(table(records))
    for text in left_out(records):
        console.print(f"[dim]{text}", highlight=False)


def _chosen(options: argparse.Namespace, missing: dict[str, str]) -> tuple[list[Point], Limits]:
    quick: bool = options.quick
    names = options.models or (["bert"] if quick else list(WIDE))
    chosen = points(
        [name for name in names if name not in missing],
        options.dtypes or (["float32"] if quick else ["bfloat16", "float32"]),
        options.batches or ([1] if quick else [1, 8]),
        options.lengths or ([64] if quick else [128, 512]),
        MASKS[options.masks],
        options.layers or (1 if quick else 2),
    )
    seconds = 5.0 if quick else 20.0
    packs = tuple(options.packs or Point.packs)
    timed = [(pack,) for pack in packs] if options.apart else [packs]
    versions = tuple(name for name in VERSIONS if name == EAGER or name in options.versions)
    limits = Limits(options.budget, options.rounds or (5 if quick else 15), seconds, versions)
    return [replace(point, packs=some) for point in chosen for some in timed], limits


def _missing(models: Sequence[str]) -> dict[str, str]:
    """Of the models asked for, or else of the corpus, those that are not timed, and why."""
    asked = [name for name in ENTRIES if name in models or not models]
    return {name: "its package is not installed" for name in asked if not available(ENTRIES[name])}


def _add(results: Results, records: Sequence[Record]) -> None:
    """Write the records, with a table of speedups over `torch.compile` alone."""
    rows = [
        [record["label"], *(speedup(record, "compile", name) for name in ("PyPM", "SDPA"))]
        for record in records
    ]
    columns = ["over `torch.compile` alone", "PyPM", "SDPA by hand"]
    results.document["tables"] = {"table": {"columns": columns, "rows": rows, "caption": ""}}
    results.write()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(WIDE)} (all)")
    parser.add_argument("--quick", action="store_true", help="one small point")
    one_of = ", ".join(DTYPES)
    parser.add_argument("--dtypes", type=_list(_dtype), help=f"of {one_of} (the first two)")
    parser.add_argument("--batches", type=_list(_positive), help="rows or images (1,8)")
    parser.add_argument("--lengths", type=_list(_positive), help="tokens (128,512)")
    parser.add_argument("--masks", choices=list(MASKS), default="no", help="attention masks (no)")
    parser.add_argument("--layers", type=_positive, help="of each model, at most (2)")
    parser.add_argument(
        "--packs", type=_list(_pack), help=f"of {', '.join(PACKS)} (attention,epilogue)"
    )
    parser.add_argument("--apart", action="store_true", help="each pack by itself")
    versions = [name for name in VERSIONS if name != EAGER]
    parser.add_argument(
        "--versions", nargs="+", choices=versions, default=versions, metavar="VERSION",
        help=f"beside eager: of {'; '.join(versions)} (all)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=_positive, help="at most (15)")
    parser.add_argument(
        "--budget", type=float, default=300.0, help="seconds for all of one point (300)"
    )
    option(parser)
    return parser


def _list(one: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [one(part.strip()) for part in text.split(",")]

    return parse


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _pack(text: str) -> str:
    if text not in PACKS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(PACKS)}")
    return text


def _dtype(text: str) -> str:
    if text not in DTYPES or not isinstance(getattr(torch, text), torch.dtype):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(DTYPES)}")
    return text


if __name__ == "__main__":
    main()
