"""Numbers that a body reads from the row of its grid: addresses, strides, sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

__all__ = [
    "ALIGNED",
    "ALIGNMENT",
    "BODY",
    "DTYPES",
    "GridNumber",
    "SizeOf",
    "StrideOf",
    "TensorAddress",
    "loaded",
    "multiplied",
]

DTYPES: Final = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
"""Types of elements, and the text's names for them."""
BODY: Final = "BODY"
"""Stands in the text of a body for its name, which has its number among all bodies."""
ALIGNMENT: Final = 16
"""Bytes that divide the address of each tensor."""
ALIGNED: Final = 8
"""Elements that divide a row whose parts are loaded 16 bytes at a time."""


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """The address of a tensor of the graph, by its name, or of an operand, by its place."""

    of: str | int
    offset: int = 0
    """Elements from the first."""
    dtype: str = ""
    """The type that the text reads; by default that of the kernel's elements."""


@dataclass(frozen=True, slots=True)
class StrideOf:
    """The elements between neighbours along a dimension of an operand; 0 if it is broadcast."""

    operand: int
    dim: int
    multiple: int = 1
    """A number that divides it, which rows have it in units of."""


@dataclass(frozen=True, slots=True)
class SizeOf:
    """The size of a dimension of an operand."""

    operand: int
    dim: int


GridNumber: TypeAlias = TensorAddress | StrideOf | SizeOf | int


def itemsize(element: str) -> int:
    """Return the bytes of an element, by the text's name for its type."""
    found: int = getattr(torch, element).itemsize
    return found


def multiplied(a: str, b: str, onto: str | None = None) -> str:
    """Return the product of two tiles. One of float32 takes three of tensor cores, which are nearly
    as exact.
    """
    third = "" if onto is None else f", {onto}"
    return f'tl.dot({a}, {b}{third}, input_precision="tf32x3")'


def loaded(numbers: Mapping[str, GridNumber], element: str) -> Iterator[str]:
    """Yield the statements that load numbers from `row`, in their order, after the number of the
    body; `element` is the type of elements.
    """
    for n, (name, number) in enumerate(numbers.items()):
        at = f"tl.load(row + {n + 1})"
        match number:
            case TensorAddress(_, offset, dtype):
                is_aligned = not dtype and offset * itemsize(element) % ALIGNMENT == 0
                pointer = f"tl.cast({at}, tl.pointer_type(tl.{dtype or element}))"
                pointer = f"tl.multiple_of({pointer}, {ALIGNMENT})" if is_aligned else pointer
                yield f"{name} = {pointer}"
            case StrideOf(multiple=1):
                yield f"{name} = {at}"
            case StrideOf(multiple=multiple):
                yield f"{name} = {at} * {multiple}"
            case SizeOf() | int():
                yield f"{name} = tl.cast({at}, tl.int32)"
