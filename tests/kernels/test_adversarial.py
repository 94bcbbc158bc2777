"""Operators refuse operands that do not fit, and nothing that they are given ends the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pypm.kernels import (
    grouped_linear,
    gru,
    linear,
    linear_attention,
    recurrence,
    rotary,
    scan,
    wkv,
)
from pypm.kernels.attention import attention_over_cache
from pypm.kernels.quantized_norm import quantized_norm
from tests.kernels import adversarial
from tests.kernels.calls import table


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


IDS = torch.tensor([0, 1])
WRONG: dict[str, tuple[Any, tuple[Any, ...], type[Exception], str]] = {
    "few factors": (
        recurrence.linear_recurrence,
        (ones(2, 4), ones(900, 4), ones(4), False),
        ValueError,
        r"`b` has the sizes \[900, 4\]; it must have \[2, 4\]: .* with steps = 2 of `a`",
    ),
    "a short state": (
        recurrence.linear_recurrence,
        (ones(3, 900), ones(3, 900), ones(4), False),
        ValueError,
        r"`h` has the sizes \[4\]; it must have \[900\]",
    ),
    "another type": (
        recurrence.linear_recurrence,
        (ones(3, 4, dtype=torch.float64), ones(3, 4), ones(4), False),
        TypeError,
        r"`b` is float32; it must be float64: .* with T = float64 of `a`",
    ),
    "another batch": (
        scan.scan,
        (ones(3, 5, 4, 2), ones(3, 5, 4, 2), ones(3, 5, 2), ones(1, 4, 2)),
        ValueError,
        r"`h` has the sizes \[1, 4, 2\]; it must have \[5, 4, 2\]",
    ),
    "few channels": (
        wkv.wkv,
        (ones(2), ones(900), ones(1, 3, 900), ones(1, 3, 900), *[ones(1, 900)] * 3),
        ValueError,
        r"`boost` has the sizes \[900\]; it must have \[2\]",
    ),
    "few queries": (
        linear_attention.linear_attention,
        (ones(9, 1, 4), ones(9, 1, 4), ones(9, 1, 4), ones(2, 1, 4), None, None, ones(1, 4, 4)),
        ValueError,
        r"`queries` has the sizes \[2, 1, 4\]; it must have \[9, 1, 4\]",
    ),
    "few gates": (
        gru.gru,
        (ones(3, 1, 4), ones(8, 4), ones(12, 4), ones(12), ones(12), ones(1, 4)),
        ValueError,
        r"`w` has the sizes \[8, 4\]; it must have \[12, 4\]: .*, with hidden = 4 of `u`",
    ),
    "wide angles": (
        rotary.rotary,
        ([ones(1, 2, 3, 4)], ones(3, 900), ones(3, 900), False),
        ValueError,
        r"`xs` have the sizes \[1, 2, 3, 4\], `cos` and `sin` \[3, 900\]; these must broadcast",
    ),
    "five dimensions": (
        rotary.rotary,
        ([ones(1, 1, 2, 3, 4)], ones(3, 4), ones(3, 4), False),
        ValueError,
        "at most four dimensions",
    ),
    "a short weight": (
        quantized_norm,
        (ones(3, 8), ones(3, 8), ones(2), 1e-5, 127.0, 1e-5, -128.0, 127.0),
        ValueError,
        r"`weight` has the sizes \[2\]; it must have \[8\]: .* columns = 8 of `x`",
    ),
    "few keys": (
        attention_over_cache,
        (ones(1, 2, 1, 8), ones(1, 2, 2, 8), ones(1, 2, 900, 8), None, 1.0, False),
        ValueError,
        r"`v` has the sizes \[1, 2, 900, 8\]; it must have \[1, 2, 2, 8\]",
    ),
    "heads of a mask": (
        attention_over_cache,
        (ones(1, 4, 1, 8), *[ones(1, 2, 9, 8)] * 2, ones(1, 3, 1, 9), 1.0, False),
        ValueError,
        r"`mask` has the sizes \[1, 3, 1, 9\]; it must have \[1, 4 or 1, 1, 9\]",
    ),
    "heads of no groups": (
        attention_over_cache,
        (ones(1, 3, 1, 8), *[ones(1, 2, 9, 8)] * 2, None, 1.0, False),
        ValueError,
        "`q` has 3 heads and `k` has 2, which must divide them",
    ),
    "few ids": (
        grouped_linear.grouped_linear,
        (ones(3, 4), ones(2, 4, 5), IDS),
        ValueError,
        r"`ids` has the sizes \[2\]; it must have \[3\]: \[rows\] index, with rows = 3 of `x`",
    ),
    "few ids of a sum": (
        grouped_linear.grouped_outer,
        (ones(3, 4), ones(3, 5), IDS, 2),
        ValueError,
        r"`ids` has the sizes \[2\]",
    ),
    "ids that are truth values": (
        grouped_linear.grouped_linear,
        (ones(2, 4), ones(2, 4, 5), IDS > 0),
        TypeError,
        "`ids` is bool; it must be int64 or int32",
    ),
    "ids of no matrix": (
        grouped_linear.grouped_linear,
        (ones(2, 4), ones(2, 4, 5), 2 * IDS),
        IndexError,
        "index 2 is out of bounds for dimension 0 with size 2",
    ),
    "a sparse tensor": (
        linear.linear_in_float32,
        (ones(2, 4).to_sparse(), ones(3, 4), None, False),
        TypeError,
        "`x` is a tensor in the layout sparse_coo; it must be strided, as `to_dense`",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_operands_that_do_not_fit(name: str) -> None:
    operator, arguments, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        operator(*arguments)


def test_random_calls() -> None:
    assert adversarial.run(300, seed=6) == []


def test_the_declarations_are_documented() -> None:
    assert table() in Path("docs/kernels.md").read_text()
