"""Patterns of decoder layers in one step of decoding, over caches written at one position."""

from pypm import keep, let, pattern, predicate, record, var
from pypm.fx import GETITEM, aten
from pypm.rules.attention.patterns import Heads, Scores, Summed
from pypm.rules.experts import Gather
from pypm.rules.norm import LAYER, RMS, MeanSquare, TimesInverseRoot
from pypm.rules.rotary import Turned
from pypm.rules.vocabulary.activations import Activation
from pypm.rules.vocabulary.products import Linear, Scaled
from pypm.rules.vocabulary.shapes import NoOp, Resized, Rounded, Wide, keeps_order
from pypm.rules.vocabulary.softmax import Softmax

# --- products -------------------------------------------------------------------------------------


@pattern
def Copied(x):  # x as it is, and no other shape
    return aten.clone(x, ...) | aten.contiguous(x, ...) | aten.alias(x) | aten.detach(x)


@predicate
def swaps_in_order(shape, a, b):
    """Return whether elements keep their order where two dimensions of this shape are swapped."""
    dims = [*range(len(shape))]
    dims[a], dims[b] = dims[b], dims[a]
    return keeps_order(shape, dims)


@pattern
def InOrder(x):  # x in another shape: the same elements in the same order
    return Resized(InOrder(x)) | Copied(InOrder(x)) | x


@pattern
def InOrder(x):
    y, a, b = var(), var(), var()
    y <= InOrder(x)
    assert swaps_in_order(y.shape, a, b)
    return aten.transpose(y, a, b)


@pattern
def Regrouped(x):  # the same rows, in other dimensions
    return Copied(Regrouped(x)) | x


@pattern
def Regrouped(x):
    y = Resized(Regrouped(x))
    assert y.shape[-1] == x.shape[-1]
    return y


@pattern
def Multiplied(x, weight):
    w, b, turned = var(), var(), var()
    y = Linear(x, w, b, turned)
    assert w.is_contiguous  # so a transposed weight is matched by one alternate
    let(weight=record(matrix=w, bias=b, turned=turned))
    return y


@pattern
def Product(x, weight):
    return Regrouped(Multiplied(Regrouped(x), weight))


# --- norms ----------------------------------------------------------------------------------------


@pattern
def Normed(x, norm):
    w, offset, eps = var(), var(), var()
    let(norm=record(kind="rms", weight=w, offset=offset, bias=None, eps=eps))
    return RMS(x, w, offset, eps)


@pattern
def Normed(x, norm):
    w, offset, b, eps = var(), var(), var(), var()
    let(norm=record(kind="layer", weight=w, offset=offset, bias=b, eps=eps))
    return LAYER(x, w, offset, b, eps)


@pattern
def Raised(v, eps):  # by a number that is known when the graph runs, as with `dynamic=True`
    assert eps.numel == 1
    return v + eps


@pattern
def Normed(x, norm):
    w, offset, eps, y, v = var(), var(), var(), var(), var()
    z = TimesInverseRoot(y, v, w, offset)
    y <= Wide(x)
    v <= Raised(MeanSquare(Wide(x)), eps)
    let(norm=record(kind="rms", weight=w, offset=offset, bias=None, eps=eps))
    return z


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


# --- attention and hidden units -------------------------------------------------------------------


@pattern
def Called(q, keys, values, mask, scale):
    return aten.scaled_dot_product_attention(
        q, keys, values, mask, 0.0, False, scale=scale, enable_gqa=_
    ) | GETITEM(
        aten._scaled_dot_product_flash_attention_for_cpu(
            q, keys, values, 0.0, False, attn_mask=mask, scale=scale
        ),
        0,
    )


@pattern
def Computed(q, k, lk, v, lv, scores):
    mask, scale = var(), var()
    let(scores=record(mask=mask, scale=scale, steps=None))
    return Called(q, Heads(k, lk), Heads(v, lv), mask, scale)


@pattern
def Computed(q, k, lk, v, lv, scores):  # the product of the weights with the values
    of_q, of_k, first, then, mask = var(), var(), var(), var(), var()
    let(scores=record(mask=mask, scale=None, steps=(*of_q, *of_k, *first, *then)))
    return Summed(Softmax(Scaled(Scores(q, k, of_q, of_k, lk, first), then) + mask), v, lv)


