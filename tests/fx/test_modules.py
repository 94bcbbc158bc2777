"""Graphs that call modules which stay whole: it is said that nothing matches inside of them."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import fx
from torch.export import export

from pypm import operator, pattern, rule
from pypm.fx import aten, find, partition, rewrite


@pattern
def Layer(x, w, b):
    return aten.relu(aten.linear(x, w, b))


@rule(Layer)
def layer(x, w, b):
    return torch.clamp(torch.nn.functional.linear(x, w, b), min=0)


linear = operator("torch.nn.modules.linear.Linear", ["x"])


@pattern
def Whole(x):
    return aten.neg(linear(x))


@rule(Whole)
def whole(x, match):
    return match.region.module(*match.inputs).abs()


class Functions(torch.nn.Module):
    def forward(self, x, w, b):
        return torch.relu(torch.nn.functional.linear(x, w, b))


def model() -> torch.nn.Module:
    nn = torch.nn
    hooked = nn.Linear(3, 4)
    hooked.register_forward_hook(lambda *_: None)
    return nn.Sequential(hooked, nn.ReLU(), nn.Dropout(), nn.Softsign(), nn.Softmin(1))


def test_the_report_says_so() -> None:
    report = rewrite(fx.symbolic_trace(model()), layer)
    assert len(report) == 0
    assert report.note == (
        "the graph calls 4 modules as one (`Linear`, `Dropout`, `Softsign`, ...), so no operator "
        "matches inside of them: `torch.export.export(model, inputs).graph_module` has their "
        "operators"
    )
    assert report.note in str(report)


def test_find_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"nothing matches: the graph calls 4 modules as one"):
        assert find(fx.symbolic_trace(model()), Layer) == []


def test_what_it_advises_works() -> None:
    program = export(model().eval(), (torch.ones(2, 3),))
    report = rewrite(program.graph_module, layer)
    assert (len(report), report.note) == (1, "")


def test_nothing_is_said_without_a_reason() -> None:
    """Of functions, of modules that rules name, of those that a partition made, and of checks."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gm = fx.symbolic_trace(Functions())
        assert len(partition(gm, Layer)) == 1
        assert gm.graph.find_nodes(op="call_module")
        assert find(gm, Layer) == []
        assert rewrite(gm, layer).note == ""
        gm = fx.symbolic_trace(torch.nn.Linear(3, 4))
        assert rewrite(gm, layer).note == ""
        gm = export(torch.nn.Tanh(), (torch.ones(2),)).module()
        assert gm.graph.find_nodes(op="call_module")
        assert find(gm, Layer) == []
        assert rewrite(gm, layer).note == ""
        gm = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 4)))
        assert rewrite(gm, whole).note == ""
        assert find(gm, Whole) == []
