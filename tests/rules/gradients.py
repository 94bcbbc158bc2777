"""Gradients of a rewritten graph beside those of the function that it was traced from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


def assert_gradients_pass(found: Any, expected: Any, leaves: Sequence[Tensor]) -> None:
    """Those of one or several results by the leaves from which both were computed."""
    ours, theirs = (
        torch.autograd.grad(
            sum(x.cos().sum() for x in ([result] if isinstance(result, Tensor) else result)),
            leaves,
            allow_unused=True,
        )
        for result in (found, expected)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
