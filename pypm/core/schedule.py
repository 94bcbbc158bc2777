"""Guards and lets moved to the earliest place at which their variables are bound.

The answers and their order stay the same, since a guard is a filter and all of it is monotone; only
branches without answers end sooner. Guards that move to one place keep their order: a later one is
tested only if the earlier ones hold.
"""

from __future__ import annotations

from dataclasses import replace

from pypm.core.definitions import Context
from pypm.core.guards import And
from pypm.core.patterns import (
    Alt,
    Constrained,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
)
from pypm.core.traverse import names, rebuilt
from pypm.core.wellformed import NO_NAMES, Names, bound_after

__all__ = ["schedule"]


def schedule(pattern: Pattern, bound: Names = NO_NAMES, context: Context = ()) -> Pattern:
    """Return `pattern` with every guard as early as possible; `bound` are names bound before it."""
    match pattern:
        case Op(arguments=arguments):
            return rebuilt(pattern, _children(arguments, bound, context))
        case Fun(name, arguments):
            return rebuilt(pattern, _children(arguments, bound | {name}, context))
        case Alt(left, right):
            arms = [schedule(left, bound, context), schedule(right, bound, context)]
            return rebuilt(pattern, arms)
        case Exists(name, body):
            return rebuilt(pattern, [schedule(body, bound - {name}, context)])
        case Guarded(body, And(left, right)):
            halves = replace(pattern, body=replace(pattern, guard=left), guard=right)
            return schedule(halves, bound, context)
        case Guarded(body):
            return _sink(pattern, schedule(body, bound, context), bound, context)
        case Let(body):
            return rebuilt(pattern, [schedule(body, bound, context)])
        case Constrained(body, constraint):
            first = schedule(body, bound, context)
            after = bound_after(first, bound, context)
            return rebuilt(pattern, [first, schedule(constraint, after, context)])
        case Mu(definition) if definition.closed is None:
            inside = schedule(definition.body, definition.inputs, (definition, *context))
            return replace(pattern, definition=replace(definition, body=inside))
    return pattern


def _children(
    arguments: tuple[Pattern, ...], bound: Names, context: Context
) -> tuple[Pattern, ...]:
    scheduled = []
    for argument in arguments:
        scheduled.append(schedule(argument, bound, context))
        bound = bound_after(scheduled[-1], bound, context)
    return tuple(scheduled)


def _sink(guarded: Guarded, body: Pattern, bound: Names, context: Context) -> Pattern:
    """Return `body` with a guard as deep inside as the guard's names allow."""
    wanted = names(guarded.guard)

    def enough(pattern: Pattern, before: Names) -> bool:
        return wanted <= bound_after(pattern, before, context)

    match body:
        case Op(arguments=arguments) | Fun(arguments=arguments) if arguments:
            before = bound | ({body.name} if isinstance(body, Fun) else NO_NAMES)
            for index, argument in enumerate(arguments):
                if enough(argument, before):
                    sunk = _sink(guarded, argument, before, context)
                    return replace(
                        body, arguments=(*arguments[:index], sunk, *arguments[index + 1 :])
                    )
                before = bound_after(argument, before, context)
        case Alt(left, right) if enough(left, bound) and enough(right, bound):
            arms = (_sink(guarded, arm, bound, context) for arm in (left, right))
            return Alt(*arms)
        case Exists(name, inner) if name not in wanted:
            return Exists(name, _sink(guarded, inner, bound - {name}, context))
        case Let(inner) if enough(inner, bound):
            return replace(body, body=_sink(guarded, inner, bound, context))
        case Guarded(inner) if enough(inner, bound):
            sunk = _sink(guarded, inner, bound, context)
            if not (isinstance(sunk, Guarded) and sunk.body is inner):
                return replace(body, body=sunk)
        case Constrained(inner, constraint):
            if enough(inner, bound):
                return replace(body, body=_sink(guarded, inner, bound, context))
            after = bound_after(inner, bound, context)
            return replace(body, pattern=_sink(guarded, constraint, after, context))
    return replace(guarded, body=body)
