"""Every ordinary way to write attention, put together from parts; and what is nearly attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

B, H, G, S, T, D = 2, 4, 2, 5, 6, 8
LOWEST: Final = -3e38

Step = Callable[[Tensor, Tensor, Tensor], Tensor]
"""On scores [B, H, S, T], with a mask of numbers and one of bits, each [B, 1, S, T]."""

SCALES: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "none": lambda x: x,
    "mul": lambda x: x * 0.3,
    "left": lambda x: 0.3 * x,
    "div": lambda x: x / math.sqrt(D),
    "negative": lambda x: -0.3 * x,
    "twice": lambda x: x * 2 / 5.0,
    "tensor": lambda x: x * torch.full((), 0.3, dtype=x.dtype),
}
PLACES: Final = ("q", "k", "scores", "after")

MASKS: Final[dict[str, Step]] = {
    "none": lambda x, m, b: x,
    "add": lambda x, m, b: x + m,
    "left": lambda x, m, b: m + x,
    "row": lambda x, m, b: x + m[:, :, :1],
    "matrix": lambda x, m, b: x + m[0, 0],
    "sub": lambda x, m, b: x - m,
    "bits": lambda x, m, b: x + (1.0 - b.to(x.dtype)) * -1e9,
    "fill": lambda x, m, b: x.masked_fill(~b, -1e9),
    "infinite": lambda x, m, b: x.masked_fill(~b, -math.inf),
    "where": lambda x, m, b: torch.where(b, x, -math.inf),
    "where_else": lambda x, m, b: torch.where(~b, LOWEST, x),
    "where_tensor": lambda x, m, b: torch.where(
        b, x, torch.full((), torch.finfo(x.dtype).min, dtype=x.dtype)
    ),
    "two": lambda x, m, b: x + m + m[0, 0],
    "add_fill": lambda x, m, b: (x + m).masked_fill(~b, LOWEST),
    "fill_add": lambda x, m, b: torch.where(b, x, -math.inf) + m,
    "causal": lambda x, m, b: x.masked_fill(torch.ones(S, T).triu(1).bool(), -math.inf),
}


def _by_hand(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def _by_reciprocal(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e * e.sum(-1, keepdim=True).reciprocal()


def _without_maximum(x: Tensor) -> Tensor:
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)


SOFTMAXES: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "whole": lambda x: torch.softmax(x, -1),
    "functional": lambda x: F.softmax(x, dim=x.dim() - 1),
    "upcast": lambda x: F.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype),
    "float": lambda x: x.float().softmax(-1).type_as(x),
    "by_hand": _by_hand,
    "reciprocal": _by_reciprocal,
    "no_maximum": _without_maximum,
    "log": lambda x: torch.log_softmax(x, -1).exp(),
    "dropout": lambda x: F.dropout(torch.softmax(x, -1), 0.1, training=False),
}

PRODUCTS: Final[dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]]] = {
    "matmul": (lambda q, k: q @ k.transpose(-2, -1), lambda w, v: w @ v),
    "permute": (
        lambda q, k: torch.matmul(q, k.permute(0, 1, 3, 2)),
        torch.matmul,
    ),
    "bmm": (
        lambda q, k: torch.bmm(
            q.reshape(-1, S, D), k.reshape(-1, T, D).transpose(1, 2)
        ).view(B, H, S, T),
        lambda w, v: torch.bmm(w.view(-1, S, T), v.reshape(-1, T, D)).view(B, H, S, D),
    ),
    "baddbmm": (
        lambda q, k: torch.baddbmm(
            torch.zeros((), dtype=q.dtype),
            q.reshape(-1, S, D), k.reshape(-1, T, D).transpose(1, 2), beta=1.0, alpha=0.7,
        ).view(B, H, S, T),
        lambda w, v: torch.bmm(w.view(-1, S, T), v.reshape(-1, T, D)).view(B, H, S, D),
    ),
    "columns": (torch.matmul, torch.matmul),
    "einsum": (
        lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k),
        lambda w, v: torch.einsum("bhqk,bhkd->bhqd", w, v),
    ),
    "einsum_dots": (
        lambda q, k: torch.einsum("...qd,...kd->...qk", q, k),
        lambda w, v: torch.einsum("...qk,...kd->...qd", w, v),
    ),
}  # fmt: skip

BY_TOKEN: Final[dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]]] = {
    "transpose": (
        lambda q, k: q.transpose(1, 2) @ k.transpose(1, 2).transpose(2, 3),
        lambda w, v: (w @ v.transpose(1, 2)).transpose(1, 2),
    ),
    "merged": (
        lambda q, k: q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1),
        lambda w, v: (w @ v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3),
    ),
    "einsum": (
        lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k),
        lambda w, v: torch.einsum("bhqk,bkhd->bqhd", w, v),
    ),
}
"""Products of [B, S, H, D]."""


def _expanded(x: Tensor, dim: int) -> Tensor:
    shape = list(x.shape)
    shape.insert(dim + 1, H // G)
    return x.unsqueeze(dim + 1).expand(shape).flatten(dim, dim + 1)


REPEATED: Final[dict[str, Callable[[Tensor, int], Tensor]]] = {
    "expand": _expanded,
    "interleave": lambda x, dim: x.repeat_interleave(H // G, dim),
}


@dataclass(frozen=True)
class Combination:
    """One way to write attention."""

    scale: str = "none"
    place: str = "scores"
    mask: str = "none"
    softmax: str = "whole"
    layout: str = "BHSD"
    product: str = "matmul"
    groups: str = "none"
    near: str = ""
    """The name of what makes it something else."""

    def __str__(self) -> str:
        parts = (self.scale, self.place, self.mask, self.softmax, self.layout, self.product)
        return " ".join(filter(None, (*parts, self.groups, self.near)))

    def inputs(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        made = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=made, dtype=torch.float64).to(dtype)

        heads = H if self.groups == "none" else G
        length = S if self.near in SQUARE else T
        bits = torch.rand(B, 1, S, length, generator=made) < 0.6
        bits[..., 0] = True
        q, k, v = normal(B, H, S, D), normal(B, heads, length, D), normal(B, heads, length, D)
        if self.layout == "BSHD":
            q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        if self.product == "columns":
            k = k.mT.contiguous()
        return q, k, v, normal(*bits.shape), bits

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, m: Tensor, b: Tensor) -> Any:
        scale = SCALES[self.scale]
        dim = 1 if self.layout == "BHSD" else 2
        scores, weigh = (PRODUCTS if self.layout == "BHSD" else BY_TOKEN)[self.product]
        if self.groups != "none":
            k, v = (REPEATED[self.groups](x, dim) for x in (k, v))
        q, k = (scale(q) if self.place == "q" else q), (scale(k) if self.place == "k" else k)
        x = NEAR_SCORES.get(self.near, scores)(q, k)
        kept = x
        x = scale(x) if self.place == "scores" else x
        x = NEAR_STEPS.get(self.near, MASKS[self.mask])(x, m, b)
        x = scale(x) if self.place == "after" else x
        w = NEAR_SOFTMAXES.get(self.near, SOFTMAXES[self.softmax])(x)
        result = NEAR_PRODUCTS.get(self.near, weigh)(w, v)
        if self.near == "scores returned":
            return result, kept
        return (result, w) if self.near == "weights returned" else result

    @property
    def why_not(self) -> str:
        """Why it must be left alone, or nothing."""
        if self.near:
            return self.near
        if self.place == "after" and self.scale == "negative" and self.mask == "fill":
            return "what was filled in would be the largest of all"
        return ""


def combinations() -> Iterator[Combination]:
    """Scores of every kind in one layout; then every layout, with the commonest scores."""
    for mask, softmax in product(MASKS, SOFTMAXES):
        yield Combination("div", "scores", mask, softmax)
    for scale, place, mask in product(SCALES, PLACES, ("none", "add", "fill", "where", "add_fill")):
        turned = (scale, place, mask) == ("negative", "after", "where")  # all is NaN
        if scale != "none" and (scale, place) != ("div", "scores") and not turned:
            yield Combination(scale, place, mask)
    layouts = [("BHSD", name) for name in PRODUCTS] + [("BSHD", name) for name in BY_TOKEN]
    for (layout, how), groups, mask, softmax, place in product(
        layouts, ("none", *REPEATED), ("none", "add", "where"), ("whole", "upcast"), ("q", "scores")
    ):
        if (layout, how, groups, softmax) != ("BHSD", "matmul", "none", "whole"):
            yield Combination("mul", place, mask, softmax, layout, how, groups)


# --- what is nearly attention --------------------------------------------------------------------

NEAR_SCORES: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "distances": lambda q, k: -torch.cdist(q, k),
    "largest products": lambda q, k: (q.unsqueeze(3) * k.unsqueeze(2)).amax(-1),
}
NEAR_STEPS: Final[dict[str, Step]] = {
    "fill not low": lambda x, m, b: x.masked_fill(~b, -1e4),
    "fill zero": lambda x, m, b: torch.where(b, x, 0.0),
    "fill high": lambda x, m, b: x.masked_fill(~b, 1e9),
    "mask times scores": lambda x, m, b: x * m,
    "scale for each key": lambda x, m, b: x * torch.arange(1, T + 1, dtype=x.dtype),
    "absolute": lambda x, m, b: x.abs() + m,
    "clamped": lambda x, m, b: x.clamp(-1, 1),
    "squared": lambda x, m, b: x * x,
    "rolled": lambda x, m, b: x.roll(1, -1) + m,
    "flipped": lambda x, m, b: x.flip(-1) + m,
    "sorted": lambda x, m, b: x.sort(-1).values,
    "rounded": lambda x, m, b: torch.round(x),
    "its own mask": lambda x, m, b: x + x.mean(-1, keepdim=True) * m,
    "integers": lambda x, m, b: x.to(torch.int32).to(x.dtype),
    "regrouped along keys": lambda x, m, b: x.reshape(B, H, T, S).reshape(B, H, S, T).transpose(
        0, 1).reshape(B, H, S, T) + m,
}  # fmt: skip
NEAR_SOFTMAXES: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "over queries": lambda x: torch.softmax(x, -2),
    "over heads": lambda x: torch.softmax(x, 1),
    "softmin": lambda x: F.softmin(x, -1) + 0.1,
    "log": lambda x: torch.log_softmax(x, -1),
    "sigmoid": torch.sigmoid,
    "exp2": lambda x: torch.exp2(x) / torch.exp2(x).sum(-1, keepdim=True),
    "sum over queries": lambda x: x.exp() / x.exp().sum(-2, keepdim=True),
    "sum of others": lambda x: x.exp() / (x * 2).exp().sum(-1, keepdim=True),
    "largest of others": lambda x: (
        (x - x.amax(-2, keepdim=True)).exp()
        / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
    ),
    "one more": lambda x: x.exp() / (x.exp().sum(-1, keepdim=True) + 1),
    "weights squared": lambda x: torch.softmax(x, -1) ** 2,
    "weights shifted": lambda x: torch.softmax(x, -1) - 0.1,
    "weights as integers": lambda x: (torch.softmax(x, -1) * 9).to(torch.int64).to(x.dtype),
    "summed up": lambda x: torch.softmax(x, -1).cumsum(-1),
}
NEAR_PRODUCTS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "weights transposed": lambda w, v: w.transpose(-2, -1) @ v,
    "weights on the right": lambda w, v: v.transpose(-2, -1) @ w.transpose(-2, -1),
    "weights times values": lambda w, v: w.sum(-1, keepdim=True) * v,
    "heads exchanged": lambda w, v: torch.einsum("bhqk,bgkd->bgqd", w, v),
}
SQUARE: Final = {"weights transposed", "weights times values"}
RETURNED: Final = ("scores returned", "weights returned")


def near_misses() -> Iterator[Combination]:
    """Each of these beside ordinary scales, masks and softmaxes, where it leaves room for them."""
    for scale, softmax in product(("none", "div", "left"), ("whole", "by_hand")):
        for near in NEAR_STEPS:
            yield Combination(scale, softmax=softmax, near=near)
    for scale, mask in product(("none", "mul"), ("none", "add", "fill")):
        for near in (*NEAR_SOFTMAXES, *RETURNED):
            yield Combination(scale, mask=mask, near=near)
        for near in NEAR_PRODUCTS:
            for softmax in ("whole", "by_hand"):
                yield Combination(scale, mask=mask, softmax=softmax, near=near)
    for near, softmax in product(NEAR_SCORES, ("whole", "by_hand")):
        yield Combination(softmax=softmax, near=near)
