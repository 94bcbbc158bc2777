"""Inference of the names that recursive patterns need, bind and bound (calculus section 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pypm.core.guarded import NO_SIZES, Mode, sizes
from pypm.core.patterns import Context, Definition, Mu, Pattern
from pypm.core.traverse import children, rebuilt
from pypm.core.wellformed import NO_NAMES, Names, Problem, bound_after, check

__all__ = ["infer"]


def infer(pattern: Pattern) -> Pattern:
    """Return the pattern with the lists I, O and B of every recursive pattern inside it filled in.

    I is the empty set, enlarged by the parameters named in failed checks; O and B are the greatest
    ones that the checks accept for it. Lists that are already filled in are kept. Inference need
    not be trusted: the theorems are about the checks, which run on its result.
    """
    inference = _Inference()
    return inference.with_bounded(inference.with_bindings(pattern, ()), ())


class _Inference:
    """Inference for one pattern, which remembers the parts where there is nothing to infer."""

    def __init__(self) -> None:
        self._plain: dict[int, Pattern] = {}
        """These parts by identity."""

    def with_bindings(self, pattern: Pattern, context: Context) -> Pattern:
        """Fill in I and O, given those of the enclosing definitions."""
        return self._changed(pattern, lambda definition: self._bindings(definition, context))

    def _bindings(self, given: Definition, context: Context) -> Definition:
        """Return the definition with the smallest I that this enlargement finds, and its O."""
        inputs = NO_NAMES
        while True:
            definition = self._greatest_outputs(given, inputs, context)
            inside = (definition, *context)
            found: list[Problem] = []
            check(definition.body, inputs, inside, None, found)
            # A problem of that depth is about a name in this body; others are about names of
            # definitions inside or around it, which have lists of their own.
            failed = {problem.name for problem in found if problem.depth == len(inside)}
            missing = (failed & set(definition.parameters)) - inputs
            if not missing:
                return definition
            # Terminates: I grows with each round, and has no names but the parameters.
            inputs |= {name for name in missing if name is not None}

    def _greatest_outputs(self, given: Definition, inputs: Names, context: Context) -> Definition:
        """Return the definition with the greatest fixpoint of O = O & db(R', I, b), from all
        parameters.
        """
        # From above, since a recursive call may assume O: a match is finite, so its innermost calls
        # bind O without one.
        outputs = frozenset(given.parameters)
        while True:
            assumed = replace(given, inputs=inputs, outputs=outputs)
            inside = (assumed, *context)
            body = self.with_bindings(given.body, inside)
            kept = outputs & bound_after(body, inputs, inside)
            if kept == outputs:
                return replace(assumed, body=body)
            outputs = kept

    def with_bounded(self, pattern: Pattern, context: Context) -> Pattern:
        """Fill in B, given those of the enclosing definitions."""
        return self._changed(
            pattern, lambda definition: self._greatest_bounded(definition, context)
        )

    def _greatest_bounded(self, given: Definition, context: Context) -> Definition:
        """Return the definition with the greatest fixpoint of B = B & (S + W), from all
        parameters.
        """
        bounded = frozenset(given.parameters)
        while True:
            assumed = replace(given, bounded=bounded)
            inside = (assumed, *context)
            body = self.with_bounded(given.body, inside)
            kept = bounded & sizes(Mode.WEAK, NO_SIZES, body, inside).names
            if kept == bounded:
                return replace(assumed, body=body)
            bounded = kept

    def _changed(self, pattern: Pattern, change: Callable[[Definition], Definition]) -> Pattern:
        """Return the pattern with its outermost definitions changed, except closed ones."""
        if id(pattern) in self._plain:
            return pattern
        if isinstance(pattern, Mu) and pattern.definition.closed is None:
            return replace(pattern, definition=change(pattern.definition))
        inside = () if isinstance(pattern, Mu) else children(pattern)
        changed = [self._changed(child, change) for child in inside]
        if all(id(child) in self._plain for child in inside):
            self._plain[id(pattern)] = pattern
            return pattern
        return rebuilt(pattern, changed)
