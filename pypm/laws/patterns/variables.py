"""Values of names that nothing describes: variables, of every kind that their uses allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Final

import torch

from pypm.core.guards import (
    Apply,
    Attribute,
    Constant,
    Equal,
    Function,
    Holds,
    Reference,
    evaluate,
)
from pypm.core.patterns import Definition
from pypm.core.records import Record
from pypm.core.terms import UNDEFINED, VALUE
from pypm.fx.values.observers import Rank, last_dims_of, ranks_of
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import Formula, Formulas, given_number, is_several
from pypm.laws.lemmas import Lemmas, takes
from pypm.laws.meanings_of_patterns import meaning_of
from pypm.laws.numbers import Contradiction, form_of
from pypm.laws.patterns.domains import ListOf, MeantBy, added, fields_in
from pypm.laws.patterns.hidden import Hidden, is_by_steps
from pypm.laws.patterns.operator_arguments import (
    ALL,
    DIMS,
    EQUATIONS,
    FIELDS,
    INDEX,
    ITEM,
    LAST_ITEM,
    LIST,
    MEANT,
    NUMBER,
    ORDER,
    PLACE,
    SHAPE,
    SIZE,
    TENSOR,
    TRUTH,
    UNKNOWN,
    Domain,
)
from pypm.laws.patterns.subjects import GuardedName, known_attribute
from pypm.laws.patterns.uses import is_column, said_ranks, said_type, uses_of
from pypm.laws.patterns.ways import NotMatched, Way, WayName

__all__ = ["Variables"]

SLICE: Final = "slice of one item"
PART: Final = "slice"
SECONDS: Final = tuple(("slice", start, None, 2) for start in (None, 1))
"""Every second element, as parts of an index."""
OTHERS: Final = (..., None), (..., None, ALL), (ITEM, ..., PART)
"""Indices that insert a dimension, or take a part of an item."""
PLACES: Final = (ITEM, LAST_ITEM, SLICE, PART)
ITEM_VALUE: Final = "value of an item"
COUNT: Final = "number of times"
RANKS: Final = (2, 1, 3, 4, 0)
"""Ranks of the tensors that variables stand for."""


RANKS_OF_FIELDS: Final = (*RANKS, 5)
"""Ranks of the tensors in records."""
MOST_PARTS: Final = 1
"""The most parts of a list."""
REGROUPED: Final = {3: 4, 5: 4}
"""By the rank of the first tensor, another one in which the rows of a tensor are grouped."""


class Variables:
    """New values for names, by choices of the way."""

    def __init__(
        self, way: Way, formulas: Formulas, lemmas: Lemmas, given: Sequence[Given]
    ) -> None:
        self._choices = way.choices
        self._guards = way.every_guard
        self._formulas = formulas
        self._world = formulas.world
        self._lemmas = lemmas
        self.dtypes: dict[WayName, torch.dtype] = {}
        self.uses = uses_of(way)
        self._rank: int | None = None
        """The rank of the first tensor."""
        self.are_alike = False
        """True if all tensors have that rank."""
        self._fields: dict[tuple[WayName, str], Given] = {}
        """Fields of records."""
        self._operands: list[tuple[WayName, bool, Given]] = []
        """Operands in lists, each with the name of the list, and whether it holds truth values."""
        self._is_plain = True
        """True if the constants of records are the first of those that they may be."""
        for value in given:
            if isinstance(value, Hidden) and is_by_steps(value.group.by):
                self.put_beside(value.group.by, value.group.tensors)
        ranks = [x.tensor.rank for x in given if isinstance(x, Formula) and not is_several(x)]
        if ranks and self._rank is None:
            self._rank = ranks[0]

    def _pick(self, options: Sequence[Given], label: str) -> Given:
        return options[0] if len(options) == 1 else self._choices.pick(lambda: options, label)

    def value(self, slot: WayName) -> Given:
        """Return a value of one of the kinds that a name may stand for. Raises NoMeaning."""
        found = self.said(slot)
        return self._of(self.domain(slot), slot) if found is UNDEFINED else found

    def domain(self, slot: WayName) -> Domain:
        """Return the kinds of values that a name may stand for."""
        uses = self.uses.get(slot, {})
        if uses.get("place"):
            return {ITEM_VALUE: ITEM_VALUE}
        if uses.get("value"):
            is_count = uses.get("operand") == SIZE
            return {COUNT: COUNT} if is_count else {VALUE: VALUE}
        domain: Domain = {}
        for definition, parameter in uses.get("calls", ()):
            added(domain, self._lemmas.domains.of(definition, parameter))
        if "argument" in uses:
            added(domain, uses["argument"])
        kind = uses.get("operand", None if domain else TENSOR)
        if kind == SIZE and not self._is_one(slot):
            raise NoMeaning(f"`{slot.name}` may be several numbers of times")
        if kind is not None and not (kind == TENSOR and TRUTH in domain):
            domain.setdefault(kind, kind)
        if uses.get("mask"):
            domain[None] = None
        return domain

    def said(self, slot: WayName) -> Given:
        """Return the constant that a guard says a name is, or the number that stands for it."""
        for guard, names in self._guards:
            match guard:
                case Equal(Reference(name), Constant(value)) | Holds(
                    Apply(Function("is_value"), (Reference(name), Constant(value)))
                ) if names.get(name) is slot:
                    return value
                case Holds(Apply(function, (Attribute(name, attribute), *_))) if (
                    function.limit is not None and attribute == VALUE and names.get(name) is slot
                ):
                    self._world.limits.add(function.name.rpartition(".")[2])
                    return given_number(self._formulas, function.limit)
        return UNDEFINED

    def _of(self, domain: Domain, slot: WayName) -> Given:
        if FIELDS in domain:
            return Record({name: self.field(slot, name) for name in _names(fields_in(domain))})
        kinds = dict(domain)
        if MEANT in kinds:
            kinds = {MEANT: kinds[MEANT]}
        values = [v for one in kinds.values() for v in self._each(one)]
        chosen = self._pick(values, slot.name)
        self._is_plain = self._is_plain and not (isinstance(chosen, str) and chosen != values[0])
        return self._made(chosen, slot)

    def _made(self, chosen: Given, slot: WayName) -> Given:
        match chosen:
            case ListOf():
                return self._list(chosen, slot)
            case MeantBy():
                values = [self._of(one, slot) for one in chosen.arguments]
                self._check(chosen.guards, dict(zip(chosen.names, values, strict=True)))
                return self._meant(chosen.definition, values, slot)
        if chosen is TENSOR:
            return self.tensor(slot)
        if chosen is TRUTH:
            return self._formulas.read(self._new_shape(slot), "truth", slot.name)
        if chosen is ITEM_VALUE:
            return given_number(self._formulas, self._place(ITEM))
        if chosen is VALUE:
            return given_number(self._formulas, self._world.real())
        if chosen is COUNT:
            return given_number(self._formulas, self._world.size())
        if chosen is NUMBER:
            return self._world.real()
        if chosen is SIZE:
            return self._world.size()
        if chosen is PLACE:
            return self._world.place()
        if chosen in (ITEM, LAST_ITEM):
            return self._place(chosen)
        if isinstance(chosen, tuple):
            return tuple(self._place(one) if one in PLACES else one for one in chosen)
        if chosen is SHAPE:
            return tuple(self._world.size() for _ in self._pick(self._shapes(), slot.name))
        if chosen is UNKNOWN:
            raise NoMeaning(f"`{slot.name}` may be anything")
        return chosen

    def _each(self, one: Given) -> list[Given]:
        """Return the values of a kind among which is chosen."""
        if one is INDEX:
            items = [(*[ALL] * dim, of) for dim in range(4) for of in (ITEM, LAST_ITEM, SLICE)]
            return [*items, *((..., of) for of in (ITEM, PART, 0, 1, *SECONDS)), *OTHERS]
        if one in EQUATIONS and self._rank is not None:  # of operands or results of that rank
            operands, _, result = str(one).partition("->")
            most = max(map(len, operands.split(",")))
            return [one] * (self._rank in (most, max(most, len(result))))
        return self._orders(one) if one in (DIMS, ORDER) else [one]

    # --- records and lists ---

    def has_lists(self, slot: WayName) -> bool:
        """Return whether a name stands for a list, or a record with one."""
        domain = self.domain(slot)
        return LIST in domain or any(LIST in one for one in fields_in(domain).values())

    def with_empty_lists(self, slot: WayName) -> Given:
        """Return the value of a name with empty lists: what fits none of these fits no others."""
        domain = self.domain(slot)
        if LIST in domain:
            return ()
        fields = fields_in(domain)
        return Record({n: () if LIST in fields[n] else self.field(slot, n) for n in _names(fields)})

    def field(self, slot: WayName, name: str) -> Given:
        """Return a field of the record that a name stands for; `UNDEFINED` if it has none."""
        domain = fields_in(self.domain(slot)).get(name)
        if domain is None:
            return UNDEFINED
        if (slot, name) not in self._fields:
            ranks = RANKS_OF_FIELDS if self._rank is None else (self._rank,)
            if domain == {TENSOR: TENSOR}:
                self._rank = self._pick(ranks, name)
                sizes = [self._world.size() for _ in range(self._rank or 0)]
                found: Given = self._formulas.read(sizes, "real", name)
            else:
                found = self._of(domain, WayName(name))
            self._fields[slot, name] = found
        return self._fields[slot, name]

    def _list(self, of: ListOf, slot: WayName) -> Given:
        """Return a list of a few parts; an empty one beside constants that are not the first."""
        most = MOST_PARTS if self._is_plain and of.parts else 0
        count = self._pick(range(most + 1), slot.name)
        self._world.parts = max(self._world.parts or 0, most)
        chosen = [self._pick(of.parts, slot.name) for _ in range(count)]
        return tuple(tuple(self._item(item, slot)) for part in chosen for item in part)

    def _item(self, item: tuple[Domain, ...], slot: WayName) -> Iterator[Given]:
        shape: tuple[Given, ...] = ()
        for domain in item:
            if SHAPE in domain:
                ranks = [rank for rank in (self._rank, REGROUPED.get(self._rank or 0)) if rank]
                shape = tuple(self._world.size() for _ in range(self._pick(ranks, slot.name)))
                yield shape
            elif MEANT not in domain and (TENSOR in domain or TRUTH in domain):
                yield self._operand(shape, TRUTH in domain, slot)
            else:
                made = self._of(domain, WayName(slot.name))
                if MEANT in domain and isinstance(made, Formula):
                    self._put_in(shape, made)
                    self._operands.append((slot, made.tensor.kind == "truth", made))
                yield made

    def _put_in(self, shape: Sequence[Given], made: Formula) -> None:
        """Let what a pattern means have the last sizes of a shape. Raises NotMatched."""
        sizes = self._formulas.sizes(made)
        try:
            self._world.unify(sizes[-len(shape) :], shape[-len(sizes) :] if sizes else ())
        except Contradiction as why:
            raise NotMatched(str(why)) from None

    def _operand(self, shape: Sequence[Given], is_truth: bool, slot: WayName) -> Given:
        """Return a number, or a tensor: like a shape, a row or a column of it, or one that is in
        another list.
        """
        rank = len(shape)
        options: list[tuple[int, ...] | int | None] = [(0,) * rank]
        if rank and rank == self._rank:
            options += [(1,) * (rank - 2) + (0, 0), (0,) * (rank - 1) + (1,)]
        known = [x for of, kind, x in self._operands if of is not slot and kind == is_truth]
        options = [*([] if is_truth else [None]), *options, *range(len(known))]
        chosen = self._pick(options, slot.name)
        if isinstance(chosen, int):
            return known[chosen]
        if chosen is None:
            found = given_number(self._formulas, self._world.real())
        else:
            sizes = [n or self._world.size() for n in chosen]
            found = self._formulas.read(sizes, "truth" if is_truth else "real")
        self._operands.append((slot, is_truth, found))
        return found

    def _meant(self, definition: Definition, values: list[Given], slot: WayName) -> Given:
        if takes(definition):
            chosen = self._pick(((0,), (0, 1)), slot.name)
            values.append(tuple(n or self._world.size() for n in chosen))
        return meaning_of(definition, values, self._formulas)

    def _check(self, guards: Sequence[Equal], values: Mapping[str, Given]) -> None:
        """Raise NotMatched where guards do not hold of values, whatever the sizes."""

        def subject(name: str) -> GuardedName:
            ask = partial(known_attribute, self._formulas, values[name])
            return GuardedName(lambda: values[name], ask)

        for guard in guards:
            one, two = (evaluate(side, subject) for side in (guard.left, guard.right))
            if UNDEFINED in (one, two) or form_of(one) != form_of(two):
                raise NotMatched("a guard")

    # --- tensors ---

    def ranks_beside(self, by: Callable[..., Given]) -> Sequence[tuple[Rank, ...]]:
        """Return the ranks of what an observer may return, beside the tensors that there are."""
        found = ranks_of(by) or ((last_dims_of(by) or 0,),)
        is_bound = self.are_alike and len(found[0]) == 1
        return [(self._rank,)] if is_bound and (self._rank,) in found else found

    def put_beside(self, by: Callable[..., Given], tensors: Sequence[Formula | None]) -> None:
        """Let tensors have the rank of the one that an observer returns, or of the items of a step,
        if nothing has a rank yet.
        """
        ranks = {x.tensor.rank for x in tensors if x is not None}
        is_said = ranks_of(by) and (len(tensors) == 1 or is_by_steps(by))
        if is_said and len(ranks) == 1 and self._rank is None:
            self._rank = ranks.pop() - int(is_by_steps(by))
            self.are_alike = True

    def _orders(self, domain: Given) -> list[Given]:
        """Return all sets of dimensions, or orders that swap two neighbours."""
        if self._rank is None:
            raise NoMeaning("dimensions of which tensor is not known")
        dims = range(self._rank)
        if domain == ORDER:
            swaps: list[Given] = [(*dims[:d], d + 1, d, *dims[d + 2 :]) for d in dims[:-1]]
            return swaps or [tuple(dims)]
        return [some for n in range(1, self._rank + 1) for some in combinations(dims, n)]

    def _place(self, chosen: str) -> Given:
        number = self._world.item()
        if chosen is SLICE:
            return ("slice", number - 1, number, None)
        if chosen is PART:
            return ("slice", number, number + self._world.item(), None)
        return number - 1 if chosen is ITEM else -number

    def tensor(self, slot: WayName) -> Formula:
        """Return a new tensor. Raises NotMatched."""
        self._world.has_choices = True
        dtype, kind = self._type(slot)
        if dtype is not None:
            self.dtypes[slot] = dtype
        shape = () if self._is_one(slot) else self._new_shape(slot)
        made = self._formulas.read(shape, kind, slot.name)
        if self._rank is None and not self._is_one(slot):
            self._rank = made.tensor.rank
        if dtype is not None:
            made.attributes["dtype"] = dtype  # type: ignore[index]
            if dtype.is_floating_point:
                self._world.dtype = dtype
        return made

    def _is_one(self, slot: WayName) -> bool:
        """Return whether a guard says that a tensor has one element."""
        return any(
            names.get(name) is slot
            for guard, names in self._guards
            if isinstance(guard, Equal) and guard.right == Constant(1)
            for name in [getattr(guard.left, "name", "")]
            if guard.left == Attribute(name, "numel")
        )

    def _new_shape(self, slot: WayName) -> list[Given]:
        label = SHAPE if "#" in slot.name else slot.name
        said = said_ranks(self._guards, slot)
        known = self.uses.get(slot, {}).get("rank", said[0] if len(said) == 1 else None)
        shapes = [s for s in self._shapes() if known in (None, len(s))]
        if self._rank is not None and self.uses.get(slot, {}).get("items"):
            shapes = [(0,) * (self._rank + 1)]
        if not shapes or (self.are_alike and len(said) == 1):
            shapes = [(0,) * rank for rank in said]
        if not shapes:
            raise NotMatched("an operator that takes no such rank")
        sizes = [n or self._world.size() for n in self._pick(shapes, label)]
        if sizes and is_column(self._guards, slot):
            sizes[-1] = 1
        return sizes

    def _shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes that a new tensor may have, with 0 for a size: that of the first one is
        of any rank, and the others are like it, a column or a row of it, or of a low rank; those
        beside a record are like the first.
        """
        if self._rank is None:
            return [(0,) * rank for rank in RANKS]
        rank = self._rank
        alike = [(0,) * rank]
        if self.are_alike or self._fields:
            return alike
        alike += [(0,) + (1,) * (rank - 2)] if rank > 2 else []
        return list(dict.fromkeys((*alike, (0,), (0, 0), ())))

    def _type(self, slot: WayName) -> tuple[torch.dtype | None, str]:
        """Return the type that a guard says, and whether it is of numbers or truth values."""
        expected = said_type(self._guards, slot)
        if expected is not None:
            if expected.is_floating_point:
                return expected, "real"
            return expected, "truth" if expected == torch.bool else "whole"
        is_mask = self.uses.get(slot, {}).get("mask")
        return None, self._pick(("real", "truth"), slot.name) if is_mask else "real"


def _names(fields: dict[str, Domain]) -> list[str]:
    """Return the names of fields, those with lists last."""
    return sorted(fields, key=lambda name: (LIST in fields[name], name))
