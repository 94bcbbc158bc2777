"""A rewrite is planned before one is chosen: the policy of a run, and what it is offered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule
from pypm.core.rules import as_rule_set
from pypm.fx import aten
from pypm.fx.rewriting.alternatives import Planned, Policy, first
from pypm.fx.rewriting.run import Run


@pattern
def Relu(x):
    return aten.relu(x)


@pattern
def ReluOfOne(x):
    assert x.rank == 1
    return aten.relu(x)


@rule(ReluOfOne)
def to_sin(x):
    return torch.sin(x)


@rule(Relu)
def to_cos(x):
    return torch.cos(x)


def last(alternatives: Iterator[Planned]) -> Planned | None:
    return [*alternatives][-1]


def none(alternatives: Iterator[Planned]) -> Planned | None:
    return None


@pytest.mark.parametrize(
    ("policy", "operator"),
    [(first, "sin"), (last, "cos"), (none, "relu")],
    ids=["first", "last", "none"],
)
def test_the_policy_chooses_the_rewrite(policy: Policy, operator: str) -> None:
    gm = make_fx(lambda a: a.relu(), tracing_mode="fake")(torch.ones(2))
    run = Run(gm.graph, as_rule_set([to_sin, to_cos]), limit=1, policy=policy)
    run.settle(run.stages[0])
    run.journal.commit()
    (call,) = [node for node in gm.graph.nodes if node.op == "call_function"]
    assert call.target is getattr(torch.ops.aten, operator).default


def test_a_run_goes_back_in_all_its_parts() -> None:
    gm = make_fx(lambda a: a.relu().neg(), tracing_mode="fake")(torch.ones(2))
    run = Run(gm.graph, as_rule_set([to_sin]), limit=1)
    (stage,) = run.stages
    rollback = run.savepoint()
    for _ in range(2):
        assert run.settle(stage)
        assert len(run.report()) == 1
        rollback()
        assert len(run.report()) == 0
        assert [node.target for node in calls(gm)] == [
            torch.ops.aten.relu.default,
            torch.ops.aten.neg.default,
        ]


def calls(gm: fx.GraphModule) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if node.op == "call_function"]
