"""The judge: candidates that are better, wrong, or cheat, all beside one incumbent."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pypm import PyPMError
from pypm.evolve import Jail, SearchTask, Verdict
from pypm.evolve.judge import CandidateJudge
from pypm.problems.jail import is_possible
from tests.evolve.harnesses import Given
from tests.evolve.small import FAST, SLOW, candidate, small_task
from tests.problems.small import WORKLOAD

RIGHT = "return x.relu().mul_(factor).flatten()"

CANDIDATES: Mapping[str, tuple[str, str]] = {
    "better": ("better", FAST),
    "patches the timer": (
        "not better by more than noise",
        f"""
        import time
        time.perf_counter = lambda: 0.0
        def run(x, factor):
            time.sleep(0.1)
            {RIGHT}
        """,
    ),
    "returns cached outputs": (
        "REWARD_HACK on small: the outputs are those of an earlier call",
        f"""
        found = []
        def made(x, factor):
            {RIGHT}
        def run(x, factor):
            if not found:
                found.append(made(x, factor))
            return found[0].clone()
        """,
    ),
    "knows the shapes that are shown": (
        "INCORRECT_NUMERICAL on a configuration that is held out",
        f"""
        def run(x, factor):
            if len(x) != 16:
                return x.flatten()
            {RIGHT}
        """,
    ),
    "is fast on the shapes that are shown": (
        "not better by more than noise",
        f"""
        import time
        def run(x, factor):
            if len(x) != 16:
                time.sleep(0.1)
            {RIGHT}
        """,
    ),
    "reads what is held out": (
        "better",
        f"""
        import os, torch
        for place, folders, files in os.walk("/"):
            folders[:] = {{*folders}} - {{"proc", "sys", "site-packages"}}
            assert "held_out.jsonl" not in files, place
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with open(f"/proc/{{pid}}/cmdline") as file:
                assert "pypm.evolve.judge_process" not in file.read()
        assert "PYPM_SECRET" not in os.environ
        def run(x, factor):
            {RIGHT}
        """,
    ),
    "hides the work in a process": (
        "INCORRECT_NUMERICAL on small",
        f"""
        import os, socket, time, torch
        ours, theirs = socket.socketpair()
        def made(x, factor):
            {RIGHT}
        def run(x, factor):
            if not kept:
                kept.append(torch.zeros(x.numel()).share_memory_())
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        while theirs.recv(1):
                            time.sleep(0.02)
                            kept[0].copy_(made(x, factor))
                    os._exit(0)
            ours.send(b".")
            return kept[0]
        kept = []
        """,
    ),
    "no manifest": ("the candidate has no `candidate.toml`", ""),
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> SearchTask:
    return small_task(tmp_path_factory.mktemp("evolve") / "task")


@pytest.fixture(scope="module")
def verdicts(task: SearchTask) -> dict[str, Verdict]:
    """All candidates, timed in the same rounds; none of them sees the task."""
    given = {name: candidate(source) for name, (_, source) in CANDIDATES.items() if source}
    given["no manifest"] = {"kernel.py": b""}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYPM_SECRET", "1")
        jail = Jail(hidden=(task.folder,), memory=task.memory, is_open=not is_possible())
        judge = CandidateJudge(task, jail)
        try:
            found = judge.verdicts(given, candidate(SLOW), None, False)
        finally:
            judge.close()
    return dict(zip(given, found, strict=True))


@pytest.mark.skipif(not is_possible(), reason="no jail is possible here")
@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates(verdicts: dict[str, Verdict], name: str) -> None:
    verdict = verdicts[name]
    assert CANDIDATES[name][0] in verdict.summary
    assert verdict.is_better == (CANDIDATES[name][0] == "better")
    assert (verdict.gain > 0) == verdict.is_right
    assert Verdict.from_dict(verdict.as_dict()) == verdict


# --- timing that ends early -----------------------------------------------------------------------


def test_an_early_end_changes_no_verdict(tmp_path: Path) -> None:
    """Over random sequences of wins, with candidates that are wrong among them."""
    task = small_task(tmp_path / "task")
    shown = task.folder / "workload.jsonl"
    shown.write_text(shown.read_text() + json.dumps({**WORKLOAD, "uuid": "second"}))
    judge = CandidateJudge(task, Jail())
    judge.close()
    draws = random.Random(5)
    outcomes: Counter[tuple[bool, ...]] = Counter()
    for _ in range(300):
        gain = draws.choice((0.8, 1.0, 1.1, 1.3))
        names = ("small", "second", "large")
        seconds = {n: [draws.lognormvariate(0, 0.1) / gain for _ in range(12)] for n in names}
        wrong = draws.choice((*names, *[""] * 6))
        whole, short = (judged(judge, Given(seconds, wrong, ends)) for ends in (False, True))
        assert (short.is_right, short.is_better) == (whole.is_right, whole.is_better)
        assert [each.status for each in short.configurations] == [
            each.status for each in whole.configurations
        ]
        made = [len(each.gains) for each in short.configurations if each.status == "right"]
        assert all(3 <= n <= 12 for n in made)
        assert short.is_cut_short == any(n < 12 for n in made)
        assert ("timing ended early" in short.summary) == (short.is_right and short.is_cut_short)
        assert not whole.is_cut_short
        assert short.shown()["is_cut_short"] == short.is_cut_short
        assert Verdict.from_dict(short.as_dict()) == short
        if short.is_better:
            assert short == whole
        outcomes[short.is_right, short.is_better, short.is_cut_short] += 1
    assert outcomes[True, True, False] > 20
    assert outcomes[True, False, True] > 20
    assert outcomes[False, False, True] > 20
    assert outcomes[True, True, True] == 0


def judged(judge: CandidateJudge, bench: Given) -> Verdict:
    judge._bench = bench  # type: ignore[assignment]
    return judge.judge(candidate(FAST), candidate(SLOW), None, False)


# --- rules ----------------------------------------------------------------------------------------

RULE = "rules text {{\n  rule relu(x): aten.relu(x) => {}\n}}\n"
NEAR_MISSES = """\
import torch
NEAR_MISSES = [(lambda x: x + 1, [torch.ones(2)]), ({}, [torch.ones(2)])]
"""
RELU = "lambda x: x.relu()"
SOFTPLUS = "torch.nn.functional.softplus"
CLAMP = RULE.format("aten.clamp_min(x, literal(){value=0})")
LARGE = "rules text { rule large(x): aten.log1p(aten.exp(x)) => x }"
"""True of large values alone. Inductor decomposes `aten.softplus` into what it matches."""


@pytest.mark.parametrize(
    ("text", "near_miss", "message"),
    [
        (RULE.format("aten.sigmoid(x)"), "", "the rules are wrong"),
        (CLAMP, RELU, "`relu` matches near miss 1 of the task, as it is captured"),
        (LARGE, SOFTPLUS, "`large` matches near miss 1 of the task, in Inductor's operators"),
        (LARGE, RELU, "the rules are wrong"),
        (RULE.format("aten.clamp_min(x"), "", "expected"),
    ],
)
def test_rules_that_are_wrong(tmp_path: Path, text: str, near_miss: str, message: str) -> None:
    task = replace(small_task(tmp_path / "task"), samples=10)
    if near_miss:
        (task.folder / "near_misses.py").write_text(NEAR_MISSES.format(near_miss))
    judge = CandidateJudge(task, Jail())
    files = {"candidate.toml": b'rules = "rules.pypm"', "rules.pypm": text.encode()}
    verdict = judge.judge(files, None, None, True)
    judge.close()
    assert message in verdict.reason
    assert not verdict.is_right


def test_a_configuration_that_is_shown_and_held_out(tmp_path: Path) -> None:
    task = small_task(tmp_path / "task")
    shown = (task.folder / "workload.jsonl").read_text()
    (task.folder / "held_out.jsonl").write_text(shown)
    with pytest.raises(PyPMError, match=r"`small` of .* is shown and held out"):
        CandidateJudge(task, Jail())


def test_a_configuration_that_reads_a_file(tmp_path: Path) -> None:
    task = small_task(tmp_path / "task")
    (task.folder / "x.safetensors").touch()
    source = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}
    inputs = {**WORKLOAD["inputs"], "x": source}  # type: ignore[dict-item]
    (task.folder / "workload.jsonl").write_text(json.dumps({**WORKLOAD, "inputs": inputs}))
    with pytest.raises(PyPMError, match=r"`small` of .* reads a file"):
        CandidateJudge(task, Jail())
