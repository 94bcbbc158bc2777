"""Patterns lowered to steps, and to the items by which the index says where a step can succeed.

One function for each form, one step for each of its transitions.
"""

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
from pypm.core.terms import UNDEFINED, Term, Unmade, Value, exact
from pypm.match.extent import fact_asked
from pypm.match.index import ANYTHING, Index, Item, State
from pypm.match.run import FAIL, NOWHERE, UNREAD, Cell, Frame, Run, Step

__all__ = ["Compiler", "Expected", "Family", "Lowered", "Lowering", "Scope"]

Scope: TypeAlias = Mapping[str, int]
"""The slots of the names in scope."""
Expected: TypeAlias = Mapping[str, Item]
"""For names that a constraint further on will examine: the item that it asks for."""
Lowered: TypeAlias = tuple[Step, Item]

VERSIONS: Final = 16
"""Bodies made of one definition, each for other expectations of its parameters."""


class Compiler:
    """What the patterns of one program share: the index, and the bodies of definitions."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._families: dict[tuple[int, tuple[Family, ...]], Family] = {}

    def family(self, definition: Definition, enclosing: tuple[Family, ...]) -> Family:
        key = (id(definition), enclosing)
        if key not in self._families:
            self._families[key] = Family(self, definition, enclosing)
        return self._families[key]

    def lowering(self, names: tuple[str, ...], enclosing: tuple[Family, ...] = ()) -> Lowering:
        """What lowers one activation with these names."""
        return Lowering(self, names, enclosing)


class Family:
    """A definition where it stands, with its body for each kind of arguments it is called with."""

    def __init__(
        self, compiler: Compiler, definition: Definition, enclosing: tuple[Family, ...]
    ) -> None:
        self._compiler = compiler
        self._definition = definition
        self._enclosing = enclosing
        self._bodies: dict[tuple[tuple[str, Item], ...], _Body] = {}

    def body(self, actuals: tuple[str, ...], expected: Expected) -> _Body:
        """The body, for calls with these names where so much is expected of them."""
        first: dict[str, str] = {}
        for parameter, actual in zip(self._definition.parameters, actuals, strict=False):
            first.setdefault(parameter, actual)
        asked = [(name, expected[actual]) for name, actual in first.items() if actual in expected]
        key = tuple(sorted(asked)) if len(self._bodies) < VERSIONS else ()
        if key not in self._bodies:
            body = self._bodies[key] = _Body(self._definition, self._compiler.index)
            enclosing = (self, *self._enclosing)
            lowering = self._compiler.lowering(self._definition.parameters, enclosing)
            body.step, item = lowering.lower(self._definition.body, lowering.scope, dict(key))
            body.size = lowering.size
            self._compiler.index.define(body.item, item)
        return self._bodies[key]


class _Body:
    """The body of a definition; calls of it may be lowered before it is."""

    __slots__ = ("item", "parameters", "size", "step")

    def __init__(self, definition: Definition, index: Index) -> None:
        self.parameters = definition.parameters
        self.item = index.recursion(definition.name)
        self.size = 0
        self.step: Step = _fail


class Lowering:
    """Lowers what one activation runs: the roots of a rule, or the body of a definition."""

    def __init__(
        self, compiler: Compiler, names: tuple[str, ...], enclosing: tuple[Family, ...] = ()
    ) -> None:
        self.scope: Scope = {name: slot for slot, name in reversed([*enumerate(names)])}
        self.size = len(names)
        self._compiler = compiler
        self._index = compiler.index
        self._enclosing = enclosing

    def lower(self, pattern: Pattern, scope: Scope, expected: Expected) -> Lowered:
        """The pattern's step, and the item of every subject at which it can succeed."""
        match pattern:
            case Var(name):
                step, item = _var(scope, name, expected)
                return self.watched(step, pattern, scope), item
            case Op(operator, arguments, keep):
                steps, children = self._children(arguments, scope, expected)
                item = self._index.applied(operator.name, children)
                return self.watched(_op(item, steps, keep), pattern, scope), item
            case Fun(name, arguments, keep):
                steps, children = self._children(arguments, scope, expected)
                item = self._index.applied(None, children)
                step = _fun(scope.get(name), item, steps, keep)
                return self.watched(step, pattern, scope), item
            case Alt():
                branches = tuple(self.lower(p, scope, expected) for p in _flatten(pattern))
                return _alt(branches), self._index.either(item for _, item in branches)
            case Exists(name, body):
                slot, self.size = self.size, self.size + 1
                inside = {n: item for n, item in expected.items() if n != name}
                step, item = self.lower(body, {**scope, name: slot}, inside)
                return _exists(slot, step, self.watched(_check, pattern, scope)), item
            case Guarded(body, guard):
                step, item = self.lower(body, scope, expected)
                fact = fact_asked(guard, body.name) if isinstance(body, Var) else None
                if fact is not None:
                    item = self._index.both(item, self._index.fact(fact))
                return _then(step, self.watched(_guard(guard, scope), pattern, scope)), item
            case Let(body, name, expression):
                step, item = self.lower(body, scope, expected)
                let = _let(scope.get(name), expression, scope)
                return _then(step, self.watched(let, pattern, scope)), item
            case Constrained(body, constraint, name):
                examine, asked = self.lower(constraint, scope, expected)
                asked = self._index.both(asked, expected.get(name, ANYTHING))
                step, item = self.lower(body, scope, {**expected, name: asked})
                constraint_step = _constraint(scope.get(name), examine)
                return _then(step, self.watched(constraint_step, pattern, scope)), item
            case Mu(definition, actuals):
                return self._call(
                    self._compiler.family(definition, self._enclosing), actuals, scope, expected
                )
            case Call(index, actuals):
                if index >= len(self._enclosing):
                    return self.watched(_fail, pattern, scope), self._index.either(())
                return self._call(self._enclosing[index], actuals, scope, expected)
            case _:
                assert_never(pattern)

    def watched(self, step: Step, pattern: Pattern, scope: Scope) -> Step:
        """The step of a pattern's own test, which alone can fail; `explain` looks on here."""
        return step

    def _children(
        self, patterns: tuple[Pattern, ...], scope: Scope, expected: Expected
    ) -> tuple[tuple[Step, ...], list[Item]]:
        lowered = [self.lower(pattern, scope, expected) for pattern in patterns]
        return tuple(step for step, _ in lowered), [item for _, item in lowered]

    def _call(
        self, called: Family, actuals: tuple[str, ...], scope: Scope, expected: Expected
    ) -> Lowered:
        body = called.body(actuals, expected)
        return _call(body, _actual_slots(body.parameters, actuals, scope)), body.item


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
    parameters: tuple[str, ...], actuals: tuple[str, ...], scope: Scope
) -> tuple[int | None, ...]:
    """The slot of the actual for each parameter (callenv of the calculus)."""
    firsts = [parameters.index(parameter) for parameter in parameters]
    return tuple(scope.get(actuals[at]) if at < len(actuals) else None for at in firsts)


