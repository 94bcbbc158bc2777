"""Ways to write attention: each a function of q, k, v and what else it reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

B, H, G, S, T, D = 2, 4, 2, 5, 7, 8
LOW: Final = -3e38


TYPED: Final = ("export", "pre_grad", "joint")
"""Ways in which a function knows the types of its arguments."""


@dataclass(frozen=True)
class Spelling:
    """A function, what it reads besides q, k and v, and the shapes of those."""

    name: str
    function: Callable[..., Any]
    extras: tuple[str, ...] = ()
    q: tuple[int, ...] = (B, H, S, D)
    k: tuple[int, ...] = (B, H, T, D)
    ways: tuple[str, ...] = ("export", "symbolic_trace", "decomposed", "pre_grad", "joint")
    rounded: bool = False
    """Whether it computes in float32 also where its arguments are float64."""

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, ...]:
        made = torch.Generator().manual_seed(seed)
        q, k, v = (
            torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)
            for shape in (self.q, self.k, self.k)
        )
        return q, k, v, *(_EXTRAS[name](made, dtype) for name in self.extras)

    def __str__(self) -> str:
        return self.name


def normal(*shape: int) -> Callable[..., Tensor]:
    return lambda made, dtype: torch.randn(*shape, generator=made, dtype=torch.float64).to(dtype)


def _bits(*shape: int) -> Callable[..., Tensor]:
    def some(made: torch.Generator, dtype: torch.dtype) -> Tensor:
        found = torch.rand(*shape, generator=made) < 0.4
        found[..., 0] = False  # every row keeps a key
        return found

    return some


_EXTRAS: Final[dict[str, Callable[..., Tensor]]] = {
    "m[S,T]": normal(S, T),
    "m[T]": normal(T),
    "m[B,H,S,T]": normal(B, H, S, T),
    "m[B,1,1,T]": normal(B, 1, 1, T),
    "m[B,1,S,T]": normal(B, 1, S, T),
    "m[1,H,S,T]": normal(1, H, S, T),
    "m[H,1,1]": normal(H, 1, 1),
    "m[BH,S,T]": normal(B * H, S, T),
    "m[BH,1,T]": normal(B * H, 1, T),
    "nan[BH,S,T]": lambda made, dtype: torch.full((B * H, S, T), math.nan, dtype=dtype),
    "b[S,T]": _bits(S, T),
    "b[B,1,1,T]": _bits(B, 1, 1, T),
    "b[B,1,S,T]": _bits(B, 1, S, T),
    "low[S,T]": lambda made, dtype: torch.zeros(S, T, dtype=dtype).masked_fill(
        _bits(S, T)(made, dtype), torch.finfo(dtype).min
    ),
    "inf[S,T]": lambda made, dtype: torch.zeros(S, T, dtype=dtype).masked_fill(
        _bits(S, T)(made, dtype), -math.inf
    ),
    "s[]": lambda made, dtype: torch.tensor(0.3, dtype=torch.float64),
    "s[1]": lambda made, dtype: torch.tensor([0.3], dtype=dtype),
}


def extra(name: str, make: Callable[..., Tensor]) -> None:
    """Something else to be read, made of a generator and a type."""
    _EXTRAS[name] = make


TABLE: Final[list[Spelling]] = []


def spelled(*extras: str, **options: Any) -> Callable[..., Any]:
    """A function joins the table, under its name or one for each group of extras."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        TABLE.append(Spelling(function.__name__.strip("_"), function, extras, **options))
        return function

    return add


def each(*extras: str, **options: Any) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for extra in extras:
            name = f"{function.__name__} {extra}"
            TABLE.append(Spelling(name, function, (extra,), **options))
        return function

    return add


# --- scales --------------------------------------------------------------------------------------


@spelled()
def no_scale(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


@spelled()
def scale_over_scores(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D), -1) @ v


@spelled()
def scale_times_scores(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) * D**-0.5, -1) @ v


@spelled()
def scale_left_of_scores(q, k, v):
    return torch.softmax(D**-0.5 * (q @ k.permute(0, 1, 3, 2)), dim=-1) @ v


@spelled()
def scale_on_q(q, k, v):
    return torch.softmax((q * 0.3) @ k.transpose(2, 3), 3) @ v


@spelled()
def scale_over_q(q, k, v):
    return torch.softmax((q / 3) @ k.transpose(3, 2), -1) @ v


