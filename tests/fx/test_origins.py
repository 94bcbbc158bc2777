"""Where nodes come from, in the text of reports and in JSON."""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn

from pypm import pattern, rule
from pypm.fx import aten, rewrite
from pypm.fx.reporting.node_records import Frame, frame_of
from pypm.integrations import export
from tests.tools.pages import clamped

MINE = '  File "/home/me/model.py", line 3, in forward\n    return self.net(x)\n'
TORCH = '  File "/x/site-packages/torch/nn/modules/linear.py", line 1, in forward\n    return y\n'
FUNCTORCH = '  File "/x/dist-packages/functorch/ops.py", line 2, in wrapped\n    return f(*args)'


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.ReLU(), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Inner(), Inner()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.tanh()


@pattern
def Tanh(x):
    return aten.tanh(x)


@rule(Tanh)
def bounded(x):
    return 2 * torch.sigmoid(2 * x) - 1


def test_a_report_names_the_module_and_the_line_of_the_user() -> None:
    report = rewrite(torch.export.export(Outer(), (torch.ones(2),)).module(), [clamped, bounded])
    said = str(report).splitlines()[-3:]
    for line, module in zip(said, ["layers.0.activation.0", "layers.1.activation.0"], strict=False):
        assert f"[{module}: File " in line
        assert "test_origins.py" in line
        assert "return self.activation(x)]" in line
    assert "[File " in said[2]
    found = json.loads(report.to_json())["rewrites"]
    assert [done["module"] for done in found] == [
        "layers.0.activation.0",
        "layers.1.activation.0",
        "",
    ]
    source = found[0]["source"]
    assert source.keys() == {"file", "line", "function", "code"}
    assert (source["function"], source["code"]) == ("forward", "return self.activation(x)")
    assert isinstance(source["line"], int)


def test_rewrites_of_a_report_are_in_graph_order() -> None:
    program = torch.export.export(Outer(), (torch.ones(2),))
    roots = [done.root for done in export.rewrite(program, [clamped, bounded]).rewrites]
    assert roots == ["relu", "relu_1", "tanh"]


def test_frames_of_torch_are_passed_over() -> None:
    mine = Frame("/home/me/model.py", 3, "forward", "return self.net(x)")
    assert frame_of(MINE + TORCH + FUNCTORCH) == mine
    assert str(mine) == 'File "/home/me/model.py", line 3, in forward return self.net(x)'
    own = f'  File "{torch.nn.__file__}", line 7, in forward\n    return y\n'
    assert frame_of(MINE + own) == mine


def test_traces_that_say_less() -> None:
    assert frame_of(None) is frame_of("") is frame_of("no frame") is None
    assert frame_of(TORCH) == Frame(
        "/x/site-packages/torch/nn/modules/linear.py", 1, "forward", "return y"
    )
    bare = '  File "a.py", line 1, in f\n' + MINE
    assert frame_of(bare) == Frame("/home/me/model.py", 3, "forward", "return self.net(x)")
    assert frame_of('File "a.py", line 1, in f') == Frame("a.py", 1, "f", "")
    assert frame_of('File "a.py", line 1, in f\n' + TORCH) == Frame("a.py", 1, "f", "")
