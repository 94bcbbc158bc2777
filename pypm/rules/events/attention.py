"""Patterns of attention of one token over a cache that is written at one position."""

import torch
import torch.nn.functional as F

from pypm import keep, let, pattern, record, var
from pypm.fx import GETITEM, aten, hiding, observer
from pypm.rules.attention.heads import Repeated, Shared
from pypm.rules.attention.meanings import repeated
from pypm.rules.events.products import (
    InOrder,
    Multiplied,
    Normed,
    Probabilities,
    Product,
    Regrouped,
    RoundedOnce,
    flat,
    matrix_of,
    normed,
    product,
)
from pypm.rules.rotary import Turned, turned
from pypm.rules.vocabulary.products import Scaled, scaled
from pypm.rules.vocabulary.products import product as of_matrices
from pypm.rules.vocabulary.shapes import NoOp, Resized, Transposed, batched, rows

# --- queries, keys and values ---------------------------------------------------------------------


@observer((2, 1))
def part_of(part):
    """Return the matrix of some columns of a product, [columns, in], and their bias."""
    own = slice(part.first, part.first + part.columns)
    w, b = matrix_of(part.weight)
    return w[own], b[own]


def projected(y, part, shape=None):
    """Return some columns of a product, in another shape if one is given."""
    found = F.linear(y, *part_of(part))
    return found if shape is None else found.reshape(shape)


@pattern(means=hiding(part_of, projected))
def Projected(y, part):  # the rows of a product of their own, or some of one
    of = var()
    z = Multiplied(Regrouped(y), of)
    let(part=record(weight=of, first=0, columns=z.shape[-1]))
    return InOrder(z)


@pattern
def Projected(y, part):
    of, size, item = var(), var(), var()
    z = GETITEM(aten.split(Product(y, of), size, -1), item)
    let(part=record(weight=of, first=size * item, columns=z.shape[-1]))
    return InOrder(z)


@pattern
def ByHeads(y, part, norm):
    let(norm=None)
    z = Projected(y, part)
    assert z.rank == 4
    return z


@pattern
def ByHeads(y, part, norm):  # each head normalized
    heads = var()
    z = InOrder(Normed(heads, norm))
    heads <= Projected(y, part)
    assert z.rank == 4 and z.shape[-1] == heads.shape[-1]
    assert heads.rank in (2, 3, 4)
    return z


@pattern
def Placed(x, angles):
    let(angles=None)
    return x


@pattern
def Placed(x, angles):
    cos, sin = var(), var()
    let(angles=record(cos=cos, sin=sin))
    return Turned(x, cos, sin, False, False)


@observer(last=2)
def heads_of(given, of):
    """Return heads of rows, [rows, heads, size], as `Heads` binds them."""
    _, heads, _, size = of.shape
    y = projected(given, of.part).reshape(given.shape[0], heads, 1, size)
    y = y if of.norm is None else normed(y, of.norm)
    a = of.angles
    return (y if a is None else turned(y, a.cos, a.sin, False, False)).squeeze(2)


@pattern(means=hiding(heads_of, lambda y, of: heads_of(flat(y), of).unsqueeze(2)))
def Heads(y, of):  # heads of one token, [batch, heads, 1, size]
    part, norm, angles, z = var(), var(), var(), var()
    z <= Placed(ByHeads(y, part, norm), angles)
    let(of=record(part=part, norm=norm, angles=angles, shape=z.shape))
    assert z.rank == 4 and z.shape[2] == 1
    assert y.numel == z.shape[0] * y.shape[-1]
    return z


# --- caches ---------------------------------------------------------------------------------------


def written(cache, new, at):
    """Return a cache, with the new key or value at a position."""
    return torch.index_copy(cache, 2, at, new)


@pattern(means=written)
def Written(cache, new, at):
    assert at.shape == (1,)  # of another rank, keys meet other dimensions
    return aten.index_put(cache, [None, None, at], new, False)


@pattern
def Written(cache, new, at):
    assert at.numel == 1
    return aten.index_copy(cache, 2, at, new)


@pattern(means=written)
def Filled(cache, new, at):
    return NoOp(Filled(cache, new, at)) | keep(Written(cache, new, at))


# --- attention ------------------------------------------------------------------------------------


@pattern(means=lambda k, shape=None: repeated(k, 1, shape))
def ForQueries(k):  # heads of keys or values, each repeated for the queries of its group
    d = var()
    assert d == 1
    return Repeated(k, d)


@pattern
def ForQueries(k):
    return NoOp(ForQueries(k)) | Shared(k)


@pattern
def OfGroups(k, q):
    y = ForQueries(k)
    assert y.shape == (k.shape[0], q.shape[1], k.shape[2], k.shape[3])
    return y


@pattern
def OfGroups(k, q):
    return k


@pattern
def Called(q, k, v, mask, scale):
    grouped = var()
    assert mask.rank == 4
    return aten.scaled_dot_product_attention(
        q, OfGroups(k, q), OfGroups(v, q), mask, 0.0, False, scale=scale, enable_gqa=grouped
    ) | GETITEM(
        aten._scaled_dot_product_flash_attention_for_cpu(
            q, OfGroups(k, q), OfGroups(v, q), 0.0, False, attn_mask=mask, scale=scale
        ),
        0,
    )


