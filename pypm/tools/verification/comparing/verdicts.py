"""Results of a comparison of two graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
    "largest",
    "reals",
    "running",
    "tensors_in",
]


@dataclass(frozen=True)
class Agreement:
    """The same values, bit for bit or up to rounding.

    `error` is the largest one relative to the output's largest value, `tolerance` what would have
    been allowed: how far the result moves when inputs move by a rounding. `dtype` and `shape` are
    those of the output where the error is met.
    """

    error: float = 0.0
    tolerance: float = 0.0
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    zeros: bool = False
    """Some zeros have another sign."""


@dataclass(frozen=True)
class Difference:
    """A property in which the two graphs differ."""

    kind: str
    """value, nonfinite, dtype, shape, strides, aliasing, write, gradient or crash."""
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
