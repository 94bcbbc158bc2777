"""Every ordinary way to write a norm, put together from parts; and what is nearly a norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

N: Final = 6
"""The size of every dimension, so that shapes tell nothing."""
EPS: Final = 1e-3

Function = Callable[..., Any]

SQUARES: Final[dict[str, Function]] = {
    "pow": lambda x: x.pow(2),
    "star": lambda x: x**2,
    "mul": lambda x: x * x,
    "square": torch.square,
}
MEANS: Final[dict[str, Function]] = {
    "mean": lambda x: x.mean(-1, keepdim=True),
    "dims": lambda x: torch.mean(x, dim=(x.dim() - 1,), keepdim=True),
    "sum": lambda x: x.sum(-1, keepdim=True) / N,
}
ROOTS: Final[dict[str, Function]] = {
    "rsqrt": lambda x, v: x * torch.rsqrt(v),
    "left": lambda x, v: torch.rsqrt(v) * x,
    "one over": lambda x, v: x * (1 / torch.sqrt(v)),
    "reciprocal": lambda x, v: x * v.sqrt().reciprocal(),
    "div": lambda x, v: x / torch.sqrt(v),
    "power": lambda x, v: x * v**-0.5,
    "over power": lambda x, v: x / v.pow(0.5),
}
WEIGHTS: Final[dict[str, Function]] = {
    "none": lambda n, w: n,
    "right": lambda n, w: n * w,
    "left": lambda n, w: w * n,
    "wide": lambda n, w: n * w.float(),
    "one plus": lambda n, w: n * (1.0 + w.float()),
}
CASTS: Final[dict[str, tuple[Function, Function, Function]]] = {
    "none": (lambda x: x, lambda n, x: n, lambda y, x: y),
    "before": (lambda x: x.float(), lambda n, x: n.to(x.dtype), lambda y, x: y),
    "after": (lambda x: x.to(torch.float32), lambda n, x: n, lambda y, x: y.type_as(x)),
}
"""What is done to the input, to what is multiplied by the weight, and to the result."""

MOMENTS: Final[dict[str, Function]] = {
    "by hand": lambda x, s, m: (m(x), m(s(x - m(x)))),
    "var_mean": lambda x, s, m: torch.var_mean(x, -1, correction=0, keepdim=True)[::-1],
    "var": lambda x, s, m: (m(x), x.var(-1, correction=0, keepdim=True)),
    "unbiased": lambda x, s, m: (m(x), torch.var(x, -1, unbiased=False, keepdim=True)),
}


@dataclass(frozen=True)
class Spelling:
    """One way to write a norm of x [N, N, N], or of x + y."""

    square: str = "pow"
    mean: str = "mean"
    root: str = "rsqrt"
    weight: str = "right"
    cast: str = "none"
    moments: str = ""
    """How mean and variance are had; nothing for RMSNorm."""
    bias: bool = False
    total: str = ""
    """Of a sum: which of the results are used."""

    def __str__(self) -> str:
        parts = (self.square, self.mean, self.root, self.weight, self.cast, self.moments)
        return " ".join(filter(None, (*parts, "bias" * self.bias, self.total)))

    def __call__(self, x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Any:
        s = x + y if self.total else x
        result = self._norm(s, w, b)
        return (result, s * 2) if self.total == "both" else result

    def _norm(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        up, middle, down = CASTS[self.cast]
        square, mean = SQUARES[self.square], MEANS[self.mean]
        n = up(x)
        if self.moments:
            m, v = MOMENTS[self.moments](n, square, mean)
            n = n - m
        else:
            v = mean(square(n))
        n = WEIGHTS[self.weight](middle(ROOTS[self.root](n, v + EPS), x), w)
        return down(n + b if self.bias else n, x)

    @property
    def casts(self) -> bool:
        """Whether some of it is computed in another type than that of the inputs."""
        return self.cast != "none" or self.weight in ("wide", "one plus")

    @property
    def rule(self) -> str:
        return "layer_norm" if self.moments else "rms_norm"


def inputs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """x, y [N, N, N] and w, b [N]."""
    made = torch.Generator().manual_seed(0)
    shapes = ((N, N, N), (N, N, N), (N,), (N,))
    return tuple(torch.randn(*s, generator=made, dtype=torch.float64).to(dtype) for s in shapes)


def spellings() -> Iterator[Spelling]:
    """RMSNorm in all combinations of its parts; LayerNorm and sums with the commonest."""
    for square, mean, root, weight, cast in product(SQUARES, MEANS, ROOTS, WEIGHTS, CASTS):
        yield Spelling(square, mean, root, weight, cast)
    for moments, root, weight, cast, bias in product(MOMENTS, ROOTS, WEIGHTS, CASTS, (False, True)):
        yield Spelling("mul", "mean", root, weight, cast, moments, bias)
    for total, moments, weight, cast in product(("norm", "both"), ("", *MOMENTS), WEIGHTS, CASTS):
        yield Spelling("square", "sum", "rsqrt", weight, cast, moments, bool(moments), total)


# --- whole operators, and more ways ---------------------------------------------------------------


def vector_norm(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x / torch.sqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / N + EPS) * w


def weight_times_inverse(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * (torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * w)


def t5(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The input itself is multiplied, not what was squared."""
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return w * (x * torch.rsqrt(variance + EPS)).to(w.dtype)


