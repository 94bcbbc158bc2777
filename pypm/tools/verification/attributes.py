"""Arguments that are no tensors: values for an operator's attributes that it may well take."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random
from typing import Any, Final

import torch

from pypm.core.operators import REQUIRED
from pypm.core.terms import Value
from pypm.fx import tables
from pypm.fx.schemas import Overload
from pypm.fx.schemas import Slot as Argument

__all__ = ["FLOATING", "literal", "value_of"]

FLOATING: Final = (torch.float64, torch.float32, torch.bfloat16)
NUMBERS: Final = (2.0, 0.5, 1.0, 3, -1.5, 0.0, 1, 2, -1, 0, 1e-5)


def literal(random: Random, constants: Sequence[Value]) -> Value:
    """A number for where a tensor could be."""
    return random.choice([*NUMBERS, *(c for c in constants if isinstance(c, (int, float)))])


def value_of(
    argument: Argument,
    overload: Overload,
    children: Sequence[Any],
    length: int | None,
    random: Random,
) -> Value:
    """A value for one argument of a call; mostly its default, where it has one."""
    name, kind, default = argument.name, argument.type, argument.parameter.default
    first = next((c for c in _flat(children) if isinstance(c, torch.Tensor)), None)
    if tables.RESIZERS.get(overload.packet_name) == name and first is not None:
        return _size(tuple(first.shape), overload.packet_name, random)
    if default is not REQUIRED and random.random() < 0.5:
        return default
    if argument.optional and random.random() < 0.3:
        return None
    rank = 0 if first is None else first.dim()
    if argument.parameter.dimension:
        return _dimensions(overload, argument, rank, length, random)
    match kind:
        case "bool":
            return random.random() < 0.5
        case "int" | "SymInt":
            return random.choice((1, 0, 2, 3))
        case "float" | "number" | "Scalar":
            return random.choice((2.0, 0.5, 1.0, 0.0, 1e-5))
        case "ScalarType":
            return random.choice((*FLOATING, torch.int64))
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


def _flat(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found += _flat(value) if isinstance(value, tuple) else [value]
    return found


def _dimensions(
    overload: Overload, argument: Argument, rank: int, length: int | None, random: Random
) -> Value:
    counted = rank + (overload.packet_name in tables.OUTPUT_RANKED)
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
    options.append((prod(shape),))
    if len(shape) > 2:
        options.append((prod(shape[:-1]), shape[-1]))
        options.append((prod(shape[:-2]), *shape[-2:]))
    if 1 in shape:
        options.append(tuple(n for n in shape if n != 1))
    if len(shape) > 1:
        options.append((*shape[:-2], shape[-1], shape[-2]))
    return random.choice(options)
