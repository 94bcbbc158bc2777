"""Patterns lowered to steps: one function for each form, one step for each of its transitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, assert_never

from pypm.core.guards import Expression, Guard, Reference, equal, evaluate, holds
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Definition,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.terms import UNDEFINED, Term, Value
from pypm.match.index import Expected, Heads, entering, expecting, heads, without
from pypm.match.program import FAIL, NOWHERE, Cell, Frame, Run, Step, Visit

__all__ = ["Lowering"]

_Scope: TypeAlias = Mapping[str, int]
"""The slots of the names in scope."""


class Lowering:
    """Lowers what one activation runs: the roots of a rule, or the body of a definition."""

    def __init__(self, names: tuple[str, ...], enclosing: tuple[_Body, ...] = ()) -> None:
        self.scope: _Scope = {name: slot for slot, name in reversed([*enumerate(names)])}
        self.size = len(names)
        self._enclosing = enclosing

    def lower(self, pattern: Pattern, scope: _Scope, expected: Expected) -> Step:
        match pattern:
            case Var(name):
                return _var(scope.get(name), expected.get(name))
            case Op(operator, arguments, keep):
                steps = tuple(self.lower(p, scope, _ANYTHING) for p in arguments)
                return _op(operator.name, steps, keep)
            case Fun(name, arguments, keep):
                steps = tuple(self.lower(p, scope, _ANYTHING) for p in arguments)
                return _fun(scope.get(name), steps, keep)
            case Alt():
                return self._alternates(pattern, scope, expected)
            case Exists(name, body):
                slot, self.size = self.size, self.size + 1
                inner = self.lower(body, {**scope, name: slot}, without(expected, name))
                return _exists(slot, inner)
            case Guarded(body, guard):
                return _then(self.lower(body, scope, expected), _guard(guard, scope))
            case Let(body, name, expression):
                bind = _let(scope.get(name), expression, scope)
                return _then(self.lower(body, scope, expected), bind)
            case Constrained(body, constraint, name):
                examine = _constraint(scope.get(name), self.lower(constraint, scope, expected))
                return _then(self.lower(body, scope, expecting(pattern, expected)), examine)
            case Mu(definition, actuals):
                return self._enter(definition, actuals, scope, expected)
            case Call(index, actuals):
                if index >= len(self._enclosing):
                    return _fail
                called = self._enclosing[index]
                return _call(called, _actual_slots(called.parameters, actuals, scope))
            case _:
                assert_never(pattern)

    def _alternates(self, pattern: Alt, scope: _Scope, expected: Expected) -> Step:
        branches: list[_Branch] = []
        for branch in _flatten(pattern):
            arity = len(branch.arguments) if isinstance(branch, Op | Fun) else None
            branches.append((heads(branch, expected), arity, self.lower(branch, scope, expected)))
        return _alt(tuple(branches))

    def _enter(
        self, definition: Definition, actuals: tuple[str, ...], scope: _Scope, expected: Expected
    ) -> Step:
        # Calls re-enter the body with other actuals, so what is expected of these holds for the
        # entry alone: the body that calls run is lowered without it.
        body = _Body(definition.parameters)
        self._fill(body, definition, body, _ANYTHING)
        inner = entering(definition.parameters, actuals, expected)
        entry = _Body(definition.parameters) if inner else body
        if inner:
            self._fill(entry, definition, body, inner)
        return _call(entry, _actual_slots(definition.parameters, actuals, scope))

    def _fill(self, body: _Body, definition: Definition, called: _Body, expected: Expected) -> None:
        lowering = Lowering(definition.parameters, (called, *self._enclosing))
        body.step = lowering.lower(definition.body, lowering.scope, expected)
        body.size = lowering.size


_ANYTHING: Final[Expected] = {}


class _Body:
    """The body of a definition, filled in once it is lowered (its calls refer to it before)."""

    __slots__ = ("parameters", "size", "step")

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self.parameters = parameters
        self.size = 0
        self.step: Step = _fail


def _flatten(pattern: Pattern) -> list[Pattern]:
    branches: list[Pattern] = []
    pending = [pattern]
    while pending:
        match pending.pop():
            case Alt(left, right):
                pending += [right, left]
            case branch:
                branches.append(branch)
    return branches


def _actual_slots(
    parameters: tuple[str, ...], actuals: tuple[str, ...], scope: _Scope
) -> tuple[int | None, ...]:
    """The slot of the actual for each parameter (callenv of the calculus)."""
    firsts = [parameters.index(parameter) for parameter in parameters]
    return tuple(scope.get(actuals[at]) if at < len(actuals) else None for at in firsts)


def _fail(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
    return FAIL


def _var(slot: int | None, accepted: Heads) -> Step:
    if slot is None:
        return _fail

    def var(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        cell = frame[slot]
        term = subject.term
        if cell.value is term:
            if subject not in cell.places:
                run.assign(cell, term, (*cell.places, subject))
            return rest
        if cell.value is not UNDEFINED or cell is NOWHERE:
            return FAIL
        if accepted is not None and term.operator.name not in accepted:
            return FAIL
        run.assign(cell, term, (subject,))
        return rest

    return var


def _op(name: str, arguments: tuple[Step, ...], keep: bool) -> Step:
    last_first = tuple(enumerate(arguments))[::-1]
    arity = len(arguments)

    def op(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        term = subject.term
        if term.operator.name != name or len(term.children) != arity:
            return FAIL
        if not run.admits(subject):
            return FAIL
        run.visits = (Visit(subject, keep), run.visits)
        children = subject.children
        for index, step in last_first:
            rest = (step, children[index], frame, rest)
        return rest

    return op


def _fun(slot: int | None, arguments: tuple[Step, ...], keep: bool) -> Step:
    if slot is None:
        return _fail
    last_first = tuple(enumerate(arguments))[::-1]
    arity = len(arguments)

    def fun(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        term = subject.term
        if len(term.children) != arity or not run.admits(subject):
            return FAIL
        if not _bind(run, frame[slot], term.operator):
            return FAIL
        run.visits = (Visit(subject, keep), run.visits)
        children = subject.children
        for index, step in last_first:
            rest = (step, children[index], frame, rest)
        return rest

    return fun


def _bind(run: Run, cell: Cell, value: Value, places: Any = ()) -> bool:
    """Bind a location, or compare if it is bound already."""
    if cell.value is not UNDEFINED:
        return equal(cell.value, value) is True
    if cell is NOWHERE:
        return False
    run.assign(cell, value, places)
    return True


_Branch: TypeAlias = tuple[Heads, int | None, Step]
"""An alternate: the operators and the arity it can start at (None: any), and its step."""


def _alt(branches: tuple[_Branch, ...]) -> Step:
    def alt(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        term = subject.term
        name, arity = term.operator.name, len(term.children)
        open_steps = [
            step
            for accepted, wanted, step in branches
            if (accepted is None or name in accepted) and (wanted is None or wanted == arity)
        ]
        if not open_steps:
            return FAIL
        for step in open_steps[:0:-1]:
            run.choose((step, subject, frame, rest))
        return (open_steps[0], subject, frame, rest)

    return alt


def _exists(slot: int, body: Step) -> Step:
    def exists(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        cell = frame[slot] = Cell()
        return (body, subject, frame, (_check, cell, frame, rest))

    return exists


def _check(run: Run, cell: Any, frame: Frame, rest: Any) -> Any:
    return FAIL if cell.value is UNDEFINED else rest


def _then(body: Step, after: Step) -> Step:
    def then(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        return (body, subject, frame, (after, None, frame, rest))

    return then


def _guard(guard: Guard, scope: _Scope) -> Step:
    def test(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        def lookup(name: str) -> Value:
            slot = scope.get(name)
            return UNDEFINED if slot is None else frame[slot].value

        return rest if holds(guard, lookup) is True else FAIL

    return test


def _let(slot: int | None, expression: Expression, scope: _Scope) -> Step:
    if slot is None:
        return _fail

    def let(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        def lookup(name: str) -> Value:
            found = scope.get(name)
            return UNDEFINED if found is None else frame[found].value

        value = evaluate(expression, lookup)
        places: Any = ()
        if isinstance(expression, Reference) and expression.name in scope:
            places = frame[scope[expression.name]].places
        elif isinstance(value, Term):
            places = run.places(value)
        if value is UNDEFINED or not _bind(run, frame[slot], value, places):
            return FAIL
        return rest

    return let


def _constraint(slot: int | None, step: Step) -> Step:
    if slot is None:
        return _fail

    def examine(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        cell = frame[slot]
        if not isinstance(cell.value, Term):
            return FAIL
        return (step, cell.places[0], frame, rest)

    return examine


def _call(body: _Body, slots: tuple[int | None, ...]) -> Step:
    def call(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        inner = [NOWHERE if slot is None else frame[slot] for slot in slots]
        inner += [NOWHERE] * (body.size - len(inner))
        return (body.step, subject, inner, rest)

    return call
