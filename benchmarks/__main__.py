"""`python -m benchmarks`: PyPM beside other rewriters, in one run and one table."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console

from benchmarks import features, figures, fixpoint, large, startup, synthetic
from benchmarks.jobs import Job, Record, run_all
from benchmarks.peers import NAMES, Peer
from benchmarks.peers import load as load_peer
from benchmarks.plot import plot
from benchmarks.results import FOLDER, Results
from benchmarks.table import show, tables

PARTS = ("startup", "synthetic", "features", "fixpoint", "real")
MODELS = ("bert", "gpt2", "llama")
PICTURE = Path(__file__).parent.parent / "docs" / "benchmarks.svg"
RESULTS = Path("build") / "benchmarks.json"


def main() -> None:
    parser = _parser()
    given = parser.parse_args()
    console = Console()
    parts = given.parts or list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]!r}: there are {', '.join(PARTS)}")
    if given.docs and given.parts:
        parser.error("--docs needs all parts")
    began = time.perf_counter()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    peers, missing = _peers(given.peers)
    if "pypm" in missing:
        parser.error(f"PyPM cannot be loaded: {missing['pypm']}")
    for name, why in missing.items():
        console.print(f"[dim]{name}: skipped: {why}")
    gc.collect()
    gc.freeze()
    results = Results(FOLDER / "peers.json" if given.docs else given.output)
    results.document["versions"] |= {p.title: p.version() for p in peers.values()}
    results.document["tools"] = {name: {"title": p.title} for name, p in peers.items()}
    titles = {name: peer.title for name, peer in peers.items()}
    results.document["records"] = records = list[Record]()
    for record in _records(parts, given, peers):
        console.print(f"[dim]{time.perf_counter() - began:5.0f} s  {record['label']}")
        console.file.flush()
        records.append(record)
        results.document["figures"] = dict(_figures(records, titles))
        results.document["tables"] = {n: vars(t) for n, t in tables(records, titles).items()}
        results.write()  # a run that is stopped keeps these
    for table in tables(records, titles).values():
        show(console, table)
    console.print(f"[dim]{time.perf_counter() - began:.0f} s; {results.output} has the numbers")
    if given.docs:
        plot(results.document, PICTURE)
        figures.main()


def _records(
    parts: Sequence[str], given: argparse.Namespace, peers: dict[str, Peer]
) -> Iterator[Record]:
    quick: bool = given.quick
    seconds = given.seconds or (1.0 if quick else 6.0)
    rounds = given.rounds or (3 if quick else 11)

    def timed(jobs: Iterator[Job]) -> Iterator[Record]:
        for row in run_all(list(jobs), peers, seconds=seconds, rounds=rounds):
            yield row.record()

    nodes = given.nodes or ([1000] if quick else [1000, 10_000, 100_000])
    if "startup" in parts:
        yield from startup.records(rounds=3 if quick else 5)
    if "synthetic" in parts:
        rules = given.rules or ([1, 100] if quick else [1, 10, 100, 1000])
        yield from timed(synthetic.jobs(nodes, rules, given.hits))
    if "features" in parts:
        yield from timed(features.jobs(quick=quick))
    if "fixpoint" in parts:
        yield from timed(fixpoint.jobs(nodes))
        if given.large:
            yield large.record(given.large, seconds=300)
        elif not quick:
            yield large.record(1_000_000, seconds=300)
    if "real" in parts:
        from benchmarks import real  # with transformers, which is slow to import

        models = given.models or (["bert"] if quick else list(MODELS))
        yield from real.records(models, seconds=seconds, rounds=rounds, quick=quick)


def _figures(records: Sequence[Record], titles: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Microseconds a node on the smallest graphs, by tool, rules and hits."""
    chains = [record for record in records if record["part"] == "synthetic"]
    for record in chains:
        for name, found in record["tools"].items():
            if record["nodes"] == chains[0]["nodes"] and "us_per_node" in found:
                key = f"{titles[name]}, {record['label'].partition(', ')[2]}"
                yield key, found["us_per_node"]


def _peers(names: Sequence[str]) -> tuple[dict[str, Peer], dict[str, str]]:
    loaded = {name: load_peer(name) for name in names}
    missing = {name: found for name, found in loaded.items() if isinstance(found, str)}
    return {n: found for n, found in loaded.items() if not isinstance(found, str)}, missing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time PyPM beside other rewriters, on one thread, in interleaved rounds.",
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--quick", action="store_true", help="small jobs, about a minute")
    parser.add_argument(
        "--nodes", type=_list(_positive), help="sizes of synthetic and fixpoint graphs: 1000,10000"
    )
    rules = _list(_between(1, synthetic.MOST_RULES))
    parser.add_argument("--rules", type=rules, help="numbers of rules: 1,10,100,1000")
    hits = _list(_between(0, 100))
    parser.add_argument("--hits", type=hits, default=[0, 10], help="percent of blocks: 0,10")
    peers = _list(_one_of(NAMES))
    parser.add_argument("--peers", type=peers, default=list(NAMES), help=", ".join(NAMES))
    models = _list(_one_of(MODELS))
    parser.add_argument("--models", type=models, help=", ".join(MODELS))
    parser.add_argument("--large", type=_positive, help="nodes of the large graph (1000000)")
    parser.add_argument("--seconds", type=float, help="time for each job's rounds, and for one run")
    parser.add_argument("--rounds", type=_positive, help="rounds at most")
    parser.add_argument("--output", type=Path, default=RESULTS, help=f"result file ({RESULTS})")
    parser.add_argument("--docs", action="store_true", help="write figures and plot of the docs")
    return parser


def _list(one: Callable[[str], object]) -> Callable[[str], list[object]]:
    def parse(text: str) -> list[object]:
        return [one(part.strip()) for part in text.split(",")]

    return parse


def _positive(text: str) -> int:
    return _between(1, 100_000_000)(text)


def _between(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return parse


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
        return text

    return parse


if __name__ == "__main__":
    main()
