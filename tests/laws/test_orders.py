"""Laws of the largest elements, counts, sums and writes at places: true ones and damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm import pattern, rule, var
from pypm.fx import aten
from pypm.laws.algebra import NoMeaning
from pypm.laws.equations import compared
from pypm.laws.prove import prove
from pypm.laws.verdicts import Open, Proved
from tests.laws.pairs import t
from tests.laws.sides import between

PLACE, PLACES = torch.zeros(1, dtype=torch.int64), torch.zeros(5, dtype=torch.int64)
CACHE, NEW = t(3, 5, 7, 11), t(3, 5, 1, 11)
ROWS, SCORES, WEIGHTS = t(10, 7), t(5, 13), t(13, 7, 11)
copied, put = torch.ops.aten.index_copy, torch.ops.aten.index_put


def chosen(scores: Tensor) -> Tensor:
    return scores.topk(2, -1)[1].reshape(-1)


def back(order: Tensor) -> Tensor:
    return put(torch.zeros_like(order), (order,), torch.arange(order.shape[0]))


def by_groups(scores: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    row, order = chosen(scores).sort()
    count = weights.shape[0]
    ends = torch.histc(row.double(), count, 0, count - 1).cumsum(0)
    return torch._grouped_mm(rows[order], weights, ends)[back(order)]


def summed_before(x: Tensor, diagonal: int) -> Tensor:
    return (x * torch.ones_like(x * x[:, None]).tril(diagonal)).sum(-1)


def counted(ids: Tensor, first: int) -> Tensor:
    return (ids == torch.arange(first, first + 3)[:, None]).double().sum(1)


LAWS: Final[dict[str, tuple[Callable[..., Any], ...]]] = {
    "topk": (
        lambda x: x.topk(2, -1)[0],
        lambda x: x.gather(-1, x.topk(2, -1)[1]),
        lambda x: x.topk(2, -1)[0].flip(-1),
    ),
    "topk of a row": (
        lambda x: (x + x).topk(2, -1)[1],
        lambda x: (2 * x).topk(2, -1)[1],
        lambda x: (x * x).topk(2, -1)[1],
    ),
    "index_copy": (
        lambda c, n, i: copied(c, 2, i, n),
        lambda c, n, i: put(c, (None, None, i), n),
        lambda c, n, i: put(c, (None, None, i + 1), n),
    ),
    "index_put": (
        lambda c, n, i: put(c, (None, None, i), n)[:, :, i],
        lambda c, n, i: n * 1,
        lambda c, n, i: c[:, :, i],
    ),
    "an inverse": (
        lambda i, x: x[i.sort()[1]][back(i.sort()[1])],
        lambda i, x: x * 1,
        lambda i, x: x[i.sort()[1]],
    ),
    "cumsum": (
        lambda x: x.cumsum(0),
        lambda x: summed_before(x, 0),
        lambda x: summed_before(x, -1),
    ),
    "histc": (
        lambda i: torch.histc(i.double(), 3, 0, 2),
        lambda i: counted(i, 0),
        lambda i: counted(i, 1),
    ),
    "quotients rounded down": (
        lambda i: torch.arange(i.shape[0]) // 2 // 3,
        lambda i: torch.arange(i.shape[0]) // 6,
        lambda i: torch.arange(i.shape[0]) // 2 // 2.5,
    ),
    "groups": (
        by_groups,
        lambda s, x, w: (x.unsqueeze(1) @ w[chosen(s)]).squeeze(1),
        lambda s, x, w: by_groups(s, x, w)[chosen(s).sort()[1]],
    ),
}
LIKE: Final[dict[str, tuple[Tensor, ...]]] = {
    "index_copy": (CACHE, NEW, PLACE),
    "index_put": (CACHE, NEW, PLACE),
    "an inverse": (PLACES, t(5, 7)),
    "cumsum": (t(7),),
    "histc": (PLACES,),
    "quotients rounded down": (PLACES,),
    "groups": (SCORES, ROWS, WEIGHTS),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_damaged_law_is_told_apart(name: str) -> None:
    one, other, damaged = LAWS[name]
    like = LIKE.get(name, (SCORES,))
    assert compared(between(one, other, like)) is None
    assert compared(between(one, damaged, like)) is not None


def test_quotients_by_other_numbers_are_not_those_by_their_product() -> None:
    def twice(i: Tensor) -> Tensor:
        return torch.arange(i.shape[0]) // 2 // 2.5

    assert compared(between(twice, twice, (PLACES,))) is None
    by_product = between(twice, lambda i: torch.arange(i.shape[0]) // 5, (PLACES,))
    assert compared(by_product) is not None


def test_an_order_is_written_into_the_first_elements_of_more() -> None:
    def written(i: Tensor, x: Tensor) -> Tensor:
        return put(x, (i.sort()[1],), torch.arange(i.shape[0]).double())

    like = (PLACES, t(7))
    assert compared(between(written, lambda i, x: back(i.sort()[1]).double(), like)) is not None
    assert compared(between(written, written, like)) is None


def test_bins_of_real_numbers_are_not_those_of_whole_ones() -> None:
    with pytest.raises(NoMeaning, match="no whole numbers"):
        between(lambda x: torch.histc(x, 3, 0, 2), lambda x: counted(x, 0), (t(5),))


@pattern
def Largest(x: Any) -> Any:
    chosen = var()
    chosen <= aten.topk(x, 2, -1, True, True)
    return aten.gather(x, -1, chosen[1])


@rule(Largest)
def least(x: Any) -> Any:
    return -(-x).topk(2, -1)[0]


@rule(Largest)
def largest(x: Any) -> Any:
    return x.topk(2, -1)[0]


def test_the_largest_elements_are_in_no_order_in_finite_fields() -> None:
    assert isinstance(prove(largest).verdicts[0], Proved)
    assert isinstance(prove(least).verdicts[0], Open)
