"""From patterns as written to the calculus: named patterns, recursion, alternates.

A call of a pattern is a call of its definition, which all that call it share. Inside of a
recursive pattern, calls of it refer to it by the number of recursive patterns in between; other
patterns are replaced by their bodies there, so that what the recursion descends by can be seen,
and mutual recursion nests. The lists I, O and B are then inferred, and the result checked: see
section 12 of the calculus for each form.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import combinations, count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pypm.core.depth import with_room
from pypm.core.guarded import check_guarded
from pypm.core.inference import infer
from pypm.core.patterns import (
    Alt,
    Call,
    Closed,
    Constrained,
    Definition,
    Exists,
    Mu,
    Pattern,
    Var,
)
from pypm.core.schedule import schedule
from pypm.core.wellformed import bound_after_all, check_wellformed
from pypm.diagnostics import Diagnostic, PatternError
from pypm.lang.definition_body import Alternate
from pypm.lang.pattern_function import PatternFunction
from pypm.lang.productive import is_productive

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypm.diagnostics import Span
    from pypm.lang.capture import Captured

__all__ = ["Elaborator", "Frames", "check_wanted", "elaborate", "elaborate_partial"]

Frames: TypeAlias = tuple[PatternFunction | None, ...]
"""The recursive patterns around a place, innermost first; None for one without a name."""
_NONE: Final[frozenset[str]] = frozenset()


@with_room
def elaborate(form: PatternFunction) -> tuple[Pattern, ...]:
    """The roots of a pattern in the calculus, checked. Raises PatternError."""
    elaborator = Elaborator()
    if len(form.alternates) == 1 and form.alternates[0].returns_tuple:
        roots = elaborator.outputs(form)
    elif elaborator.is_recursive(form):
        roots = (elaborator.enter(form, form.parameters, ()),)
    else:
        roots = (elaborator.alternates(form, form.parameters, ()),)
    roots = tuple(schedule(infer(root)) for root in roots)
    _check(form, roots)
    return roots


@with_room
def elaborate_partial(
    form: PatternFunction, wanted: tuple[str, ...]
) -> tuple[tuple[Pattern | None, ...], ...]:
    """The roots of a pattern with several outputs where some of them are absent: None for these.

    Absent may be one item of an operator's several values, where another item is an output too: a
    graph lacks those that nobody uses. The most outputs first; only those under which the
    conditions still make sense and the names in `wanted` are bound.
    """
    if len(form.core) == 1:
        return ()
    sources = Elaborator().output_sources(form)
    outputs = range(len(sources))
    found = []
    for size in reversed(outputs[1:]):
        for present in combinations(outputs, size):
            left = {sources[output] for output in present} - {None}
            if not all(sources[o] in left for o in outputs if o not in present):
                continue
            try:
                elaborated = Elaborator().outputs(form, present)
            except PatternError:  # a condition speaks of an absent output
                continue
            roots = tuple(schedule(infer(root)) for root in elaborated)
            if set(wanted) <= bound_after_all(roots) and not _problems(roots):
                by_output = dict(zip(present, roots, strict=True))
                found.append(tuple(by_output.get(output) for output in outputs))
    return tuple(found)


def _check(form: PatternFunction, roots: tuple[Pattern, ...]) -> None:
    unused = [p for p in form.parameters if not any(p in a.said for a in form.alternates)]
    if unused:
        captured = form.alternates[0]
        argument = next(a for a in captured.tree.args.args if a.arg == unused[0])
        raise captured.error(
            f"pattern `{form.name}` does not use its parameter `{unused[0]}`",
            argument,
            "nothing binds it",
            "use it in the pattern, or remove it",
        )
    problems = _problems(roots)
    if problems:
        raise PatternError(problems[0])
    if not all(map(is_productive, roots)):
        raise PatternError(_unproductive(form.name, form.alternates[0].header()))


def _unproductive(name: str, header: Span | None) -> Diagnostic:
    return Diagnostic(
        f"pattern `{name}` can never match",
        header,
        "every alternate of it, or of what it calls, calls itself",
        "add an alternate without recursion, for where it ends",
    )


def _problems(roots: tuple[Pattern, ...]) -> list[Diagnostic]:
    """What is wrong with roots that are matched in this order."""
    found = []
    for index, root in enumerate(roots):
        bound = bound_after_all(roots[:index])
        found += [*check_guarded(root), *check_wellformed(root, bound)]
    return found


class Elaborator:
    """Elaborates one pattern and all that it calls."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._called: dict[PatternFunction, tuple[PatternFunction, ...]] = {}

    def fresh(self, name: str) -> str:
        """A name that nobody else has; what the user wrote stands before the `#`."""
        return f"{name}#{next(self._numbers)}"

    def enter(
        self,
        form: PatternFunction,
        actuals: tuple[str, ...],
        frames: Frames,
        span: Span | None = None,
    ) -> Pattern:
        """A call, at `span`, of a named pattern with variables as its arguments."""
        if form in frames:
            return Call(frames.index(form), actuals, span)
        if not frames:
            definition = self._shared(form, "call", Elaborator()._definition)
            return Mu(definition, actuals, span or definition.span)
        if not self.is_recursive(form):
            return self.alternates(form, actuals, frames)
        return Mu(self._definition(form, frames), actuals, span or form.alternates[0].header())

    def _definition(self, form: PatternFunction, frames: Frames = ()) -> Definition:
        inside = (form, *frames) if self.is_recursive(form) else frames
        body = self.alternates(form, form.parameters, inside)
        header = form.alternates[0].header()
        return Definition(form.name, form.parameters, _NONE, _NONE, _NONE, body, header)

    def _shared(
        self, form: PatternFunction, use: str, make: Callable[[PatternFunction], Definition]
    ) -> Definition:
        """A definition made of `form` once, and again when one of the names in it, or in what it
        calls, means another pattern.
        """
        reached = [(each, each.alternates) for each in (form, *self._reached(form))]
        known = form.definitions.get(use)
        if known is None or known[0] != reached:
            known = form.definitions[use] = reached, _closed(make(form))
        return known[1]

    def outputs(
        self, form: PatternFunction, present: tuple[int, ...] | None = None
    ) -> tuple[Pattern, ...]:
        """The roots of a pattern that returns a tuple; what they share is left free.

        With `present`, of these outputs only.
        """
        alternate = Alternate(self, form, form.alternates[0], form.parameters, ())
        return alternate.outputs(present)

    def output_sources(self, form: PatternFunction) -> list[str | None]:
        """For each output of a pattern that is an item of a local, the local's name."""
        alternate = Alternate(self, form, form.alternates[0], form.parameters, ())
        return alternate.output_sources()

    def alternates(
        self, form: PatternFunction, actuals: tuple[str, ...], frames: Frames
    ) -> Pattern:
        """The alternates of a named pattern, its parameters standing for the names `actuals`."""
        patterns = [
            Alternate(self, form, captured, actuals, frames, path).pattern()
            for captured in form.alternates
            for path in paths(captured.tree.body)
        ]
        result = patterns.pop()
        while patterns:
            result = Alt(patterns.pop(), result)
        return result

    def reach_through(self, form: PatternFunction, pattern: Pattern) -> Pattern:
        """`pattern`, or operators that `form` describes, any number of them, above it.

        exists y. (mu T(y). y | form(T(y)))(y); (pattern <= y): nothing is copied.
        """
        definition = self._shared(form, "through", Elaborator()._through)
        reached = self.fresh("below")
        return Exists(reached, Constrained(Mu(definition, (reached,)), pattern, reached))

    def _through(self, form: PatternFunction) -> Definition:
        below, step = self.fresh("below"), self.fresh("step")
        inner = self.enter(form, (step,), (None,))
        body = Alt(Var(below), Exists(step, Constrained(inner, Call(0, (below,)), step)))
        return Definition(form.name, (below,), _NONE, _NONE, _NONE, body)

    def is_recursive(self, form: PatternFunction) -> bool:
        """Whether a pattern can come to call itself."""
        return form in self._reached(form)

    def _reached(self, form: PatternFunction) -> dict[PatternFunction, None]:
        """What a pattern calls, and what that calls."""
        reached: dict[PatternFunction, None] = {}
        pending = [*self._calls(form)]
        while pending:
            called = pending.pop()
            if called not in reached:
                reached[called] = None
                pending += self._calls(called)
        return reached

    def _calls(self, form: PatternFunction) -> tuple[PatternFunction, ...]:
        if form not in self._called:
            named = [found for captured in form.alternates for found in _named_patterns(captured)]
            self._called[form] = tuple(named) + ((form.through,) if form.through else ())
        return self._called[form]


