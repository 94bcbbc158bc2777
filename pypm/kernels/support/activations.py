"""Activations as one table: in torch, their gradient, in Triton, and in oneDNN."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ACTIVATIONS", "Activation"]

_aten: Final = torch.ops.aten


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of `F.silu`; torch's operator for it has none itself."""
    if not torch.is_grad_enabled():
        found: Tensor = _aten.silu_backward(grad, x)
        return found
    y = torch.sigmoid(x)
    return grad * y * (1 + x * (1 - y))


@dataclass(frozen=True, slots=True)
class Activation:
    """One activation in every form that kernels use."""

    torch: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    """The gradient of the operand, from that of the result and the operand."""
    triton: str
    """The expression of a float32 {0} in Triton; with 1 + tanh(y) as 2 sigmoid(2 y)."""
    onednn: tuple[str, str]
    """The attribute and the algorithm of oneDNN's linear kernel."""


ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "relu": Activation(
        F.relu,
        lambda grad, x: _aten.threshold_backward(grad, x, 0),
        "tl.where({0} < 0.0, 0.0, {0})",
        ("none", ""),  # its own relu makes 0 of NaN
    ),
    "gelu": Activation(
        F.gelu,
        _aten.gelu_backward,
        "0.5 * {0} * (1.0 + tl.erf({0} * 0.7071067811865476))",
        ("gelu", "none"),
    ),
    "gelu_tanh": Activation(
        lambda x: F.gelu(x, approximate="tanh"),
        lambda grad, x: _aten.gelu_backward(grad, x, approximate="tanh"),
        "{0} * tl.sigmoid(1.5957691216057308 * ({0} + 0.044715 * {0} * {0} * {0}))",
        ("gelu", "tanh"),
    ),
    "silu": Activation(F.silu, _silu_backward, "{0} * tl.sigmoid({0})", ("swish", "")),
}