@spelled()
def scale_on_k(q, k, v):
    return torch.softmax(q @ (k * 0.3).transpose(-2, -1), -1) @ v


@spelled()
def scale_on_k_transposed(q, k, v):
    return torch.softmax(q @ (k.transpose(-2, -1) / 3.0), -1) @ v


@spelled()
def scale_everywhere(q, k, v):
    scores = (q / 2 * 3) @ (k * 0.5).transpose(-2, -1)
    return torch.softmax(scores / 2.0 * 0.7, -1) @ v


@spelled()
def scale_one(q, k, v):
    return torch.softmax((q * 1.0) @ k.transpose(-2, -1) * 1, -1) @ v


@spelled()
def scale_negative(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) * -0.3, -1) @ v


@each("s[]", "s[1]")
def scale_tensor_on_scores(q, k, v, s):
    return torch.softmax(q @ k.transpose(-2, -1) * s, -1) @ v


@each("s[]", "s[1]")
def scale_tensor_on_q(q, k, v, s):
    return torch.softmax((q * s) @ k.transpose(-2, -1), -1) @ v


@spelled("s[]")
def scale_over_tensor(q, k, v, s):
    return torch.softmax(q @ k.transpose(-2, -1) / s, -1) @ v


@spelled("s[]", "m[S,T]", "s[1]")
def scale_tensor_before_and_after_mask(q, k, v, s, m, t):
    return torch.softmax((q @ k.transpose(-2, -1) * s + m) * t, -1) @ v


# --- masks that are added ------------------------------------------------------------------------


@each(
    "m[S,T]", "m[T]", "m[B,H,S,T]", "m[B,1,1,T]", "m[B,1,S,T]", "m[1,H,S,T]", "m[H,1,1]",
    "low[S,T]", "inf[S,T]",
)  # fmt: skip
def add_mask(q, k, v, m):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D) + m, -1) @ v


@each("m[S,T]", "m[B,1,1,T]")
def add_to_mask(q, k, v, m):
    return torch.softmax(m + (q @ k.transpose(-2, -1)) * 0.3, -1) @ v


@spelled("m[B,1,1,T]")
def mask_before_scale(q, k, v, m):
    return torch.softmax((q @ k.transpose(-2, -1) + m) / math.sqrt(D), -1) @ v


@spelled("m[S,T]")
def subtract_mask(q, k, v, m):
    return torch.softmax(q @ k.transpose(-2, -1) * 0.3 - m, -1) @ v


@spelled("m[S,T]", "m[B,1,1,T]", "m[1,H,S,T]")
def several_masks(q, k, v, a, b, c):
    return torch.softmax(c + ((q @ k.transpose(-2, -1) + a) * 0.3 + b), -1) @ v


@spelled("b[B,1,1,T]")
def mask_from_bits(q, k, v, b):
    m = (1.0 - b.logical_not().to(q.dtype)) * LOW
    return torch.softmax(q @ k.transpose(-2, -1) * 0.3 + m, -1) @ v


@spelled("m[S,T]")
def number_added(q, k, v, m):
    return torch.softmax(q @ k.transpose(-2, -1) * 0.3 + 1.5 + m, -1) @ v


# --- masks that are filled in --------------------------------------------------------------------


@each("b[S,T]", "b[B,1,1,T]", "b[B,1,S,T]")
def where_fill(q, k, v, b):
    scores = q @ k.transpose(-2, -1) * 0.3
    return torch.softmax(torch.where(b, LOW, scores), -1) @ v


@each("b[S,T]", "b[B,1,1,T]")
def where_keep(q, k, v, b):
    scores = q @ k.transpose(-2, -1) * 0.3
    return torch.softmax(torch.where(b.logical_not(), scores, -math.inf), -1) @ v


@spelled("b[S,T]", ways=TYPED)
def where_fill_with_a_tensor(q, k, v, b):
    scores = q @ k.transpose(-2, -1) * 0.3
    low = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
    return torch.softmax(torch.where(b, low, scores), -1) @ v


@spelled("b[S,T]")
def masked_fill_after_numbers_that_cancel(q, k, v, b):
    scores = (q @ k.transpose(-2, -1) - 3.0) * 0.1 + 0.3
    return torch.softmax(scores.masked_fill(b, -1e9), -1) @ v


