"""The pipeline over time: what a timed run computes, the order of its spans, and the picture."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch

from pypm.tiles.emulator import Fault, emulate
from pypm.tiles.partition import Rings
from pypm.tiles.timeline import TimedMachine, spans_of, timeline
from tests.tiles import picture
from tests.tiles.cases import GATED, GEMM, SIDES, drawn, expected, kernel

RINGS = Rings(3, 1, 2)


def ends(text: str, rings: Rings) -> float:
    return max(span.end for span in spans_of(kernel(text, rings), 2, 6))


@pytest.mark.parametrize("text", [GEMM, GATED, SIDES], ids=["gemm", "gated", "sides"])
def test_a_timed_run_computes_the_result(text: str) -> None:
    made = kernel(text, RINGS)
    given = drawn(made.source.program, {"M": 130, "N": 70, "K": 200}, 0)
    emulate(made, given, machines=TimedMachine)
    for name, exact in expected(text, given).items():
        torch.testing.assert_close(given[name].double(), exact, rtol=2e-2, atol=8e-2)


def test_a_timed_run_finds_deadlocks() -> None:
    made = kernel(GEMM, RINGS)
    given = drawn(made.source.program, {"M": 64, "N": 64, "K": 64}, 0)
    text = made.text.replace("phase ^ 1", "phase")
    with pytest.raises(Fault, match=r"deadlock: .*producer2 at slot 0 of r0_empty"):
        emulate(made, given, text=text, machines=TimedMachine)


def test_products_read_what_has_landed_and_copies_wait_for_products() -> None:
    spans = spans_of(kernel(GEMM, Rings(3, 1)), 2, 6)
    assert Counter(span.kind for span in spans)["copy"] == 2 * 2 * 6
    copies = {(s.lane, s.number): s for s in spans if s.kind == "copy"}
    products = [s for s in spans if s.kind == "product"]
    assert [s.number for s in products] == [*range(1, 13)]
    for turn, product in enumerate(products):
        slot, item = turn % 3, turn // 3 + 1
        for name in "ab":
            lane = f"slot {slot} of {name}_ring"
            assert copies[lane, item].end <= product.begin
            later = copies.get((lane, item + 1))
            assert later is None or later.begin >= product.end
    assert all(one.end <= two.begin for one, two in pairwise(products))


def test_rings_take_less_time() -> None:
    """More slots overlap copies with products."""
    times = [ends(GEMM, Rings(depth, 0)) for depth in (1, 2, 4)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.8 * times[0]


def test_waits_are_until_something_happens() -> None:
    spans = spans_of(kernel(GATED, RINGS), 1, 4)
    waits = [s for s in spans if s.kind == "wait" and s.lane.startswith("consumer")]
    done = {s.end for s in spans if s.kind in ("copy", "product", "store")}
    for wait in waits:
        assert any(abs(wait.end - end) < 1e-6 for end in done), wait


def test_the_picture_has_a_bar_for_each_span() -> None:
    made = kernel(GATED, RINGS)
    svg = timeline(made, tiles=2, turns=3)
    root = ElementTree.fromstring(svg)
    names = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    for lane in ("producer", "a, slot 2", "b, slot 0", "consumer 1"):
        assert lane in names
    found = Counter(
        rect.attrib["class"]
        for group in root.iter("{http://www.w3.org/2000/svg}g")
        for rect in group.iter("{http://www.w3.org/2000/svg}rect")
    )
    assert found["product"] == 2 * 2 * 2 * 3  # products, consumers, tiles, turns
    assert found["copy"] == found["held"] == 3 * 2 * 3  # rings, tiles, turns
    right = max(float(r.attrib["x"]) + float(r.attrib["width"]) for r in root.iter()
                if "x" in r.attrib and "width" in r.attrib)  # fmt: skip
    assert right <= 1120


def test_the_picture_of_the_page_is_current() -> None:
    """`python -m tests.tiles.picture` draws it anew."""
    assert picture.FILE.read_text(encoding="utf-8") == picture.svg()