@pattern
def Attended(y, attention):
    q, k, v, lk, lv, scores = var(), var(), var(), var(), var(), var()
    oq, ok, ov, fq, fk, fv = var(), var(), var(), var(), var(), var()
    aq, ak, keys, values, nk, nv = var(), var(), var(), var(), var(), var()
    x = Computed(q, k, lk, v, lv, scores)
    k <= Filled(keys, nk)
    v <= Filled(values, nv)
    q <= Placed(Projected(y, oq, fq), aq)
    nk <= Placed(Projected(y, ok, fk), ak)
    nv <= Projected(y, ov, fv)
    let(
        attention=record(
            q=record(weight=oq, first=fq, angles=aq),
            k=record(weight=ok, first=fk, angles=ak),
            v=record(weight=ov, first=fv),
            keys=keys,
            values=values,
            query=q,
            scores=scores,
            layouts=(lk, lv),
        )
    )
    return x


@pattern
def Acted(x, kind):  # in a wider type, if it is decomposed
    y = var()
    z = Rounded(Activation(y, kind)) | Activation(y, kind)
    y <= Wide(x)
    assert z.dtype == x.dtype
    return z


@pattern
def Hidden(y, inner):
    up, kind = var(), var()
    let(inner=record(up=up, gate=None, activation=kind))
    return Acted(Product(y, up), kind)


@pattern
def Hidden(y, inner):
    gate, up, kind = var(), var(), var()
    let(inner=record(up=up, gate=gate, activation=kind))
    return Acted(Product(y, gate), kind) * Product(y, up)


# --- a mixture of experts -------------------------------------------------------------------------


@pattern
def ByExperts(x, w, ids):  # each row by the matrix of its expert
    column = aten.unsqueeze(x, -1)
    y = aten.squeeze(aten.bmm(Gather(w, ids), column) | aten.matmul(Gather(w, ids), column), -1)
    assert y.rank == 2 and column.rank == 3
    return y


@pattern
def EachRow(x, count):  # each row so many times
    e = aten.expand(aten.unsqueeze(Regrouped(x), 1), ...)
    let(count=e.shape[1])
    assert e.rank == 3
    return Regrouped(e)


@pattern
def EachRow(x, count):
    n = var()
    let(count=n.value)
    rows = Regrouped(x)
    assert rows.rank == 2 and n.numel == 1
    return aten.repeat_interleave(rows, n, 0, ...)


@pattern
def Halves(x, size):
    return aten.split(x, size, -1)


@pattern
def Halves(x, size):
    let(size=x.shape[-1] // 2)
    return aten.chunk(x, 2, -1)


@pattern
def Shares(chosen, normalized):
    let(normalized=True)
    shares = GETITEM(chosen, 0)
    return shares / aten.sum(shares, [-1], True)


@pattern
def Shares(chosen, normalized):
    let(normalized=False)
    return GETITEM(chosen, 0)


@pattern
def Mixture(y, mixture):
    both, down, ids, shares, chosen, share = var(), var(), var(), var(), var(), var()
    parts, rows, size, kind = var(), var(), var(), var()
    router, top, count, normalized = var(), var(), var(), var()
    hidden = Acted(GETITEM(parts, 0), kind) * GETITEM(parts, 1)
    each = Regrouped(ByExperts(hidden, down, ids) * aten.unsqueeze(shares, -1))
    total = aten.sum(each, [1], False)
    parts <= Halves(ByExperts(rows, both, ids), size)
    rows <= EachRow(y, count)
    ids <= InOrder(GETITEM(chosen, 1))
    shares <= InOrder(Shares(chosen, normalized))
    chosen <= aten.topk(share, top, -1, True, _)
    share <= Softmax(Product(y, router))
    assert each.rank == 3 and each.shape[1] == count == top and share.rank == 2
    let(
        mixture=record(
            both=both, down=down, size=size, activation=kind, router=router, top=top,
            normalized=normalized,
        )
    )  # fmt: skip
    return total


# --- a layer --------------------------------------------------------------------------------------


@pattern
def Last(y, last):
    inner, down = var(), var()
    let(last=record(inner=inner, down=down, mixture=None))
    return Product(Hidden(y, inner), down)


@pattern
def Last(y, last):
    mixture = var()
    let(last=record(inner=None, down=None, mixture=mixture))
    return Regrouped(Mixture(y, mixture))


@pattern
def Layer(x, layer):
    before, attention, out = var(), var(), var()
    after, last = var(), var()
    middle = x + Regrouped(Multiplied(InOrder(Attended(Normed(x, before), attention)), out))
    y = middle + Last(Normed(middle, after), last)
    let(layer=record(before=before, attention=attention, out=out, after=after, last=last))
    return y


@pattern
def Layers(x, layers):
    y, earlier, layer = var(), var(), var()
    z = Layer(y, layer)
    y <= Layers(x, earlier)
    let(layers=(*earlier, layer))
    return z


@pattern
def Layers(x, layers):
    layer = var()
    let(layers=(layer,))
    return Layer(x, layer)
