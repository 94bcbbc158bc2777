"""What a page holds: the graph at each step, the sources of rules, pictures; and the command."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from torch import fx
from typer.testing import CliRunner

from pypm import PyPMError
from pypm.core.text import parse_rules
from pypm.fx import Appraisal, Recording, rewrite
from pypm.rules import attention
from pypm.tools import Page, show
from pypm.tools.cli import app
from pypm.tools.report_page.contents import contents, definitions
from tests.tools.pages import HOSTILE, choose, clamped, exported_small, hostile, large, once

TEXT = "rules r {\n  rule relu(x): aten.relu(x) => aten.clamp_min(x, literal(){value=0})\n}\n"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def page() -> Page:
    return show(exported_small(), [clamped, once])


def test_the_model_stays_as_it_is() -> None:
    program = exported_small()
    before = str(program.graph)
    assert len(show(program, clamped, near=False).report) == 2
    assert str(program.graph) == before
    module = program.module()
    before = str(module.graph)
    assert len(show(module, clamped, near=False).report) == 2
    assert str(module.graph) == before


def test_contents(page: Page) -> None:
    data = contents(page.recording, page.misses)
    assert data["initial"] == len(page.recording.start)
    names = [node["name"] for node in data["nodes"]]
    rewrites = page.report.rewrites
    for step, done in zip(data["steps"], rewrites, strict=True):
        assert [names[i] for i in step["before"]] == [record.name for record in done.before]
        assert [names[i] for i in step["after"]] == list(done.new)
        assert step["region"] == [str(record) for record in done.before]
    miss = data["misses"][0]
    assert (miss["rule"], [names[i] for i in miss["sites"]]) == ("once", ["tanh_1"])
    assert "x.dtype" in miss["words"]


def test_contents_of_a_choice() -> None:
    found = show(exported_small(), [clamped, once], choose=choose, near=False)
    data = contents(found.recording)
    names = [node["name"] for node in data["nodes"]]
    (step,) = data["steps"]
    assert step["worth"]["before"] == {"seconds": "5 us", "share": pytest.approx(0.4)}
    assert step["worth"]["after"] == {"seconds": "3 us", "share": pytest.approx(2 / 3)}
    made, left = data["decisions"]
    assert (made["made"], left["made"]) == (["clamped"], [])
    (candidate,) = left["candidates"]
    assert [names[i] for i in candidate["region"]] == ["relu_1"]
    assert (candidate["at"], names[candidate["root"]]) == ("relu_1", "relu_1")
    assert candidate["worth"]["comparison"] == "0.25 times as fast"
    assert [refusal for refusal in data["refusals"] if refusal["kind"] == "cost"] == []


@pytest.mark.parametrize(
    "worth", [Appraisal(1.0), Appraisal(1.0, before=0.0, after=0.0, bound=0.0), 1.0]
)
def test_times_that_are_not_known(worth: Appraisal | float) -> None:
    found = show(exported_small(), clamped, choose=lambda candidate: worth, near=False)
    for step in contents(found.recording)["steps"]:
        assert all((step["worth"][side] or {"share": None})["share"] is None for side in SIDES)
    assert "<title>" in found.html


SIDES = ("before", "after")


def recorded(gm: fx.GraphModule) -> Recording:
    """A rewrite of a graph; replayed to the end, its recording is the graph that resulted."""
    recording = Recording()
    report = rewrite(gm, clamped, record=recording)
    assert [done.root for done in report.rewrites] == [
        done.root for done in recording.report.rewrites
    ]
    reads = {n.name: {i.name for i in n.all_input_nodes} for n in gm.graph.nodes}
    replayed = recording.at(len(recording.changes))
    assert {name: set(inputs) for name, inputs in replayed.items()} == reads
    return recording


@pytest.mark.parametrize("layers", [1, 3])
def test_rewrites_are_in_graph_order(layers: int) -> None:
    recording = recorded(large(layers))
    places = [state.record.name for state in recording.start]
    roots = [places.index(done.root) for done in recording.report.rewrites]
    assert len(roots) == 5 * layers
    assert roots == sorted(roots)


def test_rewrites_that_depend_on_each_other_keep_their_order() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for _ in range(4):
        x = graph.call_function(torch.ops.aten.relu.default, (x,))
    y = graph.call_function(torch.ops.aten.sigmoid.default, (x,))
    graph.output((graph.call_function(torch.ops.aten.relu.default, (y,)), x))
    recording = recorded(fx.GraphModule(torch.nn.Module(), graph))
    assert len(recording.changes) == 5
    for count in range(5):
        inputs = recording.at(count)
        assert all(name in inputs for names in inputs.values() for name in names)
        rest = recording.changes[count:]
        made_later = {state.record.name for change in rest for state in change.new}
        before = {r.name for done in recording.report.rewrites[count:] for r in done.before}
        assert before - made_later <= set(inputs)


def test_nodes_without_a_module_are_where_they_are_read() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    relu = graph.call_function(torch.relu, (x,))
    relu.meta["nn_module_stack"] = {"": ("", "M"), "a": ("L['self'].a.slice(None, 2, None).0", "A")}
    graph.output(relu)
    recording = show(fx.GraphModule(torch.nn.Module(), graph), once, near=False).recording
    data = contents(recording)
    assert data["modules"] == [{"path": "a.0", "kind": "A", "parent": -1}]
    assert [node["module"] for node in data["nodes"]] == [0, 0, -1]


def test_definitions_are_those_of_all_patterns() -> None:
    [body, matched] = definitions(clamped)
    assert body["text"] == "@rule(Relu)\ndef clamped(x):\n    return torch.clamp(x, min=0)"
    assert matched["text"] == "@pattern\ndef Relu(x):\n    return aten.relu(x)"
    found = [part["place"].split(",")[0] for part in definitions(attention.RULES.rules[0])]
    assert found[0] == "sdpa"
    assert {"Attention", "Softmax"} <= set(found)
    [text] = definitions(parse_rules(TEXT).rules[0])
    assert text["text"].startswith("rule relu(x): aten.relu(x)")


def test_no_text_of_the_graph_is_markup() -> None:
    html = hostile().html
    assert html.count("</script") == 2
    assert html.count("<img") == 0
    [data] = html.split('id="data">')[1:]
    assert json.loads(data.partition("</script>")[0])["note"] == HOSTILE


def test_the_page_loads_nothing(page: Page) -> None:
    assert "default-src 'none'" in page.html
    assert "src=" not in page.html.partition("<script")[0]
    assert page._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')


def test_the_picture(page: Page) -> None:
    pytest.importorskip("py_mini_racer")
    root = ET.fromstring(page.svg)
    boxes = [box.get("class", "").split() for box in root.iter(f"{SVG}g")]
    assert sum("region" in box for box in boxes) == 2
    assert len(root.findall(f".//{SVG}path")) == 8
    words = [text.text for text in ET.fromstring(hostile().svg).iter(f"{SVG}text")]
    assert f"x{HOSTILE}" in words


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.export.save(exported_small(), tmp_path / "model.pt2")
    (tmp_path / "clamps.pypm").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["show", "model.pt2", "-r", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_command(folder: Path) -> None:
    assert run("clamps.pypm") == (0, "2 rewrites, drawn in report.html\n", "")
    assert "<title>model.pt2</title>" in (folder / "report.html").read_text()
    code, said, _ = run("clamps.pypm", "--no-near", "--json", "-o", "other.html")
    assert (code, len(json.loads(said)["rewrites"])) == (0, 2)
    code, said, _ = run("pypm.rules.attention", "-o", "none.html")
    assert (code, said) == (1, "0 rewrites, drawn in none.html\n")
    assert (folder / "none.html").exists()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("page.pdf", "error: `page.pdf` ends neither in .html nor in .svg"),
        ("no/page.html", "error: cannot write `no/page.html`: No such file or directory"),
    ],
)
def test_outputs_that_are_none(folder: Path, output: str, said: str) -> None:
    assert run("clamps.pypm", "--no-near", "-o", output) == (2, "", f"{said}\n")


def test_a_picture_needs_its_engine(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "py_mini_racer", None)
    with pytest.raises(PyPMError, match="an SVG needs the package `mini-racer`"):
        _ = page.svg
