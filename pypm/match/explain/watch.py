"""Instrumented matching, which records how far the furthest attempt came, and why it ended.

A watched program is lowered by the same functions as any other, with three differences: every step
that can fail reports its failure; the index excludes nothing, so that a mismatch is found at its
own node; and guards are tested late (`pypm.match.explain.late_guards`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from pypm.core.guards import Attribute, evaluate
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
    shown,
)
from pypm.core.terms import UNDEFINED, Unmade, Value
from pypm.core.traverse import guard_span, read_names
from pypm.diagnostics import InternalError, Span
from pypm.match.compile.lower import Compiler, Expected, Family, Lowered, Lowering
from pypm.match.explain.causes import (
    BoundOtherwise,
    Cause,
    GuardUnknown,
    OtherArity,
    OtherClass,
    OtherOperator,
    Unbound,
    guard_cause,
    value_text,
)
from pypm.match.explain.late_guards import Lateness
from pypm.match.index import ANYTHING, Index
from pypm.match.matcher import Matcher
from pypm.match.search_state import (
    COMPOUND,
    FAIL,
    Cell,
    Failed,
    Frame,
    Rest,
    Scope,
    SearchState,
    Step,
    Subject,
)

__all__ = ["Failure", "Progress", "Watch"]

Show: TypeAlias = Callable[[Subject], str]
"""A function that names a subject."""
Computes: TypeAlias = Callable[[Subject], bool]
"""A predicate that is true unless a subject is only a view of another.

