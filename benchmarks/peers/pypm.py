"""PyPM: import of the graph, matching, judging and replacing in one call."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from itertools import count
from typing import Any, assert_never

import torch
from torch import fx

import pypm
import pypm.fx
from benchmarks import fxgraph
from benchmarks.fxgraph import OVERLOADS
from benchmarks.terms import Call, Chain, Either, Pattern, Rule, Subject, Var, variables
from pypm.fx import rewrite_graph

_FILES = count()
_CHAIN = """\
@pattern
def AnyChain(x):
    f = op_var(tag="pointwise")
    return f(AnyChain(x))


@pattern
def AnyChain(x):
    return x
"""


class _Rules:
    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = _define(rules)

    def subject(self, subject: Subject) -> fx.GraphModule:
        return fxgraph.build(subject)

    def run(self, graph: fx.GraphModule) -> int:
        return len(rewrite_graph(graph.graph, self.rules))

    def operators(self, graph: fx.GraphModule) -> int:
        """Without the copies that keep an output from being an input itself."""
        copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
        return fxgraph.operators(graph) - len(copies)


def _define(rules: Sequence[Rule]) -> list[Any]:
    """The rules as a user would write them: decorated functions, in a file that is not there."""
    source = _Source()
    for index, rule in enumerate(rules):
        source.rule(index, rule)
    text, file = source.text(), f"rules {next(_FILES)}"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {
        "__name__": "rules",
        "aten": pypm.fx.aten,
        "pattern": pypm.pattern,
        "rule": pypm.rule,
        "op_var": pypm.op_var,
        **{f"make_{name}": overload for name, overload in OVERLOADS.items()},
    }
    try:
        exec(compile(text, file, "exec"), scope)
    finally:
        del linecache.cache[file]
    return [scope[f"rule_{index}"] for index in range(len(rules))]


class _Source:
    """The text of a module of rules. Alternates become patterns of their own."""

    def __init__(self) -> None:
        self.parts = [_CHAIN]
        self.alternates: dict[int, str] = {}

    def text(self) -> str:
        return "\n\n".join(self.parts)

    def rule(self, index: int, rule: Rule) -> None:
        outputs = [(rule.pattern, rule.replacement), *rule.more]
        self.pattern(f"Pattern_{index}", [found for found, _ in outputs])
        made = ", ".join(_made(replacement) for _, replacement in outputs)
        names = dict.fromkeys(name for _, new in outputs for name in variables(new))
        self.parts.append(
            f"@rule(Pattern_{index})\ndef rule_{index}({', '.join(names)}):\n    return {made}\n"
        )

    def pattern(self, name: str, outputs: Sequence[Pattern]) -> None:
        names = dict.fromkeys(n for output in outputs for n in variables(output))
        found = ", ".join([self.expression(output) for output in outputs])
        self.parts.append(f"@pattern\ndef {name}({', '.join(names)}):\n    return {found}\n")

    def expression(self, pattern: Pattern) -> str:
        match pattern:
            case Var(name):
                return name
            case Call(operator, arguments):
                return f"aten.{operator}({', '.join(map(self.expression, arguments))})"
            case Chain(Var(name)):
                return f"AnyChain({name})"
            case Either(first, second):
                called = self.alternates.get(id(pattern))
                if called is None:
                    called = self.alternates[id(pattern)] = f"Either_{len(self.alternates)}"
                    for one in (first, second):
                        self.pattern(called, [one])
                return f"{called}({', '.join(variables(pattern))})"
            case _:
                assert_never(pattern)


def _made(replacement: Var | Call) -> str:
    if isinstance(replacement, Var):
        return replacement.name
    return f"make_{replacement.operator}({', '.join(map(_made, replacement.arguments))})"


class _Peer:
    title = "PyPM"

    def version(self) -> str:
        return f"with torch {torch.__version__}"

    def compile(self, rules: Sequence[Rule], *, fixpoint: bool = False) -> _Rules:
        return _Rules(rules)


PEER = _Peer()
