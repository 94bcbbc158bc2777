"""Functions that no table can know: one only computes, the others write, share, or have effects.

Some are declared to PyPM as what they are; of the others nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from pypm.fx import declare
from tests.hunt.outcomes import NOTES

__all__ = ["STRANGERS", "TWINS"]


def computes(x: Tensor) -> Tensor:
    return x * 2


def scribbles(x: Tensor) -> Tensor:
    x.add_(1)
    return x.sum()


def shares(x: Tensor) -> Tensor:
    return x[:]


def notes(x: Tensor) -> Tensor:
    NOTES.append(x.numel())
    return x + 0


def draws(x: Tensor) -> Tensor:
    return x + torch.rand(()).to(x.dtype)


def told(x: Tensor) -> Tensor:
    return notes(x)


def told_views(x: Tensor) -> Tensor:
    return shares(x)


def told_writes(x: Tensor) -> Tensor:
    return scribbles(x)


def told_draws(x: Tensor) -> Tensor:
    return draws(x)


STRANGERS: Final = (
    computes, scribbles, shares, notes, draws,
    declare(told, acts=True), declare(told_views, shares=[0]), declare(told_writes, writes=[0]),
    declare(told_draws, draws=True),
)  # fmt: skip


def scaled_by(factor: float) -> Callable[[Tensor], Tensor]:
    @declare
    def scaled(x: Tensor) -> Tensor:
        return x * factor

    return scaled


@declare
def moved(x: Tensor, **by: Tensor) -> Tensor:
    return x + by.get("up", 0) - by.get("down", 0)


Twin = tuple[Callable[..., Any], tuple[str, ...]]
"""A function, and the keywords that hold the tensor as well."""
TWINS: Final[tuple[tuple[Twin, Twin], ...]] = (
    ((scaled_by(2), ()), (scaled_by(3), ())),
    ((moved, ("up",)), (moved, ("down",))),
)
"""Two calls that differ by the function, of one name, or by the keyword."""
