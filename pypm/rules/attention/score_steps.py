"""Steps on scores, and their sum: one scale and one mask.

A step is a tuple of its kind, the shape of the scores, and its operands. Kinds are "mul", "div",
"add", "sub", "lower" (by the largest of each row), "raise" (to a number, what is less), "fill" and
"keep"; with "causal " before the last two if the mask is causal. The last operand is a number or a
tensor; before it, "fill" and "keep" have a mask of booleans: "fill" puts the number where the mask
is true, "keep" where it is false.
"""

import functools
import itertools
import math

import torch

from pypm import predicate
from pypm.fx import is_known_scalar, is_scalar, same_shape, same_size
from pypm.rules.vocabulary.types import FLOATS

LOW = -1e6
"""A number from here downwards hides the key for whose score it is filled in; see `hides`."""
LOW_BESIDE_OTHERS = -1e9
"""So low that adding a score up to 32 does not change it in float32."""
LOWEST = -1e30
"""So low that adding a score does not change it, in any type."""
OF_ALL = "one number says of all scores whether they are filled"


@predicate(limit=-math.inf)
def held(value, dtype):
    """Return a number that is filled in as a floating-point type holds it: some are infinite.

    Raises ValueError if the type is another.
    """
    if not dtype.is_floating_point:
        raise ValueError(f"scores of type {dtype}")
    info = torch.finfo(dtype)
    rounded = info.max * info.eps / (4 - 2 * info.eps)  # half of the last digit's worth
    return value if abs(value) - info.max < rounded else math.copysign(math.inf, value)


@predicate(limit=-math.inf)
def hides(value, dtype):
    """Return whether a number that is filled in for a score of this type hides the key.

    The weight of the key is then taken for zero wherever a query sees another key. For -inf and for
    the lowest number of the type it is. For other numbers PyPM assumes that some score the query
    sees is higher: by 104 in float32, of which the exponential is nothing. Where a query sees no
    key, all that was filled in is kept.
    """
    return value <= lowest_needed(dtype)


@predicate(limit=-math.inf)
def is_lowest(value):
    """Return whether a number is so low that no score is below it."""
    return value <= 10 * LOWEST


def lowest_needed(dtype):
    """Return the number from which downwards a fill hides a key from scores of this type."""
    return max(LOW, torch.finfo(dtype).min) if dtype.is_floating_point else LOW