@each("b[S,T]", "b[B,1,1,T]")
def masked_fill(q, k, v, b):
    scores = q @ k.transpose(-2, -1) * 0.3
    return torch.softmax(scores.masked_fill(b, -1e9), -1) @ v


@spelled("b[S,T]")
def masked_fill_infinite(q, k, v, b):
    return torch.softmax((q @ k.transpose(-2, -1) * 0.3).masked_fill(b, -math.inf), -1) @ v


@spelled("b[S,T]")
def fill_before_scale(q, k, v, b):
    scores = (q @ k.transpose(-2, -1)).masked_fill(b, -1e9)
    return torch.softmax(scores / math.sqrt(D), -1) @ v


@spelled("b[S,T]", "m[B,1,1,T]")
def fill_then_add(q, k, v, b, m):
    scores = q @ k.transpose(-2, -1) * 0.3
    return torch.softmax(torch.where(b, LOW, scores) + m, -1) @ v


@spelled("b[S,T]", "m[B,1,1,T]")
def add_then_fill(q, k, v, b, m):
    return torch.softmax((q @ k.transpose(-2, -1) + m).masked_fill(b, LOW), -1) @ v


@spelled("b[S,T]", "b[B,1,1,T]")
def fill_twice(q, k, v, b, c):
    scores = (q @ k.transpose(-2, -1) * 0.3).masked_fill(b, -1e9)
    return torch.softmax(torch.where(c, -math.inf, scores), -1) @ v


# --- softmax -------------------------------------------------------------------------------------


@spelled()
def softmax_functional(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) * 0.3, dim=-1) @ v


@spelled()
def softmax_method(q, k, v):
    return (q @ k.transpose(-2, -1) * 0.3).softmax(dim=3) @ v


@spelled()
def softmax_module(q, k, v):
    return torch.nn.Softmax(-1).forward(q @ k.transpose(-2, -1) * 0.3) @ v


@spelled()
def softmax_by_hand(q, k, v):
    scores = q @ k.transpose(-2, -1) * 0.3
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)) @ v


@spelled()
def softmax_without_the_maximum(q, k, v):
    e = torch.exp(q @ k.transpose(-2, -1) * 0.3)
    return (e / torch.sum(e, -1, keepdim=True)) @ v


@spelled("b[S,T]", ways=TYPED)
def where_fill_lowest(q, k, v, b):
    scores = q @ k.transpose(-2, -1)
    return torch.softmax(torch.where(b, torch.finfo(scores.dtype).min, scores), -1) @ v


# --- types ---------------------------------------------------------------------------------------


@spelled("m[B,1,1,T]", rounded=True, ways=TYPED)
def upcast_and_down(q, k, v, m):
    scores = q @ k.transpose(-2, -1) * 0.3 + m
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


@spelled("b[S,T]", rounded=True, ways=TYPED)
def upcast_before_scale_and_fill(q, k, v, b):
    scores = (q @ k.transpose(-2, -1)).float() * 0.3
    scores = scores.masked_fill(b, torch.finfo(torch.float32).min)
    return torch.softmax(scores, -1).type_as(q) @ v


@spelled("m[S,T]", rounded=True, ways=TYPED)
def upcast_between_scale_and_mask(q, k, v, m):
    scores = (q @ k.transpose(-2, -1) * 0.3).to(torch.float32) + m.float()
    return torch.softmax(scores, -1).to(q.dtype) @ v


# --- products ------------------------------------------------------------------------------------


@spelled("m[S,T]")
def matmul_functions(q, k, v, m):
    scores = torch.matmul(q, k.transpose(-2, -1)) * 0.3 + m
    return torch.matmul(torch.softmax(scores, -1), v)


@spelled("m[S,T]", q=(B, S, D), k=(B, T, D))
def three_dimensions(q, k, v, m):
    return torch.softmax(q @ k.transpose(1, 2) * 0.3 + m, -1) @ v


@each("m[BH,S,T]", "m[BH,1,T]", q=(B * H, S, D), k=(B * H, T, D))
def bmm(q, k, v, m):
    scores = torch.bmm(q, k.permute(0, 2, 1)) * 0.3 + m
    return torch.bmm(torch.softmax(scores, -1), v)


