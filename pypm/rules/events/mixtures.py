"""Patterns of a mixture of experts."""

from pypm import let, pattern, record, var
from pypm.fx import GETITEM, aten
from pypm.rules.events.products import (
    Acted,
    InOrder,
    Probabilities,
    Product,
    Regrouped,
    RoundedOnce,
)
from pypm.rules.experts import Gather


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
    router, top, count, normalized, logits = var(), var(), var(), var(), var()
    hidden = Acted(GETITEM(parts, 0), kind) * GETITEM(parts, 1)
    each = Regrouped(ByExperts(hidden, down, ids) * aten.unsqueeze(shares, -1))
    total = RoundedOnce(aten.sum(each, [1], False))
    parts <= Halves(ByExperts(rows, both, ids), size)
    rows <= EachRow(y, count)
    ids <= InOrder(GETITEM(chosen, 1))
    shares <= InOrder(RoundedOnce(Shares(chosen, normalized)))
    chosen <= aten.topk(share, top, -1, True, _)
    share <= Probabilities(logits)
    logits <= Product(y, router)
    assert total.dtype == y.dtype and each.dtype == shares.dtype
    assert each.rank == 3 and each.shape[1] == count == top and share.rank == 2
    let(
        mixture=record(
            both=both, down=down, size=size, activation=kind, router=router, top=top,
            normalized=normalized, type=share.dtype, type_of_rows=each.dtype,
        )
    )  # fmt: skip
    return total
