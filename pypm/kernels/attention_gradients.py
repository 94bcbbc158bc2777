"""Attention in training: torch's flash kernel for CPUs, forward and backward, without the weights.

The forward pass keeps the logarithm of each row's sum instead of the weights, and the backward
pass computes them again, block by block: memory grows with the rows, not with their square.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from pypm.fx import expect
from pypm.kernels.attention import unsupported as unsupported_forward
from pypm.kernels.support.layouts import apart, packed

__all__ = ["attention_and_gradients", "reference", "unsupported"]

FUSED: Final = frozenset({"aten._scaled_dot_product_flash_attention_for_cpu"})
LOW: Final = -1e6
"""A row whose mask has no value above this masks every key."""

Gradients = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def unsupported(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str | None:
    """Return why the kernel does not take these operands, or None.

    q [B, H, S, D], k and v [B, H, T, D], none of them empty; a mask broadcasts to [B, H, S, T].
    """
    if q.device.type != "cpu":
        return f"no kernel for {q.device.type}"
    if q.shape[1] != k.shape[1] or 0 in (*q.shape, *k.shape):
        return "the kernel takes one key and value head for each query head, and something of each"
    return unsupported_forward(q, k, v, mask)


def attention_and_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    grad: Tensor | None,
    *,
    scale: float,
    causal: bool,
    filled: bool,
) -> Gradients:
    """Return softmax(q k^T scale + mask) v, and the gradients of q, k and v.

    Arguments:
        q: [B, H, S, D].
        k: [B, H, T, D].
        v: [B, H, T, D].
        mask: added to the scores; broadcasts to [B, H, S, T].
        grad: the gradient of the result [B, H, S, D]; if None, the three gradients are None.
        scale: factor of the scores.
        causal: True leaves out the keys after each query.
        filled: True if the mask stands for scores that were replaced; no gradient flows through
            these.

    A row whose mask is -inf everywhere gives 0, where eager torch gives NaN.
    """
    expect(FUSED, "attention")
    aten = torch.ops.aten
    q, k, v = apart(q), packed(k), packed(v)
    masked = None if mask is None else mask.amax(-1, keepdim=True) <= LOW
    if masked is not None and filled:  # where all scores are replaced, queries do not matter
        q = q.masked_fill(masked, 0)
    is_turned = causal and scale < 0  # the kernel hides keys before it scales
    q, scale = (-q, -scale) if is_turned else (q, scale)
    options = {"attn_mask": mask, "scale": scale}
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    out, sums = forward(q, k, v, 0.0, causal, **options)
    if grad is None:
        return out, None, None, None
    grad = packed(grad if mask is None else _evened(grad, mask, k.shape[2]))
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    to_q, to_k, to_v = backward(grad, q, k, v, out, sums, 0.0, causal, **options)
    if masked is not None and filled:
        to_q = to_q.masked_fill(masked, 0)
    return out, -to_q if is_turned else to_q, to_k, to_v


def _evened(grad: Tensor, mask: Tensor, keys: int) -> Tensor:
    """Return the gradient, divided by the number of keys in rows that the mask makes uniform.

    The backward kernel computes a weight as exp(score - log sum). If masks are so low that log n is
    rounded away beside them, it computes 1 for each of the n keys instead of 1 / n.
    """
    mask = mask.to(torch.promote_types(mask.dtype, torch.float32))
    mask = mask.expand(*mask.shape[:-1], keys)
    top = mask.amax(-1, keepdim=True)
    n = (mask == top).sum(-1, keepdim=True).to(mask.dtype)
    return (grad / torch.where(top + n.log() == top, n, 1.0)).to(grad.dtype)


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, grad: Tensor, *, scale: float
) -> tuple[Tensor, ...]:
    """Return what `attention_and_gradients` returns, by plain operators, for an added mask."""
    scores = q @ k.transpose(-2, -1) * scale
    p = torch.softmax(scores if mask is None else scores + mask, -1)
    to_p = grad @ v.transpose(-2, -1)
    to_scores = p * (to_p - (p * to_p).sum(-1, keepdim=True)) * scale
    return p @ v, to_scores @ k, to_scores.transpose(-2, -1) @ q, p.transpose(-2, -1) @ grad