def _fail(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
    return FAIL


def _var(scope: Scope, name: str, expected: Expected) -> Lowered:
    slot, item = scope.get(name), expected.get(name, ANYTHING)

    def var(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        cell = frame[slot]  # type: ignore[index]
        if cell.value is UNDEFINED:
            if cell is NOWHERE or item not in subject.state.items:
                return FAIL
            run.assign(cell, UNREAD, (subject,))
        elif subject not in cell.places:
            if cell.read() is not subject.term:
                return FAIL
            run.assign(cell, cell.value, (*cell.places, subject))
        return rest

    return (_fail if slot is None else var), item


def _op(item: Item, arguments: tuple[Step, ...], keep: bool) -> Step:
    last_first = tuple(enumerate(arguments))[::-1]

    def op(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        if item not in subject.state.items or not run.admits(subject):
            return FAIL
        run.visits = (subject, keep, run.visits)
        if last_first:
            children = subject.children
            for index, step in last_first:
                rest = (step, children[index], frame, rest)
        return rest

    return op


def _fun(slot: int | None, item: Item, arguments: tuple[Step, ...], keep: bool) -> Step:
    if slot is None:
        return _fail
    enter = _op(item, arguments, keep)

    def fun(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        if item in subject.state.items and _bind(run, frame[slot], subject.operator):
            return enter(run, subject, frame, rest)
        return FAIL

    return fun


def _bind(run: Run, cell: Cell, value: Value, places: Any = ()) -> bool:
    """Bind a location, or compare if it is bound already."""
    if cell.value is not UNDEFINED:
        return equal(cell.read(), value) is True
    if cell is NOWHERE:
        return False
    run.assign(cell, value, places)
    return True


def _alt(branches: tuple[Lowered, ...]) -> Step:
    by_state: dict[State, tuple[Step, ...]] = {}

    def alt(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        state = subject.state
        steps = by_state.get(state)
        if steps is None:
            possible = [step for step, item in branches if item in state.items]
            steps = by_state[state] = tuple(possible)
        if not steps:
            return FAIL
        for step in steps[:0:-1]:
            run.choose((step, subject, frame, rest))
        return (steps[0], subject, frame, rest)

    return alt


def _exists(slot: int, body: Step, check: Step) -> Step:
    def exists(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        cell = frame[slot] = Cell()
        return (body, subject, frame, (check, cell, frame, rest))

    return exists


def _check(run: Run, cell: Any, frame: Frame, rest: Any) -> Any:
    return FAIL if cell.value is UNDEFINED else rest


def _then(body: Step, after: Step) -> Step:
    def then(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        return (body, subject, frame, (after, None, frame, rest))

    return then


def _guard(guard: Guard, scope: Scope) -> Step:
    def test(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        def lookup(name: str) -> Value | Unmade:
            slot = scope.get(name)
            return UNDEFINED if slot is None else frame[slot].look()

        return rest if holds(guard, lookup) is True else FAIL

    return test


def _let(slot: int | None, expression: Expression, scope: Scope) -> Step:
    if slot is None:
        return _fail

    def let(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        def lookup(name: str) -> Value | Unmade:
            found = scope.get(name)
            return UNDEFINED if found is None else frame[found].look()

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
        return (step, cell.places[0], frame, rest) if cell.places else FAIL

    return examine


# --- recursion ------------------------------------------------------------------------------------
#
# Searches that would only repeat an earlier one are left out. What a call can do depends on the
# body, the subject and the values of its parameters alone, so
#   - a call that failed fails again;
#   - a call that succeeded with nothing left to bind succeeds again in the same match, which goes
#     on without walking the same operators once more;
#   - where a call had nothing to bind and what follows it fails, other ways to succeed cannot help.
# The answers stay, and their order; what is lost is an answer's second and further derivations.


class _Activation:
    """One call under way: what it was given, and the choices that were open before."""

    __slots__ = ("base", "has_succeeded", "is_closed", "key")

    def __init__(self, run: Run, key: Any, cells: list[Cell]) -> None:
        self.key = key
        self.base = len(run.choices)
        self.is_closed = all(cell.value is not UNDEFINED or cell is NOWHERE for cell in cells)
        self.has_succeeded = False


def _call(body: _Body, slots: tuple[int | None, ...]) -> Step:
    def call(run: Run, subject: Any, frame: Frame, rest: Any) -> Any:
        cells = [NOWHERE if slot is None else frame[slot] for slot in slots]
        key = (body, subject, *[_identity(cell, cells) for cell in cells])
        if key in run.failed:
            return FAIL
        if key in run.done:
            return rest
        activation = _Activation(run, key, cells)
        run.choose((_no_more, None, frame, activation))
        inner = [*cells, *[NOWHERE] * (body.size - len(cells))]
        return (body.step, subject, inner, (_succeed, None, frame, (activation, rest)))

    return call


def _identity(cell: Cell, cells: list[Cell]) -> object:
    """Equal for locations that a call cannot tell apart; unbound ones are told by their place."""
    if cell is NOWHERE:
        return None
    if cell.value is UNDEFINED:
        return cells.index(cell)
    return cell.places[0] if cell.value is UNREAD else exact(cell.value)


def _no_more(run: Run, subject: Any, frame: Frame, activation: Any) -> Any:
    """Every way to match the body has been tried."""
    if not activation.has_succeeded:
        run.failed.add(activation.key)
    return FAIL


def _succeed(run: Run, subject: Any, frame: Frame, after: Any) -> Any:
    activation, rest = after
    activation.has_succeeded = True
    if activation.is_closed:
        run.note(activation.key)
        if len(run.choices) > activation.base + 1:
            run.choose((_cut, run.answers, frame, activation))
    return rest


def _cut(run: Run, answers: Any, frame: Frame, activation: Any) -> Any:
    """What follows a call is exhausted; if it gave no answer, it will not after another way."""
    if run.answers == answers:
        del run.choices[activation.base + 1 :]
    return FAIL
