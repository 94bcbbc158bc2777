"""Patterns of a mixture of experts."""

from pypm import let, pattern, record, var
from pypm.fx import GETITEM, Namespace, aten, prims
from pypm.rules.events.products import (
    Acted,
    InOrder,
    Probabilities,
    Product,
    Regrouped,
    RoundedOnce,
)
from pypm.rules.experts import Gather
from pypm.rules.vocabulary.shapes import Transposed
from pypm.rules.vocabulary.softmax import Count

transformers = Namespace(
    "transformers",
    schemas=["grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor"],
)

# --- experts by gathered weights ------------------------------------------------------------------


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
def Units(both, size, kind):  # of the products with gate and up, side by side
    parts = var()
    parts <= Halves(both, size)
    return Acted(GETITEM(parts, 0), kind) * GETITEM(parts, 1)


@pattern
def Weighted(y, ids, shares, experts):  # by weights that are gathered for each row
    both, down, rows, count, size, kind = var(), var(), var(), var(), var(), var()
    hidden = Units(ByExperts(rows, both, ids), size, kind)
    rows <= EachRow(y, count)
    let(experts=record(both=both, down=down, size=size, activation=kind, count=count))
    return ByExperts(hidden, down, ids) * aten.unsqueeze(shares, -1)


# --- rows that are sorted by their experts --------------------------------------------------------


@pattern
def Ends(ids, count):  # after the last row of each expert
    last = var()
    assert last == count - 1
    return aten.cumsum(aten.histc(prims.convert_element_type(ids, _), count, 0, last), 0, ...)


@pattern
def ByGroups(x, w, ends):
    m = Transposed(w)
    return aten._grouped_mm(x, m, ends) | transformers.grouped_mm_fallback(x, m, ends)


@pattern
def Inverse(order):  # of a permutation
    blank = var()
    assert blank.shape == order.shape and order.rank == 1  # all of it is written
    return aten.index_put(blank, [order], Count(), False)


@pattern
def Weighted(y, ids, shares, experts):
    both, down, size, kind = var(), var(), var(), var()
    order, ends, sorted_ids, n, each = var(), var(), var(), var(), var()
    rows = aten.index(Regrouped(y), [aten.div(order, n, rounding_mode="floor")])
    hidden = Units(ByGroups(rows, both, ends), size, kind)
    products = ByGroups(hidden, down, ends) * aten.unsqueeze(aten.index(shares, [order]), -1)
    ends <= Ends(GETITEM(sorted_ids, 0), each)
    order <= GETITEM(sorted_ids, 1)
    sorted_ids <= aten.sort(ids, _, False, ...)
    assert both.rank == 3 and both.shape[0] == each and down.rank == 3
    let(experts=record(both=both, down=down, size=size, activation=kind, count=n.value))
    return aten.index(products, [Inverse(order)])


# --- the whole ------------------------------------------------------------------------------------


@pattern
def Mixture(y, mixture):
    ids, shares, chosen, share, experts = var(), var(), var(), var(), var()
    router, top, normalized, logits = var(), var(), var(), var()
    each = Regrouped(Weighted(y, ids, shares, experts))
    total = RoundedOnce(aten.sum(each, [1], False))
    ids <= InOrder(GETITEM(chosen, 1))
    shares <= InOrder(RoundedOnce(Shares(chosen, normalized)))
    chosen <= aten.topk(share, top, -1, True, _)
    share <= Probabilities(logits)
    logits <= Product(y, router)
    assert total.dtype == y.dtype and each.dtype == shares.dtype
    assert each.rank == 3 and each.shape[1] == top and share.rank == 2
    let(
        mixture=record(
            experts=experts, router=router, top=top, normalized=normalized, type=share.dtype,
            type_of_rows=each.dtype,
        )
    )  # fmt: skip
    return total