def _closed(definition: Definition) -> Definition:
    """A definition that calls nothing outside of it, with its lists inferred and checked."""
    entered = schedule(infer(Mu(definition, definition.parameters)))
    assert isinstance(entered, Mu)
    bound = frozenset(definition.parameters)
    for problem in (*check_guarded(entered), *check_wellformed(entered, bound)):
        raise PatternError(problem)
    if not is_productive(entered):
        raise PatternError(_unproductive(definition.name, definition.span))
    return replace(entered.definition, closed=Closed())


def _named_patterns(captured: Captured) -> list[PatternFunction]:
    """The patterns that a definition mentions by a dotted name."""
    found = []
    for part in captured.parts:
        if not isinstance(part, ast.Call):
            continue
        path: list[str] = []
        node: Any = part.func
        while isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            continue
        try:
            value = captured.resolve(node.id)
            for attribute in reversed(path):
                value = getattr(value, attribute)
        except (NameError, AttributeError):  # reported where the call is elaborated
            continue
        if isinstance(value, PatternFunction):
            found.append(value)
    return found


def paths(statements: list[ast.stmt]) -> list[list[ast.stmt]]:
    """The straight lines through a body with `if`s: `if g: A` then `B` is A where g, or B where
    not g.
    """
    for index, statement in enumerate(statements):
        if isinstance(statement, ast.If):
            before, rest = statements[:index], statements[index + 1 :]
            taken: ast.stmt = ast.Assert(statement.test)
            refused: ast.stmt = ast.Assert(ast.UnaryOp(ast.Not(), statement.test))
            branches = []
            for test, block in ((taken, statement.body), (refused, statement.orelse)):
                located = ast.fix_missing_locations(ast.copy_location(test, statement.test))
                ends = bool(block) and isinstance(block[-1], ast.Return)
                line = [*before, located, *block, *([] if ends else rest)]
                branches += paths(line)
            return branches
    return [statements]


def check_wanted(form: PatternFunction, parameter: str, span: Span) -> None:
    """Raise PatternError if a match of `form` may leave unbound what is wanted at `span`."""
    if parameter in bound_after_all(form.core):
        return
    without = [a.header() for a in form.alternates if parameter not in a.said]
    notes = [f"the alternate at {place} says nothing of `{parameter}`" for place in without]
    raise PatternError(
        Diagnostic(
            f"`{parameter}` may be unbound where pattern `{form.name}` matches",
            span,
            "wanted here",
            f"bind it in every alternate of `{form.name}`, or give it a default there: "
            f"`{parameter}=...`",
            tuple(notes or [f"not every way through {form.alternates[0].header()} binds it"]),
        )
    )
