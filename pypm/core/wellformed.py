"""Which names a match surely binds: the check `wf`, and inference of what it needs (section 5).

Under `wf` the machine misses nothing: if it fails, no match exists (theorem T3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

from pypm.core.guarded import NO_SIZES, Context, Mode, arg, args, shown, sizes
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
from pypm.core.spans import guard_span, pattern_span
from pypm.core.traverse import children, expression_names, names, rebuilt
from pypm.diagnostics import Diagnostic

if TYPE_CHECKING:
    from pypm.diagnostics import Span

__all__ = ["bound_after", "bound_after_all", "check_wellformed", "infer", "is_wellformed"]

Names = frozenset[str]
_NONE: Names = frozenset()


def bound_after(pattern: Pattern, bound: Names = _NONE, context: Context = ()) -> Names:
    """db(R, D, p) of section 5: names bound after a match if those in `bound` are before it."""
    match pattern:
        case Var(name):
            return bound | {name}
        case Op(_, parts):
            return bound_after_all(parts, bound, context)
        case Fun(name, parts):
            return bound_after_all(parts, bound | {name}, context)
        case Alt(left, right):
            return bound_after(left, bound, context) & bound_after(right, bound, context)
        case Exists(name, body):
            return bound | (bound_after(body, bound - {name}, context) - {name})
        case Guarded(body):
            return bound_after(body, bound, context)
        case Let(body, name):
            return bound_after(body, bound, context) | {name}
        case Constrained(body, constraint):
            return bound_after(constraint, bound_after(body, bound, context), context)
        case Mu(definition, actuals):
            return bound | args(definition, actuals, definition.outputs)
        case Call(index, actuals):
            if index >= len(context):
                return bound
            return bound | args(context[index], actuals, context[index].outputs)
        case _:
            assert_never(pattern)


def bound_after_all(
    patterns: Iterable[Pattern], bound: Names = _NONE, context: Context = ()
) -> Names:
    """Names bound after several patterns, one after the other: children, or roots."""
    for pattern in patterns:
        bound = bound_after(pattern, bound, context)
    return bound


def check_wellformed(
    pattern: Pattern, bound: Names = _NONE, context: Context = ()
) -> list[Diagnostic]:
    """ok(R, D, p) of section 5: what may be unbound where it is needed; empty where nothing."""
    found: list[_Problem] = []
    _ok(pattern, bound, context, None, found)
    return [problem.diagnostic for problem in found]


def is_wellformed(pattern: Pattern, bound: Names = _NONE, context: Context = ()) -> bool:
    """wf(p), where nothing is bound before and nothing encloses p."""
    return not check_wellformed(pattern, bound, context)


@dataclass(slots=True)
class _Problem:
    """A failed check: of which name, seen from inside how many recursive patterns.

    The name is None once it is known to be a local one; inference reads these two.
    """

    diagnostic: Diagnostic
    name: str | None
    depth: int


def _ok(
    pattern: Pattern, bound: Names, context: Context, span: Span | None, found: list[_Problem]
) -> Names:
    """ok(R, D, p) in one traversal: adds to `found` what fails, and returns db(R, D, p).

    `span` is the nearest one around the pattern.
    """
    depth = len(context)
    match pattern:
        case Var(name):
            return bound | {name}
        case Op(_, parts, _, here):
            for part in parts:
                bound = _ok(part, bound, context, here or span, found)
            return bound
        case Fun(name, parts, _, here):
            bound = bound | {name}
            for part in parts:
                bound = _ok(part, bound, context, here or span, found)
            return bound
        case Alt(left, right):
            one = _ok(left, bound, context, span, found)
            return one & _ok(right, bound, context, span, found)
        case Exists(name, body):
            known = len(found)
            after = _ok(body, bound - {name}, context, span, found)
            for problem in found[known:]:
                if problem.name == name and problem.depth == depth:
                    problem.name = None
            if name not in after:
                place = pattern_span(body) or span
                found.append(_Problem(_local_unbound(name, place), None, depth))
            return bound | (after - {name})
        case Guarded(body, guard, here):
            after = _ok(body, bound, context, here or span, found)
            for name in sorted(names(guard) - after):
                place = guard_span(guard, name) or here or span
                found.append(_Problem(_guard_unbound(name, place), name, depth))
            return after
        case Let(body, target, expression, here):
            after = _ok(body, bound, context, here or span, found)
            for name in sorted(expression_names(expression) - after):
                found.append(_Problem(_let_unbound(name, target, here or span), name, depth))
            return after | {target}
        case Constrained(body, constraint, name, here):
            after = _ok(body, bound, context, here or span, found)
            if name not in after:
                found.append(_Problem(_constrained_unbound(name, here or span), name, depth))
            return _ok(constraint, after, context, here or span, found)
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


def _ok_inputs(
    definition: Definition,
    actuals: tuple[str, ...],
    bound: Names,
    span: Span | None,
    found: list[_Problem],
    depth: int,
) -> None:
    """The rows for mu and call: arg(x) is bound for every x in I."""
    for parameter in sorted(definition.inputs):
        actual = arg(definition.parameters, actuals, parameter)
        if actual is None or actual not in bound:
            diagnostic = _input_unbound(definition, parameter, actual, span)
            found.append(_Problem(diagnostic, actual, depth))


def _ok_definition(
    definition: Definition, context: Context, span: Span | None, found: list[_Problem]
) -> None:
    """The row for mu: the body is ok and binds O, assuming the definition's own I and O."""
    span = definition.span or span
    inside = (definition, *context)
    after = _ok(definition.body, definition.inputs, inside, span, found)
    for parameter in sorted(definition.outputs - after):
        diagnostic = _output_unbound(definition, parameter, span)
        found.append(_Problem(diagnostic, parameter, len(inside)))


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


