"""Scaled dot-product attention: torch's fused kernels, by the one function that chooses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F

from pypm.fx import expect, is_known_scalar, known_to_hold, same_shape, same_size
from pypm.kernels.support.layouts import apart, packed

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FUSED", "attention", "attention_with_sinks", "products", "reference", "unsupported"]

FUSED: Final = frozenset(
    {
        "aten.scaled_dot_product_attention",
        "aten._scaled_dot_product_flash_attention",
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_cudnn_attention",
    }
)
"""The fused kernels: a trace must contain one, as torch falls back to plain products otherwise."""


TYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FLOAT32_MASKS: Final = {(torch.float32, torch.bfloat16), (torch.float32, torch.float16)}
"""Types of a mask and a query that differ and go together; in float64 the result would be wrong."""


def unsupported(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, two_widths: bool = False
) -> str | None:
    """Return why torch's fused kernels do not take these inputs, or None.

    q [B, H, S, D], k and v [B, G, T, D] with G dividing H; a mask broadcasts to [B, H, S, T].
    `two_widths` allows values [B, G, T, E] of another width. Symbolic sizes must be known to fit.
    """
    if not q.dim() == k.dim() == v.dim() == 4:
        return "the fused kernels take four dimensions"
    agree = same_size(q.shape[0], k.shape[0]) and same_size(q.shape[3], k.shape[3])
    if not agree or not same_shape(k.shape[:3], v.shape[:3]):
        return "batch, key and head sizes do not agree"
    if not same_size(k.shape[3], v.shape[3]):
        if not two_widths:
            return "the fused kernels take values of the width of the keys"
        if not all(is_known_scalar(n) and n > 0 for n in (k.shape[3], v.shape[3])):
            return "the widths of keys and values are not known, or 0"
    if not q.dtype == k.dtype == v.dtype or not q.dtype.is_floating_point:
        return "query, key and value do not have one floating-point type"
    if q.dtype not in TYPES:
        return f"no fused kernel for {q.dtype}"
    heads, groups = q.shape[1], k.shape[1]
    if same_size(groups, 0) or not (
        same_size(heads, groups) or known_to_hold(_divides, groups, heads)
    ):
        return "the heads do not divide into groups"
    if mask is None:
        return None
    if mask.dtype != q.dtype and (mask.dtype, q.dtype) not in FLOAT32_MASKS:
        return f"a mask of {mask.dtype} does not go with {q.dtype}"
    scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    pairs = zip(mask.shape, scores, strict=True)
    if not all(same_size(m, 1) or same_size(m, s) for m, s in pairs):
        return "the mask does not broadcast to the scores"
    return None


def _divides(groups: int, heads: int) -> bool:
    return heads % groups == 0


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(q k^T scale + mask) v, shape [B, H, S, E].

    Arguments:
        q: [B, H, S, D], in a floating-point type.
        k: [B, G, T, D] in the type of q, with G dividing H.
        v: [B, G, T, E] in the type of q. If E is not D, the narrower tensors are filled up with
            zeros, which add nothing to the scores, and the result is cut to E.
        mask: added to the scores; broadcasts to [B, H, S, T], in the type of q; in float32 if q
            is bfloat16 or float16.
        scale: factor of the scores; 1/sqrt(D) if None.
        causal: True leaves out the keys after each query, counted from the first; instead of a
            mask.
        dropout: probability with which each weight is dropped; the others are scaled up
            accordingly.

    A row whose mask is -inf everywhere gives 0, where eager torch gives NaN. A rule that calls this
    is refused if torch selects a kernel that is not in `FUSED`. Raises what torch raises for other
    shapes.
    """
    expect(FUSED, "scaled_dot_product_attention")
    grouped = not same_size(q.shape[1], k.shape[1])
    q, scale = _upright(q, scale, causal)
    width = v.shape[3]
    is_padded = not same_size(k.shape[3], width)
    if is_padded:
        scale = q.shape[3] ** -0.5 if scale is None else scale
        q, k, v = (_widened(x, max(k.shape[3], width)) for x in (q, k, v))
    q, k, v = apart(q), packed(k), packed(v)
    result = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=grouped,
    )
    return result[..., :width] if is_padded else result


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[3] == width else F.pad(x, (0, width - x.shape[3]))


def _upright(q: Tensor, scale: float | None, causal: bool) -> tuple[Tensor, float | None]:
    """Return q and the scale, so that the scores are the same and torch's kernel, which hides keys
    before it scales, neither turns minus infinity around nor multiplies it by zero.
    """
    if causal and scale is not None and scale < 0:
        return -q, -scale
    return (q * 0.0, 1.0) if causal and scale == 0 else (q, scale)


def attention_with_sinks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Return what `attention` returns, if each softmax has one more score, which belongs to no key.

    Arguments:
        q, k, v, mask, scale, causal: those of `attention`, on a CPU.
        sinks: the scores of no key, of shape [B, H, S, 1].

    The sum of all weights is the sum of those of the keys, which the fused kernel tells, and one
    more. A row whose mask is -inf everywhere gives 0. There is no gradient.
    """
    q, scale = _upright(q, scale, causal)
    result, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        apart(q), packed(k), packed(v), 0.0, causal, attn_mask=mask, scale=scale
    )
    share = torch.sigmoid(log_sum.unsqueeze(-1) - sinks)
    return torch.mul(result, share.to(result.dtype))


def products(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Return what `attention` returns, without `dropout`, by two products.

    The arguments are those of `attention`. The queries of a group of heads are rows of one product,
    so that no key is repeated; the weights are divided by their sum after the second product, in
    float32 or wider. The scores are rounded to the type of q.
    """
    batch, heads, rows, _ = q.shape
    groups, keys = k.shape[1], k.shape[2]
    split = (batch, groups, heads // groups, rows)
    joined = (batch, groups, heads // groups * rows)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.reshape(*joined, q.shape[3]) @ k.transpose(-2, -1)
    scores = scores.reshape(*split, keys).to(wide) * (
        q.shape[3] ** -0.5 if scale is None else scale
    )
    if causal:
        place = torch.arange(max(rows, keys), device=q.device)
        scores = scores.masked_fill(place[:keys] > place[:rows, None], -torch.inf)
    if mask is not None:
        heads_of_mask = (1, 1) if mask.shape[1] == 1 else split[1:3]
        scores = scores + mask.reshape(mask.shape[0], *heads_of_mask, *mask.shape[2:])
    # of no keys there is no largest score, and their sum is 0
    largest = scores.sum(-1, True) if same_size(keys, 0) else scores.amax(-1, keepdim=True)
    weights = (scores - largest.masked_fill(largest == -torch.inf, 0)).exp()
    total = weights.sum(-1, keepdim=True)
    result = weights.to(v.dtype).reshape(*joined, keys) @ v
    result = result.reshape(*split, v.shape[3]).to(wide) / total.masked_fill(total == 0, 1)
    return result.to(q.dtype).reshape(batch, heads, rows, v.shape[3])


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None = None
) -> Tensor:
    """Return what `attention` returns, without `causal` and `dropout`, by plain operators."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.softmax(scores if mask is None else scores + mask, -1) @ v
