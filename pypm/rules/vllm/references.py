"""The results of vLLM's operators, as `pypm prove` takes it for granted, over the real numbers.

The fused ones compute what those do that they fuse: a kernel with groups has a least scale of its
own, which is left out. Of groups, of values packed into bytes and of rotary embeddings is known
only what determines them.
"""

import torch
import torch.nn.functional as F

from pypm.fx import opaque, state_references

TYPE = torch.float8_e4m3fn
TOP = torch.finfo(TYPE).max
LEAST = 1 / 512
"""The least magnitude that vLLM's kernels take the largest one of a row to have."""


def normed(x, w, eps):
    """Return the RMSNorm of rows, with a weight or without one."""
    return F.rms_norm(x, x.shape[-1:], w, eps)


def normed_sum(x, r, w, eps):
    """Return the RMSNorm of a sum."""
    return normed(x + r, w, eps)


def gated(x):
    """Return SiLU of the first half of each row, times the second."""
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def quantized(x, scale):
    """Return x in eight bits, in steps of a scale."""
    return (x / scale).clamp(-TOP, TOP).to(TYPE)


def scales_of(x):
    """Return the scale of each row, whose dimension is kept."""
    return x.abs().amax(-1, keepdim=True).clamp(min=LEAST) / TOP


def in_rows(x):
    """Return x in eight bits, in steps of the scales of its rows."""
    return quantized(x, scales_of(x))


def in_groups(x, s, columns, turned, limits=(-TOP, TOP, False)):
    """Return x in eight bits, and a scale for each group of a row, in the shape of s.

    `limits` are the least and the largest value, and whether scales are powers of two.
    """
    values = opaque("quantized in groups", x, x, columns, turned, *limits)
    return values, opaque("scales of groups", s, x, columns, turned, *limits)


def packed(x, scale, swizzled, s):
    """Return rows in four bits, and scales of their groups, in the shape of s."""
    rows = x.reshape(-1, x.shape[-1])
    values = opaque("packed", rows[:, : x.shape[-1] // 2], rows, scale, swizzled)
    return values, opaque("scales of packed groups", s, rows, scale, swizzled)


def turned(x, positions, width, cache, is_neox):
    """Return heads of this width, turned by their positions."""
    return opaque("turned", x, x, positions.reshape(-1), cache, width, is_neox)


def total(x, r):
    """Return a sum of which one part may be None."""
    return x if r is None else x + r


def normed_by_rows(_q, x, w, _s, eps, _ub, r):
    y = normed(total(x, r), w, eps)
    return None, in_rows(y), scales_of(y), total(x, r)


def of_heads(qkv, weights, width, eps, how):
    """Return rows of heads, the first of them normed and then turned: as many by each weight."""
    parts, start = [], 0
    for heads, w in weights:
        part = qkv[:, start : start + heads * width]
        each = normed(part.reshape(-1, heads, width), w, eps).reshape(part.shape)
        parts.append(how(each))
        start = start + heads * width
    return torch.cat([*parts, qkv[:, start:]], -1)


state_references(
    {
        "vllm_ir.rms_norm": lambda x, w, eps, _: normed(x, w, eps),
        "vllm_ir.fused_add_rms_norm": lambda x, r, w, eps, _: (normed_sum(x, r, w, eps), x + r),
        "_C.rms_norm": lambda _, x, w, eps: (None, normed(x, w, eps)),
        "_C.fused_add_rms_norm": lambda x, r, w, eps: (None, normed_sum(x, r, w, eps), x + r),
        "_C.silu_and_mul": lambda _, x: (None, gated(x)),
        "_C.static_scaled_fp8_quant": lambda _, x, scale, _to: (None, quantized(x, scale)),
        "_C.dynamic_per_token_scaled_fp8_quant": lambda _, x, _s, _ub: (
            *(None, in_rows(x), scales_of(x)),
        ),
        "_C.per_token_group_fp8_quant": lambda x, _q, s, columns, _e, low, top, pow2, turned, _t: (
            *(None, *in_groups(x, s, columns, turned, (low, top, pow2))),
        ),
        "_C.scaled_fp4_quant": lambda x, scale, swizzled, _q, s: (
            *(None, *packed(x, scale, swizzled, s)),
        ),
        "_C.rotary_embedding": lambda positions, q, k, width, cache, is_neox, _o, _i: (
            *(None, *(turned(x, positions, width, cache, is_neox) for x in (q, k))),
        ),
        "_C.rms_norm_static_fp8_quant": lambda _, x, w, scale, eps: (
            *(None, quantized(normed(x, w, eps), scale)),
        ),
        "_C.fused_add_rms_norm_static_fp8_quant": lambda _, x, r, w, scale, eps: (
            *(None, quantized(normed_sum(x, r, w, eps), scale), x + r),
        ),
        "_C.rms_norm_dynamic_per_token_quant": normed_by_rows,
        "_C.rms_norm_per_block_quant": lambda _q, x, w, s, eps, _ub, r, columns, is_turned: (
            *(None, *in_groups(normed(total(x, r), w, eps), s, columns, is_turned), total(x, r)),
        ),
        "_C.silu_and_mul_quant": lambda _, x, scale: (None, quantized(gated(x), scale)),
        "_C.silu_and_mul_per_block_quant": lambda _, x, s, columns, _ub, is_turned: (
            *(None, *in_groups(gated(x), s, columns, is_turned)),
        ),
        "_C.silu_and_mul_nvfp4_quant": lambda _q, s, x, scale: (
            *(None, *packed(gated(x), scale, True, s)),
        ),
        "_C.fused_qk_norm_rope": (
            lambda qkv, queries, keys, _n, width, eps, q_w, k_w, cache, is_neox, positions, _f: (
                None,
                of_heads(
                    *(qkv, ((queries, q_w), (keys, k_w)), width, eps),
                    lambda x: turned(x, positions, width, cache, is_neox),
                ),
            )
        ),
        "vllm.flashinfer_fused_add_rms_norm_nvfp4_quant": (
            lambda _q, s, r, x, w, scale, _s, swizzled, eps: (
                *(None, *packed(normed_sum(x, r, w, eps), scale, swizzled, s), x + r),
            )
        ),
    }
)
