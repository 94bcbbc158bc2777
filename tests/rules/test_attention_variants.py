"""Variants of attention, each in three spellings: what is done to the scores decides the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest
import torch
from torch import Tensor

from pypm import RuleSet
from pypm.rules.attention import attention_by_blocks, block_sparse, sdpa
from tests.axes import axes
from tests.rules.test_block_attention import rewritten

RULES: Final = RuleSet((attention_by_blocks, sdpa), "variants")
B, H, S, D = 2, 4, 160, 8


@pytest.fixture(autouse=True)
def _however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sparse, "FEW_SCORES", 0)


def rows(n: int = S) -> Tensor:
    return torch.arange(n)[:, None]


def columns(n: int = S) -> Tensor:
    return torch.arange(n)[None]


# --- spellings ------------------------------------------------------------------------------------

Steps = Callable[..., Tensor]
"""From the scores [B, H, S, T] and data to the scores."""


def matmul(q: Tensor, k: Tensor, v: Tensor, steps: Steps) -> Tensor:
    return torch.softmax(steps(q @ k.transpose(-2, -1) * 0.35), -1) @ v


def einsum(q: Tensor, k: Tensor, v: Tensor, steps: Steps) -> Tensor:
    scores = steps(torch.einsum("bhsd,bhtd->bhst", q * 0.35, k))
    return torch.einsum("bhst,bhte->bhse", scores.softmax(-1), v)


def bmm(q: Tensor, k: Tensor, v: Tensor, steps: Steps) -> Tensor:
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)) / 2.8
    scores = steps(scores.view(B, H, q.shape[2], k.shape[2])).flatten(0, 1)
    return torch.bmm(scores.softmax(-1), v.flatten(0, 1)).view_as(q)


def filled(x: Tensor, seen: Tensor, low: float | None) -> Tensor:
    return x.masked_fill(~seen, -1e9 if low is None else low)


def kept(x: Tensor, seen: Tensor, low: float | None) -> Tensor:
    return torch.where(seen, x, torch.finfo(x.dtype).min if low is None else low)


def added(x: Tensor, seen: Tensor, low: float | None) -> Tensor:
    return x + torch.where(seen, 0.0, -math.inf)


SPELLINGS: Final = {
    "matmul, filled": (matmul, filled),
    "einsum, kept": (einsum, kept),
    "bmm, added": (bmm, added),
}


# --- variants -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    rule: str
    seen: Callable[..., Tensor] | None = None
    """From the data to the truth values of the elements that are seen."""
    steps: Callable[..., Tensor] = lambda x, *data: x
    """What is done to the scores before."""
    data: tuple[Tensor, ...] = ()
    keys: int = S
    low: float | None = None
    """What hides where it is not added; biases that are data may be as low as a finite number."""


def causal() -> Tensor:
    return columns() <= rows()


def window(width: int = 20) -> Tensor:
    return (columns() <= rows()) & (rows() - columns() < width)


def per_head() -> Tensor:
    widths = (torch.arange(H) * 15 + 10)[:, None, None]
    return (columns() <= rows()) & (rows() - columns() < widths)


def slopes() -> Tensor:
    return torch.pow(2.0, -2.0 * torch.arange(1, H + 1))[:, None, None]


def buckets() -> Tensor:
    """T5's: near places each for itself, far ones by the logarithm of their distance."""
    away = (columns() - rows()).abs()
    far = 8 + (torch.log(away.clamp(min=1).float() / 8) / math.log(4) * 8).long().clamp(0, 7)
    return torch.where(away < 8, away, far) + 16 * (columns() > rows())


STORED: Final = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
DOCUMENTS: Final = torch.arange(S)[None] // torch.tensor([[50], [37]])
LEFT, RIGHT = (torch.ones(B, S, dtype=torch.bool) for _ in range(2))
LEFT[1, :9] = RIGHT[0, 130:] = False
TABLE: Final = torch.randn(32, H, generator=torch.Generator().manual_seed(1))
PAIR: Final = torch.randn(1, H, S, S, generator=torch.Generator().manual_seed(2))
PLACES: Final = torch.arange(S * S).view(S, S) * 7 % 32
BLOCKS, DENSE = "attention_by_blocks", "sdpa"

