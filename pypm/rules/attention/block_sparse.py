"""Rules that replace attention by block-sparse attention, its scores read as a program."""

import math
from dataclasses import replace

import torch

from pypm import decline, rule
from pypm.fx import Reading, metadata, same_size
from pypm.kernels.attention.block_sparse import (
    block_sparse_attention,
    unsupported,
)
from pypm.kernels.attention.expressions import SCORE, Applied, Element, Name, parse
from pypm.rules.attention.layouts import arranged, of_rank_four
from pypm.rules.attention.patterns import Attention
from pypm.rules.attention.rules import CalledAttention, agree, reads_scores
from pypm.rules.attention.scores.program import UNKNOWN, read_scores, reading_of
from pypm.rules.attention.scores.reader import dtype_of

FEWEST = 128
"""Queries below which a block holds most of the scores."""
FEW_SCORES = 2**20
"""Scores, in all heads and rows, below which the time that a mask leaves out is less than what the
kernel takes for itself: 5 ms on a CPU where 12 heads of 256 x 256 take 11 ms without it.
"""
MOST = 0.75
"""The share of blocks up to which leaving out the others may pay, if nothing else does."""
CAUSAL = parse("k <= q")


def read_sparse(match):
    """Return the reading of a match of attention, declined where its scores are no program, or
    dense attention does as well.
    """
    return unless_dense(match, read_scores(match))


@rule(Attention, pays="sometimes", reads=read_sparse)
def attention_by_blocks(scores, v, lv, match):
    assert agree(scores.layout, lv, scores.q.shape, scores.k.shape, v.shape)
    result = by_blocks(match, *arranged(scores.q, scores.k, v, scores.layout, lv))
    return decline(result) if isinstance(result, str) else result


def read_call(match):
    """Return the reading of a call of torch's fused attention, declined as by `read_sparse`."""
    return unless_dense(match, called_scores(match))


def called_scores(match):
    """Return the reading of a call of torch's fused attention with a mask."""
    bound = match.bindings
    q, k = (metadata(bound[name]) for name in "qk")
    mask, scale = bound["mask"], bound["scale"]
    if same_size(q.shape[3], 0):
        return Reading(UNKNOWN)
    sizes = (*q.shape[:3], k.shape[2])
    if not all(isinstance(n, int) and n for n in (*sizes, q.shape[3])):
        return Reading(UNKNOWN)
    steps = [("mul", (), q.shape[3] ** -0.5 if scale is None else scale)]
    if bound["causal"] or mask is None:
        return Reading("the kernel leaves out what it need not compute")
    if dtype_of(mask) == torch.bool:
        steps.append(("keep", sizes, mask, -torch.inf))
    else:
        steps.append(("add", sizes, mask))
    return reading_of(match, steps, sizes)


@rule(CalledAttention, pays="sometimes", reads=read_call)
def called_attention_by_blocks(q, k, v, mask, causal, scale, match):
    result = by_blocks(match, q, k, v, (0, 1, 2, 3))
    return decline(result) if isinstance(result, str) else result


def by_blocks(match, q, k, v, out):
    """Return the attention of a match by the block-sparse kernel, or the reason to decline.

    Arguments:
        match: the match of a rule that reads its scores, which are not declined.
        q, k, v, out: the operands and the permutation of the result, as `arranged` returns them.
    """
    scores = match.reading.value
    rows, batch = q.shape[:-1], scores.sizes[:2]
    q, k, v = (of_rank_four(x, q, batch) for x in (q, k, v))
    reason = unsupported(q, k, v)
    if reason is not None:
        return reason
    tensors = list(match.reading.nodes)
    for x in tensors:
        if x.dtype == torch.float64 or x.dtype.is_complex or x.device != q.device:
            return f"the scores read a tensor of {x.dtype} on {x.device}"
    result = block_sparse_attention(q, k, v, tensors, str(scores.program), scores.scale)
    result = result if len(rows) == 3 else result.reshape(*rows, v.shape[-1])
    return result if out == tuple(sorted(out)) else result.permute(out)


def unless_dense(match, reading):
    """Return the reading of a match, declined if the scores are no program, or dense attention does
    as well.
    """
    scores = reading.value
    if isinstance(scores, str):
        reason = scores
    elif reads_scores(match.region):
        reason = "a mask is computed from the scores"
    elif any(getattr(metadata(root), "requires_grad", False) for root in match.region.roots):
        reason = "the block-sparse kernel has no gradients"
    else:
        reason = gains_nothing(scores)
    return replace(reading, declined=reason)


def gains_nothing(scores):
    """Return the reason for which dense attention does what a program does, or None."""
    program, sizes = scores.program, scores.sizes
    if sizes[2] < FEWEST:
        return f"fewer than {FEWEST} queries"
    if not is_added(program.score):
        return None
    if math.prod(sizes) < FEW_SCORES:
        return f"a mask alone, of fewer than {FEW_SCORES:,} scores"
    if scores.share is None:
        return None
    if program.score == SCORE and program.visible == CAUSAL:
        return "torch's kernel knows this mask, as causal"
    if scores.share > MOST:
        return f"more than {MOST:.0%} of the scores have to be computed"
    return None


def is_added(score):
    """Return whether a program does nothing but add a tensor to the scores, or not even that."""
    match score:
        case Name("s") | Applied("+", (Name("s"), Element())):
            return True
    return False
