"""A matcher written by hand for one family of rules: a dictionary from operators to the rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from benchmarks import fxgraph
from benchmarks.fxgraph import OVERLOADS
from benchmarks.terms import Call, CannotExpress, Rule, Subject, Var


class _Blocks:
    """Rules `r(m(b(l(x), y))) -> op(x, y)`."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules: dict[tuple[Any, ...], Any] = {}
        for rule in rules:
            match rule:
                case Rule(
                    Call(r, (Call(m, (Call(b, (Call(l, (Var(x),)), Var(y))),)),)),
                    Call(new, (Var(first), Var(second))),
                ) if (x, y) == (first, second) and x != y:
                    key = tuple(OVERLOADS[name] for name in (r, m, b, l))
                    self.rules.setdefault(key, OVERLOADS[new])
                case _:
                    raise CannotExpress("written for one family of rules")

    def subject(self, subject: Subject) -> fx.GraphModule:
        return fxgraph.build(subject)

    def run(self, graph: fx.GraphModule) -> int:
        find, nodes, Node = self.rules.get, graph.graph, fx.Node
        count = 0
        for r in reversed(nodes.nodes):
            if r.op != "call_function" or len(r.args) != 1:
                continue
            m = r.args[0]
            if type(m) is not Node or len(m.users) != 1 or len(m.args) != 1:
                continue
            b = m.args[0]
            if type(b) is not Node or len(b.users) != 1 or len(b.args) != 2:
                continue
            first, y = b.args
            if type(first) is not Node or len(first.users) != 1 or len(first.args) != 1:
                continue
            target = find((r.target, m.target, b.target, first.target))
            if target is None:
                continue
            with nodes.inserting_before(r):
                new = nodes.call_function(target, (first.args[0], y))
            r.replace_all_uses_with(new)
            for node in (r, m, b, first):
                nodes.erase_node(node)
            count += 1
        return count

    def operators(self, graph: fx.GraphModule) -> int:
        return fxgraph.operators(graph)


class _Pairs:
    """Rules `k(k(x)) -> x`, for the fixpoint."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.operators_: set[Any] = set()
        for rule in rules:
            match rule:
                case Rule(Call(k, (Call(same, (Var(x),)),)), Var(y)) if k == same and x == y:
                    self.operators_.add(OVERLOADS[k])
                case _:
                    raise CannotExpress("written for one family of rules")

    def subject(self, subject: Subject) -> fx.GraphModule:
        return fxgraph.build(subject)

    def run(self, graph: fx.GraphModule) -> int:
        """In the order of the graph, a node's argument is in normal form when it is reached."""
        nodes, count = graph.graph, 0
        for k in nodes.nodes:
            if k.target not in self.operators_:
                continue
            inner = k.args[0]
            if inner.target is k.target and len(inner.users) == 1:
                k.replace_all_uses_with(inner.args[0])
                nodes.erase_node(k)
                nodes.erase_node(inner)
                count += 1
        return count

    def operators(self, graph: fx.GraphModule) -> int:
        return fxgraph.operators(graph)


class _Peer:
    title = "written by hand"

    def version(self) -> str:
        return torch.__version__

    def compile(self, rules: Sequence[Rule], *, fixpoint: bool = False) -> _Blocks | _Pairs:
        return _Pairs(rules) if fixpoint else _Blocks(rules)


PEER = _Peer()
