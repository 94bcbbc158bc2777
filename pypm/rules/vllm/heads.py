"""RMSNorm of each head of query and key, and rotary embedding, in place in a projection."""

import torch

from pypm import decline, let, pattern, record, rule, var
from pypm.fx import GETITEM
from pypm.rules.vllm.norms import Norm
from pypm.rules.vllm.operators import C, fused, last_reader
from pypm.rules.vllm.references import normed
from pypm.rules.vocabulary.indexing import Stretch
from pypm.rules.vocabulary.shapes import Reshape

WIDTHS = (64, 128, 256)
"""The widths of heads for which vLLM has the kernel."""


def normed_heads(x, w, eps, first, count):
    """Return some elements of each row, normed in heads of as many as the weight has."""
    part = x.narrow(-1, first, count)
    return normed(part.reshape(*part.shape[:-1], -1, w.shape[-1]), w, eps).reshape(part.shape)


@pattern(means=normed_heads)
def NormedHeads(x, w, eps, first, count):
    part, h, n = var(), var(), var()
    y = Reshape(n)
    n <= Norm(h, w, eps)
    h <= Reshape(part)
    part <= Stretch(x, first, count)
    assert h.shape[-1] == w.shape[-1] and w.rank == 1 and y.shape == part.shape
    assert n.dtype == x.dtype == w.dtype
    return y


@pattern
def TurnedHeads(qkv, positions, q_w, k_w, cache, how):
    eps, queries, keys, width, is_neox = var(), var(), var(), var(), var()
    q, k = NormedHeads(qkv, q_w, eps, 0, queries), NormedHeads(qkv, k_w, eps, queries, keys)
    y = C.rotary_embedding(positions, q, k, width, cache, is_neox, 0, False)
    let(how=record(eps=eps, queries=queries, keys=keys, width=width, is_neox=is_neox))
    assert qkv.rank == cache.rank == 2
    return GETITEM(y, 1), GETITEM(y, 2)


@rule(TurnedHeads, reads=last_reader("qkv"))
def heads_normed_and_turned(qkv, positions, q_w, k_w, cache, how, match):
    width, queries, keys = how.width, how.queries, how.keys
    if qkv.dtype not in (torch.float16, torch.bfloat16) or width not in WIDTHS:
        return decline(f"the kernel takes 16 bits, and heads of {WIDTHS} elements")
    if not q_w.shape[-1] == k_w.shape[-1] == cache.shape[-1] == width:
        return decline("the kernel turns whole heads of one width")
    if queries + 2 * keys != qkv.shape[-1]:
        return decline("behind the keys there are not as many values")
    if not match.reading.value:
        return decline("the projection is read elsewhere, and the kernel would overwrite it")
    heads = (queries // width, keys // width, keys // width)
    weights = (q_w, k_w, cache, how.is_neox, positions.reshape(-1), -1)
    made = fused("fused_qk_norm_rope", qkv, *heads, width, how.eps, *weights)
    if not isinstance(made, list):
        return made
    return made[0][:, :queries], made[0][:, queries : queries + keys]
