"""Steps on scores, and their sum: one scale and one mask.

A step is a tuple of its kind ("mul", "div", "add", "sub", "fill", "keep"; with "causal " before the
last two if the mask is causal), the shape of the scores, and its operands. The last operand is a
number or a tensor; before it, "fill" and "keep" have a mask of booleans: "fill" puts the number
where the mask is true, "keep" where it is false.
"""

import functools
import itertools
import math

import torch

from pypm import predicate
from pypm.fx import is_known_scalar, is_scalar, metadata, same_shape, same_size

LOW = -1e6
"""Filled in for a score, it leaves a weight of zero unless the whole row is filled."""
LOW_BESIDE_OTHERS = -1e9
"""So low that adding a score up to 32 does not change it in float32."""
LOWEST = -1e30
"""So low that adding a score does not change it, in any type: a filled row stays uniform."""
OF_ALL = "one number says of all scores whether they are filled"


@predicate
def held(value, dtype):
    """Return a number that is filled in as a floating-point type holds it: some are infinite.

    Raises ValueError if the type is another.
    """
    if not dtype.is_floating_point:
        raise ValueError(f"scores of type {dtype}")
    info = torch.finfo(dtype)
    rounded = info.max * info.eps / (4 - 2 * info.eps)  # half of the last digit's worth
    return value if abs(value) - info.max < rounded else math.copysign(math.inf, value)


def causally(steps, length):
    """Return whether the only mask is causal and comes last, and the steps without that mask.

    `length` is the number of queries. If there are other masks, the causal one stays among the
    steps, as an ordinary one.
    """
    *others, last = steps or [("none", ())]
    scales = all(kind in ("mul", "div") for kind, *_ in others)
    is_causal = last[0].startswith("causal") and same_size(last[1][-2], length)
    if is_causal and scales and last[-1] <= LOW * gain(others):
        return True, others
    return False, [(kind.removeprefix("causal "), *rest) for kind, *rest in steps]


def trained(region):
    """Return whether the graph's runner is known to send gradients back through a region."""
    return any(getattr(metadata(root), "requires_grad", False) for root in region.roots)


def may_fill_rows(step):
    """Return whether a step may fill whole rows with a finite number.

    The weights of such rows are uniform, so no gradient flows through their scores.
    """
    kind, *_, c = step
    return kind in ("fill", "keep") and math.isfinite(c)


def gain(steps):
    """Return the factor by which scaling steps enlarge a score: at least 1, infinity if unknown."""
    scale = 1.0
    for kind, *_, c in steps:
        if is_scalar(c) and c:
            scale *= c if kind == "mul" else 1 / c
    return larger(scale)


def larger(scale):
    """Return the absolute value of a scale, at least 1; infinity if the scale is not known."""
    return max(1.0, abs(scale)) if is_known_scalar(scale) else math.inf


def over(step, rows):
    """Return a step on scores of any shape as a step, without the shape, on scores [*rows, T].

    Rows keep their order, so dimensions that together hold the same rows are regrouped. The result
    is None if an operand enlarges the scores.
    """
    kind, shape, *operands = step
    m = operands[0]
    if is_scalar(m):
        return kind, *operands
    if kind in ("mul", "div") and all(same_size(n, 1) for n in m.shape):
        return kind, m.reshape(())
    if m.dim() > len(shape) or not same_size(math.prod(shape[:-1]), math.prod(rows)):
        return None
    while m.dim() < len(shape):
        m = m[None]
    sizes, wanted = [], []
    for ours, theirs in common(shape[:-1], rows):
        block, known = m.shape[ours], rows[theirs]
        if all(same_size(n, 1) for n in block):
            block, known = [1] * len(block), [1] * len(known)
        elif len(block) == len(known) == 1:
            known = block
        else:
            block = shape[ours]
        sizes += block
        wanted += known
    if not same_shape(m.shape[:-1], sizes):
        m = m.expand(*sizes, m.shape[-1])
    if not same_shape(sizes, wanted):
        m = m.reshape(*wanted, m.shape[-1])
    return kind, m, *operands[1:]


def common(a, b):
    """Return pairs of slices that cut two shapes into the smallest blocks of equal size.

    The shapes have equally many elements.
    """
    cuts = [(0, 0)]
    for i in range(1, len(a)):
        for j in range(cuts[-1][1] + 1, len(b)):
            if i > cuts[-1][0] and same_size(math.prod(a[:i]), math.prod(b[:j])):
                cuts.append((i, j))
    cuts.append((len(a), len(b)))
    return [(slice(i, k), slice(j, n)) for (i, j), (k, n) in itertools.pairwise(cuts)]


