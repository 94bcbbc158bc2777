"""Outputs of a version compared with those of the reference."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pypm.problems.formats.workload import Tolerance
from pypm.problems.traces import Correctness

__all__ = ["compare"]


def compare(found: Tensor, expected: Tensor, tolerance: Tolerance) -> tuple[Correctness, bool]:
    """Return the errors of an output, and whether it is within a tolerance.

    An element is right within `absolute + relative * |expected|`. Equal infinities are right, and
    so is NaN where NaN is expected.
    """
    x, y = found.double(), expected.double()
    is_equal = (x == y) | (x.isnan() & y.isnan())
    error = torch.where(is_equal, 0.0, (x - y).abs()).nan_to_num(math.inf, math.inf)
    size = y.abs().nan_to_num(nan=0.0, posinf=0.0)
    is_right = error <= tolerance.absolute + tolerance.relative * size
    relative = error / size.clamp(min=max(tolerance.absolute, 1e-12))
    worst = _largest(error)
    share = is_right.double().mean().item() if x.numel() else 1.0
    is_capped = tolerance.cap is None or worst <= tolerance.cap
    errors = Correctness(_largest(relative), worst, bool(x.isnan().any()), bool(x.isinf().any()))
    return errors, share >= tolerance.ratio and is_capped


def _largest(values: Tensor) -> float:
    return values.max().item() if values.numel() else 0.0