def infer(pattern: Pattern) -> Pattern:
    """The pattern with the lists I, O and B of every recursive pattern inside it filled in.

    I is the empty set, enlarged by the parameters named in failed checks; O and B are the
    greatest ones that the checks accept for it. Lists already there are not looked at. Inference
    need not be trusted: the theorems are about the checks, which see its result.
    """
    return _infer_bounded(_infer_bindings(pattern, ()), ())


def _infer_bindings(pattern: Pattern, context: Context) -> Pattern:
    """Fill in I and O, where the enclosing definitions have theirs."""
    return _change_mus(pattern, lambda mu: replace(mu, definition=_bindings(mu, context)))


def _bindings(mu: Mu, context: Context) -> Definition:
    """The definition with the least I that this way of enlarging it finds, and its O."""
    inputs = _NONE
    while True:
        definition = _greatest_outputs(mu.definition, inputs, context)
        inside = (definition, *context)
        found: list[_Problem] = []
        _ok(definition.body, inputs, inside, None, found)
        failed = {problem.name for problem in found if problem.depth == len(inside)}
        missing = (failed & set(definition.parameters)) - inputs
        if not missing:
            return definition
        inputs |= {name for name in missing if name is not None}


def _greatest_outputs(definition: Definition, inputs: Names, context: Context) -> Definition:
    """The greatest fixpoint of O = O & db(R', I, b), from all parameters down."""
    outputs = frozenset(definition.parameters)
    while True:
        assumed = replace(definition, inputs=inputs, outputs=outputs)
        inside = (assumed, *context)
        body = _infer_bindings(definition.body, inside)
        kept = outputs & bound_after(body, inputs, inside)
        if kept == outputs:
            return replace(assumed, body=body)
        outputs = kept


def _infer_bounded(pattern: Pattern, context: Context) -> Pattern:
    """Fill in B, where the enclosing definitions have theirs."""
    return _change_mus(pattern, lambda mu: replace(mu, definition=_greatest_bounded(mu, context)))


def _greatest_bounded(mu: Mu, context: Context) -> Definition:
    """The greatest fixpoint of B = B & (S + W), from all parameters down."""
    bounded = frozenset(mu.definition.parameters)
    while True:
        assumed = replace(mu.definition, bounded=bounded)
        inside = (assumed, *context)
        body = _infer_bounded(assumed.body, inside)
        kept = bounded & sizes(Mode.WEAK, NO_SIZES, body, inside).names
        if kept == bounded:
            return replace(assumed, body=body)
        bounded = kept


def _change_mus(pattern: Pattern, change: Callable[[Mu], Mu]) -> Pattern:
    """The pattern with every outermost recursive pattern in it changed, but for closed ones."""
    if isinstance(pattern, Mu):
        return change(pattern) if pattern.definition.closed is None else pattern
    return rebuilt(pattern, [*map(partial(_change_mus, change=change), children(pattern))])
