"""Verdicts where users meet them: `pypm check --prove`, the report page, the gate of `evolve`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pypm.core.text import parse_rules
from pypm.evolve import Jail
from pypm.evolve.judge import CandidateJudge
from pypm.laws.verdicts import Proved, Refuted
from pypm.tools import Verification, prove, show
from pypm.tools.cli import app
from pypm.tools.report_page.contents import contents
from tests.evolve.small import small_task
from tests.tools.pages import clamped, exported_small, once

TEXT = "rules text { rule relu(x): aten.relu(x) => aten.clamp_min(x, literal(){value=0}) }"
WRONG = TEXT.replace("aten.clamp_min(x, literal(){value=0})", "aten.add(x, literal(){value=1e-9})")


def test_rules_in_text() -> None:
    assert isinstance(prove(parse_rules(TEXT)).of("relu"), Proved)
    assert isinstance(prove(parse_rules(WRONG)).of("relu"), Refuted)


@pytest.mark.parametrize(("text", "word"), [(TEXT, "proved"), (WRONG, "refuted")])
def test_check(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "rules.pypm"
    path.write_text(text)
    found = CliRunner().invoke(app, ["check", str(path), "--samples", "5", "--prove", "--json"])
    assert json.loads(found.stdout)["laws"][0]["verdict"] == word
    assert found.exit_code == (word == "refuted")
    plain = CliRunner().invoke(app, ["check", str(path), "--samples", "2"])
    assert "proved" not in plain.stdout and "REFUTED" not in plain.stdout


def test_page() -> None:
    page = show(exported_small(), [clamped, once], near=False, prove=True)
    rules = contents(page.recording, laws=page.laws)["rules"]
    said = {rule["name"]: rule["law"] for rule in rules}
    assert said["clamped"]["word"] == "proved" and "all sizes" in said["clamped"]["said"]
    assert said["once"] is None  # it rewrote nothing
    unproved = show(exported_small(), clamped, near=False)
    assert [rule["law"] for rule in contents(unproved.recording)["rules"]] == [None]


def test_a_candidate_that_is_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pypm.evolve.judge.verify", lambda *_, **__: Verification((), ()))
    judge = CandidateJudge(replace(small_task(tmp_path / "task"), samples=2), Jail())
    files = {"candidate.toml": b'rules = "rules.pypm"', "rules.pypm": WRONG.encode()}
    verdict = judge.judge(files, None, None, True)
    judge.close()
    assert not verdict.is_right and "relu: REFUTED" in verdict.reason


def test_a_candidate_that_is_proved(tmp_path: Path) -> None:
    judge = CandidateJudge(replace(small_task(tmp_path / "task"), samples=2), Jail())
    files = {"candidate.toml": b'rules = "rules.pypm"', "rules.pypm": TEXT.encode()}
    _, notes = judge._kind("candidate", files, tmp_path)
    judge.close()
    assert notes == {"law": "1 of 1 rules proved"}
