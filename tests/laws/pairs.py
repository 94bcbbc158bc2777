"""Pairs of functions: equal ones in other spellings, and such with a mistake that is often made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Pair: TypeAlias = tuple[Callable[..., object], Callable[..., object], tuple[Tensor, ...]]


def t(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def b(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


EPS = 0.01
X, W = t(3, 5, 7), t(7)
Q, K, V = t(2, 3, 5, 7), t(2, 3, 11, 7), t(2, 3, 11, 13)
GQ, GK, GV = t(3, 8, 5, 7), t(3, 2, 11, 7), t(3, 2, 11, 13)


def softmax_of_seen(x, m):
    """Softmax over what is seen, by a maximum that is left out where it is minus infinity."""
    scores = x.masked_fill(~m, -torch.inf)
    largest = scores.amax(-1, True)
    e = (scores - largest.masked_fill(largest == -torch.inf, 0)).exp()
    total = e.sum(-1, True)
    return e / total.masked_fill(total == 0, 1)


def of_seen_rows(scores):
    """Softmax, that is 0 in rows that see nothing."""
    sees = (scores != -torch.inf).any(-1, True)
    return torch.where(sees, torch.softmax(scores, -1), 0.0)


def rms(x, w, eps=EPS):
    return x * torch.rsqrt((x * x).mean(-1, True) + eps) * w


def layer(x, w, c):
    d = x - x.mean(-1, True)
    return d * torch.rsqrt((d * d).mean(-1, True) + EPS) * w + c


def layer_by_squares(x, w, c):
    mean = x.mean(-1, True)
    variance = (x * x).mean(-1, True) - mean * mean
    return (x - mean) / (variance + EPS).sqrt() * w + c


def group(x):
    g = x.unflatten(1, (2, -1)).flatten(2)
    return layer(g, 1.0, 0.0).unflatten(2, (-1, x.shape[2])).flatten(1, 2)


def attend(q, k, v, mask=None, bias=None):
    s = q @ k.mT * 0.3
    if bias is not None:
        s = s + bias
    if mask is not None:
        s = s.masked_fill(mask, -torch.inf)
    return torch.softmax(s, -1) @ v


def by_exp(q, k, v, mask=None, bias=None):
    s = (q * 0.3) @ k.mT
    if bias is not None:
        s = s + bias
    if mask is not None:
        s = s.masked_fill(mask, -torch.inf)
    e = s.exp()
    return (e @ v) / e.sum(-1, True)


def shifted(s):
    e = (s - s.amax(-1, True)).exp()
    return e / e.sum(-1, True)


def visible(q, k, v, mask):
    e = (q @ k.mT * 0.3).exp().masked_fill(mask, 0.0)
    return (e @ v) / e.sum(-1, True)


def repeated(q, k, v):
    times = q.shape[1] // k.shape[1]
    k, v = (
        x.unsqueeze(2).expand(-1, -1, times, -1, -1).reshape(x.shape[0], -1, *x.shape[2:])
        for x in (k, v)
    )
    return attend(q, k, v)


def grouped(q, k, v):
    g = q.unflatten(1, (k.shape[1], -1))
    return attend(g, k.unsqueeze(2), v.unsqueeze(2)).flatten(1, 2)


def as_rows(q, k, v):
    g = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    return attend(g, k, v).unflatten(2, (-1, q.shape[2])).flatten(1, 2)


def tiled(q, k, v):
    times = q.shape[1] // k.shape[1]
    return attend(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1))


def sinks_by_column(q, k, v, sinks):
    s = q @ k.mT
    column = sinks[:, None, None].expand(*q.shape[:-1], 1)
    return torch.softmax(torch.cat([s, column], -1), -1)[..., :-1] @ v


def sinks_by_sum(q, k, v, sinks):
    e = (q @ k.mT).exp()
    return (e @ v) / (e.sum(-1, True) + sinks[:, None, None].exp())


def norm_of_channels(y, g, c, mean, var):
    return (y - mean[:, None]) * (torch.rsqrt(var + EPS) * g)[:, None] + c[:, None]


def folded(x, w, c, g, d, mean, var):
    f = torch.rsqrt(var + EPS) * g
    return torch.einsum("bcp,oc->bop", x, w * f[:, None]) + ((c - mean) * f + d)[:, None]


def unfolded(x, w, c, g, d, mean, var):
    y = torch.einsum("bcp,oc->bop", x, w) + c[:, None]
    return norm_of_channels(y, g, d, mean, var)


def without_bias(x, w, c, g, d, mean, var):
    return folded(x, w, c * 0, g, d, mean, var)


def by_halves(x, cos, sin):
    n = x.shape[-1] // 2
    turned = torch.cat([-x[..., n:], x[..., :n]], -1)
    return x * torch.cat([cos, cos], -1) + turned * torch.cat([sin, sin], -1)


def by_pairs(x, cos, sin):
    n = x.shape[-1] // 2
    one, two = x[..., :n], x[..., n:]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


def other_sign(x, cos, sin):
    n = x.shape[-1] // 2
    one, two = x[..., :n], x[..., n:]
    return torch.cat([one * cos + two * sin, two * cos - one * sin], -1)


def softmax_gradient(x, g):
    p = torch.softmax(x, -1)
    return p * (g - (p * g).sum(-1, True))


def layer_gradient(x, g):
    c = x - x.mean(-1, True)
    i = torch.rsqrt((c * c).mean(-1, True) + EPS)
    h = c * i
    return (g - g.mean(-1, True) - h * (g * h).mean(-1, True)) * i


def layer_gradient_by_sums(x, g):
    n = x.shape[-1]
    c = x - x.mean(-1, True)
    i = torch.rsqrt((c * c).mean(-1, True) + EPS)
    inner = n * g - g.sum(-1, True) - c * i * i * (g * c).sum(-1, True)
    return i / n * inner


def delta(s, k, v):
    return s + k[:, :, None] * (v - (s * k[:, :, None]).sum(1))[:, None]


def delta_by_product(s, k, v):
    return s - k[:, :, None] * (k[:, None] @ s) + k[:, :, None] * v[:, None]


def rows_in_turn(x):
    """Numbers of rows, each as often as there are columns."""
    return torch.arange(x.shape[0])[:, None].expand(x.shape).reshape(x.shape[::-1])


def step(one, two):
    return two[0] * one[0], two[0] * one[1] + two[1]


TRUE: Final[dict[str, Pair]] = {
    "rms norm by a quotient": (
        rms,
        lambda x, w: w * (x / ((x * x).sum(-1, True) / x.shape[-1] + EPS).sqrt()),
        (X, W),
    ),
    "rms norm of a sum": (lambda x, y, w: rms(x + y, w), lambda x, y, w: rms(y + x, w), (X, X, W)),
    "rms norm is torch's": (rms, lambda x, w: F.rms_norm(x, x.shape[-1:], w, EPS), (X, W)),
    "layer norm by squares": (layer, layer_by_squares, (X, W, W)),
    "layer norm is torch's": (
        layer,
        lambda x, w, c: F.layer_norm(x, x.shape[-1:], w, c, EPS),
        (X, W, W),
    ),
    "group norm is torch's": (group, lambda x: F.group_norm(x, 2, eps=EPS), (t(3, 4, 5),)),
    "softmax without its maximum": (shifted, lambda s: torch.softmax(s, -1), (X,)),
    "log softmax": (
        lambda x: torch.softmax(x, -1).log(),
        lambda x: x - torch.logsumexp(x, -1, True),
        (X,),
    ),
    "attention divided last": (attend, by_exp, (Q, K, V)),
    "attention, half the scale on each side": (
        attend,
        lambda q, k, v: torch.softmax((q * 0.3**0.5) @ (k * 0.3**0.5).mT, -1) @ v,
        (Q, K, V),
    ),
    "attention with bias and mask": (
        attend,
        by_exp,
        (Q, K, V, b(2, 1, 5, 11), t(3, 5, 11)),
    ),
    "attention to visible keys": (attend, visible, (Q, K, V, b(2, 1, 5, 11))),
    "attention is torch's": (
        attend,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
        (Q, K, V),
    ),
    "heads repeated, and in groups": (repeated, grouped, (GQ, GK, GV)),
    "heads repeated, and as rows": (repeated, as_rows, (GQ, GK, GV)),
    "sinks as a column, and in the sum": (sinks_by_column, sinks_by_sum, (Q, K, V, t(3))),
    "differential attention": (
        lambda q, k, v, p, r: (torch.softmax(q @ k.mT, -1) - 0.7 * torch.softmax(p @ r.mT, -1)) @ v,
        lambda q, k, v, p, r: (
            torch.softmax(q @ k.mT, -1) @ v - 0.7 * (torch.softmax(p @ r.mT, -1) @ v)
        ),
        (Q, K, V, Q, K),
    ),
    "attention transposed": (
        lambda q, k, v: attend(q, k, v).mT,
        lambda q, k, v: v.mT @ torch.softmax(q @ k.mT * 0.3, -1).mT,
        (Q, K, V),
    ),
    "silu": (lambda x, y: F.silu(x) * y, lambda x, y: y * x / ((-x).exp() + 1), (X, X)),
    "sigmoid of the opposite": (
        lambda x: torch.sigmoid(-x),
        lambda x: 1 - torch.sigmoid(x),
        (X,),
    ),
    "tanh by exp": (
        lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
        torch.tanh,
        (X,),
    ),
    "a linear layer of a linear layer": (
        lambda x, w, c, v, d: F.linear(F.linear(x, w, c), v, d),
        lambda x, w, c, v, d: F.linear(x, v @ w, F.linear(c, v, d)),
        (X, t(11, 7), t(11), t(13, 11), t(13)),
    ),
    "a scale into the weight": (
        lambda x, s, w: F.linear(x * s, w),
        lambda x, s, w: F.linear(x, w * s),
        (X, W, t(11, 7)),
    ),
    "a norm folded into a product": (
        unfolded,
        folded,
        (t(3, 5, 7), t(11, 5), t(11), t(11), t(11), t(11), t(11)),
    ),
    "rotation by halves and by pairs": (by_halves, by_pairs, (t(3, 5, 8), t(5, 4), t(5, 4))),
    "gradient of softmax": (
        softmax_gradient,
        lambda x, g: (
            torch.softmax(x, -1) * g
            - torch.softmax(x, -1) * (torch.softmax(x, -1) * g).sum(-1, True)
        ),
        (X, X),
    ),
    "gradient of a layer norm": (layer_gradient, layer_gradient_by_sums, (X, X)),
    "steps of a scan joined": (
        lambda a, c, d, e, f, g: step(step((a, c), (d, e)), (f, g)),
        lambda a, c, d, e, f, g: step((a, c), step((d, e), (f, g))),
        (W,) * 6,
    ),
    "delta rule": (delta, delta_by_product, (t(3, 5, 7), t(3, 5), t(3, 7))),
    "a product transposed": (
        lambda x, y: (x @ y).mT,
        lambda x, y: y.mT @ x.mT,
        (t(3, 5), t(5, 7)),
    ),
    "heads split and joined": (
        lambda x: x.unflatten(-1, (4, -1)).transpose(1, 2).transpose(1, 2).flatten(2),
        lambda x: x,
        (t(3, 5, 8),),
    ),
    "clamped from either side": (
        lambda x: x.clamp(max=2.0).clamp(min=-2.0),
        lambda x: x.clamp(min=-2.0).clamp(max=2.0),
        (X,),
    ),
    "rounded before or after": (
        lambda x: x.clamp(-7, 3).round(),
        lambda x: x.round().clamp(-7, 3),
        (X,),
    ),
    "clamped twice": (
        lambda x: (x.abs() / 2).clamp(-7, 3).clamp(-9, 4),
        lambda x: (x.abs() / 2).clamp(max=3),
        (X,),
    ),
    "a length outside of a maximum": (
        lambda x, w: torch.maximum(x / w.abs(), x * 2),
        lambda x, w: torch.maximum(x, x * w.abs() * 2) / w.abs(),
        (X, W),
    ),
    "a mean of means": (
        lambda x: x.mean(-1).mean(-1),
        lambda x: x.flatten(1).mean(-1),
        (X,),
    ),
    "variance of a shift": (
        lambda x: (x + 3).var(-1, correction=0),
        lambda x: (x * x).mean(-1) - x.mean(-1) * x.mean(-1),
        (X,),
    ),
}

TRUE |= {
    "a softmax that is zero where nothing is seen": (
        lambda x, m: torch.softmax(x.masked_fill(~m, -torch.inf), -1),
        lambda x, m: torch.where(m.any(-1, True), softmax_of_seen(x, m), 0.0),
        (X, b(3, 5, 7)),
    ),
    "a softmax of products that is 0 where nothing is seen": (
        lambda q, k, m: torch.softmax((q @ k.mT).masked_fill(~m, -torch.inf), -1),
        lambda q, k, m: of_seen_rows((q @ k.mT).masked_fill(~m, -torch.inf)),
        (Q, K, b(5, 11)),
    ),
    "a softmax of products that is 0 where all is hidden": (
        lambda q, k, m: torch.softmax((q @ k.mT).masked_fill(m, -torch.inf), -1),
        lambda q, k, m: of_seen_rows((q @ k.mT).masked_fill(m, -torch.inf)),
        (Q, K, b(5, 11)),
    ),
    "a softmax without a maximum that may be infinite": (
        lambda x, m: torch.softmax(x.masked_fill(~m, -torch.inf), -1),
        softmax_of_seen,
        (X, b(3, 5, 7)),
    ),
    "what was added to minus infinity is minus infinity": (
        lambda x, y, m: torch.where(x.masked_fill(m, -torch.inf) + y == -torch.inf, x, y),
        lambda x, y, m: torch.where(m, x, y),
        (X, X, b(3, 5, 7)),
    ),
    "a quotient where it is defined": (
        lambda x, w: x / w,
        lambda x, w: torch.where(w == 0, 1.0, x / w),
        (X, W),
    ),
    "numbers of rows that are rounded down count from the first row": (
        lambda x: x[rows_in_turn(x)],
        lambda x: F.embedding(rows_in_turn(x), x),
        (t(5, 7),),
    ),
}
TRUE["whole numbers that are not larger"] = (
    lambda i, j, x: torch.where(j - i < 1, x, 0.0),
    lambda i, j, x: torch.where(j <= i, x, 0.0),
    (X.long(), X.long(), X),
)

FALSE: Final[dict[str, Pair]] = {
    "real numbers that are not larger": (
        lambda i, j, x: torch.where(j - i < 1, x, 0.0),
        lambda i, j, x: torch.where(j <= i, x, 0.0),
        (X, X, X),
    ),
    "whole numbers that are smaller": (
        lambda i, j, x: torch.where(j - i < 1, x, 0.0),
        lambda i, j, x: torch.where(j < i, x, 0.0),
        (X.long(), X.long(), X),
    ),
    "a softmax of products that is 0 where nothing is hidden": (
        lambda q, k, m: torch.softmax((q @ k.mT).masked_fill(m, -torch.inf), -1),
        lambda q, k, m: torch.where(
            m.any(-1, True), torch.softmax((q @ k.mT).masked_fill(m, -torch.inf), -1), 0.0
        ),
        (Q, K, b(5, 11)),
    ),
    "what was added to minus infinity where it is zero": (
        lambda x, y, m: torch.where(x.masked_fill(m, -torch.inf) + y == -torch.inf, x, y),
        lambda x, y, m: torch.where(m & (y == 0), x, y),
        (X, X, b(3, 5, 7)),
    ),
    "other values where a divisor is zero, beside the quotient": (
        lambda x, m: torch.where(m, 5.0, x / (1 - m.double())),
        lambda x, m: torch.where(m, 7.0, x / (1 - m.double())),
        (X, b(3, 5, 7)),
    ),
    "a quotient in some cases alone": (
        lambda x, m: torch.where(m, x / x.abs(), 5.0),
        lambda x, m: torch.where(x == 0, 7.0, torch.where(m, x / x.abs(), 6.0)),
        (X, b(3, 5, 7)),
    ),
    "sums of what is seen beside those of all": (
        lambda x, m: torch.softmax(x.masked_fill(~m, -torch.inf), -1),
        lambda x, m: torch.where(m.any(-1, True), torch.softmax(x, -1), 0.0),
        (X, b(3, 5, 7)),
    ),
    "rms norm without the mean": (
        rms,
        lambda x, w: x * torch.rsqrt((x * x).sum(-1, True) + EPS) * w,
        (X, W),
    ),
    "eps outside of the root": (
        rms,
        lambda x, w: x / ((x * x).mean(-1, True).sqrt() + EPS) * w,
        (X, W),
    ),
    "the unbiased variance": (
        layer,
        lambda x, w, c: (x - x.mean(-1, True)) * torch.rsqrt(x.var(-1, keepdim=True) + EPS) * w + c,
        (X, W, W),
    ),
    "softmax over queries": (
        attend,
        lambda q, k, v: torch.softmax(q @ k.mT * 0.3, -2) @ v,
        (Q, K, V),
    ),
    "a scale after softmax": (
        attend,
        lambda q, k, v: (torch.softmax(q @ k.mT, -1) * 0.3) @ v,
        (Q, K, V),
    ),
    "a mask after softmax": (
        attend,
        lambda q, k, v, m: torch.softmax(q @ k.mT * 0.3, -1).masked_fill(m, 0.0) @ v,
        (Q, K, V, b(2, 1, 5, 11)),
    ),
    "heads in another order": (repeated, tiled, (GQ, GK, GV)),
    "rotation by the other sign": (by_halves, other_sign, (t(3, 5, 8), t(5, 4), t(5, 4))),
    "a bias forgotten": (
        unfolded,
        without_bias,
        (t(3, 5, 7), t(11, 5), t(11), t(11), t(11), t(11), t(11)),
    ),
    "delta rule, read twice": (
        delta,
        lambda s, k, v: s - 2 * k[:, :, None] * (k[:, None] @ s) + k[:, :, None] * v[:, None],
        (t(3, 5, 7), t(3, 5), t(3, 7)),
    ),
    "sinks forgotten": (
        sinks_by_column,
        lambda q, k, v, sinks: torch.softmax(q @ k.mT, -1) @ v,
        (Q, K, V, t(3)),
    ),
    "a root of a square without its sign": (lambda x: (x * x).sqrt(), lambda x: x * 1, (X,)),
    "a maximum on one side": (torch.relu, lambda x: torch.maximum(x, -x), (X,)),
}
