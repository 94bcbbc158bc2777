"""Rotary embeddings of queries and keys: each element is read once, as float32 or wider.

The kernel is bound by memory: it reads and writes each tensor once, where plain operators (two
products, a negation, a concatenation, a sum) do so five times. It runs on CPUs, in C++, where there
is a compiler; else `reference` runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.fx import same_shape, same_size
from pypm.kernels.support import native
from pypm.kernels.support.layouts import empty_rows
from pypm.kernels.support.registration import (
    Gradients,
    InputGradients,
    Needed,
    Saved,
    custom_operator,
)

__all__ = ["compute", "reference", "rotary", "unsupported"]


def unsupported(xs: Sequence[Tensor], cos: Tensor, sin: Tensor) -> str | None:
    """Return why the kernel in C++ does not take these operands, or None."""
    return misfit(xs, cos, sin) or not_native(xs, cos, sin)


def misfit(xs: Sequence[Tensor], cos: Tensor, sin: Tensor) -> str | None:
    """Return why the operator is not defined for these operands, or None."""
    if not same_shape(cos.shape, sin.shape) or cos.shape[-1] % 2 or len(xs) > 2:
        return "cosine and sine differ in shape, or turn half a pair"
    for x in xs:
        if not cos.dim() <= x.dim() <= 4 or x.shape[-1] < cos.shape[-1]:
            return "cosine and sine have more dimensions than what they turn"
        ours = x.shape[x.dim() - cos.dim() : -1]
        if not all(
            same_size(n, 1) or same_size(n, m) for n, m in zip(cos.shape[:-1], ours, strict=True)
        ):
            return "cosine and sine do not broadcast to what they turn"
    return None


# --- on CPUs -------------------------------------------------------------------------------------

SOURCE: Final = Path(__file__).with_suffix(".cpp")
NATIVE: Final = (torch.float32, torch.float64, torch.bfloat16)
"""Types of the kernel in C++."""


def compute(xs: Sequence[Tensor], cos: Tensor, sin: Tensor, interleaved: bool) -> list[Tensor]:
    """Return what `reference` returns, in C++ where it can be."""
    if not_native(xs, cos, sin) is not None:
        return reference(xs, cos, sin, interleaved)
    found: list[Tensor] = native.operator(SOURCE, "rotary_native")(xs, cos, sin, interleaved)
    return found


def not_native(xs: Sequence[Tensor], cos: Tensor, sin: Tensor) -> str | None:
    """Return why the kernel in C++ does not take the operands, whatever their sizes; or None."""
    return native.unsupported(SOURCE, NATIVE, *xs)


def unfit(xs: Sequence[Tensor], cos: Tensor, sin: Tensor) -> str | None:
    """Return why the operator is not defined for these operands, with their sizes; or None."""
    if not xs:
        return "`xs` is empty; it must have one tensor or two"
    reason = misfit(xs, cos, sin)
    sizes = " and ".join(str(list(x.shape)) for x in xs)
    found = f"{reason}: `xs` have the sizes {sizes}, `cos` and `sin` {list(cos.shape)}"
    needed = "these must broadcast to each of one or two tensors of at most four dimensions, except"
    return reason and f"{found}; {needed} in the last one, which is even and no longer"


# --- the operator --------------------------------------------------------------------------------


def empty(x: Tensor) -> Tensor:
    """Return an uninitialized tensor for a result: in the layout of x, with packed rows."""
    return empty_rows(x)


def reference(xs: Sequence[Tensor], cos: Tensor, sin: Tensor, interleaved: bool) -> list[Tensor]:
    """Return one or two tensors x [..., D], with the first n elements of each row rotated in pairs.

    cos and sin [..., n] broadcast to x except in the last dimension. Pairs (a, b) are the halves of
    the n elements, or if `interleaved`, neighbours. a becomes a cos - b sin, and b becomes b cos +
    a sin, in float32 or wider, rounded once. The other elements are copied.
    """
    return [empty(x).copy_(turned(x, cos, sin, interleaved)) for x in xs]


def without_writes(
    xs: Sequence[Tensor], cos: Tensor, sin: Tensor, interleaved: bool
) -> list[Tensor]:
    """Return what `reference` returns, but for strides of dimensions of size 1."""
    return [turned(x, cos, sin, interleaved) for x in xs]


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    n = cos.shape[-1]
    wide = torch.promote_types(x.dtype, torch.float32)
    y, c, s = x[..., :n].to(wide), cos.to(wide), sin.to(wide)
    rotated = (y * c + quarter(y, interleaved) * s).to(x.dtype)
    steps = empty(x).stride()
    order = sorted(range(x.dim()), key=lambda dim: -steps[dim])  # in which memory has them
    back = [order.index(dim) for dim in range(x.dim())]
    parts = [part.permute(order) for part in (rotated, x[..., n:])]
    return torch.cat(parts, back[-1]).permute(back)


def quarter(x: Tensor, interleaved: bool) -> Tensor:
    """Return x with every pair (a, b) as (-b, a)."""
    a, b = pairs_of(x, interleaved)
    return joined(-b, a, interleaved)


def swapped(x: Tensor, interleaved: bool) -> Tensor:
    """Return x with every pair (a, b) as (b, a)."""
    a, b = pairs_of(x, interleaved)
    return joined(b, a, interleaved)


def pairs_of(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    if interleaved:
        return x[..., ::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def joined(a: Tensor, b: Tensor, interleaved: bool) -> Tensor:
    return torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)


def saves(inputs: Saved, outputs: list[Tensor], needed: Needed) -> Saved:
    """Return the inputs, without the rotated tensors if no angle needs a gradient."""
    xs, *rest = inputs
    return xs if needed[1] or needed[2] else [], *rest


def backward(
    xs: list[Tensor], cos: Tensor, sin: Tensor, interleaved: bool, grads: list[Tensor]
) -> InputGradients:
    """Return the gradients: (f, g) becomes (f cos + g sin', g cos - f sin), with sin' that of b."""
    to_xs = rotary(grads, cos, -swapped(sin, interleaved), interleaved)
    if not xs:
        return to_xs, None, None, None
    n = cos.shape[-1]
    to_cos, to_sin = torch.zeros_like(cos), torch.zeros_like(sin)
    for g, x in zip(grads, xs, strict=True):
        g, x = g[..., :n], x[..., :n]
        to_cos = to_cos + (g * x).sum_to_size(cos.shape)
        to_sin = to_sin + (g * quarter(x, interleaved)).sum_to_size(sin.shape)
    return to_xs, to_cos, to_sin, None


rotary = custom_operator(
    "pypm::rotary",
    compute,
    outputs=lambda xs: [empty(x) for x in xs],
    unsupported=unsupported,
    operands={
        "xs": "[*, size] float...",
        "cos": "[*angles, turned] float",
        "sin": "[*angles, turned] float",
    },
    requires=unfit,
    reference=without_writes,
    gradients=Gradients(backward, saves),
)
