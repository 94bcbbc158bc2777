"""`pypm events`: the grids and schedules of a program; and the page about events."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pypm.tools.cli import app
from tests.documents import blocks
from tests.floors import ROOT
from tests.rules.test_events import Stack, operands


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["events", "model.pt2", *arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_stack() -> None:
    x, stack, *others = operands(3, 2, torch.float32)
    program = torch.export.export(Stack(stack), (x, *others)).run_decompositions({})
    torch.export.save(program, "model.pt2")
    text = run("--workers", "1,3", "--keys", "10")
    assert "2 layers of width 36, 4 heads of 8 in 2 groups, 3 rows" in text
    assert "grid a1 (b: B, g: 2)  b,g -> q1[g]; b,g -> k1[g]; b,g -> v1[g]; b,g -> a1[b, g]" in text
    assert "events a1/0,0 []  6 arrivals" in text
    rows = [line.split() for line in text.splitlines() if line.split()[0] in "13"]
    assert [row[:2] for row in rows] == [
        [n, name] for n in "13" for name in ("queues", "tickets", "barriers")
    ]
    assert len({row[2] for row in rows[:3]}) == 1 and rows[0][3] == "0%"
    assert run("--workers", "two", code=2).startswith("error: `two` are no numbers of workers")


def test_a_program_without_one() -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, "model.pt2")
    assert "no step of a decoder stack" in run(code=2)


def test_the_graphs_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """`tests/rules/test_events.py` compiles a model as the page does."""
    page = ROOT / "docs" / "events.md"
    for n in (1, 2):
        exec([*blocks(page, "python")][n], {})
        assert capsys.readouterr().out == [*blocks(page, "text")][n]