def mean_in_another_type(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    v = x.pow(2).mean(-1, keepdim=True, dtype=torch.float32)
    return (x * torch.rsqrt(v + EPS).to(x.dtype)) * w


MORE: Final = (vector_norm, weight_times_inverse, t5, mean_in_another_type)


def group_norm(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    g = x.reshape(N, 3, -1)
    v, m = torch.var_mean(g, -1, correction=0, keepdim=True)
    return ((g - m) / torch.sqrt(v + EPS)).view(x.shape) * w[:, None] + b[:, None]


def group_norm_without_weight(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    g = x.view(N, 2, 3 * N)
    g = (g - g.mean(-1, keepdim=True)) * (g.var(-1, keepdim=True, unbiased=False) + EPS).rsqrt()
    return g.reshape(N, N, N)


GROUPS: Final = (group_norm, group_norm_without_weight)

# --- rows of a length, which is at least a number: no RMSNorm ------------------------------------


def unit(x: Tensor, w: Tensor) -> Tensor:
    """As norms of autoencoders of videos."""
    return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * w


def over_length(x: Tensor, w: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
    return x / length.clamp(min=1e-6) * w


def over_clamped(x: Tensor, n: Tensor, c: Any = 2.0, least: Any = 1e-3) -> Tensor:
    return c * (x / n.clamp(min=least))


def length(x: Tensor, dim: Any = -1, order: float = 2) -> Tensor:
    return torch.linalg.vector_norm(x, order, dim, keepdim=True)


UNITS: Final[dict[str, Function]] = {
    "as diffusers": lambda x, y, w, b: unit(x, w),
    "along the channels": lambda x, y, w, b: F.normalize(x, dim=1) * N**0.5 * w + b,
    "over two dimensions": lambda x, y, w, b: over_clamped(x, length(x, (1, 2))),
    "a larger least length": lambda x, y, w, b: over_clamped(x, length(x), 3, 1.0),
}
NEAR_UNITS: Final[dict[str, Function]] = {
    "the factor is at the length": lambda x, y, w, b: over_length(x, w),
    "a weight alone": lambda x, y, w, b: F.normalize(x, dim=-1) * w,
    "one number that is computed": lambda x, y, w, b: over_clamped(x, length(x), w[0]),
    "the sum of magnitudes": lambda x, y, w, b: over_clamped(x, length(x, order=1)),
    "of another": lambda x, y, w, b: over_clamped(x, length(y)),
    "of one row, for others": lambda x, y, w, b: (
        2.0 * (x[:, :1] / length(x[:, :1]).clamp(min=EPS).expand(N, N, N))
    ),
    "of complex numbers": lambda x, y, w, b: over_clamped(
        torch.complex(x, y), length(torch.complex(x, y))
    ),
    "not clamped": lambda x, y, w, b: 2.0 * (x / length(x)),
    "clamped from above": lambda x, y, w, b: 2.0 * (x / length(x).clamp(max=9.0)),
    "clamped from both": lambda x, y, w, b: 2.0 * (x / length(x).clamp(1e-3, 9.0)),
    "a length that is added to": lambda x, y, w, b: over_clamped(x, length(x) + EPS),
    "a length in another type": lambda x, y, w, b: over_clamped(
        x.float(), torch.linalg.vector_norm(x.float(), 2, -1, True, dtype=torch.float64)
    ),
    "times the length": lambda x, y, w, b: 2.0 * (x * length(x).clamp(min=1e-3)),
}
DECLINED_UNITS: Final[dict[str, Function]] = {
    "a factor below 1": lambda x, y, w, b: over_clamped(x, length(x), 0.5),
    "a negative factor": lambda x, y, w, b: over_clamped(x, length(x), -2.0),
    "an infinite factor": lambda x, y, w, b: over_clamped(x, length(x), float("inf")),
    "no least length": lambda x, y, w, b: over_clamped(x, length(x), 2.0, 0.0),
    "a least length that loses digits": lambda x, y, w, b: over_clamped(x, length(x), 2.0, 3e-308),
    "a least length that is no number": lambda x, y, w, b: (
        over_clamped(x, length(x), 2.0, float("nan"))
    ),
}  # fmt: skip


# --- what is nearly a norm -----------------------------------------------------------------------


def _rms(x: Tensor) -> Tensor:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def _centered(x: Tensor) -> Tensor:
    return x - x.sum(-1, keepdim=True) / x.shape[-1]


def _of_integers(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) / x.shape[-1] + 1)


def _groups(x: Tensor) -> Tensor:
    return _layer(x.reshape(N, 3, -1)).reshape(x.shape)


def _rms_norm(x: Tensor) -> Tensor:
    return x * _rms(x)


def _layer(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + EPS).sqrt()


def _inner(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    inverse = _rms(x)
    return x * inverse * w, inverse


NEAR: Final[dict[str, Function]] = {
    "eps outside of the root": lambda x, y, w, b: x / (x.pow(2).mean(-1, True).sqrt() + EPS) * w,
    "eps squared away": lambda x, y, w, b: x * torch.rsqrt(x.pow(2).mean(-1, True) * EPS) * w,
    "over columns": lambda x, y, w, b: x * torch.rsqrt(x.pow(2).mean(-2, True) + EPS) * w,
    "over rows and columns": lambda x, y, w, b: (
        x * torch.rsqrt(x.pow(2).mean((-2, -1), True) + EPS) * w
    ),
    "an eps that is computed": lambda x, y, w, b: (
        x * torch.rsqrt(x.pow(2).mean(-1, True) + torch.addcmul(w[:1], w[:1], w[:1], value=1)) * w
    ),
    "without its dimension": lambda x, y, w, b: x * torch.rsqrt(x.pow(2).mean(-1) + EPS) * w,
    "of another": lambda x, y, w, b: x * _rms(y) * w,
    "of two": lambda x, y, w, b: x * torch.rsqrt((x * y).mean(-1, True) + EPS) * w,
    "cubed": lambda x, y, w, b: x * torch.rsqrt(x.pow(3).mean(-1, True) + EPS) * w,
    "times the root": lambda x, y, w, b: x * torch.sqrt(x.pow(2).mean(-1, True) + EPS) * w,
    "over the inverse": lambda x, y, w, b: x / _rms(x) * w,
    "another count": lambda x, y, w, b: x * torch.rsqrt(x.pow(2).sum(-1, True) / 5 + EPS) * w,
    "sum of squares": lambda x, y, w, b: x * torch.rsqrt(x.pow(2).sum(-1, True) + EPS) * w,
    "of integers": lambda x, y, w, b: x.int() * torch.rsqrt(x.int().square().sum(-1, True) / N + 1),
    "the inverse returned": lambda x, y, w, b: _inner(x, w),
    "the largest": lambda x, y, w, b: x * torch.rsqrt(x.pow(2).amax(-1, True) + EPS) * w,
    "correction": lambda x, y, w, b: (
        (x - x.mean(-1, True)) / torch.sqrt(x.var(-1, keepdim=True) + EPS) * w + b
    ),
    "correction by var_mean": lambda x, y, w, b: (
        (x - torch.var_mean(x, -1, keepdim=True)[1])
        * torch.rsqrt(torch.var_mean(x, -1, keepdim=True)[0] + EPS)
    ),
    "standard deviation and eps": lambda x, y, w, b: (
        (x - x.mean(-1, True)) / (x.std(-1, correction=0, keepdim=True) + EPS)
    ),
    "mean over columns": lambda x, y, w, b: (
        (x - x.mean(-2, True)) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + EPS)
    ),
    "variance over columns": lambda x, y, w, b: (
        (x - x.mean(-1, True)) * torch.rsqrt(x.var(-2, correction=0, keepdim=True) + EPS)
    ),
    "mean of another": lambda x, y, w, b: (
        (x - y.mean(-1, True)) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + EPS)
    ),
    "mean added": lambda x, y, w, b: (
        (x + x.mean(-1, True)) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + EPS)
    ),
    "another count of the length": lambda x, y, w, b: (
        x / torch.sqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / 5 + EPS)
    ),
    "over two dimensions, of a sum": lambda x, y, w, b: F.rms_norm(x + y, (N, N), None, EPS),
    "centered over two dimensions, of a sum": lambda x, y, w, b: F.layer_norm(x + y, (N, N)),
    "of a sum of integers": lambda x, y, w, b: _of_integers(x.int() + y.int()),
    "of a number": lambda x, y, w, b: x[0, 0, 0] * _rms(x[0, 0, 0]),
    "of a sum of numbers": lambda x, y, w, b: (
        (x[0, 0, 0] + y[0, 0, 0]) * _rms(x[0, 0, 0] + y[0, 0, 0])
    ),
    "centered, of a number": lambda x, y, w, b: _layer(x[0, 0, 0]),
    "centered, of a sum of numbers": lambda x, y, w, b: _layer(x[0, 0, 0] + y[0, 0, 0]),
    "not centered": lambda x, y, w, b: x * (x.var(-1, correction=0, keepdim=True) + EPS).rsqrt(),
}  # fmt: skip

