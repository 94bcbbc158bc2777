"""What steps on the scores come to: scale, factors and mask against the steps themselves."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pypm.rules.attention.score_steps import fold

torch.set_num_threads(1)

MADE = torch.Generator().manual_seed(0)
X = 20 * torch.randn(2, 4, 5, generator=MADE, dtype=torch.float64)
MASKS = [torch.randn(*s, generator=MADE, dtype=torch.float64) for s in ((4, 5), (5,), (2, 1, 1))]
T0 = torch.tensor(0.7, dtype=torch.float64)
SOME = torch.tensor([[1, 0, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]).bool()
OTHER = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]).bool()
LOWS = [-1e9, -1e7, -1e30, -3e38, torch.finfo(torch.float64).min]

NUMBERS = st.sampled_from([0.5, 2, 1.0, 3.5, -0.3, 1e-4])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["mul", "div"]), st.one_of(NUMBERS, st.just(T0))),
    st.tuples(
        st.sampled_from(["add", "sub"]), st.one_of(st.sampled_from(MASKS), NUMBERS, st.just(T0))
    ),
    st.tuples(
        st.sampled_from(["fill", "keep"]), st.sampled_from([SOME, OTHER]), st.sampled_from(LOWS)
    ),
)


def applied(x: Tensor, steps: list[tuple[Any, ...]]) -> Tensor:
    for kind, *operands in steps:
        c = operands[-1]
        match kind:
            case "mul":
                x = x * c
            case "div":
                x = x / c
            case "add":
                x = x + c
            case "sub":
                x = x - c
            case "fill":
                x = torch.where(operands[0], c, x)
            case "keep":
                x = torch.where(operands[0], x, c)
    return x


def restored(x: Tensor, scale: float, factors: list[Tensor], mask: Tensor | None) -> Tensor:
    x = x * scale
    for factor in factors:
        x = x.masked_fill(factor, 0) if factor.dtype == torch.bool else x * factor
    return x if mask is None else x + mask


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(STEPS, max_size=5))
def test_fold_is_the_steps(steps: list[tuple[Any, ...]]) -> None:
    """Weights are equal in every row.

    What several fills and a mask leave in a row of nothing else hangs on the rounding of huge
    numbers.
    """
    folded = fold(steps, torch.float64)
    if isinstance(folded, str):
        assert any(step[0] in ("fill", "keep") for step in steps)
        return
    ours, theirs = (torch.softmax(y, -1) for y in (restored(X, *folded), applied(X, steps)))
    fills = [~b if kind == "keep" else b for kind, b, *low in steps if low]
    rows = torch.ones(4, dtype=torch.bool)
    if len(fills) > 1 and any(c[-1] is mask for _, *c in steps for mask in MASKS):
        rows = ~torch.stack(fills).any(0).all(-1)
    theirs = theirs.where(theirs.isfinite(), ours)  # a row of -inf, by overflow
    torch.testing.assert_close(ours[:, rows], theirs[:, rows], atol=1e-9, rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize("fills", [[SOME], [SOME & OTHER, SOME & ~OTHER]], ids=["one", "two"])
def test_rows_that_are_filled_beside_another_mask(fills: list[Tensor]) -> None:
    """A score so large that -1e9 does not swallow it is not added to what was filled in."""
    x = 10 * X.float()
    steps = [("add", MASKS[0].float()), *(("fill", b, -1e9) for b in fills)]
    folded = fold(steps, x.dtype)
    ours, theirs = (torch.softmax(y, -1) for y in (restored(x, *folded), applied(x, steps)))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ([], False),
        ([("mul", 2), ("div", 4)], False),
        ([("fill", SOME, -1e9), ("mul", 0.1)], False),
        ([("fill", SOME, -1e9), ("fill", OTHER, -math.inf)], False),
        ([("fill", SOME, -3e38), ("add", MASKS[0]), ("mul", -1)], False),
        ([("fill", SOME, -1e9), ("mul", 1e-9)], True),
        ([("fill", SOME, -1e9), ("mul", -1.0)], True),
        ([("fill", SOME, -1e9), ("mul", T0)], True),
        ([("fill", SOME, -1e9), ("add", MASKS[0])], True),
        ([("fill", SOME, -1e9), ("keep", OTHER, -1e8)], False),
        ([("fill", SOME, -1e9), ("keep", OTHER, -1e5)], True),
        ([("add", MASKS[0]), ("fill", SOME, -1e9)], True),
        ([("add", MASKS[0]), ("fill", SOME, -3e38)], False),
        ([("add", SOME), ("mul", 0.5)], True),
        ([("mul", 0.0)], True),
        ([("div", 0.0)], True),
        ([("div", 0)], True),
        ([("mul", math.inf)], True),
        ([("mul", math.nan)], True),
        ([("add", math.inf)], True),
        ([("add", math.nan)], True),
    ],
)
def test_what_is_refused(steps: list[tuple[Any, ...]], refused: bool) -> None:
    assert isinstance(fold(steps, torch.float64), str) is refused


@pytest.mark.parametrize("steps", [[("add", -1e5)], [("sub", 4e4), ("mul", 2.0)]])
def test_scores_that_a_narrow_type_does_not_hold(steps: list[tuple[Any, ...]]) -> None:
    """Added to float16, -1e5 is -inf, and all weights of the row are NaN."""
    assert isinstance(fold(steps, torch.float16), str)
    for dtype in (torch.bfloat16, torch.float32):
        assert fold(steps, dtype)[2] is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1.0, 1e4, 1e15, 1e36])
@pytest.mark.parametrize("beside", ["nothing", "a second fill", "a mask"])
@pytest.mark.parametrize("low", [-1e6, -1e9, -1e30, "the lowest number", -math.inf])
def test_scores_of_any_size(low: float | str, beside: str, size: float, dtype: torch.dtype) -> None:
    """A hidden score is not seen however large it is; one that is seen counts above the fill."""
    lowest = torch.finfo(dtype).min
    fill = max(low, lowest * 2) if isinstance(low, float) else lowest
    fill = -math.inf if fill < lowest else fill
    x = (X * min(size, -lowest / 1e2)).clamp(lowest, -lowest).to(dtype)
    steps: list[tuple[Any, ...]] = [("fill", SOME, fill)]
    if beside == "a second fill":
        steps.append(("keep", ~(OTHER & ~SOME), fill))
    elif beside == "a mask":
        steps.insert(0, ("add", MASKS[0].to(dtype)))
    folded = fold(steps, dtype)
    if isinstance(folded, str):
        assert beside == "a mask"
        return
    ours, theirs = (
        torch.softmax(y.double(), -1) for y in (restored(x.double(), *folded), applied(x, steps))
    )
    filled_in = functools.reduce(
        torch.logical_or, (~b if kind == "keep" else b for kind, b, *c in steps if c)
    )
    best = x.double().masked_fill(filled_in, -math.inf).amax(-1)
    known = filled_in.all(-1) | (best > (fill + 200 if fill > lowest else fill))
    assert bool(known.any())
    ours = ours.nan_to_num() if fill == -math.inf else ours
    theirs = theirs.nan_to_num() if fill == -math.inf else theirs
    torch.testing.assert_close(ours[known], theirs[known], atol=1e-2, rtol=1e-2)


def test_a_fill_beside_other_masks() -> None:
    """In float32 a row masked everywhere by several masks is as in eager, for moderate scores."""
    x, low = X.float(), torch.zeros(4, 5).masked_fill(OTHER, -1e9)
    steps = [("add", low), ("fill", SOME, -1e9)]
    ours = torch.softmax(restored(x, *fold(steps, torch.float32)), -1)
    moderate = x.abs().amax(-1) < 32
    torch.testing.assert_close(ours[moderate], torch.softmax(applied(x, steps), -1)[moderate])
    assert isinstance(fold([("add", low), ("fill", SOME, -1e7)], torch.float32), str)


def test_the_mask_has_the_type_asked_for() -> None:
    for dtype in (torch.float32, torch.float64):
        *_, mask = fold([("fill", SOME, torch.finfo(dtype).min)], dtype)
        assert mask.dtype == dtype
        assert mask[SOME.all(-1)].isfinite().all()


def test_masks_are_added_up_and_scaled_as_the_scores_are() -> None:
    narrow = MASKS[0].to(torch.bfloat16)
    *_, mask = fold([("add", narrow), ("add", narrow), ("mul", 1 / 3)], torch.float64)
    torch.testing.assert_close(mask, 2 * narrow.double() / 3, atol=0, rtol=1e-15)
