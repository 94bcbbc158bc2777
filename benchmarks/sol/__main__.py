"""Ten problems in the files of SOL-ExecBench: `python -m benchmarks.sol [NAME ...]`.

For each problem: the reference, compiled, rewritten by the shipped rules, and solutions beside it.
Prints a table for each problem, and one of all: geometric means of speedups over the reference
compiled, and mean scores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, geometric_mean

from benchmarks.results import Cell, Results, option
from pypm.problems.harness import BASELINES, Settings, SolProblem, run
from pypm.problems.table import table
from pypm.problems.traces import Trace, append

FOLDER = Path(__file__).parent


def problems(wanted: Sequence[str]) -> list[Path]:
    """Folders of problems whose names have one of some parts; all, if there are no parts."""
    found = sorted(path.parent for path in FOLDER.glob("*/definition.json"))
    return [path for path in found if not wanted or any(part in path.name for part in wanted)]


def read(folder: Path) -> SolProblem:
    """A problem, with the solutions in its folder."""
    return SolProblem.from_files(folder, sorted(folder.glob("solution*.json")))


def summary(traces: Sequence[Trace]) -> list[Cell]:
    """A row of the last table: of each version its speedup and score."""
    cells: list[Cell] = []
    versions = dict.fromkeys(trace.solution for trace in traces)
    others = [each for each in versions if each not in BASELINES]
    for version in ("reference", "pypm", *(others or [""])):
        of_version = [trace for trace in traces if trace.solution == version]
        speedups = [trace.speedup for trace in of_version if trace.speedup is not None]
        scores = [t.score.value for t in of_version if t.score and t.score.value is not None]
        if not of_version:
            cells += ["", ""]
        elif len(speedups) < len(of_version):
            cells += [next(str(t.status) for t in of_version if t.speedup is None), ""]
        else:
            cells += [geometric_mean(speedups), fmean(scores) if scores else None]
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of problems; all by default")
    parser.add_argument(
        "--traces", type=Path, default=Path("build", "sol"), help="folder for trace lines"
    )
    option(parser)
    given = parser.parse_args()
    results = Results(given.output)
    given.traces.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[Cell]] = {}
    failed = 0
    began = time.monotonic()
    for folder in problems(given.names):
        traces = []
        for trace in run(read(folder), Settings()):
            append([trace], given.traces / f"{folder.name}.jsonl")
            traces.append(trace)
        failed += sum(trace.performance is None for trace in traces)
        rows[folder.name] = summary(traces)
        print(f"{folder.name}\n\n{table(traces)}\n", flush=True)
    results.table("problem", "reference", "score", "pypm", "score", "solution", "score")
    for name, cells in rows.items():
        results.row(name, *cells)
    print(f"\n{len(rows)} problems in {time.monotonic() - began:.0f} s, {failed} failures")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
