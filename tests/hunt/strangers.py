"""Functions that no table can know: one only computes, the others write, share, or have effects."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tests.hunt.outcomes import NOTES

__all__ = ["STRANGERS"]


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


STRANGERS: Final = (computes, scribbles, shares, notes, draws)
