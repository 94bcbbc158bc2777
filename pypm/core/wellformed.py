"""Names that every match binds: the check `wf` (calculus section 5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, assert_never

from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Context,
    Definition,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
    arg,
    args,
    shown,
)
from pypm.core.traverse import children, expression_names, guard_span, names, pattern_span
from pypm.diagnostics import Diagnostic

if TYPE_CHECKING:
    from pypm.diagnostics import Span

__all__ = [
    "NO_NAMES",
    "Known",
    "Names",
    "Problem",
    "binds",
    "bound_after",
    "bound_after_all",
    "check",
    "check_wellformed",
    "is_wellformed",
]

Names: TypeAlias = frozenset[str]
Known: TypeAlias = dict[int, tuple[Pattern, Names]]
NO_NAMES: Names = frozenset()


def bound_after(pattern: Pattern, bound: Names = NO_NAMES, context: Context = ()) -> Names:
    """Return db(R, D, p) of section 5: names bound after a match, given those bound before it."""
    return bound | binds(pattern, context, {})


def binds(pattern: Pattern, context: Context, known: Known) -> Names:
    """Return db(R, {}, p), the names that a match binds: db(R, D, p) is D and these, for every D.

    `known` has results in this context by identity, each with its pattern.
    """
    found = known.get(id(pattern))
    if found is None:
        found = known[id(pattern)] = pattern, _binds(pattern, context, known)
    return found[1]


def _binds(pattern: Pattern, context: Context, known: Known) -> Names:
    match pattern:
        case Alt(left, right):
            return binds(left, context, known) & binds(right, context, known)
        case Exists(name, body):
            return binds(body, context, known) - {name}
        case Mu(definition, actuals):
            return args(definition, actuals, definition.outputs)
        case Call(index, actuals):
            if index >= len(context):
                return NO_NAMES
            return args(context[index], actuals, context[index].outputs)
        case Var(name) | Fun(name) | Let(_, name):
            own = frozenset({name})
        case Op() | Guarded() | Constrained():
            own = NO_NAMES
        case _:
            assert_never(pattern)
    return own.union(*[binds(child, context, known) for child in children(pattern)])


def bound_after_all(
    patterns: Iterable[Pattern], bound: Names = NO_NAMES, context: Context = ()
) -> Names:
    """Return the names bound after several patterns in order: children, or roots."""
    for pattern in patterns:
        bound = bound_after(pattern, bound, context)
    return bound


def check_wellformed(
    pattern: Pattern, bound: Names = NO_NAMES, context: Context = ()
) -> list[Diagnostic]:
    """Return diagnostics for names that may be unbound where needed (ok(R, D, p) of section 5)."""
    found: list[Problem] = []
    check(pattern, bound, context, None, found)
    return [problem.diagnostic for problem in found]


def is_wellformed(pattern: Pattern, bound: Names = NO_NAMES, context: Context = ()) -> bool:
    """Return wf(p), with no names bound before and no pattern around p."""
    return not check_wellformed(pattern, bound, context)


@dataclass(slots=True)
class Problem:
    """A failed check: the name, and the number of recursive patterns around it.

    The name is None once it is known to be local; inference reads both fields.
    """

    diagnostic: Diagnostic
    name: str | None
    depth: int


def check(
    pattern: Pattern, bound: Names, context: Context, span: Span | None, found: list[Problem]
) -> Names:
    """Check ok(R, D, p) in one traversal: append failures to `found`, and return db(R, D, p).

    `span` is the nearest one around the pattern.
    """
    depth = len(context)
    match pattern:
        case Var(name):
            return bound | {name}
        case Op(_, parts, _, here):
            for part in parts:
                bound = check(part, bound, context, here or span, found)
            return bound
        case Fun(name, parts, _, here):
            bound = bound | {name}
            for part in parts:
                bound = check(part, bound, context, here or span, found)
            return bound
        case Alt(left, right):
            one = check(left, bound, context, span, found)
            return one & check(right, bound, context, span, found)
        case Exists():
            return _ok_local(pattern, bound, context, span, found)
        case Guarded(body, guard, here):
            after = check(body, bound, context, here or span, found)
            for name in sorted(names(guard) - after):
                place = guard_span(guard, name) or here or span
                found.append(Problem(_guard_unbound(name, place), name, depth))
            return after
        case Let(body, target, expression, here):
            after = check(body, bound, context, here or span, found)
            for name in sorted(expression_names(expression) - after):
                found.append(Problem(_let_unbound(name, target, here or span), name, depth))
            return after | {target}
        case Constrained(body, constraint, name, here):
            after = check(body, bound, context, here or span, found)
            if name not in after:
                found.append(Problem(_constrained_unbound(name, here or span), name, depth))
            return check(constraint, after, context, here or span, found)
        case Mu(definition, actuals, here):
            here = here or definition.span or span
            _ok_inputs(definition, actuals, bound, here, found, depth)
            if definition.closed is None:
                _ok_definition(definition, context, here, found)
            return bound | args(definition, actuals, definition.outputs)
        case Call(index, actuals, here):
            if index >= len(context):
                return bound
            _ok_inputs(context[index], actuals, bound, here or span, found, depth)
            return bound | args(context[index], actuals, context[index].outputs)
        case _:
            assert_never(pattern)


def _ok_local(
    local: Exists, bound: Names, context: Context, span: Span | None, found: list[Problem]
) -> Names:
    """Check the row for a local: the body is ok without the name, and binds it."""
    name, body = local.name, local.body
    known = len(found)
    after = check(body, bound - {name}, context, span, found)
    for problem in found[known:]:
        if problem.name == name and problem.depth == len(context):
            problem.name = None
    if name not in after:
        place = pattern_span(body) or span
        found.append(Problem(_local_unbound(name, place), None, len(context)))
    return bound | (after - {name})


def _ok_inputs(
    definition: Definition,
    actuals: tuple[str, ...],
    bound: Names,
    span: Span | None,
    found: list[Problem],
    depth: int,
) -> None:
    """Check the rows for mu and call: arg(x) is bound for every x in I."""
    for parameter in sorted(definition.inputs):
        actual = arg(definition.parameters, actuals, parameter)
        if actual is None or actual not in bound:
            diagnostic = _input_unbound(definition, parameter, actual, span)
            found.append(Problem(diagnostic, actual, depth))


def _ok_definition(
    definition: Definition, context: Context, span: Span | None, found: list[Problem]
) -> None:
    """Check the row for mu: the body is ok and binds O, assuming the definition's own I and O."""
    span = definition.span or span
    inside = (definition, *context)
    after = check(definition.body, definition.inputs, inside, span, found)
    for parameter in sorted(definition.outputs - after):
        diagnostic = _output_unbound(definition, parameter, span)
        found.append(Problem(diagnostic, parameter, len(inside)))


