"""Inductor's pattern matcher, with handlers on the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor.pattern_matcher import (
    CallFunction,
    KeywordArg,
    Match,
    MultiOutputPattern,
    PatternMatcherPass,
    register_graph_pattern,
)

from benchmarks import fxgraph
from benchmarks.fxgraph import OVERLOADS
from benchmarks.terms import Call, CannotExpress, Pattern, Rule, Subject, Var, plain


class _Pass:
    def __init__(self, rules: Sequence[Rule], *, fixpoint: bool) -> None:
        self.fixpoint = fixpoint
        self.matcher = PatternMatcherPass()
        for one in (spelled for rule in rules for spelled in plain(rule)):
            register_graph_pattern(_whole(one), pass_dict=self.matcher)(_handler(one))

    def subject(self, subject: Subject) -> fx.GraphModule:
        return fxgraph.build(subject)

    def run(self, graph: fx.GraphModule) -> int:
        """One sweep from the outputs up; for a fixpoint, sweeps until one changes nothing."""
        count = found = self.matcher.apply(graph)
        while self.fixpoint and found:
            found = self.matcher.apply(graph)
            count += found
        return count

    def operators(self, graph: fx.GraphModule) -> int:
        return fxgraph.operators(graph)


def _whole(rule: Rule) -> Any:
    holes: dict[str, Any] = {}
    if not rule.more:
        return _pattern(rule.pattern, holes)
    found = [rule.pattern, *(output for output, _ in rule.more)]
    return MultiOutputPattern([_pattern(output, holes) for output in found])


def _pattern(pattern: Pattern, holes: dict[str, Any]) -> Any:
    """One hole for each variable: further outputs are looked for from the holes they share."""
    match pattern:
        case Var(name):
            return holes.setdefault(name, KeywordArg(name))
        case Call(operator, arguments):
            return CallFunction(OVERLOADS[operator], *[_pattern(a, holes) for a in arguments])
        case _:
            raise CannotExpress("one rule for each spelling")


def _handler(rule: Rule) -> Callable[..., None]:
    def build(graph: fx.Graph, part: Var | Call, bound: dict[str, Any]) -> Any:
        if isinstance(part, Var):
            return bound[part.name]
        made = tuple(build(graph, argument, bound) for argument in part.arguments)
        return graph.call_function(OVERLOADS[part.operator], made)

    parts = [rule.replacement, *(made for _, made in rule.more)]

    def handle(match: Match, **bound: Any) -> None:
        for root, part in zip(match.output_nodes(), parts, strict=True):
            with match.graph.inserting_before(root):
                new = build(match.graph, part, bound)
            root.replace_all_uses_with(new)
        match.erase_nodes()

    return handle


class _Peer:
    title = "Inductor"

    def version(self) -> str:
        return torch.__version__

    def compile(self, rules: Sequence[Rule], *, fixpoint: bool = False) -> _Pass:
        return _Pass(rules, fixpoint=fixpoint)


PEER = _Peer()
