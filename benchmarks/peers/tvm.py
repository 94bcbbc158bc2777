"""TVM Relax: pattern rewriters joined into one, applied to a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from importlib.metadata import version
from operator import or_
from typing import Any, assert_never

from tvm import relax
from tvm.relax.dpl import DFPattern, PatternMatchingRewriter, is_op, wildcard

from benchmarks.terms import (
    BINARY,
    UNARY,
    Call,
    CannotExpress,
    Chain,
    Either,
    NotTried,
    Pattern,
    Rule,
    Subject,
    Var,
    plain,
)

_RENAMED = {"relu": "nn.relu", "neg": "negative", "mul": "multiply"}
_OPERATORS = {name: f"relax.{_RENAMED.get(name, name)}" for name in (*UNARY, *BINARY)}


def _function(name: str) -> Callable[..., relax.Expr]:
    found: Any = relax.op
    for part in _RENAMED.get(name, name).split("."):
        found = getattr(found, part)
    return found


_FUNCTIONS = {name: _function(name) for name in (*UNARY, *BINARY)}


class _Graph:
    def __init__(self, function: relax.Function) -> None:
        self.function = function


class _Rules:
    def __init__(self, rules: Sequence[Rule]) -> None:
        self.matched: set[relax.Expr] = set()
        """A set: now and then a sweep asks for one replacement and the next asks again."""
        self.rewriter = reduce(or_, [self.rule(one) for rule in rules for one in _plain(rule)])

    def rule(self, rule: Rule) -> PatternMatchingRewriter:
        holes: dict[str, DFPattern] = {}
        pattern = _pattern(rule.pattern, holes, {})

        def replace(matched: relax.Expr, parts: Any) -> relax.Expr:
            self.matched.add(matched)
            bound = {name: parts[hole] for name, hole in holes.items()}
            return _build(rule.replacement, bound)

        return PatternMatchingRewriter.from_pattern(pattern, replace)

    def subject(self, subject: Subject) -> _Graph:
        sinfo = relax.TensorType((4,), "float32")
        inputs = [relax.Var(f"input_{i}", sinfo) for i in range(subject.inputs)]
        values: list[relax.Expr] = list(inputs)
        builder = relax.BlockBuilder()
        with builder.function("main", inputs):
            with builder.dataflow():
                for name, arguments in subject.calls:
                    call = _FUNCTIONS[name](*[values[a] for a in arguments])
                    values.append(builder.emit(call))
                outputs = [values[i] for i in subject.outputs]
                result = builder.emit_output(relax.Tuple(outputs))
            builder.emit_func_output(result)
        return _Graph(builder.get()["main"])

    def run(self, graph: _Graph) -> int:
        self.matched.clear()
        graph.function = self.rewriter(graph.function)
        return len(self.matched)

    def operators(self, graph: _Graph) -> int:
        bindings = [b for block in graph.function.body.blocks for b in block.bindings]
        return sum(isinstance(binding.value, relax.Call) for binding in bindings)


def _plain(rule: Rule) -> list[Rule]:
    """Rules with alternates as they are; one for each order of commutative arguments."""
    if rule.more:
        raise NotTried("another interface")
    return plain(rule) if rule.commutes else [rule]


def _pattern(
    pattern: Pattern, holes: dict[str, DFPattern], memo: dict[int, DFPattern]
) -> DFPattern:
    """Parts that are one object stay one object."""
    found = memo.get(id(pattern))
    if found is None:
        found = memo[id(pattern)] = _translate(pattern, holes, memo)
    return found


def _translate(
    pattern: Pattern, holes: dict[str, DFPattern], memo: dict[int, DFPattern]
) -> DFPattern:
    match pattern:
        case Var(name):
            return holes.setdefault(name, wildcard())
        case Call(operator, arguments):
            parts = [_pattern(argument, holes, memo) for argument in arguments]
            return is_op(_OPERATORS[operator])(*parts)
        case Either(first, second):
            return _pattern(first, holes, memo) | _pattern(second, holes, memo)
        case Chain():
            raise CannotExpress("no recursion")
        case _:
            assert_never(pattern)


def _build(replacement: Var | Call, bound: dict[str, relax.Expr]) -> relax.Expr:
    if isinstance(replacement, Var):
        return bound[replacement.name]
    made = [_build(argument, bound) for argument in replacement.arguments]
    return _FUNCTIONS[replacement.operator](*made)


class _Peer:
    title = "TVM Relax"

    def version(self) -> str:
        return version("apache-tvm")

    def compile(self, rules: Sequence[Rule], *, fixpoint: bool = False) -> _Rules:
        return _Rules(rules)


PEER = _Peer()
