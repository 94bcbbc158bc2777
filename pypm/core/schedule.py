"""Guards and lets moved to the earliest place at which their variables are bound.

The answers and their order stay the same, since a guard is a filter and all of it is monotone; only
branches without answers end sooner. Guards that move to one place keep their order: a later one is
tested only if the earlier ones hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from pypm.core.guards import And
from pypm.core.patterns import Alt, Context, Exists, Fun, Guarded, Mu, Pattern
from pypm.core.traverse import children, names, rebuilt
from pypm.core.wellformed import NO_NAMES, Known, Names, binds

__all__ = ["schedule"]


def schedule(pattern: Pattern, bound: Names = NO_NAMES, context: Context = ()) -> Pattern:
    """Return `pattern` with every guard as early as possible; `bound` are names bound before it."""
    return _Schedule(context).of(pattern, bound)


class _Schedule:
    """The schedule inside of some recursive patterns."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: Known = {}

    def of(self, pattern: Pattern, bound: Names) -> Pattern:
        if isinstance(pattern, Mu):
            return self._of_definition(pattern)
        if isinstance(pattern, Guarded) and isinstance(pattern.guard, And):
            first = replace(pattern, guard=pattern.guard.left)
            return self.of(replace(pattern, body=first, guard=pattern.guard.right), bound)
        entered = self._entered(pattern, bound)
        inside = [self.of(child, before) for child, before in entered]
        if isinstance(pattern, Guarded):
            return self._sunk(pattern, names(pattern.guard), inside[0], bound)
        return rebuilt(pattern, inside)

    def _of_definition(self, mu: Mu) -> Mu:
        """Return a recursive pattern with its body scheduled, unless that was done before."""
        definition = mu.definition
        if definition.closed is not None:
            return mu
        body = schedule(definition.body, definition.inputs, (definition, *self._context))
        return replace(mu, definition=replace(definition, body=body))

    def _after(self, pattern: Pattern, bound: Names) -> Names:
        return bound | binds(pattern, self._context, self._known)

    def _entered(self, pattern: Pattern, bound: Names) -> Iterator[tuple[Pattern, Names]]:
        """Yield the children of a pattern, each with the names bound before it is matched."""
        if isinstance(pattern, Fun):
            bound |= {pattern.name}
        elif isinstance(pattern, Exists):
            bound -= {pattern.name}
        earlier: Pattern | None = None
        for child in children(pattern):
            if earlier is not None and not isinstance(pattern, Alt):
                bound = self._after(earlier, bound)
            yield child, bound
            earlier = child

    def _sunk(self, guarded: Guarded, wanted: Names, body: Pattern, bound: Names) -> Pattern:
        """Return `body` with a guard as deep inside as the names that it wants allow.

        It goes to the first child after which they are bound; of alternates, to both or none.
        """
        outside = replace(guarded, body=body)
        if isinstance(body, Mu) or (isinstance(body, Exists) and body.name in wanted):
            return outside
        entered = [*self._entered(body, bound)]
        able = (
            index
            for index, (child, before) in enumerate(entered)
            if wanted <= self._after(child, before)
        )
        chosen = [*islice(able, 2 if isinstance(body, Alt) else 1)]
        if not chosen or (isinstance(body, Alt) and len(chosen) < 2):
            return outside
        inside = [child for child, _ in entered]
        for index in chosen:
            inside[index] = self._sunk(guarded, wanted, *entered[index])
        sunk = inside[0]
        if isinstance(body, Guarded) and isinstance(sunk, Guarded) and sunk.body is body.body:
            return outside  # guards that cannot sink further keep their order
        return rebuilt(body, inside)
