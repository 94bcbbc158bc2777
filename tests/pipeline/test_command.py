"""The command `pipeline`: the cut, the simulation and the timeline of an exported program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from pypm import PyPMError
from pypm.pipeline import Std1F1B, schedule
from pypm.pipeline.schedules import SCHEDULES
from pypm.tools.cli import app
from tests.pipeline.training import Model, X


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.pt2"
    torch.export.save(torch.export.export(Model(4), (X,), strict=False), path)
    return path


def pipeline(model: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", str(model), *options])


def test_the_report(model: Path, tmp_path: Path) -> None:
    picture = tmp_path / "timeline.svg"
    found = pipeline(
        model, "--stages", "4", "--schedule", "interleaved-1f1b", "--svg", str(picture)
    )
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[0].startswith("stage 0: 1 block, ")
    assert lines[4] == "one weight: `words.weight` of stage 0 and `words.weight` of stage 3"
    assert lines[7].startswith("rank 0: stages 0, 2; computes ")
    assert lines[10].startswith("rank 0 0F0")
    assert picture.read_text().startswith("<svg")


def test_json(model: Path) -> None:
    found = pipeline(model, "--stages=2", "--microbatches=4", "--bandwidth=1e9", "--json")
    record = json.loads(found.output)
    assert [len(rank["tasks"]) for rank in record["ranks"]] == [8, 8]
    skips, bias = 2 * 8 * 6 * 8 * 8, 8 * 8
    assert [rank["sent"] for rank in record["ranks"]] == [4 * (skips + bias)] * 2
    assert record["stages"][0]["blocks"] + record["stages"][1]["blocks"] == 4
    assert 0 < record["bubble"] < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stages=5"], "4 blocks cannot make 5 stages"),
        (["--stages=4", "--schedule=1f2b"], "there is no schedule `1f2b`"),
        (["--stages=1000000"], "1,000,000 stages of 8 microbatches are too many to plan"),
        (["--stages=4", "--schedule=zbv", "--ranks=4"], "not 4 on 4 ranks"),
        (["--stages=4", "--schedule=interleaved-1f1b", "--ranks=3"], "cannot be shared evenly"),
    ],
)
def test_mistakes(model: Path, options: list[str], message: str) -> None:
    found = pipeline(model, *options)
    assert found.exit_code == 2
    assert message in found.output


def test_the_file_is_looked_for_first(tmp_path: Path) -> None:
    found = pipeline(tmp_path / "missing.pt2", "--stages=1000000", "--schedule=none")
    assert found.exit_code == 2
    assert "there is no file" in found.output


class ByData(torch.nn.Module):
    """Layers, and something after the first that depends on data."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.what = what

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x).relu()
            if index == 0:
                x = x * x.sum().item() if self.what == "number" else x[x.sum(-1) > 0]
        return x


BY_DATA = {
    "number": """error: `item` of stage 1 reads a number or a size from data
  = note: the tensors that stages exchange have sizes that are known before a run
  = help: compute it outside of the model and pass it as an input, or write the model with masks \
and `torch.where`
""",
    "size": "error: `index` of stage 1 reads a number or a size from data\n",
}


@pytest.mark.parametrize("what", BY_DATA)
def test_what_depends_on_data_is_refused_by_name(tmp_path: Path, what: str) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(ByData(what), (torch.ones(2, 4),), strict=False), path)
    found = pipeline(path, "--stages=3")
    assert found.exit_code == 2
    assert found.output.startswith(BY_DATA[what])


PATTERNS = """
from pypm import pattern
from pypm.fx import aten


@pattern
def Layer(x, w, b):
    return aten.relu(aten.linear(x, w, b)) + x


WIDTH = 8
"""


def test_blocks_end_where_a_pattern_matches(model: Path, tmp_path: Path) -> None:
    patterns = tmp_path / "patterns.py"
    patterns.write_text(PATTERNS)
    found = pipeline(model, "--stages=2", f"--at={patterns}:Layer", "--json")
    stages = json.loads(found.output)["stages"]
    assert sum(stage["blocks"] for stage in stages) == 5  # what follows the last layer is one
    for name, message in (
        ("Layer", "`Layer` names no pattern"),
        (f"{patterns}:Layers", "has no `Layers`\n  = help: did you mean"),
        (f"{patterns}:WIDTH", "is of type int, not a pattern"),
        (f"{tmp_path / 'there.py'}:Layer", "there is no file"),
    ):
        refused = pipeline(model, "--stages=2", f"--at={name}")
        assert refused.exit_code == 2
        assert message in refused.output


def test_blocks_may_be_timed(model: Path) -> None:
    found = pipeline(model, "--stages=2", "--measure", "--json")
    stages = json.loads(found.output)["stages"]
    assert all(1e-7 < stage["seconds"] < 60 for stage in stages)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_has_a_name(name: str) -> None:
    found = schedule(name, stages=4)
    assert isinstance(found, SCHEDULES[name][0])  # type: ignore[arg-type]


def test_a_name_that_is_nearly_right() -> None:
    assert schedule("1f1b", stages=4, ranks=4) == Std1F1B(4)
    with pytest.raises(PyPMError, match="did you mean `zb-h1`"):
        schedule("zbh1", stages=4)
