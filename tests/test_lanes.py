"""Lanes over time: bars that are too narrow, labels that have room, and text."""

from __future__ import annotations

import random
from itertools import pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from pypm.lanes import TONES, BarKind, Lane, LaneBar, LanePanel, Lanes

SVG = "{http://www.w3.org/2000/svg}"
KINDS = {name: BarKind(TONES[n], f"kind {name}") for n, name in enumerate(["up", "down"])}


def some(count: int, seed: int = 0, lanes: int = 2, scale: float = 1.0) -> Lanes:
    """Bars of random lengths; each begins where the one before ends, or a little later."""
    rng, made = random.Random(seed), []
    for n in range(lanes):
        bars, now = [], 0.0
        for each in range(count):
            now += scale * rng.choice((0.0, 0.0, 2.0))
            end = now + scale * rng.uniform(0.1, 5)
            bars.append(LaneBar(rng.choice([*KINDS]), now, end, f"task <{each}>", f"t{each}"))
            now = end
        made.append(Lane(f"lane {n}", tuple(bars)))
    return Lanes("A & B", (LanePanel("panel", tuple(made)),), KINDS, "units")


def drawn(lanes: Lanes) -> tuple[Element, list[tuple[str, float, float, str]]]:
    """The picture, and of each bar its y, its ends and its class."""
    root = ElementTree.fromstring(lanes.svg())
    found = []
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        x = float(rect.attrib["x"])
        found.append((rect.attrib["y"], x, x + float(rect.attrib["width"]), rect.attrib["class"]))
    return root, found


def test_bars_with_room_are_drawn_by_themselves() -> None:
    lanes = some(20)
    root, bars = drawn(lanes)
    assert [kind for *_, kind in bars] == [bar.kind for bar in lanes.bars]
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert all(t.startswith(f"{b.title}, ") for t, b in zip(titles, lanes.bars, strict=True))
    (at, first, last, _), bar = bars[3], lanes.bars[3]
    assert at == bars[0][0] and (last - first) / (bars[2][2] - bars[2][1]) == pytest.approx(
        bar.time / lanes.bars[2].time, rel=0.1
    )


def test_thousands_of_bars_become_some_that_are_seen() -> None:
    lanes = some(4000)
    root, bars = drawn(lanes)
    assert 200 < len(bars) < 2 * 1120 / 1.5
    for (y, _, end, _), (other, begin, _, _) in pairwise(bars):
        assert y != other or end <= begin + 0.8
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    joined = [int(t.split(":")[0]) for t in titles if not t.startswith("task")]
    assert sum(joined) + len(titles) - len(joined) == 8000
    assert len(lanes.svg()) < 500_000


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e5])
@pytest.mark.parametrize("count", [1, 7, 300])
def test_labels_do_not_overlap(count: int, scale: float) -> None:
    """By the width of 0.6 of its height that a letter has."""
    root, _ = drawn(some(count, count, scale=scale))
    rows: dict[str, list[tuple[float, float]]] = {}
    for text in root.iter(f"{SVG}text"):
        x, shown, kind = float(text.attrib["x"]), text.text or "", text.attrib.get("class", "")
        size = 15 if "head" in kind else 10 if "inside" in kind else 11 if "small" in kind else 12
        wide = 0.6 * size * len(shown)
        begin = x - wide / 2 if "middle" in kind or "inside" in kind else x
        rows.setdefault(text.attrib["y"], []).append((begin, begin + wide))
        assert begin >= 0 and begin + wide <= 1120
    for spans in rows.values():
        assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(spans)))


def test_a_legend_takes_as_many_lines_as_it_needs() -> None:
    kinds = {
        f"k{n}": BarKind(TONES[n % len(TONES)], f"a kind with many words {n}") for n in range(20)
    }
    bars = tuple(LaneBar(name, n, n + 1, name) for n, name in enumerate(kinds))
    root, _ = drawn(Lanes("many", (LanePanel("", (Lane("one", bars),)),), kinds))
    places = [
        (float(t.attrib["y"]), float(t.attrib["x"]))
        for t in root.iter(f"{SVG}text")
        if (t.text or "").startswith("a kind")
    ]
    assert len(places) == 20 == len({*places}) and len({y for y, _ in places}) == 4
    assert max(x for _, x in places) + 11 * 0.6 * 24 < 1120


def test_lanes_without_bars() -> None:
    empty = Lanes("none", (LanePanel("", (Lane("one", ()),)),), KINDS)
    assert empty.text(80) == ""
    assert not drawn(empty)[1]


def test_text() -> None:
    bars = (LaneBar("up", 0, 2, "a", "up 0"), LaneBar("down", 3, 3.4, "b", "d 1"))
    lanes = Lanes("", (LanePanel("head", (Lane("a", bars), Lane("bcd", ()))),), KINDS)
    assert lanes.text(17) == "head\na   up 0------.....do\nbcd ................."
