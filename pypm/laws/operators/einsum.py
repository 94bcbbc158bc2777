"""The meaning of `einsum`."""

from __future__ import annotations

from collections.abc import Sequence

from pypm.laws.algebra import (
    Algebra,
    Index,
    Indexed,
    NoMeaning,
    Scalar,
    Shape,
    SizesDiffer,
)

__all__ = ["contracted"]


def contracted(algebra: Algebra, equation: str, operands: Sequence[Indexed]) -> Indexed:
    """Return the contraction that an equation of letters writes.

    Raises NoMeaning for ellipses, and SizesDiffer if a letter has several sizes that are not 1.
    """
    if "." in equation:
        raise NoMeaning("an einsum with an ellipsis")
    before, arrow, after = equation.replace(" ", "").partition("->")
    terms = before.split(",")
    letters = "".join(terms)
    if not arrow:
        after = "".join(sorted(name for name in set(letters) if letters.count(name) == 1))
    sizes: dict[str, Index] = {}
    for term, x in zip(terms, operands, strict=True):
        for name, size in zip(term, x.shape, strict=True):
            if sizes.get(name, 1) == 1:
                sizes[name] = size
    every = [
        pair
        for term, x in zip(terms, operands, strict=True)
        for pair in zip(term, x.shape, strict=True)
    ]
    different = [(sizes[name], n) for name, n in every if n != 1 and n != sizes[name]]
    if different:
        raise SizesDiffer(*zip(*different, strict=True))
    summed = [name for name in sizes if name not in after]

    def at(place: Shape) -> Scalar:
        def over(left: Sequence[str], places: dict[str, Index]) -> Scalar:
            if left:
                first, *rest = left
                return algebra.total(sizes[first], lambda i: over(rest, {**places, first: i}))
            found = algebra.number(1)
            for term, x in zip(terms, operands, strict=True):
                own = zip(term, x.shape, strict=True)
                found = found * x.value(*(0 * places[n] if s == 1 else places[n] for n, s in own))
            return found

        return over(summed, dict(zip(after, place, strict=True)))

    return Indexed(tuple(sizes[name] for name in after), at)
