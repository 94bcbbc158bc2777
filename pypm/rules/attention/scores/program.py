"""Score programs from the steps on scores that the patterns of attention bind."""

import math
from dataclasses import dataclass

import torch

from pypm.fx import Reading, is_scalar, metadata
from pypm.kernels.attention.block_sparse import visible_blocks
from pypm.kernels.attention.expressions import (
    FALSE,
    SCORE,
    TRUE,
    Applied,
    Element,
    Name,
    Number,
    apply,
    both,
    elements,
    names,
    negated,
    parts,
)
from pypm.kernels.attention.programs import ScoreProgram
from pypm.rules.attention.layouts import arranged, heads_of
from pypm.rules.attention.score_steps import (
    LOW,
    LOW_BESIDE_OTHERS,
    LOWEST,
    OF_ALL,
    held,
    larger,
)
from pypm.rules.attention.scores.elementwise import ELEMENTWISE
from pypm.rules.attention.scores.places import PLACES, regrouped
from pypm.rules.attention.scores.reader import NotRead, ScoreReader

UNKNOWN = "the sizes are not known, or there is nothing to attend to"
READERS = {**ELEMENTWISE, **PLACES}


class Unfit(Exception):
    """The reason for which steps on scores are no program."""


@dataclass(frozen=True)
class Scores:
    """The scores of a match: their program, the scale before it, and their sizes."""

    program: ScoreProgram
    scale: float
    sizes: tuple[int, int, int, int]
    """Batches, heads, queries and keys."""
    share: float | None
    """The share of blocks that are not empty; None if data decide."""


def read_scores(match):
    """Return the reading of a match of attention: its `Scores`, or the reason for none."""
    scores, v, lv = (match.bindings[name] for name in ("scores", "v", "lv"))
    given = [metadata(x) for x in (scores.q, scores.k, v)]
    if not all(isinstance(x, torch.Tensor) for x in given):
        return Reading(UNKNOWN)
    q, k, _, out = arranged(*given, scores.layout, lv)
    if out is None or q.dim() not in (3, 4, 5) or k.dim() != q.dim():
        return Reading("the products are not those of attention in three to five dimensions")
    batch = heads_of(q, [shape for _, shape, *_ in scores.steps])
    return reading_of(match, scores.steps, (*batch, q.shape[-2], k.shape[-2]))


def reading_of(match, steps, sizes):
    """Return the reading of steps on scores [B, H, S, T], whose `sizes` are given."""
    if not all(isinstance(n, int) and n for n in sizes):
        return Reading(UNKNOWN)
    key = reading_of, as_key(steps), tuple(sizes)
    if key not in match.memory:
        match.memory[key] = read_steps(steps, sizes)
    return match.memory[key]


def as_key(value):
    """Return a key that is equal for equal values, numbers of equal type and sign among them."""
    if isinstance(value, (tuple, list)):
        return tuple(map(as_key, value))
    return type(value), repr(value) if isinstance(value, (int, float)) else value


def read_steps(steps, sizes):
    """Return the reading of steps on scores of known sizes."""
    building = _Building(tuple(sizes))
    try:
        for step in steps:
            building.add(*step)
        scores = building.scores()
    except Unfit as unfit:
        return Reading(str(unfit))
    except NotRead:
        return Reading("a step on the scores has sizes that are not known")
    reader = building.reader
    through = tuple(dict.fromkeys(reader.through))
    return Reading(scores, tuple(reader.leaves), through, by_data=scores.share is None)


