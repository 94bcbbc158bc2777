"""Limits on the cost of expressions in text, checked before they run.

Each expression has a weight, which bounds the words of memory that its value takes. Attributes
weigh nothing beyond the expression itself; names of `let` weigh what their expressions do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias, assert_never

from pypm.core.arithmetic import BITS, EXPONENT
from pypm.core.guards import (
    FUNCTIONS,
    Apply,
    Attribute,
    Constant,
    Expression,
    Guard,
    Reference,
    Tuple,
    evaluate,
)
from pypm.core.patterns import Call, Guarded, Let, Mu, Pattern
from pypm.core.record_expressions import MakeRecord
from pypm.core.rules import Rule
from pypm.core.terms import UNDEFINED
from pypm.core.traverse import atoms, expression_names, expressions, parts, subexpressions
from pypm.diagnostics import BudgetError, Diagnostic, Span

__all__ = ["costly", "growing"]

WEIGHT: Final = BITS
"""The largest weight of an expression."""

_HELP: Final = "compare sizes rather than powers of them"
_Placed: TypeAlias = tuple[Expression, Span | None]


def costly(rule: Rule) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each expression that may take too much time or memory for a guard."""
    weights = _Weights(part for part in _all_parts(rule) if isinstance(part, Let))
    for expression, span in _expressions(rule):
        problem = _problem(expression)
        if problem is None and weights.of(expression) > WEIGHT:
            problem = "its value may be too large", _HELP
        if problem is not None:
            label, help = problem
            message = f"a guard of rule `{rule.name}` may cost too much"
            yield Diagnostic(message, span or rule.span, label, help)


def growing(rule: Rule) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each `let` in a recursive pattern whose value may double at every
    step.
    """
    everywhere = [*_all_parts(rule)]
    bound = {part.name for part in everywhere if isinstance(part, Let)}
    definitions = [part.definition for part in everywhere if isinstance(part, Mu)]
    bound.update(name for definition in definitions for name in definition.parameters)
    bound.update(name for p in everywhere if isinstance(p, Mu | Call) for name in p.actuals)
    fields = {
        name
        for expression, _ in _expressions(rule)
        for part in subexpressions(expression)
        if isinstance(part, Apply) and isinstance(part.function, MakeRecord)
        for name in part.function.fields
    }
    for part in (part for definition in definitions for part in parts(definition.body)):
        if isinstance(part, Let) and _grows(part.expression, bound, fields):
            message = f"the value of `{part.name}` may double with every step of a recursion"
            help = "use each name once, or compute the value outside of the recursion"
            yield Diagnostic(message, part.span, "this may become too large", help)


def _grows(expression: Expression, bound: set[str], fields: set[str]) -> bool:
    is_power = any(
        part.function.name == "pow" and expression_names(part) & bound
        for part in subexpressions(expression)
        if isinstance(part, Apply)
    )
    read = [
        part
        for part in subexpressions(expression)
        if isinstance(part, Reference) or (isinstance(part, Attribute) and part.attribute in fields)
    ]
    return is_power or sum(part.name in bound for part in read) > 1


class _Weights:
    """Weights of expressions, given the lets that may bind their names."""

    def __init__(self, lets: Iterable[Let]) -> None:
        self._lets: dict[str, list[Expression]] = {}
        for let in lets:
            self._lets.setdefault(let.name, []).append(let.expression)
        self._known: dict[str, int] = {}
        for name in self._lets:
            self._weigh(name)

    def of(self, expression: Expression) -> int:
        match expression:
            case Constant(value):
                return 1 + len(repr(value)) // 16
            case Reference(name) | Attribute(name):  # an attribute may be a record's field
                return self._known.get(name, 1)
            case Apply(function, (base, Constant(int(exponent)))) if function.name == "pow":
                return self.of(base) * max(1, abs(exponent))
            case Apply(_, arguments):
                return max(1, sum(map(self.of, arguments)))
            case Tuple(elements):
                return 1 + sum(map(self.of, elements))
            case _:
                assert_never(expression)

    def _weigh(self, name: str) -> None:
        todo = [(name, False)]
        while todo:  # no recursion: one let may lead to thousands
            last, is_known_inside = todo.pop()
            lets = self._lets.get(last, ())
            if is_known_inside:
                self._known[last] = min(max(map(self.of, lets), default=1), WEIGHT + 1)
            elif last not in self._known:
                self._known[last] = 1  # of a cycle, which is cut here: `growing` looks at those
                todo.append((last, True))
                todo += ((read, False) for let in lets for read in expression_names(let))


def _problem(expression: Expression) -> tuple[str, str] | None:
    """Return why an expression alone may cost too much, and what to do; else None."""
    for part in subexpressions(expression):
        if not isinstance(part, Apply):
            continue
        if _is_closed(part):
            try:
                evaluate(part, lambda name: UNDEFINED)
            except BudgetError as error:
                return error.diagnostic.message.replace("a guard", "this"), _HELP
        name = part.function.name
        if name in ("mul", "mod", "pow") and any(map(_is_sequence, part.arguments)):
            return "strings and tuples are no numbers", "count items with `len`"
        if name == "pow" and not _is_small_power(part):
            return f"the exponent is not a number up to {EXPONENT}", _HELP
    return None


def _is_closed(expression: Expression) -> bool:
    """Return whether an expression is constant: it has no names, and no functions of the user's."""
    return all(
        isinstance(part, Constant | Tuple)
        or (isinstance(part, Apply) and FUNCTIONS.get(part.function.name) is part.function)
        for part in subexpressions(expression)
    )


def _is_sequence(expression: Expression) -> bool:
    match expression:
        case Tuple():
            return True
        case Constant(value):
            return isinstance(value, str | tuple)
        case _:
            return False


def _is_small_power(power: Apply) -> bool:
    match power.arguments[-1]:
        case Constant(int() | float() as exponent):
            return abs(exponent) <= EXPONENT or _is_closed(power)
        case _:
            return _is_closed(power)


# --- where expressions stand --------------------------------------------------------------------


def _all_parts(rule: Rule) -> Iterator[Pattern]:
    for root in rule.roots:
        yield from parts(root)


def _expressions(rule: Rule) -> Iterator[_Placed]:
    for part in _all_parts(rule):
        if isinstance(part, Let):
            yield part.expression, part.span
        elif isinstance(part, Guarded):
            yield from _asked(part.guard)
    yield from _asked(rule.guard)


def _asked(guard: Guard) -> Iterator[_Placed]:
    for atom in atoms(guard):
        for expression in expressions(atom):
            yield expression, atom.span
