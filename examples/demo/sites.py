"""Attention sites at real depth: those there are, those Inductor finds alone, those PyPM finds."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from examples.demo.models import Spec, build, inputs
from pypm.fx import Report, rewrite_graph
from pypm.integrations.inductor import STAGES
from pypm.rules import attention, epilogue

__all__ = ["Sites", "count"]


@dataclass(frozen=True)
class Sites:
    """Counts for one model, and what PyPM took for its share."""

    there: int
    inductor: int
    pypm: int
    linears: int
    epilogues: int
    nodes: int
    report: Report
    """What PyPM rewrites wherever it may."""


class _Stop(BaseException):
    """Ends a compilation from inside a pass. Not an `Exception`: these are caught on the way."""


class _Count(CustomGraphPass):
    """At the first hook runs PyPM on a copy; at the second, after Inductor's passes, stops."""

    def __init__(self) -> None:
        self.copied: fx.GraphModule | None = None
        self.after: fx.Graph | None = None

    def __call__(self, graph: fx.Graph) -> None:
        if self.copied is None:
            assert graph.owning_module is not None
            self.copied = copy.deepcopy(graph.owning_module)
            return
        self.after = graph
        raise _Stop

    def uuid(self) -> None:
        return None


def count(spec: Spec, *, mask: bool) -> Sites:
    """Compile a model as far as Inductor's joint passes, and count."""
    torch._dynamo.reset()
    counting = _Count()
    hooks = {STAGES[stage].option: counting for stage in ("joint", "joint_post")}
    model = torch.compile(build(spec), options=hooks)
    try:
        with torch.no_grad():
            model(**inputs(2, 16, mask=mask))
    except _Stop:
        pass
    assert counting.copied is not None
    assert counting.after is not None
    graph = counting.copied.graph
    nodes = len(graph.nodes)
    linears = _calls(graph, "aten.mm.default") + _calls(graph, "aten.addmm.default")
    report = rewrite_graph(
        graph, [attention.RULES, epilogue.RULES], dialect=STAGES["joint"].dialect
    )
    fused = _calls(graph, "_scaled_dot_product")
    return Sites(
        spec.layers,
        _calls(counting.after, "_scaled_dot_product"),
        fused,
        linears,
        len(report.rewrites) - fused,
        nodes,
        report.detached(),
    )


def _calls(graph: fx.Graph, name: str) -> int:
    return sum(n.op == "call_function" and name in str(n.target) for n in graph.nodes)
