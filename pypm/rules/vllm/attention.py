"""Attention over vLLM's cache, and quantization of its result: by attention itself."""

import torch

from pypm import let, pattern, record, rule, var
from pypm.fx import GETITEM
from pypm.rules.vllm.eight_bits import Static, room, shaped
from pypm.rules.vllm.four_bits import Packed
from pypm.rules.vllm.operators import VLLM, fused
from pypm.rules.vllm.references import TYPE
from pypm.rules.vocabulary.shapes import Reshape


@pattern
def Attended(q, k, v, out, layer, after):  # with all heads of a token in a row
    y = GETITEM(VLLM.unified_attention_with_output(q, k, v, out, layer, None, None, after), 1)
    z = Reshape(y)
    assert out.rank == 3 and z.rank == 2 and z.shape[0] == y.shape[0]
    return z


@pattern
def StaticAttention(q, k, v, out, layer, after, scale):
    return Static(Attended(q, k, v, out, layer, after), scale)


@pattern
def PackedAttention(q, k, v, out, how, scale, s):
    layer, after = var(), var()
    let(how=record(layer=layer, after=after))
    y = Packed(Attended(q, k, v, out, layer, after), scale, True, s)
    assert out.shape[-1] % 16 == 0  # no scale is for values of two heads
    return GETITEM(y, 1), GETITEM(y, 2)


@rule(StaticAttention)
def attention_static(q, k, v, out, layer, after, scale, match):
    made = fused(
        "unified_attention_with_output",
        *(q, k, v, room(out.shape, out.device), layer, scale, None, after),
    )
    return shaped(made, match, 0)


@rule(PackedAttention)
def attention_packed(q, k, v, out, how, scale, s, match):
    packed = torch.empty(
        (*out.shape[:-1], out.shape[-1] // 2), dtype=torch.uint8, device=out.device
    )
    made = fused(
        "unified_attention_with_output",
        *(q, k, v, packed, how.layer, scale, s.view(TYPE), how.after),
    )
    if isinstance(made, list):
        made[1] = made[1].view(s.dtype)
    return shaped(made, match, 0, 1)
