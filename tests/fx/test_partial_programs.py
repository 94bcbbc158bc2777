"""Programs for the operators of one graph find what the program for all graphs finds."""

from __future__ import annotations

import copy
from random import Random

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule
from pypm.core.rules import Rules, as_rule_set
from pypm.fx import Candidate, aten, rewrite
from pypm.fx.matching import program
from pypm.fx.rewriting.run import RewriteRun
from pypm.fx.subject.view import View
from pypm.match.requirements import named
from tests.hunt import graphs


@pattern
def Relu(x):
    return aten.relu(x)


@pattern
def Sin(x):
    return aten.sin(x) | aten.exp(aten.log(x))


@pattern
def NegTan(x):
    return aten.neg(aten.tan(x))


@rule(Relu)
def brings_sin(x):
    return torch.sin(x)


@rule(Sin)
def brings_tan(x):
    return torch.tan(x)


@pattern
def AtanErf(x):
    return aten.atan(aten.erf(x))


@rule(NegTan)
def last(x):
    return torch.atan(torch.erf(torch.cosh(x)))


@rule(AtanErf)
def very_last(x):
    return torch.cosh(x)


CHAIN = (very_last, last, brings_tan, brings_sin)


def saved(candidate: Candidate) -> float:
    """A worth that depends on the candidate alone, and is negative for some."""
    return Random(f"{candidate.rule.name} {candidate.root}").uniform(-0.5, 1.0)


def captured() -> fx.GraphModule:
    def f(x: Tensor) -> Tensor:
        return torch.neg(torch.relu(x) + 0) + torch.relu(torch.neg(torch.relu(x)))

    return make_fx(f, tracing_mode="fake")(torch.randn(3))


@pytest.fixture(autouse=True)
def forgotten() -> None:
    program._partial_programs.cache_clear()


def in_both(gm: fx.GraphModule, rules: Rules) -> list[str]:
    """Return the graph as it is rewritten with the program of all graphs, and with that of its
    own operators, and the decisions of both.
    """
    found = []
    for count in (0, program.PARTIAL):
        program._partial_programs.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program, "PARTIAL", count)
            module = copy.deepcopy(gm)
            report = rewrite(module, rules, choose=saved)
            told = [report.rewrites, report.refusals, report.decisions]
            found.append("\n".join([str(module.graph), *map(str, told)]))
    return found


def test_operators_that_rewrites_bring_are_matched() -> None:
    gm = captured()
    report = rewrite(gm, CHAIN, choose=lambda candidate: 1.0)
    assert {record.rule for record in report.rewrites} == {each.name for each in CHAIN}
    one, two = in_both(captured(), CHAIN)
    assert one == two


def test_what_a_graph_lacks_is_left_out() -> None:
    made = RewriteRun(captured().graph, as_rule_set(CHAIN), choose=saved).program
    assert made.reader.left_out == {"aten.sin", "aten.exp", "aten.tan", "aten.atan"}
    assert len(made.index) < len(program.program_of(CHAIN).index)
    assert named(made.targets[1].roots) == {"aten.neg", "aten.tan"}


def test_a_program_is_made_for_few_sets_of_operators() -> None:
    """After that, the program for all graphs is taken."""
    names = sorted(named(root for each in CHAIN for root in each.roots))
    made = [program.program_of(CHAIN, present=frozenset(names[:n])) for n in range(len(names))]
    assert made[-1] is program.program_of(CHAIN)
    assert program.program_of(CHAIN, present=frozenset(names[:1])) in made[: program.PARTIAL]


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 8))]
)
def test_a_program_takes_over_what_another_compiled(seed: int) -> None:
    """It is tried at the same nodes as one that is compiled anew, with the same matches."""
    draw = Random(seed)
    rules = as_rule_set(graphs.EVERY).rules
    names = sorted(named(root for each in rules for root in each.roots if root is not None))
    few = frozenset(draw.sample(names, len(names) // 3))
    many = few | frozenset(draw.sample(names, draw.choice([1, 3, len(names) // 3])))
    near = program.RuleProgram(rules, few)
    one, other = program.RuleProgram(rules, many, near), program.RuleProgram(rules, many)
    taken = [a.matcher is b.matcher for a, b in zip(one.targets, near.targets, strict=True)]
    assert any(taken)
    assert one.reader.left_out >= other.reader.left_out
    assert not one.reader.left_out & many
    assert one.reach == other.reach
    compared = 0
    for start in range(100 * seed, 100 * seed + 12):
        with graphs._quiet(), graphs._anywhere():
            try:
                _, module = graphs._made(graphs.drawn(start))
            except Exception:  # no sample, or nothing that torch runs or captures
                continue
            graph = module.graph
            views = [(each, View(graph, each.reader)) for each in (one, other)]
            for node in graph.nodes:
                starts = [[t.number for t in made.at(view, node)] for made, view in views]
                assert starts[0] == starts[1]
                compared += len(starts[0])
    assert compared


@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.soak)])
def test_random_graphs_are_rewritten_alike(first: int) -> None:
    """Of every shipped rule, with operators respelled and mutated."""
    count = 0
    for seed in range(first, first + 20):
        with graphs._quiet(), graphs._anywhere():
            try:
                _, module = graphs._made(graphs.drawn(seed))
            except Exception:  # no sample, or nothing that torch runs or captures
                continue
            one, two = in_both(module, graphs.EVERY)
        assert one == two, seed
        count += 1
    assert count > 5
