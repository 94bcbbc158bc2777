"""Sizes at which candidates are timed: where they are symbolic, one compilation serves many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final, TypeAlias

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pypm.fx.values.symbolic import hint

__all__ = ["HINTS", "Sizes", "ends", "number"]

Sizes: TypeAlias = Mapping[sympy.Symbol, int]
"""Values of symbolic sizes."""
HINTS: Final[Sizes] = MappingProxyType({})
"""All as at the call that is compiled for."""
TIMES: Final = 4
"""The ends of a range that is not limited: the hint over this, and as many times the hint."""
LEAST: Final = 2
"""The least size that all symbolic sizes have."""
ELEMENTS: Final = 2**28
"""The most elements of a tensor that is made to time something."""
LARGEST: Final = 2**20
"""A limit from which on it counts as none."""


def number(value: fx.node.Argument, sizes: Sizes) -> int | float | None:
    """Return a number, a symbolic one for some sizes; None if it is none, or has no example."""
    if sizes and isinstance(value, torch.SymInt):
        found = value.node.expr.subs(sizes)
        if found.is_Integer:
            return int(found)
    return hint(value)


def ends(
    values: Sequence[fx.node.Argument], inside: Iterable[fx.node.Argument] = ()
) -> list[Sizes]:
    """Return the least and the largest symbolic sizes that some fake values may have.

    Arguments:
        values: what a graph takes.
        inside: what it computes: sizes at which one of these would be too large are left out.

    These are the ends of the ranges that a user gave or guards leave; of others, a quarter of the
    size at the call that is compiled for, and four times that size. Sizes that guards forbid are
    left out. Without symbolic sizes there are none.
    """
    given = [n for x in values for n in ((*x.shape, *x.stride()) if isinstance(x, Tensor) else [x])]
    nodes = [n.node for n in given if isinstance(n, torch.SymInt)]
    symbols = {symbol for node in nodes for symbol in node.expr.free_symbols}
    if not symbols:
        return []
    environment = nodes[0].shape_env
    found = [{s: end(s, environment) for s in symbols} for end in (_least, _largest)]
    tensors = [x for x in inside if isinstance(x, Tensor)]
    allowed = [
        s for s in found if _fits(s, environment) and not any(_is_large(x, s) for x in tensors)
    ]
    return [sizes for sizes in allowed if sizes != {s: _hint(s, environment) for s in symbols}]


def _least(symbol: sympy.Symbol, environment: ShapeEnv) -> int:
    limit = int(environment.var_to_range[symbol].lower)
    return limit if limit > LEAST else max(limit, _hint(symbol, environment) // TIMES)


def _largest(symbol: sympy.Symbol, environment: ShapeEnv) -> int:
    limit, free = environment.var_to_range[symbol].upper, _hint(symbol, environment) * TIMES
    return int(limit) if limit.is_Integer and limit < LARGEST else free


def _hint(symbol: sympy.Symbol, environment: ShapeEnv) -> int:
    from pypm.roofline.sizes import SizeHints  # late: most graphs have no symbolic sizes

    return int(SizeHints(environment).value(symbol))


def _is_large(value: Tensor, sizes: Sizes) -> bool:
    return prod(number(n, sizes) or 1 for n in value.shape) > ELEMENTS


def _fits(sizes: Sizes, environment: ShapeEnv) -> bool:
    return all(guard.expr.subs(sizes) is not sympy.false for guard in environment.guards)