@pattern(means=batched)
def Rebatched(x):  # matrices in other batch dimensions
    y = Resized(x)
    assert y.rank != x.rank and y.shape[-2:] == x.shape[-2:]
    return y


@pattern
def Rebatched(x):
    return x


@pattern(means=of_matrices)
def Matrices(a, b):
    return Rebatched(aten.matmul(a, b) | aten.bmm(Rebatched(a), Rebatched(b)))


@observer((0,))
def factor_of(scales):
    """Return the number by which scales multiply, as `Scaled` binds them."""
    return scaled(torch.ones(()), scales)


@pattern(means=hiding(factor_of, lambda x, scales: x * factor_of(scales)))
def Multiple(x, scales):
    return Scaled(x, scales)


@pattern(through=NoOp, means=lambda k, steps: scaled(k, steps).mT)
def ScaledColumns(k, steps=()):  # keys as columns, scaled
    r, c = var(), var()
    let(steps=(*r, ("mul", (), c)))
    assert c.numel == 1
    return ScaledColumns(k, r) * c


@pattern
def ScaledColumns(k, steps=()):
    return Transposed(k)


@pattern(means=hiding(factor_of, lambda k, scales: k.mT * factor_of(scales)))
def Columns(k, scales):
    return ScaledColumns(k, scales)


@observer((0,))
def factor_of_scores(scales):
    """Return the number by which scores are multiplied, as `Scores` binds it."""
    of_q, of_k, then = map(factor_of, scales)
    return of_q * of_k * then


def scores_of(q, k, scales, shape=None):
    """Return scores, in other batch dimensions if a shape says so."""
    x = q @ k.mT * factor_of_scores(scales)
    return x if shape is None else batched(x, shape)


@pattern(means=hiding(factor_of_scores, scores_of))
def Scores(q, k, scales):  # scales of queries, of keys, and of their products
    of_q, of_k, then = var(), var(), var()
    x = Multiple(Matrices(Multiple(q, of_q), Columns(k, of_k)), then)
    let(scales=(of_q, of_k, then))
    return x


@pattern(means=lambda x: torch.softmax(x, -1))
def Weights(x):
    return NoOp(Weights(x)) | RoundedOnce(Probabilities(x))


@observer()
def attended(queries, keys, values, scores):
    """Return attention, as `Computed` binds what is done to its scores."""
    k, v = (repeated(each, 1, queries.shape) for each in (keys, values))
    if scores.steps is None:
        return F.scaled_dot_product_attention(queries, k, v, scores.mask, scale=scores.scale)
    return torch.softmax(scores_of(queries, k, scores.steps) + scores.mask, -1) @ v


def attended_in(q, k, v, scores, shape=None):
    """Return attention, in other batch dimensions if a shape says so."""
    y = attended(q, k, v, scores)
    return y if shape is None else batched(y, shape)


@pattern(means=hiding(attended, attended_in))
def Computed(q, k, v, scores):
    mask, scale = var(), var()
    let(scores=record(mask=mask, scale=scale, steps=None))
    return Called(q, k, v, mask, scale)


@pattern
def Computed(q, k, v, scores):  # the product of the weights with the values
    steps, mask = var(), var()
    x = Scores(q, OfGroups(k, q), steps)
    y = Matrices(Weights(x + mask), OfGroups(v, q))
    let(scores=record(mask=mask, scale=None, steps=steps))
    assert mask.rank == 4
    return y


@observer(last=1)
def attention_rows(given, attention):
    """Return rows after attention and its last product, [rows, width]."""
    of = attention
    q, k, v = (heads_of(given, each).unsqueeze(2) for each in (of.q, of.k, of.v))
    keys, values = written(of.keys, k, of.at), written(of.values, v, of.at_of_values)
    y = attended(q, keys, values, of.scores)
    return product(y.reshape(given.shape[0], -1), of.out)


def attention_of(y, attention, shape=None):
    """Return the rows after attention, in other dimensions if a shape says so."""
    found = attention_rows(flat(y), attention)
    return rows(found, y.shape if shape is None else shape)


@pattern(means=hiding(attention_rows, attention_of))
def Attended(y, attention):
    q, k, v, keys, values = var(), var(), var(), var(), var()
    at, at_of_values, scores, queries, out = var(), var(), var(), var(), var()
    a, b, heads = var(), var(), var()
    heads <= InOrder(Computed(queries, a, b, scores))
    queries <= Heads(y, q)
    a <= Filled(keys, Heads(y, k), at)
    b <= Filled(values, Heads(y, v), at_of_values)
    z = Regrouped(Multiplied(heads, out))
    let(
        attention=record(
            q=q, k=k, v=v, keys=keys, values=values, at=at, at_of_values=at_of_values,
            scores=scores, out=out,
        )
    )  # fmt: skip
    assert keys.rank == 4 and values.rank == 4
    assert heads.rank in (2, 3, 4) and heads.shape[-1] == queries.shape[1] * queries.shape[3]
    return z
