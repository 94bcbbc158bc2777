"""Models whose rewrites are drawn in the tests and in the documentation's picture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from examples.demo.models import build, inputs, small
from pypm import RuleSet, pattern, rule
from pypm.fx import Appraisal, Candidate, Recording, Report, aten
from pypm.fx.reporting.decisions import CandidateRecord, Decision
from pypm.fx.reporting.node_records import NodeRecord
from pypm.fx.reporting.recording import Change, NodeState
from pypm.fx.reporting.report import RefusalRecord, RewriteRecord, RuleRecord
from pypm.tools import Page


@pattern
def Relu(x):
    return aten.relu(x)


@rule(Relu)
def clamped(x):
    return torch.clamp(x, min=0)


@pattern
def Doubled(x):
    return aten.tanh(aten.tanh(x))


@rule(Doubled)
def once(x):
    assert x.dtype == torch.float64
    return torch.tanh(x)


class Small(nn.Module):
    """Two outputs, one computed from the other; `once` nearly matches."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(x * 2)
        return torch.relu(y + 1), torch.tanh(torch.tanh(y))


def exported_small() -> torch.export.ExportedProgram:
    return torch.export.export(Small(), (torch.ones(2, 3),))


def choose(candidate: Candidate) -> Appraisal:
    """The first rewrite is made; the second one would be slower."""
    after = 3e-6 if candidate.root == "relu" else 20e-6
    return Appraisal(5e-6 - after, "as the test says", 5e-6, after, 2e-6)


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Any:
        return self.model(input_ids=ids, use_cache=False).logits


def exported(name: str, layers: int) -> torch.export.ExportedProgram:
    """A model with random weights, width 64."""
    model = _Logits(build(replace(small(name), layers=layers)))
    ids = inputs(1, 16, mask=False)["input_ids"]
    return torch.export.export(model, (ids,), strict=False)


def exported_llama() -> torch.export.ExportedProgram:
    """Llama with its 16 layers; some 1,350 nodes."""
    return exported("llama", 16)


def large(layers: int = 100, width: int = 50) -> fx.GraphModule:
    """A graph of some 5,000 nodes; with its modules, as exported models have them."""
    graph = fx.Graph()
    x = first = graph.placeholder("x")
    for layer in range(layers):
        start, modules = x, {"": ("", "Model"), "l": (f"layers.{layer}", "Layer")}
        for at in range(width // 2):
            target = torch.ops.aten.sigmoid if at % 5 else torch.ops.aten.relu
            branch = graph.call_function(target.default, (x,))
            x = graph.call_function(torch.ops.aten.add.Tensor, (branch, start if at % 5 else first))
            branch.meta["nn_module_stack"] = x.meta["nn_module_stack"] = modules
    graph.output((x,))
    return fx.GraphModule(nn.Module(), graph)


HOSTILE = "</script><img src=x onerror='window.hostile=1'>\"&@data@\u2028"


def hostile() -> Page:
    """A page with a text in every place that would be markup if anything took it for that."""
    text = HOSTILE
    before = NodeRecord(f"a{text}", "call_function", text, (text,), {})
    kept = NodeRecord(f"x{text}", "placeholder", text, (), {})
    after = NodeRecord(f"b{text}", "call_method", text, (text,), {text: text})
    old, stays, new = (
        NodeState(record, text, ((text, text), (f"{text}.0", text)), text)
        for record in (before, kept, after)
    )
    rewrite = RewriteRecord(text, before.name, (before,), (after,), {text: text}, f"File {text}")
    report = Report(
        (rewrite,),
        (RefusalRecord(text, text, text, before.name),),
        (RuleRecord(text, 1, 1, 1, 0.1),),
        note=text,
    )
    worth = Appraisal(-1.0, text, 1.0, 2.0, 0.5)
    candidate = CandidateRecord(text, before.name, (before.name,), worth, "saves nothing")
    report = replace(report, decisions=(Decision((candidate,)),))
    change = Change((new,), frozenset({before.name}), {})
    rules = RuleSet((replace(clamped, name=text),))
    return Page(Recording(rules, (stays, old), [change], report), title=text)
