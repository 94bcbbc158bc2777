"""Rules that no pack has. Each is right in some graphs; in others it changes parts of memory or
strides, or loses gradients or tangents, and legality must refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from pypm import pattern, rule
from pypm.core.rules import Rule
from pypm.fx import aten

__all__ = ["EXACT_RULES", "OWN", "OWN_EXAMPLES", "WITHOUT_FORMULAS", "Turned", "Windows"]

Example: TypeAlias = tuple[Callable[..., Any], Sequence[Tensor]]


# --- parts of memory -----------------------------------------------------------------------------


@pattern
def Windows(x):
    n = aten.neg(x)
    return aten.slice(n, 0, 0, 2), aten.slice(n, 0, 1, 3)


@rule(Windows)
def windows(x):
    n = x * -1
    pair = torch.cat([n[0:2], n[1:3]])
    return pair[0:2], pair[2:4]


@pattern
def Turned(x):
    n = aten.neg(x)
    return n, aten.t(n)


@rule(Turned)
def turned_parts(x):
    pair = torch.stack([x * -1, x * -1])
    return pair[0], pair[1].t()


# --- strides -------------------------------------------------------------------------------------


@pattern
def LargerOfNegated(x, y):
    return aten.maximum(aten.neg(x), aten.neg(y))


@rule(LargerOfNegated)
def negated_smaller(x, y):
    """Lies in memory as `y` does, and not as `x`."""
    return -torch.minimum(y, x)


# --- several results -----------------------------------------------------------------------------


@pattern
def Products(x, v, w):
    return aten.mm(x, v), aten.mm(x, w)


@rule(Products)
def one_product(x, v, w):
    """Its results share memory, and need a gradient if one of the weights does."""
    y = x @ torch.cat([v, w], 1)
    return y[:, : v.shape[1]], y[:, v.shape[1] :]


# --- gradients and tangents ----------------------------------------------------------------------


@torch.library.custom_op("pypm_hunt::gated", mutates_args=())
def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


@gated.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


@pattern
def Gated(gate, up):
    return aten.mul(aten.silu(gate), up)


@rule(Gated)
def gated_without_formulas(gate, up):
    """Calls an operator that has neither a gradient nor a forward-mode derivative."""
    return torch.ops.pypm_hunt.gated(gate, up)


@pattern
def NegatedTwice(x):
    return aten.neg(aten.neg(x))


@rule(NegatedTwice)
def first_power(x):
    """Autograd saves `x` for it, and nothing for what it replaces."""
    return x.pow(1)


OWN: Final[dict[str, Rule]] = {
    "windows": windows,
    "turned_parts": turned_parts,
    "negated_smaller": negated_smaller,
    "one_product": one_product,
    "gated_without_formulas": gated_without_formulas,
    "first_power": first_power,
}
EXACT_RULES: Final = frozenset({"windows", "turned_parts", "first_power"})
"""Those that keep every bit."""
WITHOUT_FORMULAS: Final = frozenset({"gated_without_formulas"})
"""Those whose operators drop tangents if a graph is differentiated after it was rewritten."""


# --- graphs --------------------------------------------------------------------------------------


def _seen(draw: Random, values: Sequence[Tensor]) -> list[Tensor]:
    """The values, or what is computed from some of them."""
    return [x.exp() if draw.random() < 0.2 else x for x in values]


def in_windows(draw: Random) -> Example:
    state = draw.getstate()

    def function(x: Tensor) -> list[Tensor]:
        draw.setstate(state)
        n = x.neg()
        return _seen(draw, [n[0:2], n[1:3]])

    return function, (torch.randn(draw.choice([(3,), (4,), (4, 3)]), dtype=torch.float64),)


def turned(draw: Random) -> Example:
    state = draw.getstate()

    def function(x: Tensor) -> list[Tensor]:
        draw.setstate(state)
        n = x.neg()
        return _seen(draw, [n, n.t()])

    return function, (torch.randn(draw.choice([(2, 3), (3, 3)]), dtype=torch.float64),)


def larger(draw: Random) -> Example:
    exchanged = draw.random() < 0.5
    x, y = torch.randn(2, 3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64).t()
    args = (y, x) if exchanged else (x, y)
    return lambda x, y: torch.maximum(x.neg(), y.neg()) * 2, args


def products(draw: Random) -> Example:
    state = draw.getstate()

    def function(x: Tensor, v: Tensor, w: Tensor) -> list[Tensor]:
        draw.setstate(state)
        return _seen(draw, [torch.mm(x, v), torch.mm(x, w)])

    sizes = (2, 3), (3, draw.choice([2, 4])), (3, 4)
    return function, [torch.randn(size, dtype=torch.float64) for size in sizes]


def through_gates(draw: Random) -> Example:
    is_summed = draw.random() < 0.5

    def function(x: Tensor, y: Tensor) -> Tensor:
        z = F.silu(x) * y
        return z.sum(0) if is_summed else z

    return function, (
        torch.randn(2, 3, dtype=torch.float64),
        torch.randn(2, 3, dtype=torch.float64),
    )


def negated(draw: Random) -> Example:
    scaled = draw.random() < 0.7

    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x * y if scaled else x + y).neg().neg() * 2

    return function, (
        torch.randn(2, 3, dtype=torch.float64),
        torch.randn(2, 3, dtype=torch.float64),
    )


OWN_EXAMPLES: Final[dict[str, Callable[[Random], Example]]] = {
    "windows": in_windows,
    "turned_parts": turned,
    "negated_smaller": larger,
    "one_product": products,
    "gated_without_formulas": through_gates,
    "first_power": negated,
}
"""Functions whose graphs the rules match."""
