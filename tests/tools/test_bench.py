"""`pypm bench`: what it prints, how it compares, and where its inputs come from."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from pypm import PyPMError
from pypm.core.rules import as_rule_set
from pypm.core.text import parse_rules
from pypm.tools.bench import VERSIONS, _difference, bench, inputs_of
from pypm.tools.cli import app
from tests.compiled import without_code

TEXT = "rules text {\n  rule relu(x): aten.relu(x) => %s\n}\n"
RIGHT = TEXT % "aten.clamp_min(x, literal(){value=0})"
WRONG = TEXT % "aten.clamp_min(x, literal(){value=1})"
NONE = TEXT.replace("aten.relu(x)", "aten.tanh(x)") % "aten.sinh(x)"

FAILING = """\
from pypm import pattern, rule
from pypm.fx import aten

@pattern
def Relu(x):
    return aten.relu(x)

@rule(Relu)
def failing(x):
    return x / (1 // 0)

RULES = [failing]
"""


class Counting(torch.nn.Module):
    """Writes to a buffer, so that versions which shared it would differ."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.relu(x) + self.calls


class Several(torch.nn.Module):
    def forward(self, x: dict[str, torch.Tensor], i: torch.Tensor, n: int) -> torch.Tensor:
        return x["x"][i].relu() * n


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.pypm").write_text(RIGHT)
    torch._dynamo.reset()
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    rules = [] if "--rules" in arguments else ["--rules", "rules.pypm"]
    command = ["bench", "model.pt2", *rules, "--seconds", "0", *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def save(model: torch.nn.Module, *inputs: object, path: str = "model.pt2") -> None:
    torch.export.save(torch.export.export(model, inputs), path)


def test_three_versions() -> None:
    save(Counting(), torch.randn(8))
    threads = torch.get_num_threads()
    found = json.loads(run("--json").stdout)
    assert tuple(found["versions"]) == VERSIONS
    assert [version["difference"] for version in found["versions"].values()] == [0, 0, 0]
    assert found["versions"]["torch.compile"]["speedup"] == 1
    assert all(version["median_seconds"] > 0 for version in found["versions"].values())
    assert (found["rounds"], found["threads"]) == (1, 1)
    assert [rewrite["rule"] for rewrite in found["report"]["rewrites"]] == ["relu"]
    assert torch.get_num_threads() == threads


@without_code()
def test_a_difference_is_shown(folder: Path) -> None:
    (folder / "rules.pypm").write_text(WRONG)
    save(torch.nn.ReLU(), torch.tensor([-1.0, 2.0]))
    said = run().stdout.splitlines()
    assert said[0].startswith("1 rewrite in ")
    assert said[3].split() == ["median", "speedup", "difference"]
    assert [line.split()[-1] for line in said[4:7]] == ["0.0e+00", "0.0e+00", "1.0e+00"]
    assert said[7].startswith("medians of 1 round on 1 thread; ")


@without_code()
def test_nothing_rewritten_is_exit_code_1(folder: Path) -> None:
    (folder / "rules.pypm").write_text(NONE)
    save(torch.nn.ReLU(), torch.randn(2))
    assert run(code=1).stdout.startswith("0 rewrites in ")


def test_mistakes(folder: Path) -> None:
    save(torch.nn.ReLU(), torch.randn(2))
    (folder / "failing.py").write_text(FAILING)
    assert "raised ZeroDivisionError" in run("--rules", "failing.py", code=2).stderr
    assert "there is no stage `jont`" in run("--stage", "jont", code=2).stderr


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, math.inf, math.nan], [1.5, math.inf, math.nan], 0.5),
        ([1.0], [math.nan], math.inf),
        ([math.inf], [-math.inf], math.inf),
        ([], [], 0.0),
        ([True, False], [True, True], 1.0),
        ([1 + 1j], [1 - 1j], 2.0),
    ],
)
def test_difference(ours: list[object], theirs: list[object], expected: float) -> None:
    assert _difference([torch.tensor(ours)], [torch.tensor(theirs)]) == expected


def test_inputs_are_drawn_where_none_were_kept() -> None:
    shapes = {"x": {"x": {0: torch.export.Dim("rows", min=2)}}, "i": None, "n": None}
    given = {"x": torch.randn(4, 3, dtype=torch.bfloat16)}, torch.tensor([3]), 3
    program = torch.export.export(Several(), given, dynamic_shapes=shapes)
    assert inputs_of(program) == (given, {})
    program._example_inputs = None
    ((x, i, n), kwargs) = inputs_of(program)
    assert (x["x"].shape, x["x"].dtype, i.tolist(), n, kwargs) == (
        (4, 3),
        torch.bfloat16,
        [0],
        3,
        {},
    )
    assert inputs_of(program)[0][0]["x"].equal(x["x"])


def test_a_program_that_does_not_run() -> None:
    class Indexed(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x[i].relu()

    program = torch.export.export(Indexed(), (torch.ones(2), torch.tensor([5])))
    with pytest.raises(PyPMError, match="does not run, eager: IndexError: index 5"):
        bench(program, as_rule_set(parse_rules(RIGHT)), seconds=0)
