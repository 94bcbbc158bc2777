"""From patterns as written to the calculus: named patterns, recursion, alternates.

Elaboration has two stages. The first declares: which patterns can be reached, and for each
definition its names (`declare`). The second computes core terms from that.

A call of a pattern is a call of its definition, which all callers share. Inside of a recursive
pattern, calls of it refer to it by the number of recursive patterns in between; other patterns are
replaced by their bodies there, so that the term by which the recursion descends is visible, and
mutual recursion nests. The lists I, O and B are then inferred, and the result is checked: see
section 12 of the calculus for each form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import combinations, count
from typing import TYPE_CHECKING, Final, TypeAlias

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
    alternation,
)
from pypm.core.python_settings import with_room
from pypm.core.schedule import schedule
from pypm.core.traverse import children
from pypm.core.wellformed import bound_after_all, check_wellformed
from pypm.diagnostics import Diagnostic, PatternError
from pypm.lang.declare import Declaration, Path, Reach, declare, paths_of, reach_of
from pypm.lang.definition_body import output_sources, outputs, whole
from pypm.lang.named_pattern import NamedPattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from pypm.diagnostics import Span

__all__ = ["elaborate", "elaborate_partial"]

_Frames: TypeAlias = tuple[NamedPattern | None, ...]
"""The recursive patterns around a place, innermost first; None for one without a name."""
_NONE: Final[frozenset[str]] = frozenset()


@with_room
def elaborate(form: NamedPattern) -> tuple[Pattern, ...]:
    """Return the roots of a pattern in the calculus, checked. Raises PatternError."""
    elaborator = Elaborator(reach_of(form))
    if form.has_outputs:
        roots = outputs(elaborator.declared(form), elaborator)
    elif elaborator.reach.is_recursive(form):
        roots = (elaborator.enter(form, form.parameters),)
    else:
        roots = (elaborator.alternates(form, form.parameters),)
    roots = tuple(schedule(infer(root)) for root in roots)
    _check(form, roots)
    return roots


@with_room
def elaborate_partial(
    form: NamedPattern, wanted: tuple[str, ...]
) -> tuple[tuple[Pattern | None, ...], ...]:
    """Return the roots of a pattern with several outputs for graphs that lack some of them.

    Each item has a root for each output, or None if it is absent. An item of an operator's several
    values may be absent if another item is an output: a graph lacks those without users. The most
    outputs come first; only those are returned under which the conditions still make sense and the
    names in `wanted` are bound.
    """
    if not form.has_outputs:
        return ()
    reach = reach_of(form)
    sources = output_sources(Elaborator(reach).declared(form))
    every = range(len(sources))
    found = []
    for size in reversed(every[1:]):
        for present in combinations(every, size):
            left = {sources[output] for output in present} - {None}
            if not all(sources[o] in left for o in every if o not in present):
                continue
            try:
                elaborator = Elaborator(reach)
                elaborated = outputs(elaborator.declared(form), elaborator, present)
            except PatternError:  # a condition speaks of an absent output
                continue
            roots = tuple(schedule(infer(root)) for root in elaborated)
            if set(wanted) <= bound_after_all(roots) and not _problems(roots):
                by_output = dict(zip(present, roots, strict=True))
                found.append(tuple(by_output.get(output) for output in every))
    return tuple(found)


def _check(form: NamedPattern, roots: tuple[Pattern, ...]) -> None:
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
    if not all(map(_is_productive, roots)):
        raise PatternError(_unproductive(form.name, form.alternates[0].header()))


def _is_productive(pattern: Pattern) -> bool:
    """Return whether some finite term may match, if every guard holds.

    A recursive body matches something only if it does so while its own calls match nothing: that
    is the least fixed point. A closed definition was checked before.
    """
    if isinstance(pattern, Call):
        return False
    if isinstance(pattern, Mu) and pattern.definition.closed is not None:
        return True
    inside = map(_is_productive, children(pattern))
    return any(inside) if isinstance(pattern, Alt) else all(inside)


def _unproductive(name: str, header: Span | None) -> Diagnostic:
    return Diagnostic(
        f"pattern `{name}` can never match",
        header,
        "every alternate of it, or of what it calls, calls itself",
        "add an alternate without recursion, for where it ends",
    )


def _problems(roots: tuple[Pattern, ...]) -> list[Diagnostic]:
    """Return the mistakes in roots that are matched in this order."""
    found = []
    for index, root in enumerate(roots):
        bound = bound_after_all(roots[:index])
        found += [*check_guarded(root), *check_wellformed(root, bound)]
    return found


@dataclass(frozen=True)
class Elaborator:
    """Elaboration of patterns inside of the recursive patterns `frames`."""

    reach: Reach
    frames: _Frames = ()
    is_apart: bool = False
    """True if every call stays one, for readers of definitions rather than for the matcher."""
    is_below: bool = False
    """True below an operator: terms are smaller there than that at which the innermost of `frames`
    is entered."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def fresh(self, name: str) -> str:
        """Return a new name, in which the user's stands before the `#`."""
        return f"{name}#{next(self._numbers)}"

    def below(self) -> Elaborator:
        """Return the elaboration of an operator's children."""
        return self if self.is_below else replace(self, is_below=True)

    def enter(
        self, called: NamedPattern, actuals: tuple[str, ...], span: Span | None = None
    ) -> Pattern:
        """Return a call, at `span`, of a named pattern with variables as its arguments.

        One definition serves for all calls. It does not say which of its arguments are smaller
        than the term that it matches, though, and a recursive pattern may call itself on smaller
        terms alone. So inside of one, and not yet below an operator, the body is put in.
        """
        if called in self.frames:
            return Call(self.frames.index(called), actuals, span)
        reached = self.reach.reached(called)
        is_free = reached.keys().isdisjoint(self.frames)
        is_below = self.is_below or self.is_apart
        if self.frames and called not in reached and not (is_free and is_below):
            return self.alternates(called, actuals)
        if is_free:
            definition = self._shared(called, "call", Elaborator(self.reach)._definition)
        else:
            definition = self._definition(called)
        return Mu(definition, actuals, span or definition.span)

    def _definition(self, form: NamedPattern) -> Definition:
        inside = self._inside(form) if self.reach.is_recursive(form) else self
        body = inside.alternates(form, form.parameters)
        header = form.alternates[0].header()
        definition = Definition(
            form.name,
            form.parameters,
            _NONE,
            _NONE,
            _NONE,
            body,
            header,
            means=form.means,
            given=partial(self._of_given, form),
        )
        if self.is_apart or not self.reach.is_recursive(form):
            return definition
        return replace(definition, apart=cache(partial(self._apart, form)))

    def _apart(self, form: NamedPattern) -> Pattern:
        """Return the body of a recursive pattern in which every call stays one."""
        return replace(self._inside(form), is_apart=True).alternates(form, form.parameters)

    def _of_given(self, form: NamedPattern, name: str) -> Definition:
        """Return the definition of the pattern that a pattern parameter stands for."""
        return self._shared(form.given[name], "call", Elaborator(self.reach)._definition)

    def _inside(self, form: NamedPattern | None) -> Elaborator:
        return replace(self, frames=(form, *self.frames), is_below=False)

    def _shared(
        self, form: NamedPattern, use: str, make: Callable[[NamedPattern], Definition]
    ) -> Definition:
        """Make a definition of `form` once, and again if one of the names in it, or in a pattern
        that it calls, means another pattern.
        """
        reached = [(each, each.alternates) for each in (form, *self.reach.reached(form))]
        known = form.definitions.get(use)
        if known is None or known[0] != reached:
            known = form.definitions[use] = reached, _closed(make(form))
        return known[1]

    def declared(
        self, form: NamedPattern, path: Path | None = None, actuals: tuple[str, ...] | None = None
    ) -> Declaration:
        """Declare one definition of a pattern; by default all of the first one, for outputs."""
        if path is None:
            path = Path(form.alternates[0], form.alternates[0].tree.body)
        names = form.parameters if actuals is None else actuals
        return declare(form, path, names, self.fresh, self.reach.shapes)

    def alternates(self, form: NamedPattern, actuals: tuple[str, ...]) -> Pattern:
        """Return the alternates of a pattern whose parameters stand for the names `actuals`."""
        return alternation(
            [whole(self.declared(form, path, actuals), self) for path in paths_of(form)]
        )

    def reach_through(self, form: NamedPattern, pattern: Pattern) -> Pattern:
        """Return `pattern` below any number of operators that `form` describes.

        exists y. (mu T(y). y | form(T(y)))(y); (pattern <= y): nothing is copied.
        """
        definition = self._shared(form, "through", Elaborator(self.reach)._through)
        reached = self.fresh("below")
        return Exists(reached, Constrained(Mu(definition, (reached,)), pattern, reached))

    def _through(self, form: NamedPattern) -> Definition:
        below, step = self.fresh("below"), self.fresh("step")

        def around(inner: Pattern) -> Pattern:
            return Alt(Var(below), Exists(step, Constrained(inner, Call(0, (below,)), step)))

        body = around(self._inside(None).enter(form, (step,)))
        return Definition(
            form.name,
            (below,),
            *(_NONE, _NONE, _NONE, body),
            means=form.means,
            apart=form.means and cache(lambda: around(self.enter(form, (step,)))),
        )


def _closed(definition: Definition) -> Definition:
    """Return a definition that calls nothing outside of it, its lists inferred and checked."""
    entered = schedule(infer(Mu(definition, definition.parameters)))
    assert isinstance(entered, Mu)
    bound = frozenset(definition.parameters)
    for problem in (*check_guarded(entered), *check_wellformed(entered, bound)):
        raise PatternError(problem)
    if not _is_productive(entered):
        raise PatternError(_unproductive(definition.name, definition.span))
    return replace(entered.definition, closed=Closed())
