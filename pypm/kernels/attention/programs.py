"""Score programs: what happens to the scores of attention between the product and the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from pypm.kernels.attention.expressions import (
    SCORE,
    TRUE,
    Element,
    Expression,
    as_text,
    elements,
    evaluate,
    names,
    parse,
)

__all__ = ["Hidden", "ScoreProgram", "reference"]

Hidden: TypeAlias = Literal["none", "zero", "mean"]
_LINE: Final = "score = {}; visible = {}; hidden rows = {}"


@dataclass(frozen=True, slots=True)
class ScoreProgram:
    """Scores of attention as expressions in the scaled score s of batch b, head h, query q, key k.

    A weight is zero where `visible` is False; elsewhere softmax is taken of `score`.
    """

    score: Expression = SCORE
    visible: Expression = TRUE
    hidden: Hidden = "none"
    """The result of a query that sees no key: "zero", or the "mean" of all values; "none" says
    that there is no such query.
    """

    def __str__(self) -> str:
        return _LINE.format(as_text(self.score), as_text(self.visible), self.hidden)

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> ScoreProgram:
        """Return the program that a text stands for. Raises ValueError if it is none."""
        parts = [part.partition(" = ") for part in text.split("; ")]
        if [name for name, *_ in parts] != ["score", "visible", "hidden rows"]:
            raise ValueError(f"no score program: {text!r}")
        score, visible, hidden = (value for *_, value in parts)
        for each in get_args(Hidden):
            if hidden == each:
                return ScoreProgram(parse(score), parse(visible), each)
        raise ValueError(f"hidden rows are none, zero or mean, not {hidden!r}")

    @property
    def elements(self) -> frozenset[Element]:
        """The elements of tensors that the program reads."""
        return elements(self.score) | elements(self.visible)

    @property
    def sees_by_index(self) -> bool:
        """True if indices alone decide which scores are visible."""
        return not elements(self.visible)

    @property
    def reads(self) -> frozenset[str]:
        """The indices on which visibility depends."""
        return names(self.visible)


def reference(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor], program: str, scale: float
) -> Tensor:
    """Return what `block_sparse_attention` of the same arguments returns, by plain operators."""
    known = ScoreProgram.parse(program)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-2, -1) * scale
    sizes = scores.shape
    places = [torch.arange(n).reshape(-1, *[1] * (3 - dim)) for dim, n in enumerate(sizes)]
    values = {"s": scores, **dict(zip("bhqk", places, strict=True))}
    visible = _whole(evaluate(known.visible, values, tensors), sizes)
    scores = _whole(evaluate(known.score, values, tensors), sizes)
    seen = visible.any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
    result = torch.where(seen, weights, 0) @ v  # NaN in a row would be one in the gradient of v
    other = v.mean(2, keepdim=True) if known.hidden == "mean" else v.new_zeros(())
    return torch.where(seen, result, other)


def _whole(value: Tensor | float, sizes: torch.Size) -> Tensor:
    return value.expand(sizes) if isinstance(value, Tensor) else torch.full(sizes, value)
