"""Choices and hardware by name: what the commands make of them, and diagnostics for other names."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from pypm import PyPMError
from pypm.choice import Candidate, every, first, measured, worthwhile
from pypm.choice import bounds as bounds_on
from pypm.integrations.rule_files import load_rules
from pypm.roofline import Hardware, hardware
from pypm.tools import show as show_rewrites
from pypm.tools.cli import app
from pypm.tools.cli.choice_names import choice_named, hardware_named

TEXT = """\
rules text {
  rule away(x): aten.relu(x) => x
  rule sometimes(x) pays 'sometimes': aten.tanh(x) => x
  rule same(x): aten.sigmoid(x) => aten.exp(x)
}
"""
HARDWARE = """\
name = "mine"
source = "a test"
vector = 1e9
memory_bandwidth = 1e9
memory = 1e9
cache = 1e6
matrix = { float32 = 1e9 }
"""


def never(candidate: Candidate) -> float:
    return -1.0


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(torch.tanh(torch.relu(x)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = torch.export.export(Model(), (torch.randn(8, 8),))
    torch.export.save(program, tmp_path / "model.pt2")
    (tmp_path / "rules.pypm").write_text(TEXT)
    (tmp_path / "mine.toml").write_text(HARDWARE)
    (tmp_path / "lacking.toml").write_text(HARDWARE.replace("vector = 1e9\n", ""))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result


def rewritten(*choose: str, command: str = "rewrite") -> set[str]:
    found = run(command, "model.pt2", "-r", "rules.pypm", *choose, "--json").stdout
    return {each["rule"] for each in json.loads(found)["rewrites"]}


def test_the_rules_that_are_applied() -> None:
    assert rewritten() == rewritten("--choose", "first") == {"away", "same"}
    assert rewritten("--choose", "every") == {"away", "sometimes", "same"}
    assert rewritten("--choose", "bounds:H100") == {"away", "sometimes"}
    assert rewritten("--choose", "bounds:mine.toml") == {"away", "sometimes"}


def test_a_page_has_what_was_chosen() -> None:
    assert rewritten("--no-near", command="show") == {"away", "same"}
    assert rewritten("--no-near", "--choose", "every", command="show") == {
        "away",
        "sometimes",
        "same",
    }


def test_a_page_says_what_the_choice_left() -> None:
    page = show_rewrites(torch.export.load("model.pt2"), load_rules(["rules.pypm"]), choose=never)
    assert len(page.report) == 0
    assert {miss.rule for miss in page.misses} == {"away", "sometimes", "same"}


def test_a_benchmark_has_what_was_chosen() -> None:
    common = ("bench", "model.pt2", "-r", "rules.pypm", "--seconds", "0", "--json")
    found = json.loads(run(*common, "--choose", "bounds:H100").stdout)["report"]["rewrites"]
    assert {each["rule"] for each in found} == {"away", "sometimes"}


def test_names_of_choices() -> None:
    assert choice_named("first") is first
    assert choice_named("every") is every
    for name, made in (("worthwhile", worthwhile()), ("measured", measured())):
        assert vars(choice_named(name))["_only_uncertain"] == vars(made)["_only_uncertain"]
    assert vars(choice_named("kept"))["_seconds"] == 0
    found = choice_named("bounds:h100")
    assert vars(found) == vars(bounds_on("H100"))


def test_names_of_hardware() -> None:
    assert hardware_named("a100") == hardware("A100")
    assert hardware_named("mine.toml") == Hardware.from_file("mine.toml")


@pytest.mark.parametrize(
    ("choice", "problem", "help"),
    [
        ("mesured", "there is no choice `mesured`", "did you mean `measured`?"),
        ("bound", "there is no choice `bound`", "did you mean `bounds:HARDWARE`?"),
        ("nothing", "there is no choice `nothing`", "the choices are `first`, `every`"),
        ("bounds", "there is no choice `bounds`", "name the hardware, as `bounds:H100`"),
        ("bounds:", "there is no choice `bounds:`", "name the hardware, as `bounds:H100`"),
        ("measured:3", "there is no choice `measured:3`", "`measured` takes nothing more"),
        ("bounds:H300", "there is no hardware named `H300`", "`H200`"),
        ("bounds:this", "there is no hardware named `this`", "`this-machine` is the CPU at hand"),
        ("bounds:min.toml", "there is no file `min.toml`", "did you mean `mine.toml`?"),
        (
            "bounds:lacking.toml",
            "`lacking.toml`: the field `vector` is missing",
            "`pypm/roofline/hardware.toml` has examples",
        ),
        (
            "bounds:rules.pypm",
            "`rules.pypm` cannot be read",
            "`pypm/roofline/hardware.toml` has examples",
        ),
    ],
)
@pytest.mark.parametrize("command", ["rewrite", "show", "bench", "explain"])
def test_choices_that_are_none(command: str, choice: str, problem: str, help: str) -> None:
    result = run(command, "model.pt2", "-r", "rules.pypm", "--choose", choice, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {problem}")
    assert help in result.stderr.partition("= help: ")[2]


def test_an_unknown_hardware_has_a_diagnostic() -> None:
    with pytest.raises(PyPMError, match="there is no hardware named `H300`"):
        hardware_named("H300")


def test_whole_graphs_are_tuned() -> None:
    """Which way is the fastest depends on the machine."""
    options = ("-r", "rules.pypm", "-o", "a.json", "--seconds=0.01")
    result = CliRunner().invoke(app, ["tune", "model.pt2", *options])
    assert result.exit_code in (0, 1)
    assert result.stdout.startswith("torch.compile alone       1.00x  0 rewrites")
    assert "with the rules" in result.stdout
    assert set(json.loads(Path("a.json").read_text())) == {"machine", "answers"}