def fold(steps, given):
    """Return (scale, factors, mask): the steps on x are x * scale * product(factors) + mask.

    A factor of booleans is true in rows of which no score is left: there x is to be 0.

    Arguments:
        steps: the steps without shapes, as `over` returns them, first to last.
        given: the dtype of the queries. The mask is float64 beside float64, else float32.

    The scale is a number, the factors are tensors, the mask is a tensor or None. Values that are
    filled in become part of the mask. Numbers that are added to all scores change no weight, so
    they are left out, and subtracted from values that are filled in later. If the steps have no
    such form, the result is the reason.
    """
    if not given.is_floating_point:
        return f"the queries are of type {given}"
    dtype = torch.float64 if given == torch.float64 else torch.float32
    scale, factors, mask = 1.0, [], None
    offset = 0.0  # what the scores lack of the graph's; None where it is not known
    fills = []  # over that: (kind, where, value), first to last
    for kind, *operands in steps:
        c = operands[-1]
        if is_scalar(c) and kind in ("mul", "div") and not (math.isfinite(c) and c):
            return f"the scores are multiplied or divided by {c}"
        if kind in ("fill", "keep"):
            if is_scalar(operands[0]):
                return OF_ALL
            if offset is None or not c - offset <= LOW * larger(scale):
                return f"what is filled in is not low enough beside the scores: {c}"
            fills.append((kind, operands[0], c - offset))
        elif kind in ("add", "sub") and is_scalar(c):
            if offset is not None:
                offset += c if kind == "add" else -c
            if not abs(c) <= -LOW or (offset is not None and not abs(offset) <= -LOW):
                return f"{c} is added to every score"
        elif kind in ("add", "sub") and not c.dtype.is_floating_point:
            return f"what is added to the scores is of type {c.dtype}"
        elif kind in ("mul", "div") and is_scalar(c) and c > 0:
            c = c if kind == "mul" else 1 / c
            scale, offset = scale * c, None if offset is None else offset * c
            mask = scaled(mask, c, dtype)
            fills = [(fill, b, low * c) for fill, b, low in fills]
        else:
            if any(low > 10 * LOWEST for *_, low in fills):
                return "what was filled in may be seen again after what follows"
            mask, fills = filled(mask, fills, dtype), []
            if kind in ("add", "sub"):
                mask = summed(mask, c if kind == "add" else -c, dtype)
            else:
                c = c if is_scalar(c) else wide(c, dtype)
                c = c if kind == "mul" else 1 / c
                scale, factors = (scale * c, factors) if is_scalar(c) else (scale, [*factors, c])
                offset = offset * c if offset and is_scalar(c) else 0.0 if offset == 0 else None
                mask = scaled(mask, c, dtype)
        if offset is not None and abs(offset) > torch.finfo(given).max:
            return f"a number is added to every score that {given} does not hold"
    fills = lowered(fills, alone=mask is None, exactly=dtype == torch.float64)
    if isinstance(fills, str):
        return fills
    if mask is not None and any(low > 10 * LOWEST for *_, low in fills):
        factors = [*factors, covered(fills)]
    mask = filled(mask, fills, dtype)
    if mask is not None and dtype == torch.float64 != mask.dtype:
        mask = mask.to(dtype)  # the kernels take a narrower mask beside narrower types only
    return scale, factors, mask


def lowered(fills, alone, exactly):
    """Return the fills, so low that a score added to them is lost, or the reason against that.

    Arguments:
        fills: triples of kind, mask and value, in order.
        alone: True if there is no other mask. Then values are lowered to `LOWEST`, if they are
            equal: a row that is filled everywhere stays uniform.
        exactly: True for float64.

    Beside other masks, which may be as low, a value stays as it is, and float32's rounding loses
    the score; where whole rows are `covered`, there is to be none.
    """
    weak = {low for *_, low in fills if low > 10 * LOWEST}
    if any(low > LOW for low in weak):
        return f"what is filled in is not low enough: {max(weak)}"
    if alone and len(weak) <= 1:
        return [(kind, b, min(low, LOWEST)) for kind, b, low in fills]
    if weak and (exactly or max(weak) > LOW_BESIDE_OTHERS):
        return f"beside other masks, {max(weak)} is not low enough to be filled in"
    return fills


def covered(fills):
    """Return where whole rows are filled, as booleans [..., S or 1, 1]."""
    places = (b if kind == "fill" else ~b for kind, b, _ in fills)
    return functools.reduce(torch.logical_or, places).all(-1, keepdim=True)


def filled(mask, fills, dtype):
    """Return the mask, or None, after the fills: `dtype` if there are any."""
    for kind, b, low in fills:
        other = torch.zeros_like(b, dtype=dtype) if mask is None else mask.to(dtype)
        mask = torch.where(b, low, other) if kind == "fill" else torch.where(b, other, low)
    return mask


def scaled(mask, c, dtype):
    """Return the mask, or None, times c, in no narrower type than `dtype`."""
    return None if mask is None else wide(mask, dtype) * c


def summed(mask, m, dtype):
    """Return mask + m, in no narrower type than `dtype`; m, as it is, if there is no mask."""
    return m if mask is None else wide(mask, dtype) + m


def wide(mask, dtype):
    """Return the mask in the wider of its own type and `dtype`."""
    return mask.to(torch.promote_types(mask.dtype, dtype))
