"""The arguments of an emitted kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from torch import Tensor

__all__ = [
    "ALIGNMENT",
    "Descriptor",
    "KernelArgument",
    "Pointer",
    "SizeArgument",
    "StrideArgument",
    "misplaced",
]

ALIGNMENT: Final = 16
"""Bytes that divide the address and the strides of what TMA copies."""

LONGEST: Final = 2**31 - 1
"""The largest number that a kernel takes as an argument."""


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

    def of(self, x: Tensor) -> int:
        """Return the stride of an operand in units, which `misplaced` does not refuse."""
        return x.stride(self.dim) // self.unit


@dataclass(frozen=True, slots=True)
class SizeArgument:
    name: str


KernelArgument: TypeAlias = Descriptor | Pointer | StrideArgument | SizeArgument


def misplaced(argument: KernelArgument, x: Tensor) -> str | None:
    """Return why a kernel does not read or write an operand where it lies, by its strides and
    where it begins in its storage; None if it does.
    """
    match argument:
        case Descriptor(_, name):
            return _uncopied(name, x)
        case Pointer(_, name, is_packed):
            is_strewn = is_packed and x.stride(-1) != 1 and x.shape[-1] > 1
            return _STREWN.format(name) if is_strewn else None
        case StrideArgument(_, name, dim, unit):
            if x.stride(dim) % unit:
                return f"a stride of `{name}` is no multiple of {unit} elements"
            is_long = x.stride(dim) // unit > LONGEST
            return f"a stride of `{name}` is longer than {LONGEST:,} elements" if is_long else None
        case SizeArgument():
            return None


_STREWN: Final = "the elements of a row of `{}` are not behind one another"


def _uncopied(name: str, x: Tensor) -> str | None:
    """Return why TMA copies no boxes of a tensor."""
    *strides, last = x.stride()
    if last != 1 and x.shape[-1] > 1:
        return _STREWN.format(name)
    for n, stride in enumerate(strides):
        step = stride * x.element_size()
        what = "rows" if n == len(strides) - 1 else f"places of dimension {n}"
        if step % ALIGNMENT:
            return (
                f"the {what} of `{name}` are {step} bytes apart, and {ALIGNMENT} must divide that"
            )
        if not step and x.shape[n] > 1:
            return f"the {what} of `{name}` are all the same"
    if x.storage_offset() * x.element_size() % ALIGNMENT:
        return f"`{name}` begins at an address that {ALIGNMENT} does not divide"
    return None