@spelled("m[B,1,1,T]")
def bmm_with_views(q, k, v, m):
    q, k, v = q.reshape(B * H, S, D), k.reshape(B * H, T, D), v.reshape(B * H, T, D)
    scores = torch.bmm(q, k.transpose(1, 2)).view(B, H, S, T) * 0.3 + m
    weights = torch.softmax(scores, -1).view(B * H, S, T)
    return torch.bmm(weights, v).view(B, H, S, D)


@spelled("m[B,1,1,T]")
def softmax_over_merged_batches(q, k, v, m):
    q, k, v = q.reshape(B * H, S, D), k.reshape(B * H, T, D), v.reshape(B * H, T, D)
    scores = torch.bmm(q * 0.3, k.transpose(1, 2)).view(B, H, S, T) + m
    weights = torch.softmax(scores.view(B * H, S, T), dim=-1)
    return torch.bmm(weights, v).view(B, H, S, D).transpose(1, 2).reshape(B, S, H * D)


@spelled("m[B,1,1,T]", q=(B, S, H * D), k=(B, T, H * D))
def from_the_projections(q, k, v, m):
    q = q.view(B, S, H, D).transpose(1, 2)
    k = k.view(B, T, H, D).transpose(1, 2)
    v = v.view(B, T, H, D).permute(0, 2, 1, 3)
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D) + m, -1)
    return (weights @ v).transpose(1, 2).contiguous().view(B, S, H * D)


# --- groups of query heads -----------------------------------------------------------------------


