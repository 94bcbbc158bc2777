"""Results of a comparison of two graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, TypeAlias

import torch
from torch import Tensor, fx

__all__ = [
    "WIDE",
    "Agreement",
    "Difference",
    "Run",
    "Unusable",
    "Verdict",
    "aliasing_differs",
    "largest",
    "metadata_differs",
    "nonfinite_differs",
    "reals",
    "requirements_differ",
    "running",
    "same_zeros",
    "tensors_in",
    "writes_differ",
]


@dataclass(frozen=True)
class Agreement:
    """The same values, bit for bit or up to rounding.

    `error` is the largest one relative to the output's largest value, `tolerance` what would have
    been allowed: how far the result moves when inputs move by a rounding.
    """

    error: float = 0.0
    tolerance: float = 0.0
    zeros: bool = False
    """Some zeros have another sign."""


@dataclass(frozen=True)
class Difference:
    """A property in which the two graphs differ."""

    kind: str
    """value, nonfinite, exactness, dtype, shape, strides, aliasing, write, gradient or crash."""
    detail: str
    error: float = 0.0
    tolerance: float = 0.0


@dataclass(frozen=True)
class Unusable:
    """The graph that is replaced cannot be run on these tensors."""

    reason: str


Verdict: TypeAlias = Agreement | Difference | Unusable
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]

WIDE: Final = torch.float64


def running(module: fx.GraphModule) -> Run:
    """The graph as a function from its inputs to the tensors that it returns."""

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors_in(module(*inputs)))

    return run


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in nested tuples and lists, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)


def reals(values: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, complex ones as pairs of real numbers in a last dimension."""
    return [
        torch.view_as_real(x.resolve_conj().resolve_neg()) if x.is_complex() else x for x in values
    ]


def largest(value: Tensor) -> Tensor:
    """The largest finite absolute value; 0 if there is none."""
    finite = value.to(WIDE).abs()
    finite = finite[finite.isfinite()]
    return finite.max() if finite.numel() else torch.zeros((), dtype=WIDE)


def metadata_differs(expected: list[Tensor], actual: list[Tensor]) -> Difference | None:
    """Another number of outputs, or another dtype, shape or layout of one."""
    if len(expected) != len(actual):
        return Difference("shape", f"{len(actual)} outputs instead of {len(expected)}")
    for one, two in zip(expected, actual, strict=True):
        if one.dtype != two.dtype:
            return Difference("dtype", f"{two.dtype} instead of {one.dtype}")
        if one.shape != two.shape:
            return Difference("shape", f"{tuple(two.shape)} instead of {tuple(one.shape)}")
        if _seen_strides(one) != _seen_strides(two):
            return Difference("strides", f"{two.stride()} instead of {one.stride()}")
    return None


def _seen_strides(value: Tensor) -> list[int]:
    if not value.numel():
        return []
    return [s for n, s in zip(value.shape, value.stride(), strict=True) if n > 1]


def requirements_differ(expected: list[Tensor], actual: list[Tensor]) -> Difference | None:
    """An output that requires a gradient in one graph only."""
    for at, (one, two) in enumerate(zip(expected, actual, strict=True)):
        if one.requires_grad != two.requires_grad:
            does = "requires" if two.requires_grad else "does not require"
            return Difference("gradient", f"output {at} {does} a gradient")
    return None


def aliasing_differs(
    ours: list[Tensor], expected: list[Tensor], theirs: list[Tensor], actual: list[Tensor]
) -> Difference | None:
    """An output that shares memory, with an input or another output, in one graph only."""
    one, two = _shared([*ours, *expected], len(ours)), _shared([*theirs, *actual], len(ours))
    for pair in sorted(one ^ two):
        what = "shares memory with" if pair in two else "no longer shares memory with"
        names = [f"input {i}" if i < len(ours) else f"output {i - len(ours)}" for i in pair]
        return Difference("aliasing", f"{names[1]} {what} {names[0]}")
    return None


def _shared(values: list[Tensor], inputs: int) -> set[tuple[int, int]]:
    at = [value.untyped_storage().data_ptr() for value in values]
    return {
        (i, j)
        for (i, one), (j, two) in combinations(enumerate(values), 2)
        if j >= inputs and one.numel() and two.numel() and at[i] == at[j]
    }


def writes_differ(ours: list[Tensor], theirs: list[Tensor]) -> Difference | None:
    """An input that only one graph writes to."""
    for at, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        if not one.nan_to_num().equal(two.nan_to_num()):
            return Difference("write", f"input {at} is written to")
    return None


def nonfinite_differs(
    expected: list[Tensor], actual: list[Tensor], nonfinite: bool, finite_inputs: bool
) -> Difference | None:
    """An infinity or a NaN that only one graph gives.

    Which parts of a complex product are infinite, and which NaN, depends on the CPU.
    """
    for one, two in zip(expected, actual, strict=True):
        if not (one.is_floating_point() or one.is_complex()):
            continue
        gone = one.isfinite() & ~two.isfinite()
        if finite_inputs and bool(gone.any()):
            return Difference("value", f"{_first(two, gone)} instead of {_first(one, gone)}")
        strange = one.isfinite() != two.isfinite()
        if one.is_floating_point():
            other = (one.isnan() != two.isnan()) | (one.nan_to_num() != two.nan_to_num())
            strange |= ~one.isfinite() & other
        if nonfinite and bool(strange.any()):
            detail = f"{_first(two, strange)} instead of {_first(one, strange)}"
            return Difference("nonfinite", detail)
    return None


def _first(values: Tensor, where: Tensor) -> float:
    return values[where].flatten()[0].item()


def same_zeros(expected: list[Tensor], actual: list[Tensor]) -> bool:
    """Return whether all zeros of real numbers have the same sign.

    Of complex ones torch itself gives either: its vectorized loops and their remainders differ.
    """
    return not any(
        bool(((one == 0) & (two == 0) & (one.signbit() != two.signbit())).any())
        for one, two in zip(expected, actual, strict=True)
        if one.is_floating_point()
    )
