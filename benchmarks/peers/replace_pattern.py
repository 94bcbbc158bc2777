"""`torch.fx.subgraph_rewriter.replace_pattern`, one rule after the other.

It recompiles the module after every rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch.fx.subgraph_rewriter import replace_pattern

from benchmarks import fxgraph
from benchmarks.fxgraph import OVERLOADS
from benchmarks.terms import Call, CannotExpress, Pattern, Rule, Subject, Var, plain, variables


class _Rules:
    def __init__(self, rules: Sequence[Rule], *, fixpoint: bool) -> None:
        self.fixpoint = fixpoint
        spelled = [one for rule in rules for one in plain(rule)]
        self.rules = [(_before(rule), _after(rule)) for rule in spelled]

    def subject(self, subject: Subject) -> fx.GraphModule:
        return fxgraph.build(subject, lazy=False)

    def run(self, graph: fx.GraphModule) -> int:
        count = found = self.once(graph)
        while self.fixpoint and found:
            found = self.once(graph)
            count += found
        return count

    def once(self, graph: fx.GraphModule) -> int:
        return sum(len(replace_pattern(graph, *rule)) for rule in self.rules)

    def operators(self, graph: fx.GraphModule) -> int:
        return fxgraph.operators(graph)


def _before(rule: Rule) -> fx.GraphModule:
    return _module([rule.pattern, *(found for found, _ in rule.more)], variables(rule.pattern))


def _after(rule: Rule) -> fx.GraphModule:
    return _module([rule.replacement, *(made for _, made in rule.more)], variables(rule.pattern))


def _module(outputs: Sequence[Pattern], names: Sequence[str]) -> fx.GraphModule:
    graph = fx.Graph()
    holes = {name: graph.placeholder(name) for name in names}

    def build(part: Pattern) -> fx.Node:
        if isinstance(part, Var):
            return holes[part.name]
        if not isinstance(part, Call):
            raise CannotExpress("one rule for each spelling")
        made = tuple(build(argument) for argument in part.arguments)
        return graph.call_function(OVERLOADS[part.operator], made)

    made = tuple(build(output) for output in outputs)
    graph.output(made if len(made) > 1 else made[0])
    return fx.GraphModule(torch.nn.Module(), graph)


class _Peer:
    title = "fx.replace_pattern"

    def version(self) -> str:
        return torch.__version__

    def compile(self, rules: Sequence[Rule], *, fixpoint: bool = False) -> _Rules:
        return _Rules(rules, fixpoint=fixpoint)


PEER = _Peer()