def _repeated(x):
    b, g, t, d = x.shape
    return x[:, :, None, :, :].expand(b, g, H // G, t, d).reshape(b, H, t, d)


@spelled("m[B,1,S,T]", k=(B, G, T, D))
def groups_expanded(q, k, v, m):
    return torch.softmax(q @ _repeated(k).transpose(2, 3) * 0.3 + m, -1) @ _repeated(v)


@spelled(k=(B, G, T, D))
def groups_interleaved(q, k, v):
    k, v = k.repeat_interleave(H // G, 1), torch.repeat_interleave(v, H // G, dim=1)
    return torch.softmax(q @ k.transpose(2, 3) * 0.3, -1) @ v


@spelled(k=(B, G, T, D))
def groups_tiled(q, k, v):
    k, v = k.repeat(1, H // G, 1, 1), v.repeat(1, H // G, 1, 1)
    return torch.softmax(q @ k.transpose(2, 3) * 0.3, -1) @ v


@spelled(ways=("export", "joint"))
def transposed_as_an_attribute(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


@spelled(k=(B, 1, T, D))
def one_key_head(q, k, v):
    return torch.softmax(q @ k.expand(-1, H, -1, -1).transpose(2, 3), -1) @ v.expand(-1, H, -1, -1)


@spelled(k=(B, 1, T, D), ways=("export", "symbolic_trace"))
def one_key_head_broadcast(q, k, v):
    return torch.softmax(q @ k.transpose(2, 3) * 0.3, -1) @ v


# --- what changes nothing ------------------------------------------------------------------------


@spelled("m[S,T]")
def dropout_in_eval(q, k, v, m):
    weights = torch.softmax(q @ k.transpose(-2, -1) * 0.3 + m, -1)
    return F.dropout(weights, 0.1, training=False) @ v


@spelled()
def dropout_of_nothing(q, k, v):
    weights = torch.dropout(torch.softmax(q @ k.transpose(-2, -1), -1), 0.0, False)
    return weights @ v


@spelled("m[S,T]")
def clones(q, k, v, m):
    scores = (q.contiguous() @ k.transpose(-2, -1).contiguous()).clone() * 0.3
    return torch.softmax((scores + m).contiguous(), -1).clone() @ v.clone()


@spelled("m[B,1,S,T]")
def mask_slice(q, k, v, m):
    weights = torch.softmax(q @ k.transpose(2, 3) * 0.3 + m[:, :, :, : k.shape[-2]], -1)
    return weights @ v


@spelled("m[S,T]", ways=("symbolic_trace", "joint"))
def in_place(q, k, v, m):
    scores = q @ k.transpose(-2, -1)
    scores *= 0.3
    scores += m
    return torch.softmax(scores, -1) @ v


@spelled("b[S,T]", ways=("joint",))
def fill_in_place(q, k, v, b):
    scores = q @ k.transpose(-2, -1)
    scores.masked_fill_(b, -1e9)
    return torch.softmax(scores, -1) @ v


@spelled("m[BH,S,T]", q=(B * H, S, D), k=(B * H, T, D))
def baddbmm(q, k, v, m):
    scores = torch.baddbmm(m, q, k.transpose(1, 2), beta=1.0, alpha=0.3)
    return torch.bmm(torch.softmax(scores, -1), v)


@spelled("nan[BH,S,T]", q=(B * H, S, D), k=(B * H, T, D))
def baddbmm_of_what_is_not_read(q, k, v, m):
    scores = torch.baddbmm(m, q, k.transpose(-1, -2), beta=0, alpha=0.3)
    return torch.bmm(torch.softmax(scores, -1), v)


@spelled(ways=TYPED)
def baddbmm_of_uninitialized_memory(q, k, v):
    q, k, v = q.reshape(B * H, S, D), k.reshape(B * H, T, D), v.reshape(B * H, T, D)
    empty = torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype, device=q.device)
    scores = torch.baddbmm(empty, q, k.transpose(-1, -2), beta=0, alpha=0.3)
    return torch.bmm(torch.softmax(scores, -1), v).view(B, H, S, D)


@spelled("m[BH,1,T]", "m[B,1,S,T]")
def baddbmm_then_mask(q, k, v, a, m):
    q, k, v = q.reshape(B * H, S, D), k.reshape(B * H, T, D), v.reshape(B * H, T, D)
    scores = torch.baddbmm(a, q, k.transpose(1, 2), beta=0.5, alpha=0.3).view(B, H, S, T) + m
    weights = torch.softmax(scores, -1).view(B * H, S, T)
    return torch.bmm(weights, v).view(B, H, S, D)


# --- what is regrouped, permuted or contracted by letters ----------------------------------------


@spelled("m[BH,S,T]", "b[B,1,S,T]", q=(B * H, S, D), k=(B * H, T, D))
def a_mask_with_more_dimensions(q, k, v, m, b):
    scores = (q @ k.transpose(1, 2) + m).view(B, H, S, T)
    weights = torch.softmax(torch.where(b, LOW, scores), -1)
    return weights.view(B * H, S, T) @ v


@spelled("m[H,1,1]", "m[S,T]")
def scale_of_each_head(q, k, v, s, m):
    return torch.softmax(q @ k.transpose(-2, -1) * s + m, -1) @ v


@each("m[B,1,S,T]", q=(B, G, H // G, S, D), k=(B, G, T, D))
def groups_by_letters(q, k, v, m):
    scores = torch.einsum("bgnqd,bgkd->bgnqk", q, k) * 0.3 + m.unsqueeze(2)
    return torch.einsum("bgnqk,bgkd->bgnqd", torch.softmax(scores, -1), v)


@each("m[B,1,S,T]", q=(B, G, H // G, S, D), k=(B, G, T, D))
def groups_in_five_dimensions(q, k, v, m):
    scores = q @ k.unsqueeze(2).transpose(-2, -1) * 0.3 + m.unsqueeze(2)
    return torch.softmax(scores, -1) @ v.unsqueeze(2)


@spelled("m[B,1,S,T]", q=(B, S, H, D), k=(B, T, G, D))
def groups_repeated_by_token(q, k, v, m):
    k, v = (x.repeat_interleave(H // G, 2).transpose(1, 2) for x in (k, v))
    return torch.softmax(q.transpose(1, 2) @ k.transpose(2, 3) + m, -1) @ v


@spelled("m[S,T]", q=(B, S, H, D), k=(B, T, H, D))
def letters_by_token(q, k, v, m):
    scores = torch.einsum("bqhd,bkhd->bhqk", q * 0.3, k) + m
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), v)


@spelled(q=(8, 8, 8, 8), k=(8, 8, 8, 8))
def keys_with_heads_for_tokens(q, k, v):
    return torch.softmax(q @ k.permute(0, 2, 3, 1), -1) @ v


@spelled(q=(8, 8, 8, 8), k=(8, 8, 8, 8))
def keys_with_heads_and_tokens_swapped(q, k, v):
    return torch.softmax(q @ k.transpose(1, 2), -1) @ v


@spelled()
def softmax_by_logarithm(q, k, v):
    return torch.log_softmax(q @ k.transpose(-2, -1) * 0.3, -1).exp() @ v


@spelled()
def softmax_by_reciprocal(q, k, v):
    e = torch.exp(q @ k.transpose(-2, -1) * 0.3)
    return (e * e.sum(-1, keepdim=True).reciprocal()) @ v
