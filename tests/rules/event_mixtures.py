"""Mixtures of experts in the forms of transformers, and others that only look like them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH = 36
EXPERTS, TOP = 5, 2
Layer = dict[str, Tensor]
"""The weights and caches of a layer by name."""


def mixture(y: Tensor, w: Layer, other: dict[str, Any]) -> Tensor:
    """Experts by gathered weights, as transformers computes them where it compiles."""
    rows = y.reshape(-1, WIDTH)
    shares = F.linear(rows, w["router"]).softmax(-1)
    shares, ids = shares.topk(TOP, -1, largest=not other.get("smallest"))
    whole = shares.sum(-1, keepdim=True)
    shares = (shares / (whole * 2 if other.get("halves") else whole)).reshape(-1)
    shares = shares.bfloat16() if other.get("rounded_shares") else shares
    ids, each = ids.reshape(-1), rows.repeat_interleave(TOP, 0)
    gate, up = (w["both"][ids] @ each[..., None]).squeeze(-1).chunk(2, -1)
    hidden = F.silu(gate) * (gate if other.get("gates_twice") else up)
    found = (w["each"][ids] @ hidden[..., None]).squeeze(-1) * shares[:, None]
    return found.view(-1, TOP, WIDTH).sum(1).view(y.shape)


def sorted_mixture(y: Tensor, w: Layer, other: dict[str, Any]) -> Tensor:
    """`mixture` with rows sorted by experts, as transformers computes them by default."""
    multiplied = torch.ops.transformers.grouped_mm_fallback
    rows = y.reshape(-1, WIDTH)
    shares, ids = F.linear(rows, w["router"]).softmax(-1).topk(TOP, -1)
    shares, ids = (shares / shares.sum(-1, keepdim=True)).reshape(-1), ids.reshape(-1)
    by_expert, order = ids.sort(descending=bool(other.get("from_the_last")))
    ends = torch.histc(by_expert.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
    each = rows[order // (TOP + bool(other.get("other_rows")))]
    gate, up = multiplied(each, w["both"].transpose(1, 2), ends).chunk(2, -1)
    found = multiplied(F.silu(gate) * up, w["each"].transpose(1, 2), ends)
    found = found * (shares if other.get("shares_as_they_are") else shares[order])[:, None]
    inverse = torch.empty_like(order).index_put((order,), torch.arange(len(order)))
    found = found[order if other.get("sorted_twice") else inverse]
    return found.view(-1, TOP, WIDTH).sum(1).view(y.shape)
