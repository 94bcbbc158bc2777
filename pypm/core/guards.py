"""Partial expressions and three-valued guards (strong Kleene; calculus section 2).

An expression that mentions an unbound variable, an undefined attribute, or a function applied
where it is not defined has no value (`UNDEFINED`); a guard about it is unknown (None). A guard
*holds* only if it is True. Everything here is monotone: learning more never turns True to False.
"""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import copysign, isclose, isnan
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from pypm.core import arithmetic
from pypm.core.operators import Operator
from pypm.core.records import Record, as_tuple, fields_of
from pypm.core.terms import UNDEFINED, Term, Unmade, Unresolved, Value, all_made

if TYPE_CHECKING:
    from pypm.diagnostics import Span

__all__ = [
    "FUNCTIONS",
    "PARTIAL",
    "TRUE",
    "And",
    "Apply",
    "Attribute",
    "AttributeTest",
    "ClassTest",
    "Constant",
    "Equal",
    "Expression",
    "Function",
    "Guard",
    "Holds",
    "LengthTest",
    "Less",
    "Lookup",
    "Not",
    "Or",
    "Origin",
    "Reference",
    "True_",
    "Tuple",
    "attribute_of",
    "conjoined",
    "conjunction",
    "equal",
    "evaluate",
    "holds",
    "less",
    "negated",
]


@dataclass(frozen=True, slots=True)
class Function:
    """A pure partial function on values: the pi of the calculus, named for printing.

    `apply` returns UNDEFINED, or raises one of `PARTIAL`, if it has no value.
    """

    name: str
    apply: Callable[..., Value] = field(compare=False, repr=False)
    limit: float | None = field(default=None, compare=False, repr=False)
    """The number for which, in proofs, one is taken that this holds for, or that this returns."""
    nearest: Callable[..., Value] | None = field(default=None, compare=False, repr=False)
    """For any numbers, some for which this holds: the same ones, if it holds for them."""

    def __call__(self, *arguments: Value) -> Value:
        return self.apply(*arguments)


PARTIAL: Final = (ArithmeticError, LookupError, TypeError, ValueError)
"""Exceptions by which a function has no value; any other is a defect of the function."""


@dataclass(frozen=True, slots=True)
class Constant:
    value: Value


@dataclass(frozen=True, slots=True)
class Reference:
    """The value of a variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a variable's value: `x.shape`, `F.name`."""

    name: str
    attribute: str


@dataclass(frozen=True, slots=True)
class Apply:
    function: Function
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Tuple:
    elements: tuple[Expression, ...]


Expression: TypeAlias = Constant | Reference | Attribute | Apply | Tuple


@dataclass(frozen=True, slots=True)
class AttributeTest:
    """`x.a == e`, or `x.a[i] == e` with an `index`: the test of an attribute against an expression.

    `is_argument` if a call in a pattern gives an argument of its operator so: x is then a name that
    the user has not written.
    """

    attribute: Attribute
    expected: Expression
    index: int | None = None
    is_argument: bool = False

    @property
    def tested(self) -> Expression:
        """Return the expression that is compared with `expected`."""
        if self.index is None:
            return self.attribute
        return Apply(FUNCTIONS["item"], (self.attribute, Constant(self.index)))


@dataclass(frozen=True, slots=True)
class LengthTest:
    """`len(x.a) == n`."""

    attribute: Attribute
    length: int


@dataclass(frozen=True, slots=True)
class ClassTest:
    """`tag in x.tags`: the test that an operator, or a term's operator, is of a class."""

    name: str
    tag: str


Origin: TypeAlias = AttributeTest | LengthTest | ClassTest
"""The test that a guard was made for."""


@dataclass(frozen=True, slots=True)
class True_:
    """The guard that always holds."""


