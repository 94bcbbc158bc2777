"""The declarative semantics by brute force: section 3 of the calculus, rule by rule.

Where a rule asks for some value, all values at hand are tried. A goal met again inside its own
derivation is given up: a shortest derivation never needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from pypm.core.guards import (
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
    Less,
    Not,
    Or,
    Reference,
    True_,
    Tuple,
    evaluate,
    holds,
)
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Context,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
    arg,
)
from pypm.core.terms import UNDEFINED, Term, Value, exact, same

Theta = Mapping[str, Value]


def subterms(term: Term) -> list[Term]:
    found = {id(term): term}
    for child in term.children:
        found |= {id(inner): inner for inner in subterms(child)}
    return list(found.values())


def universe(pattern: Pattern, term: Term) -> list[Value]:
    """The values at hand: subterms, their operators and attributes, constants of the pattern."""
    values: list[Value] = []
    for inner in subterms(term):
        values += [inner, inner.operator, *inner.attributes.values()]
    values += constants(pattern)
    return list({exact(value): value for value in values}.values())


def constants(part: Pattern | Guard | Expression) -> list[Value]:
    match part:
        case Constant(value):
            return [value]
        case Var() | Call() | True_() | Reference() | Attribute():
            return []
        case Op(_, parts) | Fun(_, parts) | Apply(_, parts) | Tuple(parts):
            return [value for inner in parts for value in constants(inner)]
        case Alt(left, right) | And(left, right) | Or(left, right):
            return constants(left) + constants(right)
        case Equal(left, right) | Less(left, right) | Guarded(left, right):
            return constants(left) + constants(right)
        case Exists(_, body) | Not(body) | Holds(body):
            return constants(body)
        case Let(body, _, expression):
            return constants(body) + constants(expression)
        case Constrained(body, constraint):
            return constants(body) + constants(constraint)
        case Mu(definition):
            return constants(definition.body)


def is_match(pattern: Pattern, theta: Theta, term: Term, values: Iterable[Value]) -> bool:
    """Whether p @ theta matches t, where only `values` stand for local names."""
    return _judge(pattern, theta, term, (), tuple(values), frozenset())


def matches(
    pattern: Pattern, names: Iterable[str], term: Term, values: Iterable[Value]
) -> Iterator[Theta]:
    """All matches that give each of the names one of the values."""
    names, values = tuple(names), tuple(values)
    for chosen in product(values, repeat=len(names)):
        theta = dict(zip(names, chosen, strict=True))
        if is_match(pattern, theta, term, values):
            yield theta


def _is(one: Value, other: Value) -> bool:
    return one is not UNDEFINED and same(one, other)


def _judge(
    pattern: Pattern,
    theta: Theta,
    term: Term,
    context: Context,
    values: tuple[Value, ...],
    pending: frozenset[object],
) -> bool:
    def judge(part: Pattern, theta: Theta, term: Term) -> bool:
        return _judge(part, theta, term, context, values, pending)

    def lookup(name: str) -> Value:
        return theta.get(name, UNDEFINED)

    match pattern:
        case Var(name):
            return _is(lookup(name), term)
        case Op(_, parts) | Fun(_, parts):
            head = pattern.operator if isinstance(pattern, Op) else lookup(pattern.name)
            return (
                _is(head, term.operator)
                and len(parts) == len(term.children)
                and all(judge(p, theta, t) for p, t in zip(parts, term.children, strict=True))
            )
        case Alt(left, right):
            return judge(left, theta, term) or judge(right, theta, term)
        case Exists(name, body):
            return any(judge(body, {**theta, name: value}, term) for value in values)
        case Guarded(body, guard):
            return holds(guard, lookup) is True and judge(body, theta, term)
        case Let(body, name, expression):
            return _is(lookup(name), evaluate(expression, lookup)) and judge(body, theta, term)
        case Constrained(body, constraint, name):
            value = lookup(name)
            if not isinstance(value, Term) or not judge(body, theta, term):
                return False
            return judge(constraint, theta, value)
        case Mu(definition, actuals):
            return _enter((definition, *context), actuals, theta, term, values, pending)
        case Call(index, actuals):
            if index >= len(context):
                return False
            return _enter(context[index:], actuals, theta, term, values, pending)


def _enter(
    context: Context,
    actuals: tuple[str, ...],
    theta: Theta,
    term: Term,
    values: tuple[Value, ...],
    pending: frozenset[object],
) -> bool:
    definition = context[0]
    inside: dict[str, Value] = {}
    for parameter in definition.parameters:
        actual = arg(definition.parameters, actuals, parameter)
        if actual is not None and actual in theta:
            inside[parameter] = theta[actual]
    environment = tuple(sorted((name, exact(value)) for name, value in inside.items()))
    goal = (tuple(map(id, context)), tuple(map(repr, environment)), id(term))
    if goal in pending:
        return False
    return _judge(definition.body, inside, term, context, values, pending | {goal})
