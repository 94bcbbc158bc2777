"""The map of attention: `python -m benchmarks.choice_map RESULTS.json PICTURE.svg`.

It draws the results that `benchmarks.choice --output` writes, a cell for each point. A cell has its
figure and a letter for what was applied, so that its colour says nothing that is not written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

from pypm.fx.reporting.appraisal import factor

__all__ = ["picture"]

APPLIED: Final = {
    (): ("\u2013", "left as it is"),
    ("sdpa",): ("K", "fused kernel"),
    ("attention_by_products",): ("P", "two products"),
    ("called_attention_by_products", "sdpa"): ("KP", "kernel, then two products"),
    ("decoding",): ("V", "visible keys alone"),
}
"""Letters and words for the rules that were applied."""
BANDS: Final = (
    (0.97, "slower", "slower than 0.97"),
    (1.03, "equal", "0.97 to 1.03"),
    (1.25, "gain1", "to 1.25"),
    (2.0, "gain2", "to 2"),
    (5.0, "gain3", "to 5"),
    (float("inf"), "gain4", "more than 5"),
)
"""The first gain above each band, its class, and its words."""
LEFT: Final = 196
CELL: Final = (122, 26)
TOP: Final = 92
STYLE: Final = """<style>
  text { font: 13px sans-serif; text-anchor: middle; dominant-baseline: central; fill: #222 }
  .left { text-anchor: start } .right { text-anchor: end } .small { font-size: 12px; fill: #555 }
  .title { font-weight: bold } .letter { font-size: 12px } .paper { fill: #fff }
  .slower { fill: #f8bba0; stroke: #bf360c; stroke-width: 2 } .equal { fill: #eceff1 }
  .gain1 { fill: #e3f2fd } .gain2 { fill: #bbdefb } .gain3 { fill: #90caf9 }
  .gain4 { fill: #64b5f6 }
</style>"""


def picture(document: Mapping[str, Any]) -> str:
    """Return the map as SVG: a row for each shape, a column for each type with and without mask."""
    points: Sequence[Mapping[str, Any]] = document["points"]
    shapes = list(dict.fromkeys(tuple(point["shape"]) for point in points))
    kinds = list(dict.fromkeys((point["dtype"], point["mask"]) for point in points))
    width = LEFT + len(kinds) * CELL[0] + 16
    bottom = TOP + len(shapes) * CELL[1]
    mean = geometric_mean(point["gain"] for point in points)
    title = "How many times as fast as torch.compile alone: attention with the default choice"
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 96}" role="img" '
        f'aria-label="{escape(title)}; geometric mean {mean:.2f}">',
        STYLE,
        '<rect width="100%" height="100%" class="paper"/>',
        _text(16, 22, title, "left title"),
        _text(16, 44, _where(document, len(points), mean), "left small"),
        _text(LEFT - 10, 76, "batch x heads x queries x keys", "right small"),
    ]
    for column, (dtype, has_mask) in enumerate(kinds):
        x = LEFT + column * CELL[0] + CELL[0] / 2
        drawn.append(_text(x, 76, f"{dtype}, {'mask' if has_mask else 'no mask'}"))
    for row, shape in enumerate(shapes):
        batch, heads, groups, queries, keys = shape
        y = TOP + row * CELL[1] + CELL[1] / 2
        name = f"{batch} x {heads}/{groups} x {queries} x {keys}"
        drawn.append(_text(LEFT - 10, y, name, "right"))
    for point in points:
        row = shapes.index(tuple(point["shape"]))
        column = kinds.index((point["dtype"], point["mask"]))
        drawn += _cell(point, LEFT + column * CELL[0], TOP + row * CELL[1])
    drawn += _legend(points, bottom + 26)
    return "\n".join([*drawn, "</svg>\n"])


def _where(document: Mapping[str, Any], count: int, mean: float) -> str:
    machine, torch = document["machine"], document["versions"]["torch"]
    threads = "one thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    return (
        f"{count} points on {machine['processor']}, {threads}, torch {torch}; "
        f"geometric mean {mean:.2f}"
    )


def _cell(point: Mapping[str, Any], x: float, y: float) -> Iterator[str]:
    letters, words = _applied(point)
    gain = point["gain"]
    name = next(name for most, name, _ in BANDS if gain < most)
    figure = factor(gain)
    width, height = CELL
    said = f"{point['milliseconds']:.3g} ms compiled alone; {words}"
    yield f'<g><title>{escape(said)}</title><rect x="{x + 2}" y="{y + 2}" '
    yield f'width="{width - 4}" height="{height - 4}" rx="3" class="{name}"/>'
    middle = y + height / 2
    yield _text(x + width / 2, middle, figure)
    yield _text(x + width - 24, middle, letters, "letter")
    yield "</g>"


def _applied(point: Mapping[str, Any]) -> tuple[str, str]:
    rules = tuple(sorted(point["rules"]))
    return APPLIED.get(rules, ("+", ", ".join(rules)))


def _legend(points: Sequence[Mapping[str, Any]], y: float) -> Iterator[str]:
    x = 16
    for _, name, words in BANDS:
        yield f'<rect x="{x}" y="{y - 7}" width="18" height="14" rx="3" class="{name}"/>'
        yield _text(x + 24, y, words, "left small")
        x += 44 + 7 * len(words)
    used = dict(_applied(point) for point in points)
    said = "; ".join(f"{letters} {words}" for letters, words in used.items())
    yield _text(16, y + 26, said, "left small")
    yield _text(
        16, y + 48, "Where nothing is applied both versions are the same code: noise", "left small"
    )


def _text(x: float, y: float, text: str, name: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{name}">{escape(text)}</text>'


def main(results: str, output: str) -> None:
    document = json.loads(Path(results).read_text(encoding="utf-8"))
    Path(output).write_text(picture(document), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
