"""A task, and a judge that reads times from sources: `python -m tests.evolve.fakes TASK RUN`.

The time of a candidate is the product of its parameters' distances from their best values. It is
wrong if one of its files has the word `wrong`, and wrong where it is held out if one has `special`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pypm.evolve import (
    CandidateSearch,
    Parameters,
    Regions,
    SearchLimits,
    SearchTask,
    VariationOperator,
    Verdict,
)
from pypm.evolve.candidate import write_files
from pypm.evolve.operators.marks import parameters
from pypm.evolve.verdicts import RIGHT, ConfigurationVerdict

KERNEL = b"""\
ROWS = 1  # evolve: 1 2 4 8 16 32
COLUMNS = 1  # evolve: 1 2 4 8 16 32
DEPTH = 1  # evolve: 1 2 3 4 5 6 7
# evolve: begin sum
total = 1
total += 3
# evolve: end
def run(x): return x
"""
FIRST = {"candidate.toml": b'entry = "kernel.py::run"\n', "kernel.py": KERNEL}
DEFINITION = {"name": "fake", "axes": {}, "inputs": {}, "outputs": {}, "reference": ""}
BEST = {"kernel.py:ROWS": 8, "kernel.py:COLUMNS": 2, "kernel.py:DEPTH": 5}


def write_task(folder: Path, first: Mapping[str, bytes] = FIRST, more: str = "") -> SearchTask:
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(f'name = "fake"\n{more}')
    for name in ("definition.json", "workload.jsonl", "held_out.jsonl"):
        (folder / name).write_text(json.dumps(DEFINITION) + "\n")
    write_files(first, folder / "first")
    return SearchTask.from_folder(folder)


class FakeJudge:
    """Counts its calls."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.calls = 0

    def judge(
        self,
        candidate: Mapping[str, bytes],
        incumbent: Mapping[str, bytes] | None,
        known: Verdict | None,
        is_final: bool,
    ) -> Verdict:
        self.calls += 1
        time.sleep(self.seconds)
        text = b"\n".join(candidate.values())
        ours = _seconds(candidate)
        gains = () if incumbent is None else (_seconds(incumbent) / ours,) * 20
        found = []
        for is_held_out in (False, True):
            is_wrong = b"wrong" in text or (is_held_out and b"special" in text)
            status = "INCORRECT_NUMERICAL" if is_wrong else RIGHT
            score = 0.0 if is_wrong else 1 / (1 + ours)
            name = "held" if is_held_out else "shown"
            found.append(ConfigurationVerdict(name, is_held_out, status, score=score, gains=gains))
        return Verdict(found, margin=0.01)

    def close(self) -> None: ...


def _seconds(files: Mapping[str, bytes]) -> float:
    product = 1.0
    for name, each in parameters(files).items():
        product *= 1 + abs(int(each.value) - BEST.get(name, 0))
    return product


def outline(search: CandidateSearch) -> list[tuple[object, ...]]:
    """What must be the same however often a search was ended."""
    return [
        *((v.attempt, v.tree) for v in search.lineage.versions()),
        *search.lineage.log().splitlines(),
        *((a.number, a.digest, a.operator, a.is_accepted) for a in search.trajectory.attempts),
    ]


def searched(
    task: SearchTask,
    run: Path,
    judge: FakeJudge,
    attempts: int,
    seed: int = 6,
    operators: Sequence[VariationOperator] = (Parameters(), Regions()),
) -> CandidateSearch:
    return CandidateSearch(task, run, operators, judge, SearchLimits(attempts=attempts), seed=seed)


def main(arguments: Sequence[str]) -> None:
    task, run, attempts = arguments
    searched(SearchTask.from_folder(task), Path(run), FakeJudge(0.01), int(attempts)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
