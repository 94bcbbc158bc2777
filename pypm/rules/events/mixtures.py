"""Patterns of a mixture of experts."""

import torch

from pypm import let, pattern, record, var
from pypm.fx import GETITEM, Namespace, aten, hiding, observer, prims, state_references
from pypm.rules.events.products import (
    Acted,
    InOrder,
    Probabilities,
    Product,
    Regrouped,
    RoundedOnce,
    acted,
    flat,
    product,
)
from pypm.rules.experts import Gather
from pypm.rules.vocabulary.shapes import Transposed
from pypm.rules.vocabulary.shapes import rows as rows_in
from pypm.rules.vocabulary.softmax import CountedRow

transformers = Namespace(
    "transformers",
    schemas=["grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor"],
)


def grouped(x, w, ends):
    """Return the products of rows with the matrix of their group."""
    return torch.ops.aten._grouped_mm(x, w, ends)


state_references({"transformers.grouped_mm_fallback": grouped})

# --- experts by gathered weights ------------------------------------------------------------------


def by_experts(x, w, ids):
    """Return each row times the matrix of its expert, [out, in]."""
    return (w[ids] @ x.unsqueeze(-1)).squeeze(-1)


@pattern(means=by_experts)
def ByExperts(x, w, ids):  # each row by the matrix of its expert
    column = aten.unsqueeze(x, -1)
    y = aten.squeeze(aten.bmm(Gather(w, ids), column) | aten.matmul(Gather(w, ids), column), -1)
    assert y.rank == 2 and column.rank == 3 and w.rank == 3
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
def Halves(x):
    size = var()
    return aten.split(x, size, -1) | aten.chunk(x, 2, -1)


@observer()
def shares_of(given, normalized):
    """Return the shares of experts, of the largest ones of each row."""
    return given / given.sum(-1, keepdim=True) if normalized else given


@pattern(means=hiding(shares_of, shares_of))
def Shares(largest, normalized):
    let(normalized=True)
    return largest / aten.sum(largest, [-1], True)


@pattern
def Shares(largest, normalized):
    let(normalized=False)
    return largest


def units_of(both, size, kind):
    """Return the hidden units of the products with gate and up, side by side."""
    gate, up = both.split((size, size), -1)
    return acted(gate, kind) * up


@pattern(means=units_of)
def Units(both, size, kind):
    parts = var()
    units = Acted(GETITEM(parts, 0), kind) * GETITEM(parts, 1)
    parts <= Halves(both)
    let(size=units.shape[-1])
    assert both.shape[-1] == 2 * units.shape[-1]
    return units


@pattern
def Weighted(y, ids, shares, experts, count, number):  # by weights that are gathered for each row
    both, down, rows, size, kind = var(), var(), var(), var(), var()
    hidden = Units(ByExperts(rows, both, ids), size, kind)
    rows <= EachRow(y, count)
    let(experts=record(both=both, down=down, size=size, activation=kind, count=count))
    let(number=both.shape[0])
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
    assert x.rank == 2 and w.rank == 3 and ends.rank == 1
    return aten._grouped_mm(x, m, ends) | transformers.grouped_mm_fallback(x, m, ends)


@pattern
def Weighted(y, ids, shares, experts, count, number):
    both, down, size, kind = var(), var(), var(), var()
    order, ends, sorted_ids, n, each, blank = var(), var(), var(), var(), var(), var()
    rows = aten.index(Regrouped(y), [aten.div(order, n, rounding_mode="floor")])
    hidden = Units(ByGroups(rows, both, ends), size, kind)
    products = ByGroups(hidden, down, ends) * aten.unsqueeze(aten.index(shares, [order]), -1)
    ends <= Ends(GETITEM(sorted_ids, 0), each)
    order <= GETITEM(sorted_ids, 1)
    sorted_ids <= aten.sort(ids, _, False, ...)
    assert both.rank == 3 and each == both.shape[0] and down.rank == 3
    let(count=n.value)
    let(experts=record(both=both, down=down, size=size, activation=kind, count=count))
    let(number=each)
    numbers = CountedRow()
    inverse = aten.index_put(blank, [order], numbers, False)  # all of it is written
    assert blank.rank == 1 and blank.shape == order.shape and numbers.shape == order.shape
    return aten.index(products, [inverse])


@observer(last=1)
def mixture_rows(given, mixture):
    """Return what a mixture of experts adds to rows, [rows, width], as `Mixture` binds it."""
    of, top = mixture.experts, mixture.top
    shares, ids = torch.topk(torch.softmax(product(given, mixture.router), -1), top, -1)
    ids, shares = ids.reshape(-1), shares_of(shares, mixture.normalized).reshape(-1)
    each = given.unsqueeze(1).expand(given.shape[0], top, given.shape[1]).flatten(0, 1)
    hidden = units_of(by_experts(each, of.both, ids), of.size, of.activation)
    found = by_experts(hidden, of.down, ids) * shares.unsqueeze(-1)
    return found.reshape(given.shape[0], top, found.shape[1]).sum(1)


def mixture_of(y, mixture, shape=None):
    """Return what a mixture of experts adds, in other dimensions if a shape says so."""
    return rows_in(mixture_rows(flat(y), mixture), y.shape if shape is None else shape)


# --- the whole ------------------------------------------------------------------------------------


@pattern(means=hiding(mixture_rows, mixture_of))
def Mixture(y, mixture):
    ids, shares, chosen, share, experts = var(), var(), var(), var(), var()
    count, number = var(), var()
    router, top, normalized, logits = var(), var(), var(), var()
    each = Regrouped(Weighted(y, ids, shares, experts, count, number))
    total = RoundedOnce(aten.sum(each, [1], False))
    ids <= InOrder(GETITEM(chosen, 1))
    shares <= InOrder(RoundedOnce(Shares(GETITEM(chosen, 0), normalized)))
    chosen <= aten.topk(share, top, -1, True, _)
    share <= Probabilities(logits)
    logits <= Product(y, router)
    assert total.dtype == y.dtype and each.dtype == shares.dtype
    assert each.rank == 3 and each.shape[1] == top and share.rank == 2 and logits.rank == 2
    assert ids.rank == 1 and shares.rank == 1
    assert count == top and number == share.shape[-1]
    let(
        mixture=record(
            experts=experts, router=router, top=top, normalized=normalized, share=share, each=each
        )
    )  # fmt: skip
    return total