def causally(steps, length, given):
    """Return whether the only mask is causal and comes last, and the steps without that mask.

    Arguments:
        steps: the steps on the scores, first to last.
        length: the number of queries.
        given: their dtype.

    If there are other masks, the causal one stays among the steps, as an ordinary one.
    """
    *others, last = steps or [("none", ())]
    scales = all(kind in ("mul", "div") for kind, *_ in others)
    is_causal = last[0].startswith("causal") and same_size(last[1][-2], length)
    if is_causal and scales and last[-1] <= lowest_needed(given) * gain(others):
        return True, others
    return False, [(kind.removeprefix("causal "), *rest) for kind, *rest in steps]


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
    filled in become part of the mask, as -inf in rows that see another key; see `hidden`. Numbers
    that are added to all scores change no weight, so they are left out, and subtracted from values
    that are filled in later. If the steps have no such form, the result is the reason.
    """
    if given not in FLOATS:
        return f"the queries are of type {given}"
    scores = _Scores(given)
    for kind, *operands in steps:
        reason = _unfoldable(kind, operands) or scores.take(kind, *operands)
        if reason is not None:
            return reason
        # beyond its range the type of the scores has infinities, which a softmax does not forget
        if scores.offset is not None and abs(scores.offset) > torch.finfo(given).max:
            return f"a number is added to every score that {given} does not hold"
    return scores.folded()


def _unfoldable(kind, operands):
    """Return why no steps fold that have this one, or None."""
    c = operands[-1]
    if kind in ("mul", "div"):
        if is_scalar(c) and not (math.isfinite(c) and c):
            return f"the scores are multiplied or divided by {c}"
        if not is_scalar(c) and not scales(c.dtype):
            return f"the scores are scaled by a tensor of type {c.dtype}"
    if kind in ("fill", "keep") and is_scalar(operands[0]):
        return OF_ALL
    if kind in ("add", "sub") and not is_scalar(c) and c.dtype not in FLOATS:
        return f"what is added to the scores is of type {c.dtype}"
    return None


class _Scores:
    """The scores after some steps: x * scale * product(factors) + mask, then the fills."""

    def __init__(self, given):
        self.dtype = torch.float64 if given == torch.float64 else torch.float32
        self.needed = lowest_needed(given)
        self.scale, self.factors, self.mask = 1.0, [], None
        self.offset = 0.0
        """The number that the scores lack of the graph's; None if it is not known."""
        self.fills = []
        """Over that: (kind, where, value), first to last; the mask lacks them."""
        self.places = []
        """Earlier fills, whose numbers the mask holds."""

    def take(self, kind, *operands):
        """Apply a step. Return why it does not fold, or None."""
        c = operands[-1]
        if kind in ("fill", "keep"):
            # a fill hides its key only if it is low beside scores that were scaled up
            if self.offset is None or not c - self.offset <= self.needed * larger(self.scale):
                return f"what is filled in is not low enough beside the scores: {c}"
            self.fills.append((kind, operands[0], c - self.offset))
        elif kind == "lower":  # by another number in each row
            self.offset = None
        elif kind == "raise":
            self.mask = None if self.mask is None else wide(self.mask, self.dtype).clamp(min=c)
            self.fills = [(fill, b, max(low, c)) for fill, b, low in self.fills]
        elif kind in ("add", "sub") and is_scalar(c):
            return self.shift(kind, c)
        elif kind in ("mul", "div") and is_scalar(c) and c > 0:
            c = c if kind == "mul" else 1 / c
            self.scale, self.mask = self.scale * c, scaled(self.mask, c, self.dtype)
            self.offset = None if self.offset is None else self.offset * c
            self.fills = [(fill, b, low * c) for fill, b, low in self.fills]
        else:
            return self.change(kind, c)
        return None

    def shift(self, kind, c):
        """Add a number to every score, which changes no weight."""
        if self.offset is not None:
            self.offset += c if kind == "add" else -c
        # beside a number so large, the scores lose their digits
        if not abs(c) <= -LOW or (self.offset is not None and not abs(self.offset) <= -LOW):
            return f"{c} is added to every score"
        return None

    def change(self, kind, c):
        """Add a tensor, or scale by one or by a negative number: the fills become mask before."""
        if any(low > 10 * LOWEST for *_, low in self.fills):
            return "what was filled in may be seen again after what follows"
        self.mask = filled(self.mask, self.fills, self.dtype)
        self.places, self.fills = [*self.places, *self.fills], []
        if kind in ("add", "sub"):
            self.mask = summed(self.mask, c if kind == "add" else -c, self.dtype)
            return None
        c = c if is_scalar(c) else wide(c, self.dtype)
        c = c if kind == "mul" else 1 / c
        self.mask, self.places = scaled(self.mask, c, self.dtype), []
        if is_scalar(c):
            self.scale *= c
            self.offset = self.offset * c if self.offset else self.offset
        else:  # an offset is then another in each row, unless there is none
            self.factors.append(c)
            self.offset = 0.0 if self.offset == 0 else None
        return None

    def folded(self):
        """Return (scale, factors, mask), or why the steps do not fold."""
        mask, dtype = self.mask, self.dtype
        weakest = max((low for *_, low in self.fills), default=-math.inf)
        if weakest > self.needed:
            return f"what is filled in is not low enough: {weakest}"
        swallowed = 10 * LOWEST if dtype == torch.float64 else LOW_BESIDE_OTHERS
        if mask is not None and weakest > swallowed:
            return f"beside other masks, {weakest} is not low enough to be filled in"
        alone, places, factors = mask is None, [*self.places, *self.fills], self.factors
        mask = filled(mask, self.fills, dtype)
        if any(map(math.isfinite, (low for *_, low in places))):
            mask, covered = hidden(mask, None if alone else places, self.needed)
            factors = [*factors, covered]
        if mask is not None and dtype == torch.float64 != mask.dtype:
            mask = mask.to(dtype)  # the kernels take a narrower mask beside narrower types only
        return self.scale, factors, mask


def scales(dtype):
    """Return whether the scores may be scaled by tensors of a type: torch computes with it."""
    return dtype in FLOATS or not (dtype.is_floating_point or dtype.is_complex)


def hidden(mask, fills, needed):
    """Return a mask in which fills are -inf in rows that see a key, and the rows that are covered.

    Arguments:
        mask: the sum of all masks, with finite numbers where scores were filled in.
        fills: triples of kind, place and number; None if the mask holds nothing else.
        needed: the number from which downwards a fill hides a key.

    A finite number does not hide the score to which it is added, if that is as large: -inf does. A
    row is covered, True in booleans [..., S or 1, 1], if fills leave nothing of its scores. There,
    and in rows whose other keys are hidden by masks that were added, the numbers stay.
    """
    low = mask <= needed / 2  # a half, as the numbers may have been rounded
    if fills is None:
        covered = low.all(-1, keepdim=True)
        return mask.masked_fill(low & ~covered, -torch.inf), covered
    places = [b if kind == "fill" else ~b for kind, b, _ in fills]
    filled_in = functools.reduce(torch.logical_or, places)
    is_seen = ~low.all(-1, keepdim=True)
    covered = filled_in.all(-1, keepdim=True)
    return mask.masked_fill(filled_in & low & is_seen, -torch.inf), covered


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
