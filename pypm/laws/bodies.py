"""Bodies of rules, run on symbolic tensors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Final

import torch

from pypm.core.patterns import Var
from pypm.core.rules import DECLINES, Build, Decline, Rule
from pypm.fx.operators.body_trace import BODY_TRACE, BodyTrace
from pypm.fx.tracing.body import takes_match
from pypm.fx.tracing.templates import build
from pypm.laws.algebra import Given, Indivisible, NoMeaning, SizesDiffer
from pypm.laws.forms.deadline import TimeIsUp
from pypm.laws.formulas import Formulas
from pypm.laws.lemmas import Declined
from pypm.laws.matches import match_of
from pypm.laws.numbers import Assumed, Contradiction
from pypm.laws.tracing import formulas_of, running, tensor_of

__all__ = ["UNSURE", "decline_early", "replaced"]

UNSURE: Final = "the body needs sizes or dimensions that no guard ensures"
HELP: Final = (
    "the body runs on tensors that have a shape and no elements: compute by torch's operators, and "
    "decide by shapes, types and numbers alone"
)


def replaced(
    rule: Rule,
    values: Mapping[str, Given],
    dtypes: Mapping[str, torch.dtype | None],
    results: tuple[Given, ...],
    formulas: Formulas,
    is_lenient: bool = False,
) -> tuple[Given, ...]:
    """Return what a rule's body returns for values of its parameters.

    `results` are those of the pattern, whose shapes and types a body may read. Raises Declined, and
    NoMeaning if the body does what has no meaning, or raises anything, and if it needs sizes to be
    equal that no guard makes equal; `is_lenient` raises SizesDiffer for these.
    """
    given = {name: tensor_of(value, formulas, dtypes[name]) for name, value in values.items()}
    try:
        found = _called(rule, given, results, formulas)
    except SizesDiffer:
        if is_lenient:
            raise
        raise NoMeaning(UNSURE) from None
    if isinstance(found, Decline):
        raise Declined(found.reason)
    listed = found if isinstance(found, (tuple, list)) else (found,)
    return tuple(formulas_of(result, formulas) for result in listed)


class _Unasked:
    """A match of which nothing is known yet."""

    def __getattr__(self, name: str) -> Given:
        raise NoMeaning(f"`{name}` of a match that is not computed yet")


def decline_early(
    rule: Rule,
    values: Mapping[str, Given],
    dtypes: Mapping[str, torch.dtype | None],
    formulas: Formulas,
) -> None:
    """Raise Declined where a body declines by the values of its parameters, but for sizes and
    types, before it asks what the match computes.
    """
    world = formulas.world
    given = {name: tensor_of(value, formulas, dtypes[name]) for name, value in values.items()}
    before, conditions = (world.noted, len(world.assumptions)), dict(world.conditions)
    try:
        found = _called(rule, given, (), formulas, _Unasked())
    except (NoMeaning, SizesDiffer, Indivisible, Contradiction):
        found = None
    world.conditions = conditions
    if isinstance(found, Decline) and (world.noted, len(world.assumptions)) == before:
        declined = Declined(found.reason)
        declined.asked = set()
        raise declined


def _called(
    rule: Rule,
    given: dict[str, Given],
    results: tuple[Given, ...],
    formulas: Formulas,
    match: _Unasked | None = None,
) -> Given:
    body = rule.replacement
    tokens = BODY_TRACE.set(BodyTrace(False, references=formulas.references)), DECLINES.set([])
    try:
        if takes_match(rule):
            given["match"] = match or match_of(rule, given, results, formulas)
        plain = nullcontext() if rule.reads is None else formulas.world.reading()
        with running(formulas), plain:
            return build(body, given) if isinstance(body, (Var, Build)) else body(**given)
    except (NoMeaning, SizesDiffer, Indivisible, Assumed, Contradiction, TimeIsUp):
        raise
    except Exception as error:
        if formulas.declined:
            raise Declined(formulas.declined) from None
        first = str(error).partition("\n")[0]
        raise NoMeaning(f"the body raises {type(error).__name__}: {first}", HELP) from error
    finally:
        BODY_TRACE.reset(tokens[0])
        DECLINES.reset(tokens[1])
