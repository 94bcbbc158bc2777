"""What looks like attention and is not: functions that must be left alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F

from tests.rules.spellings import Spelling, extra, normal

N: Final = 6
"""One size for all dimensions, where shapes are to tell nothing."""
EQUAL: Final = {"q": (1, 1, N, N), "k": (1, 1, N, N)}
SQUARE: Final = {"q": (N, N, N, N), "k": (N, N, N, N)}

NEAR_MISSES: Final[list[Spelling]] = []


def missing(*extras: str, **options: Any) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        NEAR_MISSES.append(Spelling(function.__name__, function, extras, **options))
        return function

    return add


def each(*shapes: dict[str, Any]) -> Callable[..., Any]:
    """With every one of these shapes."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for i, shape in enumerate(shapes):
            NEAR_MISSES.append(Spelling(f"{function.__name__}-{i}", function, (), **shape))
        return function

    return add


extra("m[2,1,S,T]", normal(2, 1, 5, 7))
extra("m[3,1,1,5,7]", normal(3, 1, 1, 5, 7))
extra("float32[S,T]", lambda made, dtype: torch.randn(5, 7, generator=made))
extra("integers[S,T]", lambda made, dtype: torch.randint(-3, 3, (5, 7), generator=made))


# --- softmax -------------------------------------------------------------------------------------


@each({}, EQUAL, SQUARE)
def softmax_over_queries(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), -2) @ v


@each({}, SQUARE)
def softmax_over_heads(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), 1) @ v


@each(EQUAL, SQUARE)
def softmax_by_hand_with_another_sum(q, k, v):
    scores = q @ k.transpose(-2, -1)
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (e / e.sum(-2, keepdim=True)) @ v


@each(EQUAL)
def softmax_by_hand_that_drops_the_dimension(q, k, v):
    e = torch.exp(q @ k.transpose(-2, -1))
    return (e / e.sum(-1)) @ v


@each({})
def softmax_of_a_softmax(q, k, v):
    return torch.softmax(torch.softmax(q @ k.transpose(-2, -1), -1), -1) @ v


@each({"q": (4, 5, 8), "k": (4, 7, 8)})
def baddbmm_without_a_product(q, k, v):
    zero = torch.zeros((), dtype=q.dtype)
    scores = torch.baddbmm(zero, q, k.transpose(1, 2), beta=0, alpha=0)
    return torch.bmm(torch.softmax(scores, -1), v)


@each({})
def log_softmax(q, k, v):
    return F.log_softmax(q @ k.transpose(-2, -1), -1) @ v


@each({})
def softmax_of_other_scores(q, k, v):
    scores = q @ k.transpose(-2, -1)
    e = torch.exp(scores - (2 * scores).amax(-1, keepdim=True))
    return (e / torch.exp(scores * 2).sum(-1, keepdim=True)) @ v


@each({})
def softcapped(q, k, v):
    return torch.softmax(torch.tanh(q @ k.transpose(-2, -1) / 5) * 5, -1) @ v


# --- products ------------------------------------------------------------------------------------


@each(EQUAL, SQUARE)
def weights_transposed(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), -1).transpose(-2, -1) @ v


@each(EQUAL, SQUARE)
def weights_on_the_right(q, k, v):
    return v @ torch.softmax(q @ k.transpose(-2, -1), -1)


@each({"q": (2, 4, 5, 8), "k": (2, 2, 5, 8), "ways": ("export", "symbolic_trace")})
def keys_regrouped_and_broadcast(q, k, v):
    keys, values = k.reshape(1, 4, 5, 8), v.reshape(1, 4, 5, 8)
    return torch.softmax(q @ keys.transpose(2, 3), -1) @ values


@each({"q": (2, 4, 5, 8), "k": (2, 2, 5, 8), "ways": ("export", "symbolic_trace")})
def keys_merged_and_broadcast(q, k, v):
    keys, values = k.reshape(4, 5, 8), v.reshape(4, 5, 8)
    return torch.softmax(q @ keys.transpose(1, 2), -1) @ values


# --- masks and scales ----------------------------------------------------------------------------


