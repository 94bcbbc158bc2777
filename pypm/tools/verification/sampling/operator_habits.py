"""Ranks and dtypes that operators want of their tensors, for which guesses are mostly wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from pypm.core.operators import Operator

__all__ = ["CRASHING", "SIZE_ARGUMENTS", "Habit", "habits"]


@dataclass(frozen=True)
class Habit:
    """Typical properties of one argument of an operator; None for a property without a habit."""

    rank: int | None = None
    dtype: torch.dtype | None = None


def habits(operator: Operator, rank: int | None) -> tuple[Habit, ...]:
    """Return the habits of an operator's children, for a value of this rank (None: unknown)."""
    ranks = RANKS.get(operator.name)
    if ranks is not None:
        return tuple(map(Habit, ranks))
    keeps = operator.name in KEEPING or "pointwise" in operator.tags
    children = operator.signatures[0].children if operator.signatures else ()
    return tuple(
        Habit(rank if keeps and p.name in ("self", "input", "a") else None, DTYPES.get(p.name))
        for p in children
    )


_KEEPING: Final = """
    permute transpose clone contiguous detach alias dropout softmax _softmax log_softmax
    _log_softmax slice to _to_copy type_as add sub mul div mT
"""
KEEPING: Final = frozenset(f"aten.{name}" for name in _KEEPING.split())
"""Operators that keep the rank of their first argument, beside those on elements."""
RANKS: Final[Mapping[str, tuple[int | None, ...]]] = {
    "aten.addmm": (1, 2, 2),
    "aten.baddbmm": (3, 3, 3),
    "aten.bmm": (3, 3),
    "aten.conv1d": (3, 3, 1),
    "aten.conv2d": (4, 4, 1),
    "aten.conv3d": (5, 5, 1),
    "aten.conv_transpose1d": (3, 3, 1),
    "aten.conv_transpose2d": (4, 4, 1),
    "aten.conv_transpose3d": (5, 5, 1),
    "aten.convolution": (4, 4, 1),
    "aten.dot": (1, 1),
    "aten.instance_norm": (3, 1, 1),
    "aten.layer_norm": (None, 1, 1),
    "aten.linear": (None, 2, 1),
    "aten.mm": (2, 2),
    "aten.mv": (2, 1),
    "aten.native_layer_norm": (None, 1, 1),
    "aten.rms_norm": (None, 1),
    "aten.t": (2,),
}
CRASHING: Final = frozenset({"aten._scaled_dot_product_flash_attention_for_cpu"})
"""Operators in which torch divides by zero for some arguments, as empty tensors: that ends the
process, so they are not sampled.
"""
SIZE_ARGUMENTS: Final = ("normalized_shape",)
"""Arguments that say sizes of the first operand."""
DTYPES: Final[Mapping[str, torch.dtype]] = {
    "condition": torch.bool,
    "index": torch.int64,
    "indices": torch.int64,
    "mask": torch.bool,
}
"""By the name of the parameter."""