@dataclass(frozen=True, slots=True)
class Holds:
    """A Boolean-valued expression as a guard."""

    expression: Expression
    span: Span | None = field(default=None, compare=False, repr=False)
    origin: Origin | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Equal:
    left: Expression
    right: Expression
    span: Span | None = field(default=None, compare=False, repr=False)
    origin: Origin | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Less:
    left: Expression
    right: Expression
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class And:
    left: Guard
    right: Guard


@dataclass(frozen=True, slots=True)
class Or:
    left: Guard
    right: Guard


@dataclass(frozen=True, slots=True)
class Not:
    guard: Guard


Guard: TypeAlias = True_ | Holds | Equal | Less | And | Or | Not
TRUE: Final = True_()


Lookup: TypeAlias = Callable[[str], Value | Unmade]
"""A function from a name to its value, or UNDEFINED."""


def evaluate(expression: Expression, lookup: Lookup) -> Value:
    """Return the value of an expression, given its variables by `lookup`, or UNDEFINED."""
    match expression:
        case Constant(value):
            return value
        case Reference(name):
            return all_made(lookup(name))
        case Attribute(name, attribute):
            return attribute_of(lookup(name), attribute)
        case Apply(function, arguments):
            values = [evaluate(argument, lookup) for argument in arguments]
            if any(value is UNDEFINED for value in values):
                return UNDEFINED
            try:
                return function.apply(*values)
            except PARTIAL:
                return UNDEFINED
        case Tuple(elements):
            values = [evaluate(element, lookup) for element in elements]
            return UNDEFINED if any(value is UNDEFINED for value in values) else tuple(values)
        case _:
            assert_never(expression)


def attribute_of(value: Value | Unmade, attribute: str) -> Value:
    """Return an attribute of a term or operator, or a field of a record; else UNDEFINED."""
    if isinstance(value, (Term, Unmade)):
        return value.attribute(attribute)
    if isinstance(value, Record):
        return all_made(fields_of(value).get(attribute, UNDEFINED))
    if isinstance(value, Operator):
        if attribute == "name":
            return value.name
        if attribute == "tags":
            return tuple(sorted(value.tags))
    return UNDEFINED


def holds(guard: Guard, lookup: Lookup) -> bool | None:
    """Return the Kleene truth of a guard: True, False, or None for unknown."""
    match guard:
        case True_():
            return True
        case Holds(expression):
            value = evaluate(expression, lookup)
            return value if isinstance(value, bool) else None
        case Equal(left, right):
            return equal(evaluate(left, lookup), evaluate(right, lookup))
        case Less(left, right):
            return less(evaluate(left, lookup), evaluate(right, lookup))
        case And(left, right):
            first = holds(left, lookup)
            return False if first is False else conjoined(first, holds(right, lookup))
        case Or(left, right):
            return negated(holds(And(Not(left), Not(right)), lookup))
        case Not(inner):
            return negated(holds(inner, lookup))
        case _:
            assert_never(guard)


def conjoined(left: bool | None, right: bool | None) -> bool | None:
    """Return Kleene's conjunction."""
    if left is False or right is False:
        return False
    return True if left and right else None


def negated(value: bool | None) -> bool | None:
    """Return Kleene's negation."""
    return None if value is None else not value


def equal(left: Value, right: Value) -> bool | None:
    """Return whether two values are equal; None if unknown."""
    if type(left) is type(right) and type(left) in (int, bool, str):
        return bool(left == right)
    if left is UNDEFINED or right is UNDEFINED:
        return None
    if isinstance(left, tuple) and isinstance(right, tuple):
        if len(left) != len(right):
            return False
        verdict: bool | None = True
        for one, other in zip(left, right, strict=True):
            verdict = conjoined(verdict, equal(one, other))
        return verdict
    if isinstance(left, Record) and isinstance(right, Record):
        return equal(as_tuple(left), as_tuple(right))
    if isinstance(left, Unresolved):
        return left.equals(right)
    if isinstance(right, Unresolved):
        return right.equals(left)
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    return bool(left == right)