Patterns look through views of anything, so a visited view is no progress.
"""
Progress: TypeAlias = tuple[int, int, int, int]
"""The progress of an attempt: locations bound by earlier roots, computing operators visited,
operators visited, and 1 if the present operator is not the cause.
"""


@dataclass(frozen=True)
class Failure:
    """The end of one attempt, and its cause."""

    cause: Cause
    span: Span | None
    subjects: tuple[Subject, ...]
    """The subject of the failure, its user, and so on; the last one visited is the last item."""
    progress: Progress
    pattern: Pattern = field(repr=False)

    @property
    def is_guard(self) -> bool:
        """Return whether the cause is a guard, so that the attempt can continue without it."""
        return isinstance(self.pattern, Guarded)


class Watch(Compiler):
    """A compiler whose patterns report every failure; it keeps the first of the furthest ones.

    `show` names a subject.
    """

    def __init__(self, index: Index, show: Show, computes: Computes = lambda _: True) -> None:
        super().__init__(index)
        self.furthest: Failure | None = None
        self._operator: Failure | None = None
        """The first failure due to an operator, among those as far as the furthest."""
        self._computes = computes
        self._computing: dict[Subject, bool] = {}
        self.spans: dict[Subject, Span | None] = {}
        """Visited subjects, with the span of the last pattern that visited them."""
        self._show = show
        self._guards: dict[int, Failure] = {}
        """Guards that failed as far as the furthest failure, by identity."""
        self._lifted: set[int] = set()
        self._span: Span | None = None

    def matcher(self, roots: Sequence[Pattern], *, late: bool = True) -> Matcher:
        """Return the watched matcher of the roots of a rule."""
        return Matcher(tuple(map(Lateness(late=late).of, roots)), self)

    @property
    def ends(self) -> list[Failure]:
        """Return the furthest failure, then an operator and guards of other attempts as far."""
        found: dict[int, Failure] = {}
        for end in (self.furthest, self._operator, *self._guards.values()):
            if end is not None:
                found.setdefault(id(end.pattern), end)
        return [*found.values()]

    def forget(self) -> None:
        self.furthest, self._operator = None, None
        self.spans, self._guards, self._lifted = {}, {}, set()

    def lift(self, failure: Failure) -> None:
        """Forget all failures, and ignore the guard that failed from now on."""
        lifted = {*self._lifted, id(failure.pattern)}
        self.forget()
        self._lifted = lifted

    def lowering(self, names: tuple[str, ...], enclosing: tuple[Family, ...] = ()) -> Lowering:
        return _WatchedLowering(self, names, enclosing)

    @contextmanager
    def within(self, span: Span | None) -> Iterator[None]:
        """Lower patterns inside the block with this span; None if it is unknown."""
        before, self._span = self._span, span or self._span
        try:
            yield
        finally:
            self._span = before

    def watched(self, step: Step, pattern: Pattern, scope: Scope) -> Step:
        span = self._span
        if isinstance(pattern, Guarded):
            span = guard_span(pattern.guard) or span

        def look_on(run: SearchState, subject: Subject, frame: Frame, rest: Rest) -> Rest | Failed:
            result = step(run, subject, frame, rest)
            if result is not FAIL:
                if isinstance(pattern, Op | Fun):
                    self.spans[subject] = span
                return result
            if id(pattern) in self._lifted:
                return rest
            self._failed(_Attempt(run, pattern, subject, scope, frame), span)
            return FAIL

        return look_on

    def _counts(self, subject: Subject) -> bool:
        found = self._computing.get(subject)
        if found is None:
            found = self._computing[subject] = self._computes(subject)
        return found

    def _failed(self, attempt: _Attempt, span: Span | None) -> None:
        furthest = self.furthest
        visited = attempt.visited()
        known, visits = len(attempt.run.known), len(visited)
        if furthest is not None and (known, visits) < furthest.progress[:2]:
            return
        walked = known, sum(map(self._counts, visited)), visits
        if furthest is not None and walked[:2] < furthest.progress[:2]:
            return
        cause = attempt.cause(self._show)
        is_past_operator = not isinstance(cause, OtherOperator | OtherArity | OtherClass)
        progress: Progress = (*walked, int(is_past_operator))
        failure = Failure(cause, span, attempt.met(), progress, attempt.pattern)
        if furthest is None or progress[:2] > furthest.progress[:2]:
            self._operator = None
        if not is_past_operator:
            first = self._operator
            self._operator = failure if first is None else _either(first, cause, attempt.subject)
        if furthest is None or progress > furthest.progress:
            self.furthest, self._guards = failure, {}
        elif progress == furthest.progress:
            self.furthest = _either(furthest, cause, attempt.subject)
        else:
            return
        if failure.is_guard:
            self._guards.setdefault(id(failure.pattern), failure)


class _WatchedLowering(Lowering):
    """A lowering that gives the index no items to exclude subjects by."""

    def __init__(self, watch: Watch, names: tuple[str, ...], enclosing: tuple[Family, ...]) -> None:
        super().__init__(watch, names, enclosing)
        self._watch = watch

    def split(
        self,
        pattern: Pattern,
        scope: Scope,
        expected: Expected,
        slots: list[int],
        after: list[Step],
    ) -> Lowered:
        with self._watch.within(getattr(pattern, "span", None)):
            return super().split(pattern, scope, {}, slots, after)[0], ANYTHING

    def watched(self, step: Step, pattern: Pattern, scope: Scope) -> Step:
        return self._watch.watched(step, pattern, scope)


@dataclass(frozen=True)
class _Attempt:
    """The data that a failing step reads."""

    run: SearchState
    pattern: Pattern
    subject: Subject
    scope: Scope
    frame: Frame

    def visited(self) -> list[Subject]:
        """Return the visited subjects, the last one first."""
        found, linked = [], self.run.visits
        while linked is not None:
            subject, _, linked = linked
            found.append(subject)
        return found

    def met(self) -> tuple[Subject, ...]:
        """Return the subject of a failure and those above it, up to the nearest visited one."""
        visited = self.visited()
        pattern = self.pattern
        if isinstance(pattern, Guarded | Let):
            about = self._places(sorted(read_names(pattern)))
        else:
            about = [] if isinstance(pattern, Exists | Constrained) else [self.subject]
        found = about[:1]
        for one in visited:
            if found and found[-1] in one.children:
                found.append(one)
        return (*found, *visited[:1])

    def _places(self, asked: Sequence[str]) -> list[Subject]:
        return [place for name in asked for place in self._cell(name).places[:1]]

    def _cell(self, name: str) -> Cell:
        slot = self.scope.get(name)
        return Cell() if slot is None else self.frame[slot]

    def look(self, name: str) -> Value | Unmade:
        return self._cell(name).look()

    def cause(self, show: Show) -> Cause:
        match self.pattern:
            case Op(operator, parts):
                met = self.subject.operator
                if operator != met:
                    return OtherOperator((operator.name,), met.name)
                return OtherArity(met.name, len(parts), len(self.subject.children))
            case Fun(name, parts):
                met = self.subject.operator
                if len(parts) != len(self.subject.children):
                    return OtherArity(met.name, len(parts), len(self.subject.children))
                return self._bound(name, met.name, show)
            case Var(name):
                return self._bound(name, show(self.subject), show)
            case Guarded(_, guard):
                return guard_cause(guard, self.look)
            case Let(_, name, expression):
                value = evaluate(expression, self.look)
                if value is UNDEFINED:
                    read = expression.attribute if isinstance(expression, Attribute) else "..."
                    return GuardUnknown(f"{shown(name)} = {read}", ())
                return self._bound(name, value_text(value), show)
            case Exists(name) | Constrained(_, _, name):
                return Unbound(shown(name))
            case Call(index):
                return Unbound(f"call {index}")
            case Alt() | Mu():
                raise InternalError(f"{self.pattern} has no step that can fail")
            case _:
                assert_never(self.pattern)

    def _bound(self, name: str, met: str, show: Show) -> Cause:
        cell = self._cell(name)
        if cell.value is UNDEFINED:
            return Unbound(shown(name))
        is_term = cell.places and not isinstance(cell.value, COMPOUND)
        bound = show(cell.places[0]) if is_term else value_text(cell.read())
        return BoundOtherwise(shown(name), bound, met)


def _either(furthest: Failure, cause: Cause, subject: Subject) -> Failure:
    """Return a failure that also lists the operator which another attempt expected there."""
    known = furthest.cause
    if not isinstance(known, OtherOperator) or not isinstance(cause, OtherOperator):
        return furthest
    if subject is not furthest.subjects[0] or cause.expected[0] in known.expected:
        return furthest
    both = replace(known, expected=(*known.expected, *cause.expected))
    return replace(furthest, cause=both)
