"""Spellings that other rules are made of, by themselves."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern
from pypm.fx import aten, find
from pypm.rules.spellings import NoOp, Reshape


@pattern(through=NoOp)
def Twice(x):
    return aten.exp(x) + aten.exp(x)


def test_a_bitcast_is_no_reshape() -> None:
    def views(x):
        bits = x.exp().view(torch.int64)
        return bits + bits, x.view(8, 2), x.reshape(2, 8)

    gm = make_fx(views, tracing_mode="fake")(torch.ones(4, 4, dtype=torch.float64))
    assert [match.root.target for match in find(gm, Reshape)] == 2 * [torch.ops.aten.view.default]
    assert find(gm, Twice) == []
