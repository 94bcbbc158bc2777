"""Model graphs as `torch.compile` hands them to its joint passes: PyPM's rules, Inductor's own."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.fx_passes import joint_graph

from benchmarks.jobs import Record
from benchmarks.timing import Times, interleave
from examples.demo.models import Spec, build, inputs, small
from pypm.fx import Report, first, rewrite_graph
from pypm.integrations.inductor import STAGES, Pass
from pypm.rules import inference

__all__ = ["records"]

RULES = inference.RULES


class _Stop(BaseException):
    """Ends a compilation from inside a pass. Not an `Exception`: these are caught on the way."""


class _Measure(CustomGraphPass):
    """At the hook before Inductor's joint passes times all contenders on copies, and stops."""

    def __init__(self, *, seconds: float, rounds: int) -> None:
        self.seconds = seconds
        self.rounds = rounds
        self.found: Record = {}

    def __call__(self, graph: fx.Graph) -> None:
        assert graph.owning_module is not None
        self.found = _measure(graph.owning_module, self.seconds, self.rounds)
        raise _Stop

    def uuid(self) -> None:
        return None


def records(models: Sequence[str], *, seconds: float, rounds: int, quick: bool) -> Iterator[Record]:
    """Microseconds a node of each model's graph, and the share of a cold compilation.

    With `quick`, of two layers, and without compiling them.
    """
    for name in models:
        spec = replace(small(name), layers=2) if quick else small(name)
        found: Record = {"part": "real", "label": f"{name}, {spec.layers} layers"}
        found |= _at_the_hook(spec, seconds, rounds)
        yield found if quick else found | _cold(spec)


def _at_the_hook(spec: Spec, seconds: float, rounds: int) -> Record:
    measure = _Measure(seconds=seconds, rounds=rounds)
    torch._dynamo.reset()
    model = torch.compile(build(spec), options={STAGES["joint"].option: measure})
    try:
        with torch.no_grad():
            model(**inputs(2, 16, mask=False))
    except _Stop:
        pass
    return measure.found


def _measure(gm: fx.GraphModule, seconds: float, rounds: int) -> Record:
    nodes = sum(node.op.startswith("call_") for node in gm.graph.nodes)
    rewritten = copy.deepcopy(gm)
    report = _pypm(rewritten)
    device = torch.device("cpu")
    joint_graph.lazy_init(device)
    applied = copy.deepcopy(gm)
    joint_graph.patterns.apply(applied)  # once, as it does: on some graphs they never settle

    def on(source: fx.GraphModule, run: Callable[[fx.GraphModule], object]) -> Any:
        def prepare() -> Callable[[], object]:
            subject = copy.deepcopy(source)
            return lambda: run(subject)

        return prepare

    contenders = {
        "hits": on(gm, lambda g: len(_pypm(g))),
        "no_hits": on(rewritten, lambda g: len(_pypm(g))),
        "inductor_hits": on(gm, joint_graph.patterns.apply),
        "inductor_no_hits": on(applied, joint_graph.patterns.apply),
        "inductor_joint": on(gm, lambda g: joint_graph.joint_graph_passes(g, device)),
    }
    made: dict[str, object] = {}
    with config.patch(joint_custom_pre_pass=None, joint_custom_post_pass=None):
        times = interleave(contenders, seconds=seconds, rounds=rounds, check=made.__setitem__)
    if made["no_hits"] != 0:
        raise AssertionError("rules match what they have rewritten")
    return {
        "nodes": nodes,
        "rewrites": len(report),
        "inductor_matches": made["inductor_hits"],
        **{f"us_per_node_{name}": t.median / nodes * 1e6 for name, t in times.items()},
        "ms_per_rewrite": _per_rewrite(times, len(report)),
    }


def _pypm(gm: fx.GraphModule) -> Report:
    return rewrite_graph(gm.graph, RULES, dialect=STAGES["joint"].dialect)


def _per_rewrite(times: dict[str, Times], rewrites: int) -> float | None:
    """What a rewrite costs on top of a search that finds nothing."""
    if not rewrites:
        return None
    return (times["hits"].median - times["no_hits"].median) / rewrites * 1e3


def _cold(spec: Spec) -> Record:
    """One compilation with an empty cache, and what PyPM took of it."""
    passes = Pass(RULES, stage="joint", choose=first)
    model = torch.compile(build(spec), options=passes.options())
    torch._dynamo.reset()
    with torch.no_grad(), torch._inductor.utils.fresh_cache():
        start = time.perf_counter()
        model(**inputs(2, 16, mask=False))
        took = time.perf_counter() - start
    seconds = passes.report().seconds
    return {"compile_s": took, "pypm_s": seconds, "pypm_share": seconds / took}
