"""Rules that replace attention by `scaled_dot_product_attention`, and that by two products."""

from functools import partial

import torch

from pypm import decline, pattern, predicate, rule
from pypm.fx import metadata, trained
from pypm.kernels.attention import attention, products, unsupported
from pypm.rules.attention.layouts import arranged, heads_of, of_rank_four
from pypm.rules.attention.patterns import Attention, DroppedAttention
from pypm.rules.attention.score_steps import LOW, causally, fold, may_fill_rows, over
from pypm.rules.attention.scores.addends import numbers_added
from pypm.rules.vocabulary.fused_attention import Fused
from pypm.rules.vocabulary.types import holds


@predicate
def agree(lk, lv, q, k, v):
    """Return whether the shapes of q, k and v may be those of attention: their ranks agree, and
    keys have as many heads as values. With an einsum in `lk` or `lv`, they may differ.
    """
    if len(q) not in (3, 4, 5):
        return False
    if "," in lk or "," in lv or not len(q) == len(k) == len(v) == 4:
        return "," in lk or (len(q) == len(k) and ("," in lv or len(q) == len(v)))
    heads = k[2 if lk == "BTGD" else 1], v[2 if lv else 1]
    return not all(isinstance(n, int) for n in heads) or heads[0] == heads[1]


PRODUCTS = ("matmul", "bmm", "baddbmm", "mm", "einsum")


def unclear_sum(match):
    """Return the reason for which a kernel that adds the sum of all masks to the scores may give
    another result than the graph, or None.
    """
    if reads_scores(match.region):
        return "a mask is computed from the scores"
    if any(number >= -LOW for number in numbers_added(match)):
        return "what is added to the scores may be as large as what hides them"
    return None


def reads_scores(region):
    """Return whether a mask is computed from the scores to which it is added.

    The sum may then cancel the scores, of which the kernel computes nothing but the product.
    """
    todo = list(region.inner)
    inside = set(region.nodes)
    while todo:
        node = todo.pop()
        if node in inside:
            inside.remove(node)
            todo += node.all_input_nodes
            if called(node) in PRODUCTS:
                return True
    return False


def loses_a_zero(region):
    """Return whether an operand of `baddbmm` that is not read needs a gradient.

    In eager it is zero. A replacement that lacks the operand would leave it None.
    """
    return any(
        getattr(metadata(operand), "requires_grad", False)
        for node in region.nodes
        if called(node) == "baddbmm"
        for operand in node.all_input_nodes
        if operand in region.side_inputs
    )


def called(node):
    """Return the name of what a node calls, without its overload."""
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


@rule(Attention, pays="mostly")
def sdpa(scores, v, lv, match):
    assert agree(scores.layout, lv, scores.q.shape, scores.k.shape, v.shape)
    return replaced(match, scores, v, lv)


@rule(Attention, pays="sometimes")
def attention_by_products(scores, v, lv, match):
    assert agree(scores.layout, lv, scores.q.shape, scores.k.shape, v.shape)
    return replaced(match, scores, v, lv, kernel=written_out, two_widths=True)


def written_out(q, k, v, mask, **options):
    """Return attention by products, or why that is no other graph than there is."""
    reason = unknown_or_empty(q, k)
    if reason is not None:
        return reason
    if mask is not None and q.shape[1] == k.shape[1]:
        return "each head has keys of its own: the products are those of the graph"
    return products(q, k, v, mask, **options)


def unknown_or_empty(q, k):
    """Return why products do not take queries and keys of these sizes, or None."""
    if not all(isinstance(n, int) for x in (q, k) for n in x.shape):
        return "the sizes are not known"
    return None if k.shape[2] else "there are no keys, and a maximum of no scores is none"


@pattern
def CalledAttention(q, k, v, mask, causal, scale):
    assert q.rank == k.rank == v.rank == 4
    assert q.dtype == torch.float32 or q.dtype == torch.float64  # narrower scores would be rounded
    return Fused(q, k, v, mask, causal, scale, False)