@missing("m[2,1,S,T]", q=(1, 4, 5, 8), k=(1, 4, 7, 8), ways=("export", "symbolic_trace"))
def mask_enlarges_the_batch(q, k, v, m):
    return torch.softmax(q @ k.transpose(-2, -1) + m, -1) @ v


@missing("m[3,1,1,5,7]", ways=("export", "symbolic_trace"))
def mask_adds_a_dimension(q, k, v, m):
    return torch.softmax(q @ k.transpose(-2, -1) + m, -1) @ v


@missing("m[2,1,S,T]", q=(2, 5, 8), k=(2, 7, 8))
def mask_enlarges_three_dimensions(q, k, v, m):
    return torch.softmax(q @ k.transpose(-2, -1) + m, -1) @ v


@missing("s[1]")
def scale_for_each_key(q, k, v, s):
    s = s * torch.arange(1, 8, dtype=q.dtype)
    return torch.softmax(q @ k.transpose(-2, -1) * s, -1) @ v


@missing("b[S,T]")
def bits_added(q, k, v, b):
    return torch.softmax(q @ k.transpose(-2, -1) + b, -1) @ v


@missing("integers[S,T]")
def integers_added(q, k, v, m):
    return torch.softmax(q @ k.transpose(-2, -1) + m, -1) @ v


@missing("b[S,T]")
def scores_that_cancel(q, k, v, b):  # what was filled in is there no more
    scores = torch.where(b, -3e38, q @ k.transpose(-2, -1))
    return torch.softmax(scores - scores, -1) @ v


@missing("b[S,T]")
def fill_that_is_not_low(q, k, v, b):
    return torch.softmax(torch.where(b, -1e4, q @ k.transpose(-2, -1)), -1) @ v


@missing("b[S,T]")
def fill_with_zero(q, k, v, b):
    return torch.softmax((q @ k.transpose(-2, -1)).masked_fill(b, 0.0), -1) @ v


@missing("b[S,T]", "m[S,T]")
def fill_with_a_bias_that_is_padded_low(q, k, v, b, m):
    low = F.pad(m[:, 1:], (1, 0), value=-1e9)
    return torch.softmax(torch.where(b, low, q @ k.transpose(-2, -1)), -1) @ v


@missing("b[S,T]")
def fill_made_high(q, k, v, b):
    scores = (q @ k.transpose(-2, -1)).masked_fill(b, -1e9)
    return torch.softmax(scores * 1e-9, -1) @ v


@missing("b[S,T]")
def fill_turned_over(q, k, v, b):
    scores = (q @ k.transpose(-2, -1)).masked_fill(b, -1e9)
    return torch.softmax(scores * -1.0, -1) @ v


@missing("b[S,T]")
def fill_beside_a_number_that_was_added_and_scaled(q, k, v, b):
    scores = ((q @ k.transpose(-2, -1) - 1e5) * 10).masked_fill(b, -1e6)
    return torch.softmax(scores, -1) @ v


@missing("b[S,T]")
def fill_beside_numbers_that_were_added(q, k, v, b):
    scores = (q @ k.transpose(-2, -1) - 6e5) + -4e5
    return torch.softmax(torch.where(b, -1e6, scores), -1) @ v


@missing("b[S,T]", "s[1]")
def fill_beside_a_number_that_was_scaled_by_a_tensor(q, k, v, b, s):
    scores = (q @ k.transpose(-2, -1) - 5e5) * (s + 1.7)
    return torch.softmax(scores.masked_fill(b, -1e6), -1) @ v


@missing("b[S,T]")
def fill_beside_scores_that_are_large(q, k, v, b):
    scores = (q @ k.transpose(-2, -1)) * 1e6
    return torch.softmax(scores.masked_fill(b, -1e6), -1) @ v


@missing("b[S,T]", "m[S,T]")
def fill_of_the_whole_row_seen_through_a_bias(q, k, v, b, m):
    scores = (q @ k.transpose(-2, -1)).masked_fill(b | (m > -99), -1e9)
    return torch.softmax(scores + m, -1) @ v


@missing("m[S,T]")
def multiple_of_the_mask_added(q, k, v, m):
    return torch.softmax(torch.add(q @ k.transpose(-2, -1), m, alpha=2), -1) @ v


