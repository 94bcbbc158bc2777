"""onnxscript: a `RewriteRuleSet` on an ONNX IR model, sweep by sweep."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, assert_never

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule, RewriteRuleSet
from onnxscript.rewriter.pattern import OrValue

from benchmarks.terms import (
    Call,
    CannotExpress,
    Chain,
    Either,
    Pattern,
    Rule,
    Subject,
    Var,
    variables,
)


class _Rules:
    def __init__(self, rules: Sequence[Rule], *, fixpoint: bool) -> None:
        self.fixpoint = fixpoint
        commute = any(rule.commutes for rule in rules)
        self.rules = RewriteRuleSet([_rule(rule) for rule in rules], commute=commute)

    def subject(self, subject: Subject) -> ir.Model:
        inputs = [ir.Value(name=f"input_{i}") for i in range(subject.inputs)]
        values = list(inputs)
        nodes = []
        for name, arguments in subject.calls:
            node = ir.Node("", _name(name), [values[a] for a in arguments])
            nodes.append(node)
            values.append(node.outputs[0])
        outputs = [values[i] for i in subject.outputs]
        graph = ir.Graph(inputs, outputs, nodes=nodes, opset_imports={"": 18})
        return ir.Model(graph, ir_version=10)

    def run(self, graph: ir.Model) -> int:
        count = found = self.rules.apply_to_model(graph)
        while self.fixpoint and found:
            found = self.rules.apply_to_model(graph)
            count += found
        return count

    def operators(self, graph: ir.Model) -> int:
        return len(graph.graph)


def _name(operator: str) -> str:
    return operator.capitalize()


def _rule(rule: Rule) -> RewriteRule:
    names = variables(rule.pattern)
    before = [rule.pattern, *(found for found, _ in rule.more)]
    after = [rule.replacement, *(made for _, made in rule.more)]
    return RewriteRule(_function(before, names), _function(after, names))


def _function(outputs: Sequence[Pattern], names: Sequence[str]) -> Callable[..., Any]:
    def build(op: Any, *args: Any, **bound: Any) -> Any:
        bound |= dict(zip(names, args, strict=False))
        memo: dict[int, Any] = {}
        made = tuple(_build(op, output, bound, memo) for output in outputs)
        return made if len(made) > 1 else made[0]

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("op", *names)]
    build.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return build


def _build(op: Any, pattern: Pattern, bound: dict[str, Any], memo: dict[int, Any]) -> Any:
    """Parts that are one object stay one object."""
    found = memo.get(id(pattern))
    if found is None:
        found = memo[id(pattern)] = _translate(op, pattern, bound, memo)
    return found


def _translate(op: Any, pattern: Pattern, bound: dict[str, Any], memo: dict[int, Any]) -> Any:
    match pattern:
        case Var(name):
            return bound[name]
        case Call(operator, arguments):
            made = [_build(op, argument, bound, memo) for argument in arguments]
            return getattr(op, _name(operator))(*made)
        case Either(first, second):
            return OrValue([_build(op, part, bound, memo) for part in (first, second)])
        case Chain():
            raise CannotExpress("no recursion")
        case _:
            assert_never(pattern)


class _Peer:
    title = "onnxscript"

    def version(self) -> str:
        return version("onnxscript")

    def compile(self, rules: Sequence[Rule], *, fixpoint: bool = False) -> _Rules:
        return _Rules(rules, fixpoint=fixpoint)


PEER = _Peer()
