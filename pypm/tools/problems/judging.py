"""Outputs of a version compared with those of the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pypm.tools.problems.channel import Broken, Message
from pypm.tools.problems.formats.definition import TensorSpec
from pypm.tools.problems.formats.workload import Tolerance
from pypm.tools.problems.process import Failed
from pypm.tools.problems.traces import Correctness, Status

__all__ = ["Expected", "bytes_of", "compare", "tensors_of"]


@dataclass(frozen=True, slots=True)
class Expected:
    """An output as the definition has it, for the sizes of a workload."""

    name: str
    shape: tuple[int, ...] | None
    dtype: torch.dtype

    @staticmethod
    def of(name: str, spec: TensorSpec, sizes: Mapping[str, int]) -> Expected:
        """Return the output of a name."""
        return Expected(name, spec.sizes(sizes), getattr(torch, spec.dtype))

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return math.prod(self.shape or ()) * self.dtype.itemsize


def bytes_of(outputs: Sequence[Expected]) -> int:
    """Return the bytes of all outputs."""
    return sum(each.nbytes for each in outputs)


def tensors_of(answer: Message, outputs: Sequence[Expected]) -> list[Tensor]:
    """Return the outputs in a worker's answer.

    Raises Failed if a shape or type is not that of the definition, and Broken if the answer is not
    one.
    """
    described = answer.fields.get("outputs")
    if not isinstance(described, list) or len(described) != len(outputs):
        raise Broken("an answer without outputs")
    for found, expected in zip(described, outputs, strict=True):
        shape, dtype = found.get("shape"), found.get("dtype")
        if (shape or []) != [*(expected.shape or ())]:
            problem = f"has the shape {shape}, not {[*(expected.shape or ())]}"
            raise Failed(Status.INCORRECT_SHAPE, f"the output `{expected.name}` {problem}")
        if f"torch.{dtype}" != str(expected.dtype):
            problem = f"has the type {dtype}, not {expected.dtype}"
            raise Failed(Status.INCORRECT_DTYPE, f"the output `{expected.name}` {problem}")
    if [*map(len, answer.blocks)] != [each.nbytes for each in outputs]:
        raise Broken("an answer with outputs of other sizes")
    pairs = zip(answer.blocks, outputs, strict=True)
    return [_tensor(block, expected) for block, expected in pairs]


def _tensor(block: bytearray, expected: Expected) -> Tensor:
    shape = expected.shape or ()
    if not block:
        return torch.empty(shape, dtype=expected.dtype)
    return torch.frombuffer(block, dtype=expected.dtype).reshape(shape)


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
