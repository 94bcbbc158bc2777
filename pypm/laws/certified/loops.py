"""Equations by which loops of any number of steps have the same states, by induction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pypm.laws.algebra import Indexed, NoMeaning, Scalar, Shape
from pypm.laws.forms.polynomials import rational
from pypm.laws.formulas import FormulaValues
from pypm.laws.loops import Loop, by_rows

__all__ = ["same_states"]


def same_states(loops: Sequence[Loop], values: FormulaValues) -> Iterator[tuple[Indexed, Indexed]]:
    """Yield pairs of tensors that are to be equal, if loops are to have the states of others: what
    they start with, or what the other makes of that in a step; and what a step makes of any states.
    """
    first: dict[int, Loop] = {}
    for loop in loops:
        starts = [values.of(each) for each in loop.before]
        before, turned = loop.later_part(values), loop.turned(values)
        if before is None and turned is not None:
            start, after = loop.as_turned(values, turned)
            yield from zip(start, map(values.of, turned.before), strict=True)
            yield from zip(after, turned.steps(values), strict=True)
            continue
        later = int(before is not None)
        if before is not None:
            others = before.states(values, rational(1))
        else:
            before = first.setdefault(loop.number(values), loop)
            others = tuple(values.of(each) for each in before.before)
        if before is not loop:
            yield from map(_by_rows, starts, others)
            yield from map(_by_rows, loop.steps(values), before.steps(values, later))


def _by_rows(one: Indexed, two: Indexed) -> tuple[Indexed, Indexed]:
    """Return two tensors as rows, at the places of the one that has more dimensions."""
    if one.rank < two.rank:
        one, two = two, one
    if two.rank > 2 and one.shape != two.shape:
        raise NoMeaning("states of other batch dimensions")

    def at(place: Shape) -> Scalar:
        rows = place if one.shape == two.shape else tuple(by_rows(place, one.shape))
        return two.value(*rows[-two.rank :])

    return one, Indexed(one.shape, at)
