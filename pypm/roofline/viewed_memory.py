"""Elements of memory that views reach, counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pypm.roofline.sizes import Amount, Value, amount, amounts, least, most, product

__all__ = ["Reached", "together"]


@dataclass(frozen=True, slots=True)
class Reached:
    """Elements that a tensor reaches in the memory under it."""

    shape: tuple[Amount, ...]
    strides: tuple[Amount, ...] | None
    offset: Amount | None
    """The place of the first element; None if the metadata does not say."""

    @staticmethod
    def by(value: Value) -> Reached:
        """Return the elements that a tensor reaches, or its metadata says so."""
        shape = amounts(value.shape)
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                return Reached(shape, None, None)
            return Reached(shape, amounts(value.stride()), amount(value.storage_offset()))
        strides = getattr(value, "stride", None)
        return Reached(shape, None if strides is None else amounts(strides), None)

    @property
    def count(self) -> Amount:
        """Return the number of distinct elements, or less: an expanded dimension counts as one."""
        if self.strides is None:
            return product(self.shape)
        own = [(d, n) for n, d in zip(self.shape, self.strides, strict=True) if d != 0]
        sizes = [n for _, n in own]
        if not all(isinstance(part, int) for pair in own for part in pair) or 0 in sizes:
            return product(sizes)
        end = 0
        for stride, size in sorted(own):
            if stride <= end:
                return max(sizes)  # windows that overlap
            end += (size - 1) * stride
        return product(sizes)

    def is_apart_from(self, other: Reached) -> bool:
        """Return whether no element is reached by both, as far as equal strides tell."""
        mine, theirs = self._ranges(), other._ranges()
        if mine is None or theirs is None or mine.keys() != theirs.keys():
            return False
        return any(
            start + size <= mine[stride][0] or sum(mine[stride]) <= start
            for stride, (start, size) in theirs.items()
        )

    def _ranges(self) -> dict[int, tuple[int, int]] | None:
        """Return the start and size along each stride; None if sizes or the offset are unknown."""
        known = (*self.shape, *(self.strides or ()), self.offset)
        if self.strides is None or not all(isinstance(each, int) for each in known):
            return None
        rest, found = int(self.offset or 0), {}
        for stride, size in sorted(zip(self.strides, self.shape, strict=True), reverse=True):
            if stride and size != 1:
                start, rest = divmod(rest, stride)
                found[stride] = start, size
        return found


def together(parts: Sequence[tuple[Reached, Amount]], whole: Amount) -> Amount:
    """Return how many elements some reads touch at least, each given with its own number.

    `whole` is the number of elements in the memory.
    """
    alone: Amount = 0
    joined: Amount = 0
    apart: list[Reached] = []
    for reached, count in parts:
        alone = most(alone, count) if alone != count else alone
        if all(reached.is_apart_from(other) for other in apart):
            apart.append(reached)
            joined = joined + count
    return least(most(alone, joined), whole) if alone != whole else whole