OTHER_WEIGHTS: Final[dict[str, tuple[str, Function]]] = {
    "a weight for each element": ("rms_norm", lambda x, y, w, b: x * _rms(x) * y),
    "a weight for each row": ("rms_norm", lambda x, y, w, b: x * _rms(x) * w[:, None]),
    "one weight": ("rms_norm", lambda x, y, w, b: x * _rms(x) * w[:1]),
    "two plus the weight": ("rms_norm", lambda x, y, w, b: x * _rms(x) * (2 + w)),
    "one plus integers, which wrap": (
        "rms_norm", lambda x, y, w, b: x * _rms(x) * (1 + (w * 0 + 127).to(torch.int8))
    ),
    "a weight of a sum for each element": (
        "rms_norm", lambda x, y, w, b: (x + y) * _rms(x + y) * y
    ),
    "a centered weight for each element": ("layer_norm", lambda x, y, w, b: _layer(x) * y),
    "a weight of a centered sum for each element": (
        "layer_norm", lambda x, y, w, b: _layer(x + y) * y
    ),
    "a bias for each row": ("layer_norm", lambda x, y, w, b: _layer(x) * w + b[:, None]),
    "a bias that is no bias": ("layer_norm", lambda x, y, w, b: _layer(x) + F.silu(y)),
    "a bias of a sum for each row": (
        "layer_norm", lambda x, y, w, b: _layer(x + y) * w + b[:, None]
    ),
    "a sum that is broadcast": ("rms_norm", lambda x, y, w, b: (x + y[0]) * _rms(x + y[0]) * w),
    "a centered sum that is broadcast": ("layer_norm", lambda x, y, w, b: _layer(x + y[0]) * w),
    "rounded to integers": (
        "rms_norm", lambda x, y, w, b: (x * _rms(x)).int().to(x.dtype).exp() * w
    ),
    "groups across samples": (
        "layer_norm", lambda x, y, w, b: _layer(x.reshape(3, 2, -1)).reshape(x.shape)
    ),
    "groups across channels": (
        "layer_norm", lambda x, y, w, b: _layer(x.reshape(N, 4, -1)).reshape(x.shape)
    ),
    "groups in rows": (
        "layer_norm", lambda x, y, w, b: _layer(x.reshape(N, 3, 2, N)).reshape(x.shape)
    ),
    "groups in another shape": (
        "layer_norm", lambda x, y, w, b: _layer(x.reshape(N, 3, -1)).reshape(N, N * N)
    ),
    "groups with a weight within": (
        "layer_norm",
        lambda x, y, w, b: (_layer(x.reshape(N, 3, -1)) * y[0, :2].flatten()).reshape(x.shape),
    ),
}  # fmt: skip
"""What is near a norm with a rule's name: that takes the norm alone, and the rest stays."""

