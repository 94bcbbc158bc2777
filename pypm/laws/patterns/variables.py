"""Values of names that nothing describes: variables, of every kind that their uses allow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import torch

from pypm.core.records import Record, fields_of
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.patterns.domains import (
    ALL,
    DIMS,
    INDEX,
    ITEM,
    LAST_ITEM,
    NUMBER,
    PLACE,
    SIZE,
    TENSOR,
    UNKNOWN,
    Domain,
    Domains,
)
from pypm.laws.patterns.uses import dtype_tests, uses_of
from pypm.laws.patterns.ways import Way, WayName

__all__ = ["Variables", "given_number", "is_several", "parts_of", "rank_of"]

SLICE: Final = "slice of one item"
PART: Final = "slice"
RANKS: Final = (2, 1, 3, 4, 0)
"""Ranks of the tensors that variables stand for."""


class Variables:
    """New values for names, by choices of the way."""

    def __init__(
        self, way: Way, formulas: Formulas, domains: Domains, given: Sequence[Given]
    ) -> None:
        self._choices = way.choices
        self._guards = way.guards
        self._formulas = formulas
        self._world = formulas.world
        self._domains = domains
        self.dtypes: dict[WayName, torch.dtype] = {}
        self.uses = uses_of(way)
        ranks = [x.tensor.rank for x in given if isinstance(x, Formula) and not is_several(x)]
        self._rank: int | None = ranks[0] if ranks else None
        """The rank of the first tensor."""

    def _pick(self, options: Sequence[Given], label: str) -> Given:
        return self._choices.pick(lambda: options, label)

    def value(self, slot: WayName) -> Given:
        """Return a value of one of the kinds that a name may stand for. Raises NoMeaning."""
        uses = self.uses.get(slot, {})
        if uses.get("place"):
            return given_number(self._formulas, self._item(ITEM))
        if uses.get("value"):
            return given_number(self._formulas, self._world.real())
        domain: Domain = {}
        for definition, parameter in uses.get("calls", ()):
            domain |= self._domains.of(definition, parameter)
        if "argument" in uses:
            domain |= uses["argument"]
        if uses.get("operand") or not domain:
            domain.setdefault(TENSOR, TENSOR)
        values = [v for one in domain.values() for v in self._each(one)]
        chosen = self._pick(values, slot.name)
        if chosen is TENSOR:
            return self._tensor(slot)
        if chosen is NUMBER:
            return self._world.real()
        if chosen is SIZE:
            return self._world.size()
        if chosen is PLACE:
            return self._world.place()
        if chosen in (ITEM, LAST_ITEM):
            return self._item(chosen)
        if isinstance(chosen, tuple) and isinstance(chosen[-1], str):
            return (*chosen[:-1], self._item(chosen[-1]))
        if chosen is UNKNOWN:
            raise NoMeaning(f"`{slot.name}` may be anything")
        return chosen

    def _each(self, one: Given) -> list[Given]:
        """Return the values of a kind among which is chosen."""
        if one is DIMS:
            return self._dims()
        if one is INDEX:
            items = [(*[ALL] * dim, of) for dim in range(4) for of in (ITEM, LAST_ITEM, SLICE)]
            return [*items, *((..., of) for of in (ITEM, PART, 0, 1))]
        return [one]

    def _dims(self) -> list[Given]:
        """Return all sets of dimensions."""
        if self._rank is None:
            raise NoMeaning("dimensions of which tensor is not known")
        dims = range(self._rank)
        return [some for n in range(1, self._rank + 1) for some in combinations(dims, n)]

    def _item(self, chosen: str) -> Given:
        number = self._world.item()
        if chosen is SLICE:
            return ("slice", number - 1, number, None)
        if chosen is PART:
            return ("slice", number, number + self._world.item(), None)
        return number - 1 if chosen is ITEM else -number

    def _tensor(self, slot: WayName) -> Formula:
        dtype, kind = self._type(slot)
        if dtype is not None:
            self.dtypes[slot] = dtype
        shape = self._pick(self._shapes(), slot.name)
        made = self._formulas.read([n or self._world.size() for n in shape], kind, slot.name)
        self._rank = made.tensor.rank if self._rank is None else self._rank
        if dtype is not None:
            made.attributes["dtype"] = dtype  # type: ignore[index]
        return made

    def _shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes that a new tensor may have, with 0 for a size: that of the first one is
        of any rank, and the others are like it, a column or a row of it, or of a low rank.
        """
        if self._rank is None:
            return [(0,) * rank for rank in RANKS]
        rank = self._rank
        alike = [(0,) * rank]
        alike += [(0,) + (1,) * (rank - 2)] if rank > 2 else []
        return list(dict.fromkeys((*alike, (0,), (0, 0), ())))

    def _type(self, slot: WayName) -> tuple[torch.dtype | None, str]:
        """Return the type that a guard says, and whether it is of numbers or truth values."""
        for guard, names in self._guards:
            for tested, expected in dtype_tests(guard):
                same = names.get(tested) is slot
                if same and isinstance(expected, torch.dtype):
                    if expected.is_floating_point:
                        return expected, "real"
                    return expected, "truth" if expected == torch.bool else "whole"
        is_mask = self.uses.get(slot, {}).get("mask")
        return None, self._pick(("real", "truth"), slot.name) if is_mask else "real"


def given_number(formulas: Formulas, value: Given) -> Given:
    """Return a number that a graph holds, as an operand; other constants as they are."""
    if value is None or isinstance(value, (str, bool)):
        return value
    made = formulas.number(value)
    made.attributes["given"] = value  # type: ignore[index]
    return made


def is_several(value: Given) -> bool:
    """Return whether a value is several tensors."""
    return isinstance(value, tuple) or (
        isinstance(value, Formula) and isinstance(value.value, tuple)
    )


def rank_of(value: Given) -> int | None:
    """Return the rank of a tensor, None for other values."""
    return value.tensor.rank if isinstance(value, Formula) and not is_several(value) else None


def parts_of(value: Given) -> Sequence[Given]:
    """Return the items of a tuple, or names and values of the fields of a record."""
    if isinstance(value, Record):
        return [part for pair in fields_of(value).items() for part in pair]
    return value  # type: ignore[no-any-return]
