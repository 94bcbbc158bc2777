"""tinygrad: `graph_rewrite` with a compiled `PatternMatcher`. Its graphs share equal values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import count
from typing import assert_never

from tinygrad.dtype import dtypes
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, UOp, UPat, graph_rewrite

from benchmarks.terms import (
    BINARY,
    UNARY,
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

_UNARY = (
    Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.RECIPROCAL, Ops.NEG, Ops.TRUNC,
    Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH, Ops.CAST, Ops.BITCAST,
)  # fmt: skip
_OPERATORS = dict(zip(UNARY, _UNARY, strict=True))
_OPERATORS |= dict(zip(BINARY, (Ops.ADD, Ops.MUL, Ops.MAX), strict=True))
_FRESH = count()


class _Graph:
    def __init__(self, sink: UOp) -> None:
        self.sink = sink


class _Rules:
    def __init__(self, rules: Sequence[Rule]) -> None:
        self.matcher = PatternMatcher([_rule(rule) for rule in rules])

    def subject(self, subject: Subject) -> _Graph:
        own = next(_FRESH)  # else it would share values with graphs made before
        leaf = Ops.CUSTOM
        values = [UOp(leaf, dtypes.float, (), f"{own} {i}") for i in range(subject.inputs)]
        for name, arguments in subject.calls:
            values.append(UOp(_OPERATORS[name], dtypes.float, tuple(values[a] for a in arguments)))
        return _Graph(UOp(Ops.SINK, dtypes.void, tuple(values[i] for i in subject.outputs)))

    def run(self, graph: _Graph) -> int:
        counts = [0]
        graph.sink = graph_rewrite(graph.sink, self.matcher, ctx=counts)
        return counts[0]

    def operators(self, graph: _Graph) -> int:
        return sum(node.op not in (Ops.CUSTOM, Ops.SINK) for node in graph.sink.toposort())


def _rule(rule: Rule) -> tuple[UPat, Callable[..., UOp]]:
    if rule.more:
        raise CannotExpress("one root a rule")
    return _pattern(rule.pattern, rule.commutes, {}), _callback(rule)


def _pattern(pattern: Pattern, commutes: bool, memo: dict[int, UPat]) -> UPat:
    """Parts that are one object stay one object."""
    found = memo.get(id(pattern))
    if found is None:
        found = memo[id(pattern)] = _translate(pattern, commutes, memo)
    return found


def _translate(pattern: Pattern, commutes: bool, memo: dict[int, UPat]) -> UPat:
    match pattern:
        case Var(name):
            return UPat(name=name)
        case Call(operator, arguments):
            parts = [_pattern(argument, commutes, memo) for argument in arguments]
            swaps = commutes and operator in ("add", "mul")  # a list: in every order
            return UPat(_OPERATORS[operator], src=parts if swaps else tuple(parts))
        case Either(first, second):
            return UPat.any(_pattern(first, commutes, memo), _pattern(second, commutes, memo))
        case Chain():
            raise CannotExpress("no recursion")
        case _:
            assert_never(pattern)


def _callback(rule: Rule) -> Callable[..., UOp]:
    """A function made from text: tinygrad takes none with a closure."""
    formals = ", ".join(variables(rule.pattern))
    body = f"counts(ctx) or {_text(rule.replacement)}"
    scope = {"UOp": UOp, "Ops": Ops, "dtype": dtypes.float, "counts": _count}
    function: Callable[..., UOp] = eval(f"lambda ctx, {formals}: {body}", scope)
    return function


def _count(counts: list[int]) -> None:
    counts[0] += 1


def _text(pattern: Var | Call) -> str:
    if isinstance(pattern, Var):
        return pattern.name
    made = ", ".join(map(_text, pattern.arguments))
    return f"UOp({_OPERATORS[pattern.operator]}, dtype, ({made},))"


class _Peer:
    title = "tinygrad"

    def version(self) -> str:
        return version("tinygrad")

    def compile(self, rules: Sequence[Rule], *, fixpoint: bool = False) -> _Rules:
        return _Rules(rules)


PEER = _Peer()
