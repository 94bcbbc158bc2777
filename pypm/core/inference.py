"""Inference of the names that recursive patterns need, bind and bound (calculus section 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pypm.core.definitions import Context
from pypm.core.guarded import NO_SIZES, Mode, sizes
from pypm.core.patterns import (
    Definition,
    Mu,
    Pattern,
)
from pypm.core.traverse import children, rebuilt
from pypm.core.wellformed import NO_NAMES, Names, Problem, bound_after, check

__all__ = ["infer"]


def infer(pattern: Pattern) -> Pattern:
    """Return the pattern with the lists I, O and B of every recursive pattern inside it filled in.

    I is the empty set, enlarged by the parameters named in failed checks; O and B are the greatest
    ones that the checks accept for it. Lists that are already filled in are kept. Inference need
    not be trusted: the theorems are about the checks, which run on its result.
    """
    return _infer_bounded(_infer_bindings(pattern, ()), ())


def _infer_bindings(pattern: Pattern, context: Context) -> Pattern:
    """Fill in I and O, given those of the enclosing definitions."""
    return _change_mus(pattern, lambda mu: replace(mu, definition=_bindings(mu, context)))


def _bindings(mu: Mu, context: Context) -> Definition:
    """Return the definition with the smallest I that this enlargement finds, and its O."""
    inputs = NO_NAMES
    while True:
        definition = _greatest_outputs(mu.definition, inputs, context)
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


def _greatest_outputs(definition: Definition, inputs: Names, context: Context) -> Definition:
    """Return the definition with the greatest fixpoint of O = O & db(R', I, b), from all
    parameters.
    """
    # From above, since a recursive call may assume O: a match is finite, so its innermost calls
    # bind O without one.
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
    """Fill in B, given those of the enclosing definitions."""
    return _change_mus(pattern, lambda mu: replace(mu, definition=_greatest_bounded(mu, context)))


def _greatest_bounded(mu: Mu, context: Context) -> Definition:
    """Return the definition with the greatest fixpoint of B = B & (S + W), from all parameters."""
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
    """Return the pattern with its outermost recursive patterns changed, except closed ones."""
    if isinstance(pattern, Mu):
        return change(pattern) if pattern.definition.closed is None else pattern
    return rebuilt(pattern, [*map(partial(_change_mus, change=change), children(pattern))])
