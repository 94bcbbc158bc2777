"""SiLU of a half of each row, times the other half, and quantization to eight bits."""

import torch

from pypm import decline, pattern, rule, var
from pypm.fx import GETITEM
from pypm.rules.vllm.eight_bits import InGroups, Static, room, shaped
from pypm.rules.vllm.operators import C, fused
from pypm.rules.vllm.references import gated
from pypm.rules.vocabulary.activations import Silu
from pypm.rules.vocabulary.indexing import Selected, half
from pypm.rules.vocabulary.shapes import Cast, NoOpOrRounding, Rows, Wide

MISFIT = "the kernels take rows of 16 or 32 bits"


@pattern(means=gated)
def SiluAndMul(x):
    return GETITEM(C.silu_and_mul(_, x), 1)


@pattern(through=NoOpOrRounding)
def SiluAndMul(x):
    i, j = var(), var()
    y = Cast(Silu(Wide(Selected(x, i)))) * Wide(Selected(x, j))
    assert i == half(x.shape, 0) and j == half(x.shape, 1) and x.shape[-1] % 2 == 0
    return y


@pattern
def StaticSilu(x, scale):
    y = SiluAndMul(x)
    assert y.dtype == x.dtype
    return Static(Rows(y), scale)


@pattern
def SiluInGroups(x, s, columns, turned):
    z = SiluAndMul(x)
    y = InGroups(z, s, columns, turned)
    assert z.dtype == x.dtype
    return GETITEM(y, 1), GETITEM(y, 2)


@rule(StaticSilu)
def silu_and_mul_static(x, scale, match):
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return decline(MISFIT)
    q = room((*x.shape[:-1], x.shape[-1] // 2), x.device)
    return shaped(fused("silu_and_mul_quant", q, x, scale), match, 0)


@rule(SiluInGroups)
def silu_and_mul_in_groups(x, s, columns, turned, match):
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return decline(MISFIT)
    q = room((*x.shape[:-1], x.shape[-1] // 2), x.device)
    made = fused("silu_and_mul_per_block_quant", q, x, s, columns, None, turned)
    return shaped(made, match, 0, 1)
