"""A region that is timed in tests of choices, and a replacement of it."""

from __future__ import annotations

import torch

from pypm import pattern, rule
from pypm.fx import aten

__all__ = ["Exp", "as_power"]


@pattern
def Exp(x):
    return aten.exp(x)


@rule(Exp, pays="mostly")
def as_power(x):
    return torch.exp2(x * 1.4426950408889634)
