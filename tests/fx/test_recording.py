"""Recordings: the graph at each step is the graph that was."""

from __future__ import annotations

import gc
import weakref
from functools import cache
from io import StringIO

import pytest
import torch
from torch import fx

from pypm import pattern, rule
from pypm.core.rules import Rules
from pypm.fx import Recording, aten, rewrite


@pattern
def Twice(x):
    return aten.relu(x) + aten.sigmoid(x)


@rule(Twice)
def both(x):
    return torch.tanh(x)


@pattern
def Tanh(x):
    return aten.tanh(x)


@rule(Tanh)
def erf(x):
    return torch.erf(x)


@pattern
def Exp(x):
    return aten.exp(x)


@rule(Exp)
def never(x):
    assert x.rank == 7
    return torch.exp2(x)


@pattern
def Pair(x):
    y = aten.sin(x)
    return y, aten.cos(y)


@rule(Pair)
def pair(x):
    return torch.asin(x), torch.acos(x)


def model(x):
    y = torch.relu(x) + torch.sigmoid(x)
    z = torch.sin(y.exp())
    return torch.cos(z), z, (torch.relu(z) + torch.sigmoid(z)).tanh()


@cache
def exported() -> torch.export.ExportedProgram:
    return torch.export.export(_Module(), (torch.ones(2, 3),))


def traced() -> fx.GraphModule:
    return exported().module()


class _Module(torch.nn.Module):
    def forward(self, x):
        return model(x)


def reads(gm: fx.GraphModule) -> dict[str, tuple[str, ...]]:
    return {n.name: tuple(source.name for source in n.all_input_nodes) for n in gm.graph.nodes}


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        ([both], 2),
        ([both, erf], 5),
        ([pair, both], 3),
        ([never], 0),
    ],
)
def test_the_last_step_is_the_result(rules: Rules, count: int) -> None:
    gm, recording = traced(), Recording()
    before = reads(gm)
    report = rewrite(gm, rules, record=recording)
    assert (len(report), len(recording.changes)) == (count, count)
    assert recording.report.to_json() == report.to_json()
    assert recording.at(0) == before
    assert {n: set(r) for n, r in recording.at(count).items()} == {
        n: set(r) for n, r in reads(gm).items()
    }


def test_each_step_is_a_graph() -> None:
    recording = Recording()
    report = rewrite(traced(), [pair, both, erf], record=recording)
    for count in range(len(report) + 1):
        nodes = recording.at(count)
        assert {source for inputs in nodes.values() for source in inputs} <= nodes.keys()
        if count:
            done = report.rewrites[count - 1]
            assert set(done.new) <= nodes.keys()
            assert not {done.root} & nodes.keys()


def test_before_and_after_in_words() -> None:
    report = rewrite(traced(), [both])
    done = report.as_dict()["rewrites"][0]
    assert done["before"] == [
        "relu = aten.relu.default(x)",
        "sigmoid = aten.sigmoid.default(x)",
        "add = aten.add.Tensor(relu, sigmoid)",
    ]
    assert done["after"] == ["tanh_2 = torch.tanh(x)"]
    assert done["source"]["file"].endswith("test_recording.py")


def test_a_region_is_as_it_was_when_its_own_root_is_redirected() -> None:
    [done] = rewrite(traced(), [pair]).rewrites
    assert [str(record) for record in done.before] == [
        "sin = aten.sin.default(exp)",
        "cos = aten.cos.default(sin)",
    ]


def test_neither_a_detached_report_nor_a_recording_keeps_the_graph() -> None:
    gm, recording = traced(), Recording()
    report = rewrite(gm, [both], record=recording).detached()
    alive = weakref.ref(gm.graph)
    del gm
    gc.collect()
    assert alive() is None
    assert len(report) == len(recording.changes) == 2


def test_a_notebook_gets_a_table_without_markup_of_the_graphs() -> None:
    from tests.tools.pages import hostile

    html = hostile().report._repr_html_()
    assert "<img" not in html
    assert "<script" not in html
    assert html.count("<details>") == 1


def test_the_terminal_gets_what_was_rewritten() -> None:
    from rich.console import Console

    console = Console(width=100, file=StringIO())
    console.print(rewrite(traced(), [both]))
    said = console.file.getvalue()
    assert "first rewrite by both, at add" in said
    assert "torch.tanh(x)" in said
