"""Attention over vLLM's cache, and quantization of its result: by attention itself."""

from pypm import pattern, rule
from pypm.fx import GETITEM
from pypm.rules.vllm.eight_bits import Static, room, shaped
from pypm.rules.vllm.operators import VLLM, fused
from pypm.rules.vocabulary.shapes import Reshape


@pattern
def StaticAttention(q, k, v, out, layer, after, scale):
    y = GETITEM(VLLM.unified_attention_with_output(q, k, v, out, layer, None, None, after), 1)
    z = Reshape(y)
    assert out.rank == 3 and z.rank == 2 and z.shape[0] == y.shape[0]
    return Static(z, scale)


@rule(StaticAttention)
def attention_static(q, k, v, out, layer, after, scale, match):
    made = fused(
        "unified_attention_with_output",
        *(q, k, v, room(out.shape, out.device), layer, scale, None, after),
    )
    return shaped(made, match, 0)