class _Building:
    """A program that is made step by step."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.reader = ScoreReader(READERS, self.sizes)
        self.scale = 1.0
        self.score = SCORE
        self.visible = []
        self.lows = []  # of each condition: the number elsewhere, and if it replaced the score

    def add(self, kind, shape, *operands):
        """Add a step, as the patterns bind it."""
        kind = kind.removeprefix("causal ")
        if kind in ("fill", "keep"):
            if is_scalar(operands[0]):
                raise Unfit(OF_ALL)
            condition = self.read(operands[0], shape)
            self.hide(condition if kind == "keep" else negated(condition), operands[1], True)
        elif kind == "tanh":
            if self.visible:
                raise Unfit("scores are capped after some were filled in")
            self.score = apply("tanh", self.score)
        elif kind in ("mul", "div"):
            self.multiply(kind, self.operand(operands[0], shape))
        elif kind in ("add", "sub"):
            self.shift(kind, self.operand(operands[0], shape))
        else:
            raise Unfit(f"no kernel takes `{kind}` on scores")

    def operand(self, value, shape):
        """Return a number, or an element of a tensor at the places of the score.

        What is made of data is of a floating-point type, as beside the score in the graph.
        """
        if is_scalar(value):
            return Number(value)
        found = self.read(value, shape)
        is_float = metadata(value).dtype.is_floating_point
        return found if is_float or not elements(found) else apply("float", found)

    def read(self, node, shape):
        """Return the element of a tensor that is broadcast to scores of this shape."""
        if not isinstance(metadata(node), torch.Tensor):
            raise Unfit("a number on the scores is not known")
        places = [Name(name) for name in "bhqk"]
        if shape:
            places = regrouped(places, self.sizes, tuple(shape), self.sizes)
        rank = metadata(node).dim()
        if rank > len(places):
            raise Unfit("a mask is larger than the scores")
        return self.reader.element(node, places[len(places) - rank :])

    def multiply(self, kind, c):
        """Multiply or divide by a number or a tensor."""
        known = c.value if isinstance(c, Number) else None
        if known is not None and not (math.isfinite(known) and known):
            raise Unfit(f"the scores are multiplied or divided by {known}")
        if self.visible and not (known is not None and known > 0):
            raise Unfit("scores are scaled by no positive number after some were filled in")
        if known is not None:
            factor = known if kind == "mul" else 1 / known
            lows = [(low * factor, fills) for low, fills in self.lows]
            if any(held(low, torch.bfloat16) != low for low, _ in lows):
                raise Unfit("what was filled in may be infinite after what follows")
            self.lows = lows
            if self.score == SCORE:
                self.scale *= factor
                return
        self.score = apply("*" if kind == "mul" else "/", self.score, c)

    def shift(self, kind, m):
        """Add or subtract a number or a tensor, of which a part may be a mask."""
        if kind == "sub":
            m = apply("*", m, Number(-1)) if isinstance(m, Number) else negative(m)
        before, shift = self.score, Number(0)  # the shift is summed up first, as in the graph
        for term in terms(m):
            condition, low, bias = masked(term)
            if condition != TRUE and low > LOWEST and elements(condition):
                condition, bias = TRUE, term  # a row that is hidden everywhere keeps its scores
            if condition != TRUE:
                self.hide(condition, low, False)
            if bias == Number(0) or bias == Number(0.0):
                continue
            if any(low > 10 * LOWEST for low, _ in self.lows):
                raise Unfit("what was filled in may be seen again after what follows")
            shift = apply("+", shift, bias)
            self.score = apply("+", before, shift)

    def hide(self, condition, low, fills):
        """Hide scores where a condition is False: they become `low`, or it is added to them."""
        if not low <= LOW * larger(self.scale):
            raise Unfit(f"what is filled in is not low enough beside the scores: {low}")
        if self.score != SCORE and low > LOW_BESIDE_OTHERS:
            raise Unfit(f"beside other steps, {low} is not low enough to be filled in")
        self.visible.append(condition)
        self.lows.append((low, fills))

    def scores(self):
        """Return what was built. Raises Unfit if the graph's value of a hidden row is not kept."""
        visible = both(*self.visible)
        if may_outweigh(self.score, [low for low, _ in self.lows]):
            raise Unfit("what is added to the scores may be as large as what is filled in")
        program = ScoreProgram(self.score, visible)
        blocks = None if elements(visible) else visible_blocks(program, self.sizes)
        if blocks is None or blocks.hidden is not None:
            program = ScoreProgram(self.score, visible, self.hidden())
        share = None if blocks is None else blocks.share
        return Scores(program, self.scale, self.sizes, share)

    def hidden(self):
        """Return the result of a row that is hidden everywhere, in the graph."""
        if all(low == -math.inf for low, _ in self.lows):
            return "zero"
        (low, fills), *others = self.lows
        is_one = all(fills and other == (low, fills) for other in others)
        if is_one and math.isfinite(low) and (fills or low <= LOWEST):
            return "mean"
        raise Unfit("a row may be masked everywhere, by numbers that are not equal")


def negative(x):
    """Return -x, inside of a `where`."""
    match x:
        case Applied("where", (c, a, b)):
            return apply("where", c, negative(a), negative(b))
        case Applied("+", (a, b)):
            return apply("+", negative(a), negative(b))
    return apply("*", x, Number(-1))


def terms(x):
    """Return the terms of a sum, in order."""
    match x:
        case Applied("+", (a, b)):
            return [*terms(a), *terms(b)]
    return [x]


def masked(x):
    """Return (condition, low, bias): x is the bias where the condition holds, else the number."""
    match x:
        case Applied("where", (c, a, Number(low))) if is_low(low):
            inner, other, bias = masked(a)
            if inner == TRUE or other == low:
                return both(c, inner), low, bias
        case Applied("where", (c, Number(low), a)) if is_low(low):
            inner, other, bias = masked(a)
            if inner == TRUE or other == low:
                return both(negated(c), inner), low, bias
        case Number(low) if is_low(low):
            return FALSE, low, Number(0)
    return TRUE, 0.0, x


def may_outweigh(score, lows):
    """Return whether what is added to the score may be as large as a number that hides others: by a
    number in it, or by an element of a tensor, such as a mask. Slopes, which are values for each
    head times an index, hide no keys.
    """
    largest = max((abs(x.value) for x in parts(score) if isinstance(x, Number)), default=0)
    if not any(map(math.isfinite, lows)):
        return bool(lows) and largest == math.inf
    return largest >= -LOW or bool(elements(without_slopes(score)))


def without_slopes(x):
    """Return an expression in which what indices and values for each head make is a number."""
    match x:
        case Applied("*", (Element() as slope, by) | (by, Element() as slope)):
            if names(slope) == {"h"} and "k" in names(by) and is_by_index(by):
                return Number(0)
    return (
        Applied(x.operator, tuple(map(without_slopes, x.operands))) if isinstance(x, Applied) else x
    )


def is_by_index(x):
    """Return whether indices alone make a number."""
    return not elements(x) and "s" not in names(x)


def is_low(value):
    """Return whether a number that is added to a score hides it."""
    return not isinstance(value, bool) and value <= LOW
