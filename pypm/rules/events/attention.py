"""Patterns of attention of one token over a cache that is written at one position."""

from pypm import keep, let, pattern, record, var
from pypm.fx import GETITEM, aten
from pypm.rules.attention.heads import Broadcast, Repeated
from pypm.rules.events.products import (
    InOrder,
    Multiplied,
    Normed,
    Probabilities,
    Product,
    Regrouped,
    RoundedOnce,
)
from pypm.rules.rotary import Turned
from pypm.rules.vocabulary.products import Scaled
from pypm.rules.vocabulary.shapes import NoOp, Resized, Transposed

# --- queries, keys and values ---------------------------------------------------------------------


@pattern
def Projected(y, of, first):  # the rows of a product of their own, or from `first` on of one
    let(first=0)
    return InOrder(Multiplied(Regrouped(y), of))


@pattern
def Projected(y, of, first):
    size, item = var(), var()
    let(first=size * item)
    return InOrder(GETITEM(aten.split(Product(y, of), size, -1), item))


@pattern
def ByHeads(y, of, first, norm):
    let(norm=None)
    return Projected(y, of, first)


@pattern
def ByHeads(y, of, first, norm):  # each head normalized
    heads = var()
    z = InOrder(Normed(heads, norm))
    heads <= Projected(y, of, first)
    assert z.shape[-1] == heads.shape[-1]
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


@pattern
def Written(cache, new):  # a cache, with the new key or value at a position
    return aten.index_put(cache, _, new, False) | aten.index_copy(cache, 2, _, new)


@pattern
def Filled(cache, new):
    return NoOp(Filled(cache, new)) | keep(Written(cache, new))


# --- attention ------------------------------------------------------------------------------------


@pattern
def ForQueries(k):  # heads of keys or values, each repeated for the queries of its group
    d = var()
    assert d == 1
    return Repeated(k, d)


@pattern
def ForQueries(k):
    return NoOp(ForQueries(k)) | Broadcast(k)


@pattern
def OfGroups(k):
    return ForQueries(k) | k


@pattern
def Called(q, k, v, mask, scale):
    return aten.scaled_dot_product_attention(
        q, OfGroups(k), OfGroups(v), mask, 0.0, False, scale=scale, enable_gqa=_
    ) | GETITEM(
        aten._scaled_dot_product_flash_attention_for_cpu(
            q, OfGroups(k), OfGroups(v), 0.0, False, attn_mask=mask, scale=scale
        ),
        0,
    )


@pattern
def Rebatched(x):  # matrices in other batch dimensions
    y = Resized(x)
    assert y.rank != x.rank and y.shape[-2:] == x.shape[-2:]
    return y


@pattern
def Rebatched(x):
    return x


@pattern
def Matrices(a, b):
    return aten.matmul(a, b) | aten.bmm(Rebatched(a), Rebatched(b))


@pattern(through=NoOp)
def Columns(k, steps=()):  # keys as columns, scaled
    r, c = var(), var()
    let(steps=(*r, ("mul", (), c)))
    assert c.numel == 1
    return Columns(k, r) * c


@pattern
def Columns(k, steps=()):
    return Transposed(OfGroups(k))


@pattern
def Weights(x):
    return NoOp(Weights(x)) | RoundedOnce(Probabilities(x))


@pattern
def Computed(q, k, v, scores):
    mask, scale = var(), var()
    let(scores=record(mask=mask, scale=scale, steps=None))
    return Called(q, k, v, mask, scale)


@pattern
def Computed(q, k, v, scores):  # the product of the weights with the values
    of_q, of_k, then, mask = var(), var(), var(), var()
    let(scores=record(mask=mask, scale=None, steps=(*of_q, *of_k, *then)))
    x = Scaled(Rebatched(Matrices(Scaled(q, of_q), Columns(k, of_k))), then)
    return Matrices(Weights(x + mask), OfGroups(v))


@pattern
def Query(y, query):
    of, first, norm, angles, q = var(), var(), var(), var(), var()
    q <= Placed(ByHeads(y, of, first, norm), angles)
    let(query=record(weight=of, first=first, norm=norm, angles=angles, value=q))
    return q


@pattern
def Key(y, keys, key):
    of, first, norm, angles = var(), var(), var(), var()
    let(key=record(weight=of, first=first, norm=norm, angles=angles))
    return Filled(keys, Placed(ByHeads(y, of, first, norm), angles))


@pattern
def Attended(y, attention):
    q, k, keys, values, of, first, scores = var(), var(), var(), var(), var(), var(), var()
    v = Filled(values, Projected(y, of, first))
    let(
        attention=record(
            q=q, k=k, v=record(weight=of, first=first), keys=keys, values=values, scores=scores
        )
    )
    return Computed(Query(y, q), Key(y, keys, k), v, scores)
