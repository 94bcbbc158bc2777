"""Guards and lets moved to the earliest place at which their variables are bound.

The answers and their order stay the same, since a guard is a filter and all of it is monotone; only
branches without answers end sooner. Guards that move to one place keep their order: a later one is
tested only if the earlier ones hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from pypm.core.definitions import Context
from pypm.core.guards import And
from pypm.core.patterns import Alt, Exists, Fun, Guarded, Mu, Pattern
from pypm.core.traverse import children, names, rebuilt
from pypm.core.wellformed import NO_NAMES, Names, bound_after

__all__ = ["schedule"]


def schedule(pattern: Pattern, bound: Names = NO_NAMES, context: Context = ()) -> Pattern:
    """Return `pattern` with every guard as early as possible; `bound` are names bound before it."""
    if isinstance(pattern, Mu):
        return _scheduled_definition(pattern, context)
    if isinstance(pattern, Guarded) and isinstance(pattern.guard, And):
        first = replace(pattern, guard=pattern.guard.left)
        return schedule(replace(pattern, body=first, guard=pattern.guard.right), bound, context)
    entered = _entered(pattern, bound, context)
    inside = [schedule(child, before, context) for child, before in entered]
    if isinstance(pattern, Guarded):
        return _sink(pattern, inside[0], bound, context)
    return rebuilt(pattern, inside)


def _scheduled_definition(mu: Mu, context: Context) -> Mu:
    """Return a recursive pattern with its body scheduled, unless that was done before."""
    definition = mu.definition
    if definition.closed is not None:
        return mu
    body = schedule(definition.body, definition.inputs, (definition, *context))
    return replace(mu, definition=replace(definition, body=body))


def _entered(pattern: Pattern, bound: Names, context: Context) -> Iterator[tuple[Pattern, Names]]:
    """Yield the children of a pattern, each with the names bound before it is matched."""
    if isinstance(pattern, Fun):
        bound |= {pattern.name}
    elif isinstance(pattern, Exists):
        bound -= {pattern.name}
    earlier: Pattern | None = None
    for child in children(pattern):
        if earlier is not None and not isinstance(pattern, Alt):
            bound = bound_after(earlier, bound, context)
        yield child, bound
        earlier = child


def _sink(guarded: Guarded, body: Pattern, bound: Names, context: Context) -> Pattern:
    """Return `body` with a guard as deep inside as the guard's names allow.

    It goes to the first child after which they are bound; of alternates, to both or none.
    """
    wanted, outside = names(guarded.guard), replace(guarded, body=body)
    if isinstance(body, Mu) or (isinstance(body, Exists) and body.name in wanted):
        return outside
    entered = [*_entered(body, bound, context)]
    able = (
        index
        for index, (child, before) in enumerate(entered)
        if wanted <= bound_after(child, before, context)
    )
    chosen = [*islice(able, 2 if isinstance(body, Alt) else 1)]
    if not chosen or (isinstance(body, Alt) and len(chosen) < 2):
        return outside
    inside = [child for child, _ in entered]
    for index in chosen:
        inside[index] = _sink(guarded, *entered[index], context)
    sunk = inside[0]
    if isinstance(body, Guarded) and isinstance(sunk, Guarded) and sunk.body is body.body:
        return outside  # guards that cannot sink further keep their order
    return rebuilt(body, inside)
