"""`pypm tiles`: the regions of a program, and the kernel of one; and the page about tiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from typer.testing import CliRunner, Result

from pypm.tiles.configurations import configurations
from pypm.tiles.emit import emitted
from pypm.tiles.partition import Rings, partitioned
from pypm.tiles.plain.kernel import plain
from pypm.tiles.reading import parsed
from pypm.tiles.timeline import timeline
from pypm.tools.cli import app
from tests.floors import ROOT

RINGS = next(at.rings for at in configurations() if (at.products, at.columns) == (2, 64))


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.gate, self.up, self.down = linear(16, 32), linear(16, 32), linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.gate(x)) * self.up(x)
        return F.relu(y.float() @ self.down.weight.float().T)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = torch.export.export(Mlp().bfloat16(), (torch.randn(8, 16).bfloat16(),))
    torch.export.save(program, "model.pt2")


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["tiles", "model.pt2", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.mark.usefixtures("model")
def test_regions_are_listed() -> None:
    said = run().stdout.splitlines()
    assert said[:2] == ["mul: gated_products", "silu: product_and_epilogue"]
    reason = "the region has no tile program: the result is fp32"
    assert f"relu: {reason}" in said[2:]
    assert f"the region of `relu` has no kernel: {reason}" in run("--region", "relu", code=2).output


@pytest.mark.usefixtures("model")
def test_a_region_is_shown_as_program_partition_and_text() -> None:
    said = run("--region", "mul").stdout
    program, partition, text = said.split("\n\n", 2)
    assert "c1 = dot(a, b1.T, c1)" in parsed(f"{program}\n").__str__()
    source = partitioned(parsed(f"{program}\n"), RINGS)
    assert f"{partition}\n" == str(source)
    assert text == emitted(source).text
    assert run("--region", "mul", "--plain").stdout.split("\n\n", 2)[2] == plain(source).text


@pytest.mark.usefixtures("model")
def test_the_pipeline_of_a_region_is_drawn() -> None:
    assert (
        "the pipeline over time is in out.svg"
        in run("--region", "mul", "--timeline", "out.svg").stdout
    )
    source = partitioned(parsed(run("--region", "mul").stdout.split("\n\n")[0] + "\n"), RINGS)
    assert Path("out.svg").read_text() == timeline(emitted(source))
    for option in (("--timeline", "out.svg"), ("--plain",), ("--build",)):
        assert "are of one region" in run(*option, code=2).output


class Block(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor, q: Tensor, w: Tensor, ends: Tensor) -> list[Tensor]:
        total = x + y
        q = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        return [F.rms_norm(total, x.shape[-1:], eps=1e-6), total, q, torch._grouped_mm(x, w, ends)]


def test_regions_of_all_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, q, w = (torch.randn(n).bfloat16() for n in ((8, 64), (1, 2, 256, 64), (2, 64, 64)))
    args = (x, x, q, w, torch.tensor([3, 8], dtype=torch.int32))
    torch.export.save(torch.export.export(Block(), args), "model.pt2")
    regions = dict(line.split(": ") for line in run().stdout.splitlines())
    assert sorted(regions.values()) == [
        "called_tiled_attention", "called_tiled_experts", "tiled_norm",
    ]  # fmt: skip
    of = {rule: node for node, rule in regions.items()}
    for rule, loop in (("called_tiled_attention", "for t:"), ("called_tiled_experts", "for ")):
        assert loop in run("--region", of[rule]).stdout
    timeline = ("--timeline", "out.svg")
    assert "out.svg" in run("--region", of["called_tiled_attention"], *timeline).stdout
    picture = Path("out.svg").read_text()
    assert "2 tiles of at most 6 turns" in picture and ">qs, slot 0<" in picture
    said = run("--region", of["tiled_norm"], *timeline, code=2).output
    assert "the kernel has no pipeline" in said


@pytest.mark.usefixtures("model")
def test_a_region_that_is_not_there() -> None:
    assert "did you mean `silu`?" in run("--region", "silo", code=2).output
    assert "`pypm tiles MODEL` lists the regions" in run("--region", "q", code=2).output


def test_the_page_shows_programs_that_have_a_meaning() -> None:
    page = (ROOT / "docs/tiles.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```tiles\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert programs
    for text in programs:
        assert str(parsed(text)) == text
        partitioned(parsed(text), Rings(groups=2 if "\nfor " in text else 1))
