"""Lists of as many tensors as a symbol says: the results of the steps of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from pypm.core.records import Record, fields_of, mapped
from pypm.fx.values.observers import Lists
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.numbers import Size
from pypm.laws.patterns.ways import NotMatched
from pypm.laws.tracing import formulas_of, running, tensor_of

__all__ = [
    "Filled",
    "Items",
    "aligned",
    "in_torch",
    "joined",
    "listed",
    "parts_of",
    "rebuilt",
    "states_in",
    "tensors_in",
    "written",
]


@dataclass(frozen=True, eq=False)
class Items:
    """A list: some tensors, and then those along the first dimension of another one."""

    heads: tuple[Formula, ...]
    rest: Formula


@dataclass(frozen=True, eq=False)
class Filled:
    """The first items of a tensor along a dimension; the others may be anything."""

    items: Formula
    dim: Given


def written(formulas: Formulas, of: Filled) -> Formula:
    """Return any tensor with such items."""
    count, *sizes = formulas.sizes(of.items)
    if not isinstance(of.dim, int) or not -1 - len(sizes) <= of.dim <= len(sizes):
        raise NotMatched("no such dimension")
    dim = of.dim % (len(sizes) + 1)
    rest = formulas.read([*sizes[:dim], formulas.world.size(), *sizes[dim:]])
    found: Formula = in_torch(
        formulas, lambda x, y: y.slice_scatter(x.movedim(0, dim), dim, 0, count), of.items, rest
    )
    return found


def in_torch(formulas: Formulas, code: Callable[..., Given], *values: Given) -> Given:
    """Return what torch code makes of values."""
    with running(formulas):
        return formulas_of(code(*(tensor_of(value, formulas) for value in values)), formulas)


def listed(
    formulas: Formulas, lists: Lists, results: Formula, steps: Size, head: Formula | None = None
) -> Given:
    """Return the list of the results of so many steps, [steps, ...], perhaps after a tensor."""
    if head is not None:
        both = in_torch(formulas, lambda x, y: torch.cat((x.unsqueeze(0), y)), head, results)
        return Items((), both)
    if steps.form == 0:
        return ()
    return Items(
        (), in_torch(formulas, lambda x: x.flip(0), results) if lists.is_reversed else results
    )


def joined(formulas: Formulas, operator: str, items: Items, dim: Given) -> Given:
    """Return what `stack` or `cat` makes of a list."""
    if items.heads:
        raise NoMeaning("a list whose first tensors stand alone")
    is_stack = operator == "aten.stack"
    rank = items.rest.tensor.rank - (not is_stack)
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise NotMatched("no such dimension")

    def code(x: Given) -> Given:
        x = x.movedim(0, dim % rank)
        return x if is_stack else x.flatten(dim % rank, dim % rank + 1)

    return in_torch(formulas, code, items.rest)


def aligned(formulas: Formulas, one: Given, other: Given) -> tuple[Given, Given]:
    """Return a list like another one, with as many tensors that stand alone, and that; of a tensor
    and another one with items in it, these items, the last one for itself.
    """
    if isinstance(one, Filled):
        return _items(formulas, one.items, one.items), _items(
            formulas, in_torch(formulas, lambda x: x.movedim(one.dim, 0), other), one.items
        )
    if not (isinstance(one, Items) and isinstance(other, Items)):
        return one, other
    missing = len(other.heads) - len(one.heads)
    heads = tuple(in_torch(formulas, lambda x, i=i: x[i], one.rest) for i in range(missing))
    return Items((*one.heads, *heads), in_torch(formulas, lambda x: x[missing:], one.rest)), other


def _items(formulas: Formulas, x: Formula, like: Formula) -> tuple[Formula, ...]:
    """Return as many first items of a tensor as another one has: the last one, and those before."""
    last = formulas.world.sized(formulas.sizes(like)[0].form - 1)
    found = [in_torch(formulas, lambda x: x.select(0, last), x)]
    if last.form != 0:
        found.append(in_torch(formulas, lambda x: x.narrow(0, 0, last), x))
    return tuple(found)


def tensors_in(value: Given) -> Iterator[Given]:
    """Yield the tensors of a list, a record or a tuple, or one tensor itself."""
    match value:
        case Items(heads, rest):
            yield from (*heads, rest)
        case Record():
            for part in fields_of(value).values():
                yield from tensors_in(part)
        case tuple():
            for part in value:
                yield from tensors_in(part)
        case _:
            yield value


def rebuilt(like: Given, tensors: Iterator[Formula]) -> Given:
    """Return a tensor or a record like another one, with other tensors."""
    if isinstance(like, Record):
        return mapped(lambda part: rebuilt(part, tensors), like)
    return next(tensors)


def states_in(values: Sequence[Given]) -> tuple[Formula, ...]:
    """Return the tensors of states. Raises NoMeaning for other values."""
    found = tuple(tensors_in(tuple(values)))
    if not all(isinstance(x, Formula) for x in found):
        raise NoMeaning("a state that is no tensor")
    return found


def parts_of(value: Given) -> Sequence[Given]:
    """Return the items of a tuple, or names and values of the fields of a record."""
    if isinstance(value, Record):
        return [part for pair in fields_of(value).items() for part in pair]
    return value  # type: ignore[no-any-return]
