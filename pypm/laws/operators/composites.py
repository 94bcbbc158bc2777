"""Meanings of norms and attention, each by its definition."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from typing import Final

from pypm.laws.algebra import (
    Algebra,
    Given,
    Index,
    Indexed,
    NoMeaning,
    Scalar,
    Shape,
    SizesDiffer,
)
from pypm.laws.operators.reductions import logsumexp, matmul, mean, softmax, turned, var_mean
from pypm.laws.operators.site import Meaning, Site
from pypm.laws.operators.tensors import each, ratio, viewed

__all__ = ["NORMS", "where"]

HALF: Final = Fraction(1, 2)


def where(a: Algebra, condition: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    """Return one of two values by a condition."""
    return a.choose(condition, lambda: yes, lambda: no)


# --- norms and attention, each by its definition --------------------------------------------------


def _affine(x: Indexed, w: Indexed | None, b: Indexed | None) -> Indexed:
    found = x if w is None else each(lambda v, a: v * a, x, w)
    return found if b is None else each(lambda v, a: v + a, found, b)


def _check_affine(x: Indexed, dims: tuple[int, ...], *parameters: Indexed | None) -> None:
    """Raise SizesDiffer unless weight and bias have the shape of the last dimensions."""
    for v in parameters:
        if v is not None and v.rank != len(dims):
            raise SizesDiffer(0, 1)
        for d, n in zip(dims, () if v is None else v.shape, strict=False):
            if n != x.shape[d]:
                raise SizesDiffer(n, x.shape[d])


def _standardized(c: Site, x: Indexed, dims: tuple[int, ...], eps: Given) -> Indexed:
    variance, average = var_mean(c, x, dim=dims, correction=0, keepdim=True)
    a, e = c.algebra, c.number(eps)
    return each(lambda v, m, s: (v - m) * a.power(s + e, -HALF), x, average, variance)


def _layer_norm(
    c: Site,
    x: Indexed,
    w: Indexed | None = None,
    b: Indexed | None = None,
    *,
    normalized_shape: tuple[Index, ...],
    eps: Given,
    **_: Given,
) -> Indexed:
    dims = tuple(range(x.rank - len(normalized_shape), x.rank))
    _check_affine(x, dims, w, b)
    return _affine(_standardized(c, x, dims, eps), w, b)


def _rms_norm(
    c: Site,
    x: Indexed,
    w: Indexed | None = None,
    *,
    normalized_shape: Given,
    eps: Given,
    **_: Given,
) -> Indexed:
    if eps is None:
        raise NoMeaning("an eps that depends on the type")
    dims = tuple(range(x.rank - len(normalized_shape), x.rank))
    _check_affine(x, dims, w)
    squares = mean(c, each(lambda v: v * v, x), dim=dims, keepdim=True)
    a, e = c.algebra, c.number(eps)
    return _affine(each(lambda v, s: v * a.power(s + e, -HALF), x, squares), w, None)


def _by_channel(c: Site, x: Indexed, w: Indexed | None, b: Indexed | None, y: Indexed) -> Indexed:
    """Return `y * w + b`, with one value of w and b for each channel of x."""
    ones, found = (1,) * (x.rank - 2), []
    for v in (w, b):
        if v is not None and v.shape != (x.shape[1],):
            raise SizesDiffer(*((v.shape[0], x.shape[1]) if v.rank == 1 else (0, 1)))
        found.append(None if v is None else viewed(c.algebra, v, (x.shape[1], *ones)))
    return _affine(y, *found)


def _group_norm(
    c: Site,
    x: Indexed,
    w: Indexed | None = None,
    b: Indexed | None = None,
    *,
    num_groups: Given,
    eps: Given,
    **_: Given,
) -> Indexed:
    groups = c.size(num_groups)
    n, channels, *rest = x.shape
    inner = reduce(lambda a, b: a * b, rest, ratio(c.algebra, channels, groups))
    grouped = viewed(c.algebra, x, (n, groups, inner))
    y = viewed(c.algebra, _standardized(c, grouped, (2,), eps), x.shape)
    return _by_channel(c, x, w, b, y)


def _instance_norm(
    c: Site,
    x: Indexed,
    w: Indexed | None = None,
    b: Indexed | None = None,
    mean: Indexed | None = None,
    var: Indexed | None = None,
    *,
    eps: Given,
    **_: Given,
) -> Indexed:
    if mean is not None or var is not None:
        raise NoMeaning("running statistics")
    return _by_channel(c, x, w, b, _standardized(c, x, tuple(range(2, x.rank)), eps))


def _scores(
    c: Site,
    q: Indexed,
    k: Indexed,
    mask: Indexed | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Given = None,
    **_: Given,
) -> Indexed:
    if dropout_p:
        raise NoMeaning("dropout")
    a = c.algebra
    factor = _factor(c, q, scale)
    scores = each(lambda s: s * factor, matmul(c, q, turned(k)))
    if is_causal:
        scores = _causal(a, scores)
    if mask is not None and mask.kind == "truth":
        scores = each(lambda s, m: where(a, m, s, a.infinity()), scores, mask)
    elif mask is not None:
        scores = each(lambda s, m: s + m, scores, mask)
    return scores


def _attention(
    c: Site,
    q: Indexed,
    k: Indexed,
    v: Indexed,
    mask: Indexed | None = None,
    *,
    enable_gqa: bool = False,
    **attributes: Given,
) -> Indexed:
    if enable_gqa:
        k, v = (_repeated_heads(c, x, q.shape[-3]) for x in (k, v))
    scores = _scores(c, q, k, mask, **attributes)
    return matmul(c, softmax(c, scores, dim=scores.rank - 1), v)


def _flash_attention(
    c: Site,
    q: Indexed,
    k: Indexed,
    v: Indexed,
    mask: Indexed | None = None,
    **attributes: Given,
) -> tuple[Indexed, Indexed]:
    """Return attention, and the logarithms of the sums by which it divides; queries share heads."""
    k, v = (_repeated_heads(c, x, q.shape[-3]) for x in (k, v))
    scores = _scores(c, q, k, mask, **attributes)
    sums = logsumexp(c, scores, dim=scores.rank - 1)
    return _attention(c, q, k, v, mask, **attributes), sums


def _flash_gradients(
    c: Site,
    grad: Indexed,
    q: Indexed,
    k: Indexed,
    v: Indexed,
    *others: Indexed,
    scale: Given = None,
    **attributes: Given,
) -> tuple[Indexed, ...]:
    """Return the gradients of queries, keys and values, by the results of `_flash_attention` and
    its mask.
    """
    a = c.algebra
    out, sums, *masks = others
    scores = _scores(c, q, k, *masks, scale=scale, **attributes)
    parts = each(a.exp, sums)
    weights = Indexed(
        scores.shape, lambda p: a.exp(scores.value(*p)) * a.power(parts.value(*p[:-1]), -1)
    )
    products = each(lambda x, y: x * y, grad, out)
    to_weights = matmul(c, grad, turned(v))
    factor = _factor(c, q, scale)

    def at(p: Shape) -> Scalar:
        average = a.total(out.shape[-1], lambda i: products.value(*p[:-1], i))
        return weights.value(*p) * (to_weights.value(*p) - average) * factor

    to_scores = Indexed(scores.shape, at)
    return (
        matmul(c, to_scores, k),
        matmul(c, turned(to_scores), q),
        matmul(c, turned(weights), grad),
    )


def _factor(c: Site, q: Indexed, scale: Given) -> Scalar:
    """Return the factor of scores."""
    a = c.algebra
    return a.power(a.scalar(q.shape[-1]), -HALF) if scale is None else c.number(scale)


def _causal(a: Algebra, scores: Indexed) -> Indexed:
    """Return scores, minus infinity where the key is after the query."""

    def at(place: Shape) -> Scalar:
        is_later = a.positive(a.scalar(place[-1] - place[-2]))
        return a.choose(is_later, a.infinity, lambda: scores.value(*place))

    return Indexed(scores.shape, at)


def _repeated_heads(c: Site, x: Indexed, heads: Index) -> Indexed:
    *batch, own, rows, width = x.shape
    if own == heads:
        return x
    times = ratio(c.algebra, heads, own)
    wide = Indexed((*batch, own, times, rows, width), lambda p: x.value(*p[:-3], *p[-2:]))
    return viewed(c.algebra, wide, (*batch, heads, rows, width))


NORMS: Final[dict[str, Meaning]] = {
    "aten.layer_norm": _layer_norm,
    "aten.rms_norm": _rms_norm,
    "aten.group_norm": _group_norm,
    "aten.instance_norm": _instance_norm,
    "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _flash_gradients,
}