@rule(CalledAttention, pays="sometimes")
def called_attention_by_products(q, k, v, mask, causal, scale, match):
    if trained():
        return decline("the kernel has a gradient of its own")
    reason = unknown_or_empty(q, k)
    if reason is not None:
        return decline(reason)
    if causal and scale is not None and scale <= 0:
        return decline("the kernel leaves keys out before it scales, which gives NaN")
    if mask is not None:
        mask = mask.reshape(*[1] * (4 - mask.dim()), *mask.shape)
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    reason = unsupported(q, k, v, mask)
    return decline(reason) if reason else products(q, k, v, mask, scale=scale, causal=causal)


@rule(DroppedAttention, redraws=True)
def sdpa_with_dropout(scores, v, lv, p, match):
    assert agree(scores.layout, lv, scores.q.shape, scores.k.shape, v.shape)
    return replaced(match, scores, v, lv, kernel=partial(attention, dropout=p))


def widens(kind, other):
    """Return whether `other` is a wider floating-point type that holds the type `kind`."""
    return kind.is_floating_point and kind != other and holds(other, kind)


def replaced(match, scores, v, lv, **options):
    """Return what `fused` returns, or decline for its reason."""
    result = fused(match, scores, v, lv, **options)
    return decline(result) if isinstance(result, str) else result


def fused(match, scores, v, lv, *, kernel=attention, two_widths=False):
    """Return the attention of a match, computed by the kernel, or the reason to decline.

    Arguments:
        match: the match of a rule.
        scores: as `Scored` binds them: q, k, the layout of k, as for `arranged`; and the steps: the
            scales on q and on k before their product, then the steps on the scores.
        v, lv: the values, and their layout.
        kernel: called as `attention`; it may return a reason to decline instead.
        two_widths: True if the kernel takes values of another width than the keys.

    The result has the shape of the match's root. Beside scores of a wider type, the values and what
    is added are widened: all is computed in that type, and rounded once. Narrower scores are
    declined.
    """
    steps = scores.steps
    q, k, v, out = arranged(scores.q, scores.k, v, scores.layout, lv)
    reason = unlike_attention(match, q, k, v, out, steps)
    if reason is not None:
        return reason
    causal, steps = causally(steps, q.shape[-2], q.dtype)
    batch, rows = heads_of(q, [shape for _, shape, *_ in steps]), q.shape[:-1]
    steps = [over(step, (*batch, rows[-1])) for step in steps]
    if None in steps:
        return "a mask is larger than the scores"
    kind = v.dtype
    if widens(kind, q.dtype):
        v = v.to(q.dtype)
    folded = fold(steps, q.dtype)
    if isinstance(folded, str):
        return folded
    scale, factors, mask = folded
    if mask is not None and widens(mask.dtype, q.dtype):
        mask = mask.to(q.dtype)
    q, k, v = (of_rank_four(x, q, batch) for x in (q, k, v))
    if q.dtype == torch.float16 and any(factor.dtype != torch.bool for factor in factors):
        return "a query times a tensor may be infinite in float16"
    for factor in factors:
        covers = factor.dtype == torch.bool
        q = q.masked_fill(factor, 0) if covers else (q * factor).to(q.dtype)
    reason = unsupported(q, k, v, mask, two_widths=two_widths)
    if reason is not None:
        return reason
    result = kernel(q, k, v, mask, scale=scale, causal=causal)
    if isinstance(result, str):
        return result
    result = result if result.dtype == kind else result.to(kind)
    result = result if len(rows) == 3 else result.reshape(*rows, v.shape[-1])
    return result if out == tuple(sorted(out)) else result.permute(out)


def unlike_attention(match, q, k, v, out, steps):
    """Return why no kernel of attention computes a match, whatever its sizes and types; or None.

    q, k, v and out are those that `arranged` returns.
    """
    reason = unclear_sum(match)
    if reason is not None:
        return reason
    if loses_a_zero(match.region):
        return "an operand that is not read has a gradient of zero"
    if out is None or not q.dim() == k.dim() == v.dim() or q.dim() not in (3, 4, 5):
        return "the products are not those of attention in three to five dimensions"
    if any(kind == "tanh" for kind, *_ in steps):
        return "the kernel caps no scores"
    if any(kind == "sigmoid" for kind, *_ in steps):
        return "the kernel computes a softmax, and these weights are sigmoids of the scores"
    if trained() and any(may_fill_rows(step) for step in steps):
        return "a row that is filled everywhere would send gradients back"
    return None
