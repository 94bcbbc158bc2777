"""The arguments of an emitted kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Descriptor", "KernelArgument", "Pointer", "SizeArgument", "StrideArgument"]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A TMA descriptor of an operand, for copies of `box` elements."""

    name: str
    operand: str
    box: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of an operand that consumers load from or store to."""

    name: str
    operand: str
    is_packed: bool = False
    """True if elements of the last dimension must follow one another."""


@dataclass(frozen=True, slots=True)
class StrideArgument:
    """A stride of an operand that consumers load from or store to, in units of elements."""

    name: str
    operand: str
    dim: int
    unit: int = 1
    """Elements, of which the stride must be a multiple."""


@dataclass(frozen=True, slots=True)
class SizeArgument:
    name: str


KernelArgument: TypeAlias = Descriptor | Pointer | StrideArgument | SizeArgument
