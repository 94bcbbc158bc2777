"""Layers of random models, each from [batch, length, width] to the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.rules.combinations import (
    BY_TOKEN,
    MASKS,
    NEAR_PRODUCTS,
    NEAR_SOFTMAXES,
    NEAR_STEPS,
    PRODUCTS,
    SCALES,
    SOFTMAXES,
)

__all__ = ["ACTIVATIONS", "CAUSAL", "KINDS", "LINEARS", "MIXES", "NORMS", "Context", "Sizes"]

Choices = Mapping[str, str]
Step = Callable[[Tensor], Tensor]
Values = list[Tensor]
"""What the layers before gave, the stem first."""


@dataclass(frozen=True)
class Sizes:
    """Of a model; `groups` are heads of keys and values, `other` the tokens of its memory."""

    batch: int
    heads: int
    groups: int
    length: int
    other: int
    head: int
    inner: int

    @property
    def width(self) -> int:
        return self.heads * self.head


class Context(NamedTuple):
    memory: Tensor
    mask: Tensor
    """[batch, 1, length, at least as many as there are keys]"""
    bits: Tensor
    beside: Values
    """What the model returns beside its last value."""


def earlier(values: Values, which: str) -> Tensor:
    return {"first": values[0], "before": values[-2:][0]}.get(which, values[-1])


def with_residual(x: Tensor, y: Tensor, how: str) -> Tensor:
    match how:
        case "left":
            return x + y
        case "right":
            return y + x
    return y


# --- attention -----------------------------------------------------------------------------------


def later(s: int, t: int) -> Tensor:
    return torch.arange(t)[None, :] > torch.arange(s)[:, None]


CAUSAL: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "causal triu": lambda x: x.masked_fill(
        torch.ones(x.shape[-2:], dtype=torch.bool).triu(1), -math.inf
    ),
    "causal tril": lambda x: torch.where(
        torch.ones(x.shape[-2:], dtype=torch.bool).tril(), x, -1e9
    ),
    "causal later": lambda x: x.masked_fill(later(*x.shape[-2:]), -math.inf),
    "causal not later": lambda x: torch.where(~later(*x.shape[-2:]), x, torch.finfo(x.dtype).min),
    "causal added": lambda x: x + torch.full(x.shape[-2:], -math.inf, dtype=x.dtype).triu(1),
    "causal one late": lambda x: x.masked_fill(
        torch.ones(x.shape[-2:], dtype=torch.bool).triu(2), -math.inf
    ),
}


def repeated(x: Tensor, how: str, times: int, dim: int) -> Tensor:
    """Heads of keys or values, each `times` times."""
    if how == "interleave":
        return x.repeat_interleave(times, dim)
    shape = list(x.shape)
    shape.insert(dim + 1, times)
    return x.unsqueeze(dim + 1).expand(shape).flatten(dim, dim + 1)


def rotated(x: Tensor) -> Tensor:
    """Rotary places of [batch, heads, length, head]."""
    half = x.shape[-1] // 2
    speeds = torch.arange(half, dtype=x.dtype) / half
    angles = torch.outer(torch.arange(x.shape[2], dtype=x.dtype), speeds)
    angles = torch.cat([angles, angles], -1)
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angles.cos() + turned * angles.sin()


def batched(q: Tensor, k: Tensor, *, added: bool) -> Tensor:
    """q k^T of [batch, heads, ...] by three dimensions."""
    (b, h, s, d), t = q.shape, k.shape[2]
    q, k = q.reshape(-1, s, d), k.reshape(-1, t, d).transpose(1, 2)
    if added:
        zero = torch.zeros((), dtype=q.dtype)
        return torch.baddbmm(zero, q, k, beta=1.0, alpha=0.7).view(b, h, s, t)
    return torch.bmm(q, k).view(b, h, s, t)


def batched_values(w: Tensor, v: Tensor) -> Tensor:
    b, h, s, t = w.shape
    return torch.bmm(w.reshape(-1, s, t), v.reshape(-1, t, v.shape[-1])).view(b, h, s, -1)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes, choices: Choices) -> None:
        super().__init__()
        self.sizes, self.choices = sizes, choices
        width, narrow = sizes.width, sizes.groups * sizes.head
        if "project" in choices:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q = nn.Linear(width, width)
            self.k = nn.Linear(width, narrow if "groups" in choices else width)
            self.v = nn.Linear(width, narrow if "groups" in choices else width)
        self.out = nn.Linear(width, width)

    def forward(self, values: Values, context: Context) -> Tensor:
        chosen, n = self.choices, self.sizes
        x = earlier(values, chosen.get("source", ""))
        q, k, v = self.projected(x, context.memory if "cross" in chosen else x)
        if "rotary" in chosen:
            q, k = (rotated(y.transpose(1, 2)).transpose(1, 2) for y in (q, k))
        if chosen.get("layout") != "BSHD":
            q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = self.attended(q, k, v, context)
        if chosen.get("layout") != "BSHD":
            y = y.permute(0, 2, 1, 3) if chosen.get("merge") == "permute" else y.transpose(1, 2)
        y = y.contiguous() if chosen.get("merge") == "contiguous" else y
        y = y.reshape(n.batch, n.length, n.width)
        y = y if chosen.get("output") == "none" else self.out(y)
        return with_residual(x, y, chosen.get("residual", ""))

    def projected(self, x: Tensor, source: Tensor) -> Any:
        """[batch, length, heads, head] each."""
        head = self.sizes.head
        match self.choices.get("project"):
            case "five":
                five = self.qkv(x).view(*x.shape[:2], 3, -1, head).permute(2, 0, 3, 1, 4)
                q, k, v = five.unbind(0)
                return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            case "chunk":
                parts = self.qkv(x).chunk(3, -1)
            case _:
                parts = (self.q(x), self.k(source), self.v(source))
        q, k, v = (part.reshape(*part.shape[:2], -1, head) for part in parts)
        return q, k, v

    def attended(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        chosen = self.choices
        scale, place = SCALES[chosen.get("scale", "none")], chosen.get("place", "scores")
        near = chosen.get("near", "")
        if "groups" in chosen:
            dim, times = 2 if "layout" in chosen else 1, self.sizes.heads // self.sizes.groups
            k, v = (repeated(y, chosen["groups"], times, dim) for y in (k, v))
        q, k = (scale(q) if place == "q" else q), (scale(k) if place == "k" else k)
        scores, weigh = self.products()
        x = kept = scores(q, k)
        x = scale(x) if place == "scores" else x
        x = self.masked(x, near, context)
        x = scale(x) if place == "after" else x
        softmax: Step = NEAR_SOFTMAXES.get(near, SOFTMAXES[chosen.get("softmax", "whole")])
        w = softmax(x)
        product: Callable[..., Tensor] = NEAR_PRODUCTS.get(near, weigh)
        y = product(w, v)
        y = y.transpose(-2, -1) if near == "weights on the right" else y
        beside = {"scores": kept, "weights": w, "q": q, "k": k, "product": y}
        if "beside" in chosen:
            context.beside.append(beside[chosen["beside"]])
        return y

    def products(self) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
        name = self.choices.get("product", "")
        if "layout" in self.choices:
            return BY_TOKEN.get(name, BY_TOKEN["transpose"])
        if name in ("bmm", "baddbmm"):
            return (lambda q, k: batched(q, k, added=name == "baddbmm")), batched_values
        return PRODUCTS.get(name, PRODUCTS["matmul"])

    def masked(self, x: Tensor, near: str, context: Context) -> Tensor:
        name = self.choices.get("mask", "none")
        if name in CAUSAL and near not in NEAR_STEPS:
            return CAUSAL[name](x)
        m, b = (y[..., : x.shape[-1]] for y in (context.mask, context.bits))
        if near == "keys scaled each":
            x = x * torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        return NEAR_STEPS.get(near, MASKS.get(name, MASKS["none"]))(x, m, b)


# --- the rest ------------------------------------------------------------------------------------

ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu by erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "gelu by tanh": lambda x: (
        0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))
    ),
    "nearly gelu": lambda x: x * 0.5 * (1.0 + torch.erf(x / 2.0)),
    "nearly gelu by tanh": lambda x: (
        0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.04 * torch.pow(x, 3))))
    ),
    "silu": F.silu,
    "silu by sigmoid": lambda x: x * torch.sigmoid(x),
    "silu by exp": lambda x: x / (1 + torch.exp(-x)),
    "nearly silu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu by maximum": lambda x: torch.clamp(x, min=0),
    "relu squared": lambda x: F.relu(x) ** 2,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "none": lambda x: x,
}


def _affine(layer: nn.Linear, x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    return torch.addmm(layer.bias, flat, layer.weight.t()).view(*x.shape[:-1], -1)


LINEARS: Final[Mapping[str, Callable[[nn.Linear, Tensor], Tensor]]] = {
    "module": lambda layer, x: layer(x),
    "product": lambda layer, x: x @ layer.weight.t() + layer.bias,
    "bias first": lambda layer, x: layer.bias + torch.matmul(x, layer.weight.transpose(0, 1)),
    "no bias": lambda layer, x: F.linear(x, layer.weight),
    "addmm": _affine,
    "einsum": lambda layer, x: torch.einsum("bsi,oi->bso", x, layer.weight) + layer.bias,
}


class FeedForward(nn.Module):
    def __init__(self, sizes: Sizes, choices: Choices) -> None:
        super().__init__()
        self.choices = choices
        self.up = nn.Linear(sizes.width, sizes.inner)
        self.gate = nn.Linear(sizes.width, sizes.inner)
        self.down = nn.Linear(sizes.inner, sizes.width)

    def forward(self, values: Values, context: Context) -> Tensor:
        chosen, x = self.choices, values[-1]
        linear = LINEARS[chosen.get("linear", "module")]
        before = linear(self.up, x)
        y = ACTIVATIONS[chosen.get("activation", "none")](before)
        if "beside" in chosen:
            context.beside.append(before if chosen["beside"] == "before" else y)
        match chosen.get("gate"):
            case "left":
                y = y * linear(self.gate, x)
            case "right":
                y = linear(self.gate, x) * y
        return with_residual(x, linear(self.down, y), chosen.get("residual", ""))


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = x - x.mean(-1, keepdim=True)
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * w + b


NORMS: Final[Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "layer": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    "layer by hand": _layer_norm,
    "squares": lambda x, w, b: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "squares in float32": lambda x, w, b: (
        w * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)
    ),
    "length": lambda x, w, b: F.normalize(x, dim=-1) * w,
}


class Norm(nn.Module):
    def __init__(self, sizes: Sizes, choices: Choices) -> None:
        super().__init__()
        self.how = NORMS[choices.get("how", "layer")]
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(sizes.width))
        self.bias = nn.Parameter(0.1 * torch.randn(sizes.width))

    def forward(self, values: Values, context: Context) -> Tensor:
        return self.how(values[-1], self.weight, self.bias)


MIXES: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: y - x,
    "gated": lambda x, y: x * torch.sigmoid(y),
    "mean": lambda x, y: 0.5 * (x + y),
    "joined": lambda x, y: torch.cat([x, y], 1)[:, y.shape[1] // 2 :][:, : x.shape[1]],
    "dropout": lambda x, y: F.dropout(x, 0.3, training=False) + y,
    "turned": lambda x, y: x + y.flip(1),
}


class Mix(nn.Module):
    def __init__(self, sizes: Sizes, choices: Choices) -> None:
        super().__init__()
        self.choices = choices

    def forward(self, values: Values, context: Context) -> Tensor:
        other = earlier(values, self.choices.get("other", "first"))
        return MIXES[self.choices.get("how", "sum")](values[-1], other)


KINDS: Final[Mapping[str, Callable[[Any, Choices], nn.Module]]] = {
    "attention": Attention,
    "feedforward": FeedForward,
    "norm": Norm,
    "mix": Mix,
}
