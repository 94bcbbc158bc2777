"""`pypm sol` of a program: its regions, their order and figures, and where a rule could start."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim, ExportedProgram, export
from typer.testing import CliRunner, Result

from pypm import PyPMError
from pypm.core.text import parse_rules
from pypm.roofline import bound, hardware
from pypm.tools.cli import app
from pypm.tools.headroom import clock
from pypm.tools.headroom.analysis import headroom
from pypm.tools.headroom.clock import PartClock, PartTimes, is_here
from pypm.tools.headroom.parts import Part, parts_of
from pypm.tools.headroom.table import Table

H100 = hardware("H100")
TEXT = """\
rules text {
  rule gate(x): aten.silu(x) => aten.mul(x, aten.sigmoid(x))
  rule late(x): aten.mul(x, aten.sigmoid(x)) => aten.exp(x)
  rule away(x): aten.relu(x) => x
}
"""


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.down(F.silu(self.up(self.norm(x)))))


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def exported(function: Callable[..., Any], *inputs: Any, **options: Any) -> ExportedProgram:
    return export(Function(function), inputs, **options)


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return export(torch.nn.Sequential(Layer(), Layer()), (torch.randn(8, 16),))


def timed(seconds: dict[str, tuple[float, ...]]) -> Callable[[Part], PartTimes]:
    """Times by the name of a node of the part; a microsecond for other parts."""

    def timer(part: Part) -> PartTimes:
        names = {node.name for node in part.nodes}
        return next(
            (PartTimes(*found) for name, found in seconds.items() if name in names), PartTimes(1e-6)
        )

    return timer


def regions(table: Table) -> list[tuple[tuple[str, ...], int, tuple[str, ...]]]:
    return [(row.nodes, row.count, row.rules) for row in table.rows]


# --- parts ---------------------------------------------------------------------------------------


def test_equal_regions_are_one_row(program: ExportedProgram) -> None:
    found = {row.nodes: row.count for row in headroom(program, H100).rows}
    assert found == {
        ("layer_norm",): 1,
        ("linear",): 2,
        ("silu",): 2,
        ("linear_1",): 2,
        ("add", "relu", "layer_norm_1"): 1,
        ("add_1", "relu_1"): 1,
    }


def test_what_rules_take_is_a_region(program: ExportedProgram) -> None:
    before = str(program.graph)
    rules = parse_rules(TEXT)
    found = {row.nodes: (row.count, row.rules) for row in headroom(program, H100, rules).rows}
    assert found == {
        ("layer_norm",): (2, ()),
        ("linear",): (2, ()),
        ("silu",): (2, ("gate", "late")),
        ("linear_1",): (2, ()),
        ("add",): (2, ()),
        ("relu",): (2, ("away",)),
    }
    assert str(program.graph) == before


def test_each_call_is_in_one_region(program: ExportedProgram) -> None:
    for rules in ([], parse_rules(TEXT)):
        nodes = [n for part in parts_of(program, rules, lambda candidate: 1.0) for n in part.nodes]
        assert len(nodes) == len({*nodes})
        assert {n for n in program.graph.nodes if n.op == "call_function"} == {*nodes}


def test_the_choice_decides_what_rules_take(program: ExportedProgram) -> None:
    rules = parse_rules(TEXT)
    taken = [row.rules for row in headroom(program, H100, rules, choose=lambda c: -1.0).rows]
    assert {*taken} == {()}


# --- figures -------------------------------------------------------------------------------------


def test_bounds_are_those_of_the_regions(program: ExportedProgram) -> None:
    table = headroom(program, H100)
    nodes = {node.name: node for node in program.graph.nodes}
    for row in table.rows:
        assert row.bound == bound([nodes[name] for name in row.nodes], H100)
    assert table.whole == bound(program, H100)
    assert sum(table.share(row) for row in table.rows) == pytest.approx(1)
    assert not table.is_measured and table.rows[0].times is None
    best = [row.count * row.bound.seconds for row in table.rows]
    assert best == sorted(best, reverse=True)


def test_the_largest_headroom_that_no_rule_takes_comes_first(program: ExportedProgram) -> None:
    rules = parse_rules(TEXT)
    timer = timed({"silu": (9.0, 3.0), "add": (5.0,), "linear": (4.0,), "relu": (3.0, 0.0)})
    table = headroom(program, H100, rules, timer=timer)
    assert [row.nodes[0] for row in table.rows][:2] == ["add", "linear"]
    assert [row.rules for row in table.rows][-2:] == [("gate", "late"), ("away",)]
    assert table.start == ("add",)
    first, silu, relu = (row for row in table.rows if row.seconds in (5.0, 3.0, 0.0))
    assert first.headroom == pytest.approx(10, rel=1e-6)
    assert first.score.value == 0.5
    assert silu.headroom == pytest.approx(6, rel=1e-6)
    assert silu.score.value == pytest.approx(0.75)
    assert relu.score.value is None
    total = 2 * (9 + 5 + 4 + 3)
    assert table.share(silu) == pytest.approx(18 / total, rel=1e-3)


def test_a_time_below_the_bound_has_a_flag(program: ExportedProgram) -> None:
    table = headroom(program, H100, timer=timed({"silu": (1e-15,)}))
    (row,) = [row for row in table.rows if row.nodes == ("silu",)]
    assert row.score.value is None
    assert "is below the bound" in str(table)


def test_a_region_that_cannot_be_timed_has_a_note(program: ExportedProgram) -> None:
    def failing(part: Part) -> PartTimes:
        if part.nodes[0].name == "silu":
            raise ValueError("no such machine\nat all")
        return PartTimes(1.0)

    table = headroom(program, H100, timer=failing)
    (row,) = [row for row in table.rows if row.times is None]
    assert row is table.rows[-1]
    assert (row.nodes, row.headroom) == (("silu",), None)
    assert "silu at silu and 1 like it: it cannot be timed: ValueError: no such machine" in str(
        table
    )
    assert "at all" not in str(table)


def test_symbolic_sizes_are_told() -> None:
    shapes = {"inputs": ({0: Dim("n", min=2, max=64)},)}
    program = exported(torch.relu, torch.randn(8, 16), dynamic_shapes=shapes)
    table = headroom(program, H100)
    assert [*table.hints.values()] == [8]
    (name,) = table.hints
    assert f"symbolic sizes count as {name} = 8" in str(table)
    assert table.as_dict()["assumed_sizes"] == {name: 8}


def test_work_that_is_not_known_is_told() -> None:
    program = exported(lambda x: torch.linalg.svd(x.exp())[1].sin(), torch.randn(4, 4))
    assert "work that is not known counts as none: aten.linalg_svd" in str(headroom(program, H100))


def test_a_long_table_is_cut() -> None:
    def many(x: Tensor) -> Tensor:
        for size in range(2, 27):
            x = torch.cat([x, x[:, :1]], 1) @ torch.ones(x.shape[1] + 1, size)
        return x

    table = headroom(exported(many, torch.randn(2, 2)), H100)
    assert len(table.rows) > 20
    assert f"{len(table.rows) - 20} more kinds of regions take " in str(table)


# --- measuring -----------------------------------------------------------------------------------


def test_regions_are_measured(program: ExportedProgram) -> None:
    measure = PartClock(0.0)
    parts = parts_of(program, parse_rules(TEXT), lambda candidate: 1.0)
    by_rule = {part.rules: part for part in parts}
    found = measure(by_rule["gate", "late"])
    assert found.compiled > 0 and found.rewritten is not None and found.rewritten > 0
    assert measure(by_rule["gate", "late"]) == found
    assert measure(by_rule["away",]).rewritten == 0


def test_the_hardware_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = replace(H100, name=f"{clock.processor()}, 1 threads")
    assert is_here(mine, {"cpu"})
    assert not is_here(mine, {"cuda"})
    assert not is_here(H100, {"cpu"})
    assert not is_here(H100, {"cpu", "cuda"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    assert is_here(H100, {"cuda"})
    assert not is_here(hardware("H200"), {"cuda"})


# --- where a rule could start --------------------------------------------------------------------


def test_what_a_pattern_cannot_hold_is_left_out() -> None:
    program = exported(lambda x: F.dropout(x.exp(), 0.5, True) + 1, torch.randn(8))
    table = headroom(program, H100)
    assert table.rows[0].nodes == ("exp", "dropout", "add")
    assert table.start in {("exp",), ("add",)}


def test_nothing_to_start_with() -> None:
    table = headroom(exported(lambda x: F.dropout(x, 0.5, True), torch.randn(8)), H100)
    assert table.start == ()


def test_a_program_without_calls() -> None:
    with pytest.raises(PyPMError, match="the program computes nothing"):
        headroom(exported(lambda x: x.t(), torch.randn(2, 3)), H100)
    with pytest.raises(PyPMError, match=r"headroom.* takes|exported program"):
        headroom(Layer(), H100)  # type: ignore[arg-type]


# --- the command ---------------------------------------------------------------------------------

HARDWARE = """\
name = "mine"
source = "a test"
vector = 1e9
memory_bandwidth = 1e9
memory = 1e9
cache = 1e6
matrix = { float32 = 1e9 }
"""


@pytest.fixture
def folder(tmp_path: Path, program: ExportedProgram, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.export.save(program, "model.pt2")
    Path("rules.pypm").write_text(TEXT)
    Path("mine.toml").write_text(HARDWARE)
    Path("lacking.toml").write_text(HARDWARE.replace("cache = 1e6\n", ""))
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.mark.usefixtures("folder")
def test_the_command_prints_a_table() -> None:
    said = run("sol", "model.pt2", "--hardware", "mine.toml", "-r", "rules.pypm").stdout
    lines = said.splitlines()
    assert lines[0].split() == ["at", "best", "limited", "by", "share", "rule", "region"]
    assert lines[1].endswith("  compute    37%  -           linear at linear and 1 like it")
    assert "gate, late  silu at silu and 1 like it" in said
    assert "nothing was measured, since this machine is another" in said
    assert said.endswith("  pypm suggest model.pt2 linear\n")


@pytest.mark.usefixtures("folder")
def test_the_command_for_a_rule_runs() -> None:
    found = json.loads(run("sol", "model.pt2", "--hardware", "h100", "--json").stdout)
    assert found["hardware"] == "H100 SXM"
    program, *arguments = shlex.split(found["suggest"])
    assert program == "pypm"
    made = run(*arguments, "--name", "Found").stdout
    Path("found.py").write_text(made)
    matches = json.loads(run("match", "model.pt2", "-r", "found.py:found", "--json").stdout)
    first = found["regions"][0]
    assert first["nodes"] in [match["region"] for match in matches]
    assert len(matches) >= first["count"]


def test_a_command_for_several_nodes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = exported(lambda x: torch.softmax(x.exp() * 2, -1), torch.randn(8, 16))
    torch.export.save(program, "a model's.pt2")
    found = json.loads(run("sol", "a model's.pt2", "--hardware", "h100", "--json").stdout)
    _, *arguments = shlex.split(found["suggest"])
    assert arguments == ["suggest", "a model's.pt2", "exp", "mul", "softmax"]
    assert "softmax" in run(*arguments).stdout


@pytest.mark.usefixtures("folder")
def test_the_command_measures_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = replace(H100, name=f"{clock.processor()}, 2 threads")
    monkeypatch.setattr("pypm.roofline.this_machine", lambda threads: mine)
    monkeypatch.setattr(
        PartClock, "__call__", lambda self, part: PartTimes(1.0, 0.5 if part.rules else None)
    )
    said = run("sol", "model.pt2", "-r", "rules.pypm", "--threads", "2").stdout
    assert said.splitlines()[0].split() == [
        *("at", "best", "compiled", "rewritten", "score", "share", "rule", "region")
    ]
    assert "2 s        1 s   0.67" in said
    assert f"on {mine.name}: at best" in said
    found = json.loads(run("sol", "model.pt2", "-r", "rules.pypm", "--json").stdout)
    assert {row["score"] for row in found["regions"] if not row["rules"]} == {0.5}
    assert {row["rewritten_seconds"] for row in found["regions"] if row["rules"]} == {1.0}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "problem", "help"),
    [
        (["--hardware", "H300"], "there is no hardware named `H300`", "`H200`"),
        (["--hardware", "min.toml"], "there is no file `min.toml`", "did you mean `mine.toml`?"),
        (
            ["--hardware", "lacking.toml"],
            "`lacking.toml`: the field `cache` is missing",
            "`pypm/roofline/hardware.toml` has examples",
        ),
        (["--hardware", "rules.pypm"], "`rules.pypm` cannot be read", ""),
        (["-r", "rule.pypm"], "there is no file `rule.pypm`", "did you mean `rules.pypm`?"),
        (["--choose", "frist"], "there is no choice `frist`", "did you mean `first`?"),
    ],
)
def test_mistakes(arguments: list[str], problem: str, help: str) -> None:
    result = run("sol", "model.pt2", *arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {problem}")
    assert help in result.stderr


@pytest.mark.usefixtures("folder")
def test_models_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run("sol", "modl.pt2", code=2).stderr
    assert "there is no file `modl.pt2`" in said and "did you mean `model.pt2`?" in said
    assert "`mine.toml` is not a .pt2 file" in run("sol", "mine.toml", code=2).stderr
    torch.save({"w": torch.ones(2)}, "weights.pt2")
    assert "holds no exported program" in run("sol", "weights.pt2", code=2).stderr
    with torch.device("meta"):
        torch.export.save(export(Layer(), (torch.empty(8, 16),)), "meta.pt2")
    monkeypatch.setattr("pypm.roofline.this_machine", lambda threads: H100)
    said = run("sol", "meta.pt2", code=2).stderr
    assert "the program runs on meta, and `this-machine` is this machine's CPU" in said
    assert "--hardware H100" in said
    assert run("sol", "meta.pt2", "--hardware", "H100").stdout
