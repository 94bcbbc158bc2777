"""The steps of compiled patterns, one for each transition of the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from pypm.core.records import fields_of
from pypm.core.terms import UNDEFINED, Term, Unmade, Value, all_made, exact, same
from pypm.match.index import Item, State
from pypm.match.search_state import (
    COMPOUND,
    FAIL,
    NOWHERE,
    UNREAD,
    Cell,
    Failed,
    Frame,
    Rest,
    SearchState,
    Step,
    Subject,
)

__all__ = [
    "Body",
    "alt",
    "block",
    "call",
    "check",
    "constraint",
    "enter",
    "fail",
    "fun",
    "guard",
    "let",
    "op",
    "var",
]


def fail(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
    """Fail: the step of a pattern that never matches."""
    return FAIL


def var(slot: int, item: Item) -> Step:
    """Return a step that binds a variable to a subject that has the item, or compares the two."""

    def var(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        cell = frame[slot]
        if cell.value is UNDEFINED:
            if cell is NOWHERE or item not in subject.state.items:
                return FAIL
            run.assign(cell, UNREAD, (subject,))
        elif subject not in cell.places or isinstance(cell.value, COMPOUND):
            if cell.read() is not subject.term:
                return FAIL
            run.assign(cell, cell.value, (*cell.places, subject))
        return rest

    return var


def op(item: Item, arguments: tuple[Step, ...], keep: bool) -> Step:
    """Return a step that visits a subject that has the item, then matches its children."""
    last_first = tuple(enumerate(arguments))[::-1]

    def op(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        if item not in subject.state.items or not run.admits(subject):
            return FAIL
        run.visits = (subject, keep, run.visits)
        if last_first:
            children = subject.children
            for index, step in last_first:
                rest = (step, children[index], frame, rest)
        return rest

    return op


def fun(slot: int, item: Item, arguments: tuple[Step, ...], keep: bool) -> Step:
    """Return a step that binds an operator variable, then continues as `op`."""
    visit = op(item, arguments, keep)

    def fun(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        if item in subject.state.items and _bind(run, frame[slot], subject.operator):
            return visit(run, subject, frame, rest)
        return FAIL

    return fun


def _bind(
    run: SearchState, cell: Cell, value: Value | Unmade, places: tuple[Subject, ...] = ()
) -> bool:
    """Bind a location, or compare if it is bound already."""
    if cell.value is not UNDEFINED:
        return same(cell.read(), all_made(value))
    if cell is NOWHERE:
        return False
    run.assign(cell, UNREAD if isinstance(value, Unmade) else value, places)
    return True


def alt(branches: tuple[tuple[Step, Item], ...]) -> Step:
    """Return a step that tries the branches whose item the subject has, in order."""
    by_state: dict[State, tuple[Step, ...]] = {}

    def alt(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
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


def block(slots: tuple[int, ...], body: Step, after: tuple[Step, ...]) -> Step:
    """Return a step that creates locations, matches the body, and then runs the other steps."""
    last_first = after[::-1]

    def block(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        for slot in slots:
            frame[slot] = Cell()
        for step in last_first:
            rest = (step, subject, frame, rest)
        return (body, subject, frame, rest)

    return block


def check(slot: int) -> Step:
    """Return a step that succeeds if the location is bound."""

    def check(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        return FAIL if frame[slot].value is UNDEFINED else rest

    return check


def guard(holds: Callable[[Frame], bool]) -> Step:
    """Return a step that succeeds if a guard holds."""

    def guard(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        return rest if holds(frame) else FAIL

    return guard


def let(slot: int, value: Callable[[Frame], Value | Unmade], sources: tuple[int, ...]) -> Step:
    """Return a step that binds a location to a value, or compares the two.

    `sources` are the slots of the locations of which the value is computed.
    """

    def let(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        found = value(frame)
        if found is UNDEFINED:
            return FAIL
        places = _places(found, [frame[source] for source in sources]) if sources else ()
        return rest if _bind(run, frame[slot], found, places) else FAIL

    return let


def _places(value: Value | Unmade, sources: list[Cell]) -> tuple[Subject, ...]:
    """Return the occurrences of the terms in a value that is computed from those of the sources."""
    todo = [value]
    places: dict[Subject, None] = {}
    terms: set[Term] = set()
    for part in todo:
        if isinstance(part, Unmade):
            places[cast("Subject", part)] = None
        elif isinstance(part, Term):
            terms.add(part)
        elif isinstance(part, COMPOUND):
            todo += part if isinstance(part, tuple) else fields_of(part).values()
    # Terms were read, so a source that was not read has none of them.
    for cell in sources if terms else ():
        if cell.value is not UNREAD:
            places.update({place: None for place in cell.places if place.term in terms})
    return tuple(places)


def constraint(slot: int, step: Step) -> Step:
    """Return a step that runs `step` at the subject to which a variable is bound."""

    def constraint(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        cell = frame[slot]
        if not cell.places or isinstance(cell.value, COMPOUND):
            return FAIL
        return (step, cell.places[0], frame, rest)

    return constraint


# --- recursion ------------------------------------------------------------------------------------
#
# Searches that would only repeat an earlier one are left out. What a call can do depends on the
# body, the subject, and its parameters' values and first occurrences alone, so
#   - a call that failed fails again;
#   - a call that succeeded with nothing left to bind succeeds again in the same match, which goes
#     on without walking the same operators once more;
#   - where a call had nothing to bind and what follows it fails, other ways to succeed cannot help.
# The answers stay, and their order; what is lost is an answer's second and further derivations.


class Body:
    """The compiled body of a definition, and the size of its frames; calls may be compiled before
    it.
    """

    __slots__ = ("size", "step")

    def __init__(self) -> None:
        self.size = 0
        self.step: Step = fail


class _Activation:
    """An active call: its memo key, and the number of choices that were open before."""

    __slots__ = ("base", "has_succeeded", "is_closed", "key")

    def __init__(self, run: SearchState, key: object, cells: list[Cell]) -> None:
        self.key = key
        self.base = len(run.choices)
        self.is_closed = all(cell.value is not UNDEFINED or cell is NOWHERE for cell in cells)
        self.has_succeeded = False

    def no_more(
        self, run: SearchState, subject: Subject, frame: Frame, rest: Rest
    ) -> Rest | Failed:
        """Run when every way to match the body was tried: record a failed call."""
        if not self.has_succeeded:
            run.failed.add(self.key)
        return FAIL

    def succeed(
        self, run: SearchState, subject: Subject, frame: Frame, rest: Rest
    ) -> Rest | Failed:
        """Run when the body has matched: go on after the call."""
        self.has_succeeded = True
        if self.is_closed:
            run.note(self.key)
            if len(run.choices) > self.base + 1:
                run.choose((_cut(self.base, run.answers), subject, frame, None))
        return rest


def _cut(base: int, answers: int) -> Step:
    """Return a step to run when the continuation of a call is exhausted: it drops the call's other
    choices if no answer came since there were `answers` of them.
    """

    def cut(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        if run.answers == answers:
            del run.choices[base + 1 :]
        return FAIL

    return cut


def enter(body: Body, slots: tuple[int | None, ...]) -> Step:
    """Call a non-recursive body that is already compiled; no memo entry is needed."""
    step, others = body.step, [NOWHERE] * (body.size - len(slots))

    def enter(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        cells = [NOWHERE if slot is None else frame[slot] for slot in slots]
        return (step, subject, cells + others, rest)

    return enter


def call(body: Body, slots: tuple[int | None, ...]) -> Step:
    """Return a step that calls a body with the locations in these slots; None for those out of
    scope.
    """

    def call(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
        cells = [NOWHERE if slot is None else frame[slot] for slot in slots]
        key = (body, subject, *[_identity(cell, cells) for cell in cells])
        if key in run.failed:
            return FAIL
        if key in run.done:
            return rest
        activation = _Activation(run, key, cells)
        run.choose((activation.no_more, subject, frame, None))
        inner = [*cells, *[NOWHERE] * (body.size - len(cells))]
        return (body.step, subject, inner, (activation.succeed, subject, frame, rest))

    return call


def _identity(cell: Cell, cells: list[Cell]) -> object:
    """Return a key that is equal for locations that a call cannot distinguish.

    Unbound locations are identified by their index among the call's own, and terms by their first
    occurrence, where a constraint on them is matched.
    """
    if cell is NOWHERE:
        return None
    if cell.value is UNDEFINED:
        return cells.index(cell)
    if not cell.places:
        return exact(cell.value)
    return (exact(cell.value), cell.places) if isinstance(cell.value, COMPOUND) else cell.places[0]
