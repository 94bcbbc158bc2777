"""Pictures of block masks as they are decided: `python -m tests.kernels.mask_pictures FILE`."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pypm.kernels.attention.block_sparse import BLOCK
from pypm.kernels.attention.blocks import EMPTY, FULL, PARTIAL, decide
from pypm.kernels.attention.expressions import parse
from tests.floors import ROOT

__all__ = ["FILE", "MASKS", "Mask", "svg"]

FILE: Final = ROOT / "docs" / "pictures" / "blocks.svg"
TOKENS: Final = 1024


class Mask(NamedTuple):
    """An expression over scores, and the tensors that it reads."""

    text: str
    tensors: tuple[Tensor, ...] = ()


def _documents() -> Tensor:
    return torch.repeat_interleave(torch.arange(4), torch.tensor([200, 330, 384, 110]))[None]


def _place() -> Tensor:
    return torch.arange(TOKENS)[None]


MASKS: Final = {
    "causal": Mask("k <= q"),
    "window of 200": Mask("(k <= q) & ((q - k) < 200)"),
    "dilated window": Mask("((k <= q) & ((q - k) < 512)) & (((q - k) // 64) % 2 == 0)"),
    "prefix of 320": Mask("(k < 320) | (k <= q)"),
    "documents, causal": Mask("(k <= q) & (t0[b, q] == t0[b, k])", (_documents(),)),
    "chunks of 256, causal": Mask("(k <= q) & ((q // 256) == (k // 256))"),
    "padding on the left, causal": Mask("t0[b, k] & (k <= q)", (_place() >= 300,)),
    "padding on the right": Mask("t0[b, k]", (_place() < 700,)),
}
NAMES: Final = {EMPTY: "empty", PARTIAL: "partial", FULL: "full"}
CELL: Final = 9
SIDE: Final = CELL * (TOKENS // BLOCK[0])
PANEL: Final = (SIDE + 46, SIDE + 62)
ACROSS: Final = 4
STYLE: Final = """<style>
  text { font: 13px sans-serif; fill: #222 } .small { font-size: 11px; fill: #555 }
  .paper { fill: #fff } .empty { fill: #f5f5f5; stroke: #ddd }
  .partial { fill: #90caf9; stroke: #fff } .full { fill: #1565c0; stroke: #fff }
</style>"""


def kinds(mask: Mask) -> Tensor:
    """Return the kinds of a mask's blocks, [blocks of queries, blocks of keys]."""
    blocks = decide(parse(mask.text), (1, 1, TOKENS, TOKENS), BLOCK, mask.tensors)
    return blocks.kinds[0, 0]


def svg() -> str:
    """Return a panel for each mask: queries from top to bottom, keys from left to right."""
    down = -(-len(MASKS) // ACROSS)
    width, height = ACROSS * PANEL[0] + 20, down * PANEL[1] + 44
    title = f"Blocks of {BLOCK[0]} queries and {BLOCK[1]} keys among {TOKENS:,} tokens"
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{title}: {escape(", ".join(MASKS))}">',
        STYLE,
        '<rect width="100%" height="100%" class="paper"/>',
        *_legend(title),
    ]
    for number, (name, mask) in enumerate(MASKS.items()):
        left, top = 20 + number % ACROSS * PANEL[0], 70 + number // ACROSS * PANEL[1]
        found = kinds(mask)
        counts = [f"{int((found == kind).sum())} {NAMES[kind]}" for kind in (FULL, PARTIAL, EMPTY)]
        drawn.append(f'<text x="{left}" y="{top - 8}">{escape(name)}</text>')
        below = f'<text x="{left}" y="{top + SIDE + 15}" class="small">'
        drawn.append(f"{below}{', '.join(counts)}</text>")
        for kind in NAMES:
            places = (found == kind).nonzero().tolist()
            drawn.append(_cells([(left + CELL * j, top + CELL * i) for i, j in places], kind))
    return "\n".join([*drawn, "</svg>\n"])


def _legend(title: str) -> list[str]:
    drawn = [f'<text x="20" y="26">{title}:</text>']
    for number, (kind, words) in enumerate(
        ((FULL, "full, no mask is applied"), (PARTIAL, "partial"), (EMPTY, "empty, left out"))
    ):
        x = 390 + (0, 170, 250)[number]
        drawn += [
            _cells([(x, 17)], kind),
            f'<text x="{x + 14}" y="26" class="small">{words}</text>',
        ]
    return drawn


def _cells(corners: list[tuple[int, int]], kind: int) -> str:
    squares = "".join(f"M{x} {y}h{CELL}v{CELL}h-{CELL}z" for x, y in corners)
    return f'<path d="{squares}" class="{NAMES[kind]}"/>'


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else FILE).write_text(svg(), encoding="utf-8")
