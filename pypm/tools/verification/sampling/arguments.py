"""Arguments that are no tensors: values for an operator's attributes that it may well take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Final

import torch

from pypm.core.operators import REQUIRED
from pypm.core.terms import Value
from pypm.fx import GETITEM
from pypm.fx.operators import corrections
from pypm.fx.operators.schemas import Overload
from pypm.fx.operators.schemas import Slot as Argument
from pypm.torch_internals import pytree

__all__ = ["FLOATING", "is_of_pieces", "literal", "value_of"]

FLOATING: Final = (torch.float64, torch.float32, torch.bfloat16)
INTEGERS: Final = (torch.int64, torch.int8, torch.uint8)
FACTORS: Final = (2.0, 0.5, 1.0, 0.0, 1e-5)
HOSTILE: Final = (-1.5, math.inf, -math.inf, math.nan)
"""Numbers that a tensor can be filled with, and that show where one is multiplied instead."""
COUNTS: Final = (4, 300, 1, 0)
"""Bounds of ranges, one of which the narrow integers do not hold."""
NUMBERS: Final = (2.0, 0.5, 1.0, 3, -1.5, 0.0, 1, 2, -1, 0, 1e-5)


def literal(random: Random, constants: Sequence[Value]) -> Value:
    """A number for where a tensor could be."""
    return random.choice([*NUMBERS, *(c for c in constants if isinstance(c, (int, float)))])


def value_of(
    argument: Argument,
    overload: Overload,
    children: Sequence[Value],
    length: int | None,
    dim: Value,
    random: Random,
) -> Value:
    """A value for one argument of a call; mostly its default, where it has one.

    `length` is that of a list, where it is known, and `dim` the call's argument of that name.
    """
    name, kind, default = argument.name, argument.type, argument.parameter.default
    first = next((c for c in pytree.tree_leaves(children) if isinstance(c, torch.Tensor)), None)
    if corrections.RESIZERS.get(overload.packet_name) == name and first is not None:
        return _size(tuple(first.shape), overload.packet_name, random)
    if default is not REQUIRED and random.random() < 0.5:
        return default
    if argument.optional and random.random() < 0.3:
        return None
    if is_of_pieces(argument) and first is not None and isinstance(dim, int):
        return _pieces(first, dim, length, random)
    if overload.packet_name == GETITEM.name:
        assert isinstance(children[0], (tuple, torch.Tensor))
        count = len(children[0])
        return random.choice([*range(-count, count), 0])
    rank = 0 if first is None else first.dim()
    if argument.parameter.dimension:
        return _dimensions(overload, argument, rank, length, random)
    match kind:
        case "bool":
            return random.random() < 0.5
        case "int" | "SymInt":
            return random.choice((1, 0, 2, 3))
        case "float" | "number" | "Scalar" if name == "value":
            return random.choice((*FACTORS, *HOSTILE))
        case "float" | "number" | "Scalar":
            return random.choice(COUNTS if first is None else FACTORS)
        case "ScalarType":
            return random.choice((*FLOATING, *INTEGERS))
        case "List[int]" | "List[SymInt]":
            count = length or argument.length or max(rank, 1)
            return tuple(random.choice((1, 1, 2, 0)) for _ in range(count))
        case "str":
            return random.choice(_WORDS.get(name, ("none",)))
        case _:
            return None if default is REQUIRED else default


_WORDS: Final = {
    "approximate": ("none", "tanh"),
    "rounding_mode": ("floor", "trunc"),
    "reduction": ("none", "mean"),
    "equation": (
        "ij,jk->ik",
        "bhsd,bhtd->bhst",
        "bhst,bhtd->bhsd",
        "bshd,bthd->bhst",
        "bsd,btd->bst",
        "bst,btd->bsd",
    ),
}


def is_of_pieces(argument: Argument) -> bool:
    """Return whether an argument says the sizes of pieces, which together are a dimension's."""
    return argument.name.startswith("split_size") and argument.type.startswith("List")


def _pieces(value: torch.Tensor, dim: int, length: int | None, random: Random) -> Value:
    """Sizes of pieces, some of which may be empty."""
    if not -value.dim() <= dim < value.dim():
        return None
    size, count = value.shape[dim], length or random.choice((2, 3, 1))
    cuts = sorted(int(random.random() * (size + 1)) for _ in range(count - 1))
    return tuple(b - a for a, b in pairwise((0, *cuts, size)))


def _dimensions(
    overload: Overload, argument: Argument, rank: int, length: int | None, random: Random
) -> Value:
    counted = rank + (overload.packet_name in corrections.OUTPUT_RANKED)
    choices = list(range(-counted, counted)) or [0, -1]
    if not argument.type.startswith("List"):
        return random.choice(choices)
    if overload.packet_name == "aten.permute":
        order = list(range(rank))
        random.shuffle(order)
        return tuple(order)
    count = length or argument.length or random.randint(1, max(rank, 1))
    dims = list(range(max(counted, 1)))
    random.shuffle(dims)
    return tuple(d - counted if random.random() < 0.3 else d for d in dims[:count])


def _size(shape: tuple[int, ...], name: str, random: Random) -> Value:
    """A shape that tensors of a shape can be viewed in, or expanded to."""
    options: list[tuple[int, ...]] = [shape]
    if "expand" in name:
        options += [tuple(3 if n == 1 else n for n in shape), (2, *shape)]
        return random.choice(options)
    for at in range(len(shape) - 1):
        options.append((*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]))
    for at in range(len(shape)):
        options.append((*shape[:at], 1, *shape[at:]))
        if shape[at] % 2 == 0 and shape[at]:
            options.append((*shape[:at], 2, shape[at] // 2, *shape[at + 1 :]))
    options.append((math.prod(shape),))
    if len(shape) > 2:
        options.append((math.prod(shape[:-1]), shape[-1]))
        options.append((math.prod(shape[:-2]), *shape[-2:]))
    if 1 in shape:
        options.append(tuple(n for n in shape if n != 1))
    if len(shape) > 1:
        options.append((*shape[:-2], shape[-1], shape[-2]))
    return random.choice(options)