VARIANTS: Final = {
    "causal": Variant(DENSE, causal),
    "causal with a past": Variant(
        DENSE, lambda: columns(S + 32) <= rows() + 32, keys=S + 32
    ),
    "window": Variant(BLOCKS, window),
    "dilated window": Variant(BLOCKS, lambda: window() & ((rows() - columns()) % 2 == 0)),
    "prefix": Variant(BLOCKS, lambda: (columns() < 20) | causal()),
    "chunked": Variant(BLOCKS, lambda: (rows() // 32 == columns() // 32) & causal()),
    "windows of each head": Variant(BLOCKS, per_head),
    "ALiBi, slopes computed": Variant(BLOCKS, causal, lambda x: x + slopes() * columns()),
    "ALiBi, slopes stored": Variant(
        BLOCKS,
        lambda slope: causal(),
        lambda x, slope: x + slope * (columns() - rows()),
        (STORED,),
        low=-math.inf,
    ),
    "T5": Variant(DENSE, None, lambda x, t: x + t[buckets()].permute(2, 0, 1)[None], (TABLE,)),
    "Swin": Variant(
        DENSE,
        None,
        lambda x, t, at: x + t[at.view(-1)].view(S, S, H).permute(2, 0, 1)[None],
        (TABLE, PLACES),
    ),
    "a table of biases, window": Variant(
        BLOCKS, lambda t: window(), lambda x, t: x + t, (PAIR,), low=-math.inf
    ),
    "soft cap": Variant(BLOCKS, None, lambda x: torch.tanh(x / 5) * 5),
    "soft cap, causal": Variant(BLOCKS, causal, lambda x: torch.tanh(x / 5) * 5),
    "documents, causal": Variant(
        BLOCKS,
        lambda d: (d[:, None, :, None] == d[:, None, None]) & causal(),
        data=(DOCUMENTS,),
    ),
    "padding on the right": Variant(BLOCKS, lambda p: p[:, None, None], data=(RIGHT,)),
    "padding on the left, causal": Variant(
        BLOCKS, lambda p: (p[:, None, None] & causal()) | (columns() == rows()), data=(LEFT,)
    ),
    "Evoformer's pair bias": Variant(DENSE, None, lambda x, pair: x + pair, (PAIR,)),
    "Evoformer's pair bias and mask": Variant(
        BLOCKS, lambda pair, p: p[:, None, None], lambda x, pair, p: x + pair, (PAIR, RIGHT),
        low=-math.inf,
    ),
    "cross attention, both masks": Variant(
        BLOCKS,
        lambda mine, p: (p[:, None, None] & mine[:, None, :, None]) | (columns() == 0),
        data=(LEFT, RIGHT),
    ),
}  # fmt: skip


@axes(name=VARIANTS, spelling=SPELLINGS, way=["decomposed", "export"])
def test_each_variant_in_each_spelling(name: str, spelling: str, way: str) -> None:
    variant, (products, hide) = VARIANTS[name], SPELLINGS[spelling]

    def attention(q: Tensor, k: Tensor, v: Tensor, *data: Tensor) -> Tensor:
        def steps(x: Tensor) -> Tensor:
            x = variant.steps(x, *data)
            return x if variant.seen is None else hide(x, variant.seen(*data), variant.low)

        return products(q, k, v, steps)

    made = torch.Generator().manual_seed(0)
    sizes = (S, variant.keys, variant.keys)
    operands = [torch.randn(B, H, n, D, generator=made) for n in sizes]
    _, report = rewritten(attention, [*operands, *variant.data], way, RULES)
    assert [record.rule for record in report.rewrites] == [variant.rule], str(report)