def _local_unbound(name: str, span: Span | None) -> Diagnostic:
    name = shown(name)
    return Diagnostic(
        f"local variable `{name}` may be left unbound",
        span,
        label=f"this can match without binding `{name}`",
        help=f"use `{name}` in every alternate, give it a value with `let`, or drop it",
    )


def _guard_unbound(name: str, span: Span | None) -> Diagnostic:
    name = shown(name)
    return Diagnostic(
        f"variable `{name}` may be unbound when the guard reads it",
        span,
        label=f"`{name}` is read here",
        help=f"bind `{name}` before the guard, in every alternate",
    )


def _let_unbound(name: str, target: str, span: Span | None) -> Diagnostic:
    name = shown(name)
    return Diagnostic(
        f"variable `{name}` may be unbound when the value of `{shown(target)}` is computed",
        span,
        label=f"`{name}` is read here",
        help=f"bind `{name}` before the let, in every alternate",
    )


def _constrained_unbound(name: str, span: Span | None) -> Diagnostic:
    name = shown(name)
    return Diagnostic(
        f"variable `{name}` may be unbound when it is to match a further pattern",
        span,
        label=f"`{name}` must match this",
        help=f"bind `{name}` before the constraint, in every alternate",
    )


def _input_unbound(
    definition: Definition, parameter: str, actual: str | None, span: Span | None
) -> Diagnostic:
    name = shown(definition.name)
    if actual is None:
        return Diagnostic(
            f"`{name}` is called without its parameter `{shown(parameter)}`, which it reads",
            span,
            label=f"`{shown(parameter)}` is missing",
            help=f"pass {len(definition.parameters)} names to `{name}`",
        )
    return Diagnostic(
        f"variable `{shown(actual)}` may be unbound when `{name}` is entered",
        span,
        label=f"`{name}` reads its parameter `{shown(parameter)}` before it binds it",
        help=f"bind `{shown(actual)}` before this, in every alternate, or bind "
        f"`{shown(parameter)}` in `{name}` itself",
    )


def _output_unbound(definition: Definition, parameter: str, span: Span | None) -> Diagnostic:
    name = shown(definition.name)
    return Diagnostic(
        f"`{name}` may leave its parameter `{shown(parameter)}` unbound",
        span,
        label=f"`{name}` is declared to bind `{shown(parameter)}`",
        help=f"bind `{shown(parameter)}` in every alternate of `{name}`, or take it off the list "
        "of outputs",
    )
