"""Results lie in memory as the fakes say, whatever the layout of the operands."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from pypm.kernels import grouped_linear, gru, linear, linear_attention, lstm, recurrence, scan, wkv

torch.set_num_threads(1)

L, B, N, M = 3, 2, 4, 5
"""Steps, rows, and the widths of states."""


def normal(*shape: int) -> Tensor:
    """Return numbers whose last two dimensions lie the other way round."""
    made = torch.Generator().manual_seed(sum(shape))
    x = torch.rand(shape, generator=made, dtype=torch.float64)
    return x.mT.contiguous().mT if x.dim() > 1 else x


ROWS: Final = torch.tensor([1, 0, 1])
KEYED: Final = (normal(L, B, N), normal(L, B, N), normal(L, B, M))
READ: Final = (normal(L, B, N), normal(L, B, N), normal(L, B, M))
STATE: Final = normal(B, N, M)
GATED: Final = (normal(L, B, N), normal(3 * M, N), normal(3 * M, M))
FOUR: Final = (normal(L, B, N), normal(4 * M, N), normal(4 * M, M), normal(4 * M))
AVERAGED: Final = (
    normal(N), normal(N), *(normal(B, L, N) for _ in range(2)), *(normal(B, N) for _ in range(3)),
)  # fmt: skip
CALLS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "linear attention": (linear_attention.linear_attention, (*KEYED, *READ, STATE)),
    "linear attention, backward": (
        linear_attention.linear_attention_backward,
        (*KEYED, *READ, STATE, normal(L, B, M), normal(B, N, M)),
    ),
    "linear attention without results, backward": (
        linear_attention.linear_attention_backward,
        (*KEYED, None, None, None, STATE, normal(0, B, M), normal(B, N, M)),
    ),
    "recurrence": (
        recurrence.linear_recurrence, (*(normal(L, B, N) for _ in range(2)), normal(B, N), False)
    ),
    "scan": (
        scan.scan, (*(normal(L, B, M, N) for _ in range(2)), normal(L, B, N), normal(B, M, N))
    ),
    "GRU": (gru.gru, (*GATED, normal(3 * M), normal(3 * M), normal(B, M))),
    "GRU, backward": (
        gru.gru_backward,
        (
            *GATED, normal(3 * M), normal(3 * M), normal(B, M),
            *(normal(L, B, M) for _ in range(2)),
        ),
    ),
    "LSTM": (lstm.lstm, (*FOUR, normal(B, M), normal(B, M))),
    "LSTM, backward": (
        lstm.lstm_backward,
        (
            *FOUR, normal(B, M), normal(B, M), *(normal(L, B, M) for _ in range(2)),
            normal(B, M),
        ),
    ),
    "linear in float32": (
        linear.linear_in_float32,
        (normal(L, B, N).bfloat16(), normal(M, N).bfloat16(), normal(M).bfloat16(), True),
    ),
    "averages": (wkv.wkv, AVERAGED),
    "averages, backward": (
        wkv.wkv_backward, (*AVERAGED, normal(B, L, N), *(normal(B, N) for _ in range(3)))
    ),
    "experts": (grouped_linear.grouped_linear, (normal(3, N), normal(2, N, M), ROWS)),
    "experts, outer": (grouped_linear.grouped_outer, (normal(3, N), normal(3, M), ROWS, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_results_lie_as_the_fakes_say(name: str) -> None:
    operator, given = CALLS[name]
    found = operator(*given)
    with FakeTensorMode() as mode:
        expected = operator(*tree_map_only(Tensor, mode.from_tensor, given))
    assert [(x.shape, x.stride()) for x in tree_leaves(found)] == [
        (x.shape, x.stride()) for x in tree_leaves(expected)
    ]
