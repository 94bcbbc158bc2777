"""Meanings of reductions and matrix products."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from typing import Final

from pypm.laws.algebra import (
    Algebra,
    Given,
    Indexed,
    NoMeaning,
    Scalar,
    Shape,
    SizesDiffer,
)
from pypm.laws.forms.symbolic import SymbolicAlgebra
from pypm.laws.operators.einsum import contracted
from pypm.laws.operators.site import Meaning, Site
from pypm.laws.operators.tensors import each, matrix_product, reduced

__all__ = [
    "PRODUCTS",
    "REDUCTIONS",
    "larger",
    "logsumexp",
    "matmul",
    "mean",
    "softmax",
    "turned",
    "var_mean",
]

HALF: Final = Fraction(1, 2)


def larger(a: Algebra, x: Scalar, y: Scalar) -> Scalar:
    """Return the maximum of two values."""
    return a.function("max", x, y)


# --- reductions ----------------------------------------------------------------------------------


def _dims(x: Indexed, dim: Given) -> tuple[int, ...]:
    if isinstance(dim, int):
        return (dim % max(x.rank, 1),) if x.rank else ()
    return tuple(d % x.rank for d in dim) if dim and x.rank else tuple(range(x.rank))


def _sum(c: Site, x: Indexed, *, dim: Given = None, keepdim: bool = False, **_: Given) -> Indexed:
    return reduced(x, _dims(x, dim), keepdim, c.algebra.total)


def _amax(c: Site, x: Indexed, *, dim: Given = None, keepdim: bool = False, **_: Given) -> Indexed:
    return reduced(x, _dims(x, dim), keepdim, c.algebra.largest)


def _max(c: Site, x: Indexed, y: Indexed | None = None, **attributes: Given) -> Given:
    if y is not None:
        return each(lambda v, w: larger(c.algebra, v, w), x, y)
    if attributes.get("dim") is None:
        return _amax(c, x)
    return (_amax(c, x, **attributes),)  # of the places of the maxima nothing is known


def _any(c: Site, x: Indexed, *, dim: Given = None, keepdim: bool = False, **_: Given) -> Indexed:
    if x.kind != "truth":
        x = each(lambda v: 1 - c.algebra.zero(v), x)
    return each(lambda n: 1 - c.algebra.zero(n), _sum(c, x, dim=dim, keepdim=keepdim))


def _count(c: Site, x: Indexed, dims: tuple[int, ...]) -> Scalar:
    sizes = [c.algebra.scalar(x.shape[d]) for d in dims]
    return reduce(lambda a, b: a * b, sizes, c.algebra.number(1))


def mean(c: Site, x: Indexed, *, dim: Given = None, keepdim: bool = False, **_: Given) -> Indexed:
    """Return the mean over dimensions."""
    dims = _dims(x, dim)
    inverse = c.algebra.power(_count(c, x, dims), -1)
    return each(lambda v: v * inverse, _sum(c, x, dim=dims, keepdim=keepdim))


def var_mean(
    c: Site,
    x: Indexed,
    *,
    dim: Given = None,
    correction: Given = None,
    unbiased: bool = True,
    keepdim: bool = False,
    **_: Given,
) -> tuple[Indexed, Indexed]:
    """Return variance and mean over dimensions."""
    dims = _dims(x, dim)
    average = mean(c, x, dim=dims, keepdim=True)
    squares = each(lambda v, m: (v - m) * (v - m), x, average)
    one = int(unbiased) if correction is None else int(correction)
    inverse = c.algebra.power(_count(c, x, dims) - one, -1)
    variance = each(lambda v: v * inverse, _sum(c, squares, dim=dims, keepdim=keepdim))
    return variance, mean(c, x, dim=dims, keepdim=keepdim)


def softmax(c: Site, x: Indexed, *, dim: int, **_: Given) -> Indexed:
    """Return softmax over a dimension."""
    powers = each(c.algebra.exp, x)
    sums = _sum(c, powers, dim=dim, keepdim=True)
    return each(lambda v, s: v * c.algebra.power(s, -1), powers, sums)


def logsumexp(c: Site, x: Indexed, *, dim: Given, keepdim: bool = False, **_: Given) -> Indexed:
    """Return the logarithm of a sum of `exp`."""
    return each(c.algebra.log, _sum(c, each(c.algebra.exp, x), dim=dim, keepdim=keepdim))


def _vector_norm(
    c: Site,
    x: Indexed,
    order: Given = None,
    *,
    dim: Given = None,
    keepdim: bool = False,
    **k: Given,
) -> Indexed:
    given = order.rational if isinstance(order, Indexed) else order or k.get("ord", 2)
    if given != 2:
        raise NoMeaning("a norm of another order than 2")
    squares = _sum(c, each(lambda v: v * v, x), dim=dim, keepdim=keepdim)
    return each(lambda v: c.algebra.power(v, HALF), squares)


def _softmax_gradient(c: Site, grad: Indexed, y: Indexed, *, dim: int, **_: Given) -> Indexed:
    """Return the gradient of the operand of a softmax, by that of its result y."""
    sums = _sum(c, each(lambda g, v: g * v, grad, y), dim=dim, keepdim=True)
    return each(lambda g, v, s: (g - s) * v, grad, y, sums)


REDUCTIONS: Final[dict[str, Meaning]] = {
    "aten.sum": _sum,
    "aten.mean": mean,
    "aten.any": _any,
    "aten.amax": _amax,
    "aten.max": _max,
    "aten.var": lambda c, x, **k: var_mean(c, x, **k)[0],
    "aten.var_mean": var_mean,
    "aten.softmax": softmax,
    "aten._softmax": softmax,
    "aten.log_softmax": lambda c, x, **k: each(c.algebra.log, softmax(c, x, **k)),
    "aten._softmax_backward_data": _softmax_gradient,
    "aten._log_softmax": lambda c, x, **k: each(c.algebra.log, softmax(c, x, **k)),
    "aten.logsumexp": logsumexp,
    "aten.linalg_vector_norm": _vector_norm,
}

# --- products ------------------------------------------------------------------------------------


def turned(x: Indexed) -> Indexed:
    """Return a tensor with its last two dimensions swapped."""
    shape = (*x.shape[:-2], x.shape[-1], x.shape[-2])
    return Indexed(shape, lambda p: x.value(*p[:-2], p[-1], p[-2]))


def matmul(c: Site, x: Indexed, y: Indexed, **_: Given) -> Indexed:
    """Return a matrix product."""
    return matrix_product(c.algebra, x, y)


def _ranked(first: int, second: int, by: Meaning = matmul) -> Meaning:
    """Return the meaning of a product that takes operands of these ranks alone."""

    def meaning(c: Site, x: Indexed, y: Indexed, **_: Given) -> Given:
        if (x.rank, y.rank) != (first, second):
            raise SizesDiffer(0, 1)
        return by(c, x, y)

    return meaning


def _outer(c: Site, x: Indexed, y: Indexed) -> Indexed:
    return Indexed((*x.shape, *y.shape), lambda p: x.value(p[0]) * y.value(p[1]))


def _linear(c: Site, x: Indexed, w: Indexed, b: Indexed | None = None, **_: Given) -> Indexed:
    if w.rank > 2:
        raise SizesDiffer(w.rank, 2)
    found = matmul(c, x, turned(w) if w.rank > 1 else w)
    return found if b is None else each(lambda v, bias: v + bias, found, b)


def _grouped_mm(
    c: Site, x: Indexed, w: Indexed, ends: Indexed, bias: Indexed | None = None, **_: Given
) -> Indexed:
    """Return rows times the matrix of their group; those behind all groups have no value."""
    if (x.rank, w.rank, ends.rank) != (2, 3, 1) or bias is not None:
        raise NoMeaning("groups of columns, or a bias")
    for one, two in ((w.shape[0], ends.shape[0]), (w.shape[1], x.shape[1])):
        if one != two:
            raise SizesDiffer(one, two)
    a = c.algebra
    known = None
    if isinstance(a, SymbolicAlgebra):
        known = a.search(ends.shape[0], ends.value, x.shape[0], lambda i: i)

    def at(place: Shape) -> Scalar:
        i, j = place
        count = a.total(ends.shape[0], lambda e: _is_up_to(a, ends.value(e), a.scalar(i)))
        group = a.place(count if known is None else known(i))
        return a.total(x.shape[1], lambda k: x.value(i, k) * w.value(group, k, j))

    return Indexed((x.shape[0], w.shape[2]), at)


def _is_up_to(a: Algebra, value: Scalar, other: Scalar) -> Scalar:
    return 1 - a.positive(value - other)


def _sum_with_product(rank: int) -> Meaning:
    """Return the meaning of a matrix product plus a tensor, of operands of this rank."""

    def meaning(
        c: Site,
        b: Indexed,
        x: Indexed,
        y: Indexed,
        *,
        alpha: Given = 1,
        beta: Given = 1,
        **_: Given,
    ) -> Indexed:
        for found in (x.rank, y.rank):
            if found != rank:
                raise SizesDiffer(found, rank)
        if b.rank > rank:
            raise SizesDiffer(b.rank, rank)
        one, two = c.number(alpha), c.number(beta)
        return each(lambda v, bias: v * one + bias * two, matmul(c, x, y), b)

    return meaning


PRODUCTS: Final[dict[str, Meaning]] = {
    "aten.matmul": matmul,
    "aten.mm": _ranked(2, 2),
    "aten.bmm": _ranked(3, 3),
    "aten.mv": _ranked(2, 1),
    "aten.dot": _ranked(1, 1),
    "aten.linear": _linear,
    "aten._grouped_mm": _grouped_mm,
    "aten.addmm": _sum_with_product(2),
    "aten.baddbmm": _sum_with_product(3),
    "aten.outer": _ranked(1, 1, _outer),
    "aten.einsum": lambda c, operands, *, equation, **_: contracted(c.algebra, equation, operands),
}
