"""Sums and maxima over indices: bound indices in canonical names, independent factors outside."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

from pypm.laws.forms.polynomials import (
    MINUS_INFINITY,
    Factor,
    Kept,
    Key,
    Monomial,
    Part,
    Poly,
    factor,
    of_key,
    rational,
)

__all__ = [
    "NAMES",
    "Sizes",
    "indices_in",
    "maximum",
    "new_index",
    "opened",
    "summand",
    "total",
    "with_fixed_indices",
]

Sizes: TypeAlias = Mapping[str, Poly]
"""The size of the range of each index, from 0 on."""
MOST_ORDERED: Final = 4
"""The most bound indices of one sum of which all orders of those of one size are compared."""


class Names:
    """Names of indices, each of which is new."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def new(self) -> str:
        """Return a name that no other index has had since the last `restart`."""
        return f"${next(self._numbers)}"

    def restart(self) -> None:
        """Begin anew: what is compared later has other indices than what was before."""
        self._numbers = itertools.count()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Run something that begins anew, beside what is under way."""
        before = self._numbers
        try:
            yield
        finally:
            self._numbers = before


NAMES: Final = Names()
new_index = NAMES.new


@lru_cache(maxsize=2**18)
def indices_in(part: Part) -> frozenset[str]:
    """Return the names of the indices in a factor, a key or a part of one."""
    if isinstance(part, str):
        return frozenset([part]) if part[:1] in ("$", "%") else frozenset()
    if isinstance(part, (tuple, frozenset)):
        return frozenset().union(*map(indices_in, part))
    return frozenset()


def with_fixed_indices(value: Poly, place: Sequence[Poly]) -> Poly:
    """Return the value at a place with names of its indices that are always the same."""
    found = frozenset().union(*(indices_in(index.key) for index in place))
    ordered = sorted(found, key=lambda name: int(name[1:]))
    names = {name: f"@{number}" for number, name in enumerate(ordered)}
    return of_key(_renamed(value.key, names))


def _renamed(part: Part, names: Mapping[str, str]) -> Part:
    """Return a part of a key with other names of indices, its sums in order again."""
    if isinstance(part, str):
        return names.get(part, part)
    if not isinstance(part, tuple) or not (indices_in(part) & names.keys()):
        return part
    return Kept(_sorted(tuple([_renamed(inner, names) for inner in part])))


def _sorted(part: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return a key or a monomial with its terms in order; anything else as it is."""
    if part and all(
        isinstance(t, tuple) and len(t) == 2 and isinstance(t[1], Fraction) for t in part
    ):
        return tuple(sorted(part, key=repr))
    return part


@lru_cache(maxsize=2**18)
def _level(part: Part) -> int:
    bound = [int(name[1:].split("_")[0]) for name in indices_in(part) if name[0] == "%"]
    return max(bound, default=0)


def _bound(kind: str, body: tuple[Part, ...], sizes: Sizes) -> Factor:
    """Return a sum or a maximum of a monomial or a key over indices, in canonical names."""
    level = _level(body) + 1
    alike: dict[str, list[str]] = {}
    for name in sorted(sizes):
        alike.setdefault(repr(sizes[name].key), []).append(name)
    groups = [names for _, names in sorted(alike.items())]
    orders: Iterable[tuple[str, ...]] = [tuple(itertools.chain(*groups))]
    if len(sizes) <= MOST_ORDERED:
        each = (itertools.permutations(names) for names in groups)
        orders = (tuple(itertools.chain(*order)) for order in itertools.product(*each))
    best: tuple[str, Factor] | None = None
    for order in orders:
        names = {name: f"%{level}_{place}" for place, name in enumerate(order)}
        new = _renamed(body, names)
        found = (kind, tuple(_size_key(sizes[name], names) for name in order), new)
        if best is None or repr(found) < best[0]:
            best = (repr(found), found)
    assert best is not None
    return best[1]


def _size_key(size: Poly, names: Mapping[str, str]) -> Key:
    found: Key = _renamed(size.key, names)
    return found


