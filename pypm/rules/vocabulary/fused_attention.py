"""Calls of torch's fused attention, by each of its kernels."""

import torch.nn.functional as F

from pypm import let, pattern
from pypm.fx import GETITEM, aten


def fused(q, k, v, mask, causal, scale, grouped):
    """Return attention as torch has it."""
    return F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


@pattern(means=fused)
def Fused(q, k, v, mask, causal, scale, grouped):
    return aten.scaled_dot_product_attention(
        q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped
    )


@pattern
def Fused(q, k, v, mask, causal, scale, grouped):
    let(grouped=False)
    y = aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return GETITEM(y, 0)
