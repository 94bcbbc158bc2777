"""Gradients of a rewritten graph beside those of the function that it was traced from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def assert_gradients_agree(
    ours: Callable[..., Tensor],
    eager: Callable[..., Tensor],
    args: Sequence[Tensor],
    *,
    atol: float,
    rtol: float,
) -> None:
    """Those of one tensor by all inputs, for random gradients that arrive at it."""
    arriving = torch.randn_like(eager(*args))
    found, expected = (
        torch.autograd.grad(call(*given), given, arriving)
        for call in (ours, eager)
        for given in [[x.clone().requires_grad_() for x in args]]
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=rtol)