@missing()
def divided_and_rounded(q, k, v):
    scores = torch.div(q @ k.transpose(-2, -1), 0.3, rounding_mode="floor")
    return torch.softmax(scores, -1) @ v


@missing()
def divided_by_zero(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 0.0, -1) @ v


@missing()
def infinity_added(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) + math.inf, -1) @ v


# --- types ---------------------------------------------------------------------------------------


@missing()
def scores_as_integers(q, k, v):
    scores = (q @ k.transpose(-2, -1)).to(torch.int32).to(torch.float64)
    return torch.softmax(scores, -1) @ v


@missing()
def scores_as_integers_in_softmax(q, k, v):
    scores = (q @ k.transpose(-2, -1)).to(torch.int32)
    return torch.softmax(scores, -1, dtype=torch.float64) @ v


@missing("m[S,T]", ways=("export", "symbolic_trace"))
def queries_and_keys_as_integers(q, k, v, m):
    q, k = (3 * q).to(torch.int64), (3 * k).to(torch.int64)
    return torch.softmax(q @ k.transpose(-2, -1) + m, -1) @ v


@missing()
def weights_as_integers(q, k, v):
    weights = torch.softmax(q @ k.transpose(-2, -1) * 9, -1).to(torch.int64)
    return weights.to(torch.float64) @ v


@missing()
def queries_of_another_type(q, k, v):
    scores = (q.float() @ k.float().transpose(-2, -1)).double()
    return torch.softmax(scores, -1) @ v


# --- other users ---------------------------------------------------------------------------------


@missing()
def scores_returned(q, k, v):
    scores = q @ k.transpose(-2, -1)
    return torch.softmax(scores, -1) @ v, scores


@missing()
def weights_returned(q, k, v):
    weights = torch.softmax(q @ k.transpose(-2, -1), -1)
    return weights @ v, weights


@missing("m[S,T]")
def scores_used_by_their_own_mask(q, k, v, m):
    scores = q @ k.transpose(-2, -1)
    return torch.softmax(scores + (m + scores.mean(-1, keepdim=True)), -1) @ v


@missing()
def weights_used_twice(q, k, v):
    weights = torch.softmax(q @ k.transpose(-2, -1), -1)
    return weights @ v + weights.sum(-1, keepdim=True)


# --- writes in between ---------------------------------------------------------------------------


@missing("m[S,T]", ways=("export", "symbolic_trace"))
def query_written(q, k, v, m):
    scores = q @ k.transpose(-2, -1) + m
    q.add_(1)
    return torch.softmax(scores, -1) @ v


@missing("m[S,T]", ways=("export", "symbolic_trace"))
def mask_written(q, k, v, m):
    scores = q @ k.transpose(-2, -1) + m
    m.mul_(2)
    return torch.softmax(scores, -1) @ v


@missing("m[S,T]", ways=("export", "symbolic_trace"))
def value_view_written(q, k, v, m):
    weights = torch.softmax(q @ k.transpose(-2, -1) + m, -1)
    k.transpose(0, 1).zero_()
    return weights @ v


@missing("m[S,T]", ways=("symbolic_trace",))
def scores_written(q, k, v, m):
    scores = q @ k.transpose(-2, -1)
    scores.add_(m)
    return torch.softmax(scores, -1) @ v


# --- groups and letters --------------------------------------------------------------------------


@each(
    {
        "q": (2, 2, 2, 5, 8),
        "k": (2, 1, 2, 7, 8),
        "ways": ("export", "symbolic_trace", "pre_grad"),
    }
)
def keys_broadcast_over_groups(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


@each({}, SQUARE)
def letters_summed_over_heads(q, k, v):
    scores = torch.einsum("bhqd,bgkd->bhqk", q, k)
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(scores, -1), v)


@each(SQUARE)
def letters_of_transposed_weights(q, k, v):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
    return torch.einsum("bhqk,bhqd->bhkd", torch.softmax(scores, -1), v)


@each(SQUARE)
def scores_regrouped_along_keys(q, k, v):
    scores = (q @ k.transpose(-2, -1)).reshape(N, N, N // 2, 2 * N)
    return torch.softmax(scores, -1).reshape(N, N, N, N) @ v