GROUPS_AROUND: Final[dict[str, Function]] = {
    "a weight for each column": lambda x, y, w, b: _groups(x) * w,
    "a bias for each column": lambda x, y, w, b: _groups(x) + b,
}
"""What stays, and the group norm is taken without it."""

IN_FLOAT32: Final[dict[str, Function]] = {
    "rounded before": lambda x, y, w, b: _rms_norm(x.bfloat16().to(x.dtype)),
    "centered integers": lambda x, y, w, b: _of_integers(_centered(x.int())),
    "a centered sum of integers": lambda x, y, w, b: _of_integers(_centered(x.int() + y.int())),
    "centered groups of integers": lambda x, y, w, b: _of_integers(
        _centered(x.int().reshape(N, 3, -1))
    ).view(x.shape),
}
"""RMSNorms of what was rounded, or made float32 by the mean that was subtracted."""

IN_FLOAT64: Final[dict[str, Function]] = {
    "rms": lambda x, y, w, b: _rms_norm(x.double()),
    "layer": lambda x, y, w, b: _layer(x.double()),
    "rms of a sum": lambda x, y, w, b: _rms_norm((x + y).double()),
    "layer of a sum": lambda x, y, w, b: _layer((x + y).double()),
    "rms, rounded": lambda x, y, w, b: _rms_norm((x * 1e25).double()).float(),
    "layer, rounded": lambda x, y, w, b: _layer((x + 1e5).double()).float(),
    "rms of a sum, rounded": lambda x, y, w, b: _rms_norm((x * 1e25 + y).double()).float(),
    "layer of a sum, rounded": lambda x, y, w, b: _layer((x + (y + 1e5)).double()).float(),
    "groups, rounded": lambda x, y, w, b: _groups((x + 1e5).double()).float(),
}
"""Of what is float32, and computed in float64."""