def opened(of: Factor) -> tuple[Sizes, Monomial]:
    """Return the indices and the monomial of a sum, under new names."""
    _, sizes, body = of
    level = _level(body)
    names = {f"%{level}_{place}": new_index() for place in range(len(sizes))}
    ranges = {names[f"%{level}_{place}"]: of_key(size) for place, size in enumerate(sizes)}
    return ranges, frozenset(_renamed(body, names))


def summand(value: Poly, size: Key, index: str) -> Poly | None:
    """Return what a value is the sum of, over an index of this size; None if a term is no sum."""
    found = Poly({})
    for monomial, coefficient in value.terms.items():
        part = _summand_of_monomial(monomial, size, index)
        if part is None:
            return None
        found = found + part.scaled(coefficient)
    return found


def _summand_of_monomial(monomial: Monomial, size: Key, index: str) -> Poly | None:
    for of, exponent in monomial:
        if of[0] == "sum" and exponent == 1 and size in of[1]:
            sizes, body = opened(of)
            name = next(name for name, known in sizes.items() if known.key == size)
            others = {other: known for other, known in sizes.items() if other != name}
            inner = total(Poly({body: Fraction(1)}), others)
            outside = Poly({monomial - {(of, exponent)}: Fraction(1)})
            return of_key(_renamed(inner.key, {name: index})) * outside
    return None


def total(value: Poly, sizes: Sizes) -> Poly:
    """Return the sum of a polynomial over indices."""
    found = Poly({})
    for monomial, coefficient in value.terms.items():
        found = found + _total_of_monomial(monomial, dict(sizes)).scaled(coefficient)
    return found


def _total_of_monomial(monomial: Monomial, sizes: dict[str, Poly]) -> Poly:
    parts: list[tuple[Factor, Fraction]] = []
    todo = list(monomial)
    while todo:
        of, exponent = todo.pop()
        is_sum = of[0] == "sum" and exponent.denominator == 1 and 0 < exponent <= 3
        if is_sum and indices_in(of) & sizes.keys():
            for _ in range(int(exponent)):
                inner, body = opened(of)
                sizes |= inner
                todo += body
        elif of[0] == "exp":  # of a sum: a product, whose factors may be independent
            todo += [(("exps", ((term, c),)), exponent) for term, c in of[1]]
        else:
            parts.append((of, exponent))
    found, groups = rational(1), list[tuple[set[str], Poly]]()
    for of, exponent in parts:
        one = factor(("exp", of[1]) if of[0] == "exps" else of, exponent)
        bound = indices_in(of) & sizes.keys()
        if not bound:
            found = found * one
            continue
        near = [group for group in groups if group[0] & bound]
        groups = [group for group in groups if not group[0] & bound]
        joined, product = set(bound), one
        for names, others in near:
            joined |= names
            product = product * others
        groups.append((joined, product))
    for name in sizes.keys() - set().union(*(names for names, _ in groups)):
        found = found * sizes[name]
    for names, product in groups:
        found = found * _summed(product, {name: sizes[name] for name in names})
    return found


def _summed(product: Poly, sizes: Sizes) -> Poly:
    found = Poly({})
    ranges = tuple(sizes.items())
    for monomial, coefficient in product.terms.items():
        found = found + _sum_of(monomial, ranges).scaled(coefficient)
    return found


@lru_cache(maxsize=2**16)
def _sum_of(monomial: Monomial, ranges: tuple[tuple[str, Poly], ...]) -> Poly:
    return factor(_bound("sum", tuple(sorted(monomial, key=repr)), dict(ranges)))


def maximum(value: Poly, sizes: Sizes) -> Poly:
    """Return the largest of a polynomial's values over indices; what does not depend on them is
    added to it.
    """
    inside: dict[Monomial, Fraction] = {}
    outside: dict[Monomial, Fraction] = {}
    for monomial, coefficient in value.terms.items():
        bound = any(of == MINUS_INFINITY or indices_in(of) & sizes.keys() for of, _ in monomial)
        (inside if bound else outside)[monomial] = coefficient
    if not inside:
        return value
    return Poly(outside) + factor(_bound("max", Poly(inside).key, sizes))
