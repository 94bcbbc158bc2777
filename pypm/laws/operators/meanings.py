"""The meanings of operators, one table: each as a function of the elements of its operands.

A meaning takes a `Site` and the operands, by the names and order of PyPM's canonical calls
(`pypm.fx.describe`): tensors are `Indexed`, numbers too, lists are tuples; attributes come by name.
Types are not part of a meaning: a cast of a floating-point number to another type is the same
number. Tests compare each meaning with torch's operator, in floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

import torch

from pypm.laws.algebra import Algebra, Given, Indexed, NoMeaning, Scalar
from pypm.laws.forms.symbolic import SymbolicAlgebra
from pypm.laws.operators.composites import NORMS, where
from pypm.laws.operators.orders import ORDERS
from pypm.laws.operators.parts import MEANINGS_OF_PARTS
from pypm.laws.operators.reads import MEANINGS_OF_READS
from pypm.laws.operators.reductions import PRODUCTS, REDUCTIONS, larger
from pypm.laws.operators.site import Meaning, Site
from pypm.laws.operators.tensors import constant, each

__all__ = ["ELEMENTS", "KINDS", "MEANINGS", "MOVES", "WHOLE"]

HALF: Final = Fraction(1, 2)


def _each(function: Callable[..., Scalar]) -> Meaning:
    """Return the meaning of an operator on elements, from a function of algebra and elements."""

    def meaning(c: Site, *operands: Indexed, **attributes: Given) -> Indexed:
        return each(lambda *values: function(c.algebra, *values), *operands)

    return meaning


# --- elements ------------------------------------------------------------------------------------


def _divided(part: int) -> Meaning:
    """Return the meaning of the quotient of whole numbers, rounded down, or of what it leaves."""

    def meaning(c: Site, x: Indexed, y: Indexed, **_: Given) -> Indexed:
        if not x.kind == y.kind == "whole":
            raise NoMeaning("a division that rounds")
        a = c.algebra
        found = each(lambda v, w: a.scalar(a.divided(a.place(v), a.place(w))[part]), x, y)
        return replace(found, kind="whole")

    return meaning


def _quotient(c: Site, x: Indexed, y: Indexed, *, rounding_mode: Given = None) -> Given:
    if rounding_mode == "floor" and y.rank == 0 and y.kind == "real":
        if not isinstance(c.algebra, SymbolicAlgebra):
            raise NoMeaning("a division that rounds")
        return each(lambda v, w: c.algebra.function("rounded quotient", v, w), x, y)
    if rounding_mode == "floor":
        return _divided(0)(c, x, y)
    if rounding_mode is not None:
        raise NoMeaning("a division that rounds")
    return each(lambda v, w: v * c.algebra.power(w, -1), x, y)


def _sum_of(sign: int) -> Meaning:
    def meaning(c: Site, x: Indexed, y: Indexed, *, alpha: Given = 1, **_: Given) -> Indexed:
        factor = c.number(alpha)
        return each(lambda a, b: a + b * factor * sign, x, y)

    return meaning


def _power(c: Site, x: Indexed, y: Indexed, **_: Given) -> Indexed:
    exponent = y.rational
    if exponent is not None:
        return each(lambda a: c.algebra.power(a, exponent), x)
    return each(lambda a, b: c.algebra.exp(c.algebra.log(a) * b), x, y)


def _rounded(c: Site, x: Indexed, decimals: int) -> Indexed:
    if decimals:
        raise NoMeaning("decimals that are kept")
    return each(lambda v: c.algebra.function("round", v), x)


def _sigmoid(a: Algebra, x: Scalar) -> Scalar:
    e = a.exp(x)  # of minus infinity it is zero
    return e * a.power(e + 1, -1)


def _tanh(a: Algebra, x: Scalar) -> Scalar:
    return 2 * _sigmoid(a, x * 2) - 1


def _gelu(c: Site, x: Indexed, *, approximate: str = "none", **_: Given) -> Indexed:
    a = c.algebra

    def of(v: Scalar) -> Scalar:
        if approximate == "tanh":
            inner = (v + v * v * v * a.number(0.044715)) * a.number((2 / torch.pi) ** 0.5)
            return v * a.number(0.5) * (_tanh(a, inner) + 1)
        return v * a.number(0.5) * (a.function("erf", v * a.number(0.5**0.5)) + 1)

    return each(of, x)


def _clamp(c: Site, x: Indexed, low: Indexed | None, high: Indexed | None, **_: Given) -> Indexed:
    a = c.algebra
    found = x if low is None else each(lambda v, w: larger(a, v, w), x, low)
    return found if high is None else each(lambda v, w: -larger(a, -v, -w), found, high)


ELEMENTS: Final[dict[str, Meaning]] = {
    "aten.add": _sum_of(1),
    "aten.sub": _sum_of(-1),
    "aten.mul": _each(lambda a, x, y: x * y),
    "aten.div": _quotient,
    "aten.remainder": _divided(1),
    "aten.neg": _each(lambda a, x: -x),
    "aten.reciprocal": _each(lambda a, x: a.power(x, -1)),
    "aten.sqrt": _each(lambda a, x: a.power(x, HALF)),
    "aten.rsqrt": _each(lambda a, x: a.power(x, -HALF)),
    "aten.pow": _power,
    "aten.exp": _each(lambda a, x: a.exp(x)),
    "aten.exp2": _each(lambda a, x: a.exp(x * a.log(a.number(2)))),
    "aten.expm1": _each(lambda a, x: a.exp(x) - 1),
    "aten.log": _each(lambda a, x: a.log(x)),
    "aten.log1p": _each(lambda a, x: a.log(x + 1)),
    "aten.abs": _each(lambda a, x: a.absolute(x)),
    "aten.sigmoid": _each(_sigmoid),
    "aten.silu": _each(lambda a, x: x * _sigmoid(a, x)),
    "aten.tanh": _each(_tanh),
    "aten.softplus": lambda c, x, *, beta, threshold: _softplus(c, x, c.number(beta)),
    "aten.gelu": _gelu,
    "aten.relu": _each(lambda a, x: larger(a, x, a.number(0))),
    "aten.round": lambda c, x, *, decimals=0: _rounded(c, x, decimals),
    "aten.erf": _each(lambda a, x: a.function("erf", x)),
    "aten.sin": _each(lambda a, x: a.function("sin", x)),
    "aten.cos": _each(lambda a, x: a.function("cos", x)),
    "aten.maximum": _each(larger),
    "aten.minimum": _each(lambda a, x, y: -larger(a, -x, -y)),
    "aten.clamp": _clamp,
    "aten.hardtanh": lambda c, x, *, min_val=-1, max_val=1: _clamp(
        c, x, *(constant(c.number(n)) for n in (min_val, max_val))
    ),
    "aten.leaky_relu": lambda c, x, *, negative_slope=0.01: each(
        lambda v: where(c.algebra, c.algebra.positive(v), v, v * c.number(negative_slope)), x
    ),
    "aten.where": _each(where),
    "aten.masked_fill": _each(lambda a, x, mask, v: where(a, mask, v, x)),
    "aten.addcmul": lambda c, x, y, z, *, value=1: each(
        lambda u, v, w: u + v * w * c.number(value), x, y, z
    ),
    "prims.fma": _each(lambda a, x, y, z: x * y + z),
    "aten.lerp": _each(lambda a, x, y, w: x + (y - x) * w),
    "aten.gt": _each(lambda a, x, y: a.positive(a.difference(x, y))),
    "aten.lt": _each(lambda a, x, y: a.positive(a.difference(y, x))),
    "aten.ge": _each(lambda a, x, y: 1 - a.positive(a.difference(y, x))),
    "aten.le": _each(lambda a, x, y: 1 - a.positive(a.difference(x, y))),
    "aten.eq": _each(lambda a, x, y: a.zero(a.difference(x, y))),
    "aten.ne": _each(lambda a, x, y: 1 - a.zero(a.difference(x, y))),
    "aten.logical_not": _each(lambda a, x: a.zero(x)),
    "aten.logical_and": _each(lambda a, x, y: x * y),
    "aten.logical_or": _each(lambda a, x, y: x + y - x * y),
    **dict.fromkeys(
        ("aten.logical_xor", "aten.bitwise_xor"), _each(lambda a, x, y: x + y - x * y * 2)
    ),
    "aten.bitwise_not": _each(lambda a, x: 1 - x),
    "aten.bitwise_and": _each(lambda a, x, y: x * y),
    "aten.bitwise_or": _each(lambda a, x, y: x + y - x * y),
}
"""Operators on elements. The logical and bitwise ones are given to conditions alone."""


def _softplus(c: Site, x: Indexed, beta: Scalar) -> Indexed:
    a = c.algebra
    return each(lambda v: a.log(a.exp(v * beta) + 1) * a.power(beta, -1), x)


_TRUTHS: Final = (
    "gt",
    "lt",
    "ge",
    "le",
    "eq",
    "ne",
    "any",
    "logical_not",
    "logical_and",
    "logical_or",
    "logical_xor",
)
_BITWISE: Final = ("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor")
KINDS: Final[Mapping[str, str]] = {
    **{f"aten.{name}": "truth" for name in (*_TRUTHS, *_BITWISE)},
    **dict.fromkeys(("aten.arange", "prims.iota", "aten.searchsorted"), "whole"),
}
"""Kinds of results that are no real numbers."""

WHOLE: Final = frozenset({"aten.add", "aten.sub", "aten.mul"})
"""Operators whose result is whole if all operands are."""
_MADE: Final = ("zeros", "ones", "full", "new_", "iota", "arange", "_to_copy", "convert_element")
MOVES: Final = frozenset(
    name
    for name in MEANINGS_OF_PARTS
    if not any(word in name for word in _MADE) and name not in ("aten.to", "aten.type_as")
)
"""Operators whose results hold elements of their first operand."""
MEANINGS: Final[Mapping[str, Meaning]] = {
    **ELEMENTS,
    **REDUCTIONS,
    **PRODUCTS,
    **NORMS,
    **MEANINGS_OF_PARTS,
    **MEANINGS_OF_READS,
    **ORDERS,
}
"""By the operator's name."""
