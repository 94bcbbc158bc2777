"""Inference of what recursive patterns need and bind (calculus section 5)."""

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
    inputs = NO_NAMES
    while True:
        definition = _greatest_outputs(mu.definition, inputs, context)
        inside = (definition, *context)
        found: list[Problem] = []
        check(definition.body, inputs, inside, None, found)
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