def less(left: Value, right: Value) -> bool | None:
    """Return whether one value is below another; None if they are not ordered, or it is unknown."""
    if left is UNDEFINED or right is UNDEFINED:
        return None
    if isinstance(left, Unresolved):
        return left.less(right)
    if isinstance(right, Unresolved):
        return right.greater(left)
    if not (_has_order(left) and _has_order(right)):
        return None
    try:
        return bool(left < right)  # type: ignore[operator]
    except TypeError:
        return None


def _has_order(value: Value) -> bool:
    """Return whether a value has an order: not terms, operators, records, nor tuples of them.

    A tuple with NaN has none: Python would compare NaN with itself by the identity of the object.
    """
    if isinstance(value, tuple):
        has_nan = any(isinstance(part, float) and isnan(part) for part in value)
        return not has_nan and all(map(_has_order, value))
    return not isinstance(value, (Term, Operator, Record))


def _member(value: Value, collection: Value) -> Value:
    if not isinstance(collection, (tuple, frozenset)):
        return UNDEFINED
    verdicts = [equal(value, element) for element in collection]
    if True in verdicts:
        return True
    return UNDEFINED if None in verdicts else False


def _close(value: Value, expected: float) -> Value:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return UNDEFINED if isinstance(value, Unresolved) else False
    return isclose(value, expected, rel_tol=1e-6) and copysign(1, value) == copysign(1, expected)


def _is_none(value: Value) -> Value:
    return value is None or (isinstance(value, Term) and value.attribute("value") is None)


def _is_value(value: Value, expected: Value) -> Value:
    """Return whether a value is a constant, or the literal term of it."""
    found = value.attribute("value") if isinstance(value, Term) else value
    if found is UNDEFINED:
        return False
    verdict = _close(found, expected) if isinstance(expected, float) else equal(found, expected)
    return UNDEFINED if verdict is None else verdict


def _same_dims(value: Value, expected: Value, rank: Value) -> Value:
    """Return whether two dimensions, or tuples of them, are the same in a tensor of that rank.

    One dimension is a tuple of one (`int[1] dim`). The rank is None if unknown; then only
    dimensions of the same sign can be compared.
    """
    if isinstance(value, tuple) or isinstance(expected, tuple):
        values = value if isinstance(value, tuple) else (value,)
        wanted = expected if isinstance(expected, tuple) else (expected,)
        if len(values) != len(wanted):
            return False
        verdicts = [_same_dims(v, w, rank) for v, w in zip(values, wanted, strict=True)]
        if False in verdicts:
            return False
        return UNDEFINED if UNDEFINED in verdicts else True
    if not isinstance(value, int) or not isinstance(expected, int):
        return value == expected
    if isinstance(rank, int):
        rank = max(rank, 1)
        in_range = all(-rank <= dim < rank for dim in (value, expected))
        return in_range and value % rank == expected % rank
    return value == expected if (value < 0) == (expected < 0) else UNDEFINED


_BUILTINS: Final[Mapping[str, Callable[..., Value]]] = {
    "add": arithmetic.add,
    "sub": python.sub,
    "mul": arithmetic.mul,
    "div": python.truediv,
    "floordiv": python.floordiv,
    "mod": arithmetic.mod,
    "pow": arithmetic.power,
    "neg": python.neg,
    "item": python.getitem,
    "slice": lambda value, start, stop: value[start:stop],
    "len": len,
    "in": _member,
    "close": _close,
    "is_value": _is_value,
    "same_dims": _same_dims,
    "is_none": _is_none,
    "product": arithmetic.product,
    "min": min,
    "max": max,
    "abs": abs,
}

FUNCTIONS: Final[Mapping[str, Function]] = {
    name: Function(name, apply) for name, apply in _BUILTINS.items()
}
"""The functions of expressions; users add predicates."""


def conjunction(guards: list[Guard]) -> Guard:
    """Return the conjunction of the guards, in order."""
    result: Guard = TRUE
    for guard in guards:
        result = guard if isinstance(result, True_) else And(result, guard)
    return result
