"""Random pairs of a rule and a graph: `python -m tests.fx.fuzz_explain PAIRS [SEED]`.

At every node of the graph `explain` must say that the rule matches exactly where the engine applies
it, and say where and why where it does not. The first pair that is wrong is printed.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from time import monotonic, time_ns

import torch
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import PyPMError
from pypm.core.rules import Rule, as_rule_set
from pypm.fx.explaining.explain import Explainer
from pypm.fx.explaining.explanation import Fails
from pypm.fx.rewriting.outcomes import Outcomes
from pypm.fx.rewriting.run import RewriteRun
from pypm.rules import attention, epilogue
from tests.fx.random_rules import RandomRules
from tests.rules.random_graphs import Program, inputs
from tests.rules.test_random_graphs import named

A_GRAPH = 20
"""Rules for one graph."""
SHIPPED = (*attention.RULES.rules[:1], *epilogue.RULES, *attention.RULES.rules[1:])
"""In the order in which they are drawn: short runs take the first ones."""
A_SHIPPED = 100
"""Pairs of which one is of a shipped rule."""


def graphs(seed: int) -> Iterator[tuple[int, fx.GraphModule]]:
    """Random programs, traced: every other one without writes, by Inductor's decompositions."""
    while True:
        seed += 1
        program = Program(seed)
        try:
            if seed % 2:
                made = make_fx(functionalize(named(program)), select_decomp_table())
            else:
                made = make_fx(named(program), tracing_mode="fake")
            yield seed, made(*inputs(seed))
        except (RuntimeError, IndexError):  # a write through an expanded view, a lost dimension
            continue


def pairs(seed: int) -> Iterator[tuple[fx.GraphModule, Rule]]:
    shipped = cycle(SHIPPED)
    for number, (name, gm) in enumerate(graphs(seed)):
        drawn = RandomRules(gm.graph, name)
        if number % (A_SHIPPED // A_GRAPH) == 0:
            yield gm, next(shipped)
        for _ in range(A_GRAPH - 1):
            yield gm, drawn.rule()


def applies(run: RewriteRun, node: fx.Node) -> bool:
    """Whether the engine would apply a rule at a node."""
    try:
        return any(run.planned(node))
    except PyPMError:
        return False


def check(gm: fx.GraphModule, rule: Rule) -> Counter[str]:
    """What was said at the nodes of a graph, by kind. Raises AssertionError where it is wrong."""
    explainer = Explainer(gm.graph, rule)
    run = RewriteRun(gm.graph, as_rule_set(rule), outcomes=Outcomes(gm.graph, 1000))
    said = Counter[str]()
    for node in list(gm.graph.nodes):
        found = explainer.at(node)
        assert bool(found) == applies(run, node), f"at {node}: {found}"
        if isinstance(found.outcome, Fails):
            obstacle = found.outcome.obstacle
            assert obstacle.words and obstacle.met.call, f"at {node}: {found}"
            said[type(obstacle.reason).__name__] += 1
            said["matches but for one guard"] += found.outcome.is_all
        else:
            said["Matches"] += 1
        assert str(found)
    return said


def main(count: int = 1_000, seed: int | None = None) -> int:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    seed = time_ns() % 10**6 if seed is None else seed
    print(f"{count:,} pairs, seed {seed}", flush=True)
    began, said = monotonic(), Counter[str]()
    for index, (gm, rule) in zip(range(count), pairs(seed), strict=False):
        try:
            said += check(gm, rule)
        except AssertionError as problem:
            print(f"pair {index}: {problem}\n{rule.roots}\n{rule.guard}\n{gm.graph}")
            return 1
    for name, number in said.most_common():
        print(f"  {number:9,} {name}")
    print(f"{count:,} pairs agree, {sum(said.values()):,} nodes, {monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
