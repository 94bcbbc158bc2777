"""The benchmark of the default choice, and the picture of its results."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from itertools import product
from pathlib import Path

import pytest

from benchmarks import choice, choice_map
from benchmarks.results import setting

SVG = "{http://www.w3.org/2000/svg}"
KINDS = ((), ("sdpa",), ("sdpa", "called_attention_by_products"), ("another",))
GAINS = (0.5, 0.99, 1.1, 1.5, 3.0, 24.31)


def document() -> choice.Result:
    made = []
    for number, (shape, dtype, mask) in enumerate(
        product(choice.SHAPES[:3], ("bfloat16", "float32"), (True, False))
    ):
        made.append(
            {
                "shape": [*shape],
                "mask": mask,
                "dtype": dtype,
                "rules": [*KINDS[number % len(KINDS)]],
                "milliseconds": 1.25,
                "gain": GAINS[number % len(GAINS)],
                "best": "torch.compile",
                "over_best": 1.0,
            }
        )
    machine = {"processor": "<A & B>", "threads": 1}
    return {"machine": machine, "versions": {"torch": "2"}, "points": made}


def test_the_map_says_in_text_what_it_says_in_colour() -> None:
    root = ET.fromstring(choice_map.picture(document()))
    cells = root.findall(f"{SVG}g")
    assert len(cells) == 12
    for cell, point in zip(cells, document()["points"], strict=True):
        figure, letters = (text.text or "" for text in cell.findall(f"{SVG}text"))
        assert float(figure) == pytest.approx(point["gain"], abs=0.01)
        assert letters == {0: "\u2013", 1: "K", 2: "KP"}.get(KINDS.index((*point["rules"],)), "+")
        assert (cell.findtext(f"{SVG}title") or "").startswith("1.25 ms compiled alone; ")
    bands = [cell[1].get("class") for cell in cells]
    assert bands[:6] == ["slower", "equal", "gain1", "gain2", "gain3", "gain4"]
    said = " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
    for words in ("12 points on <A & B>, one thread", "8 x 32/8 x 1 x 1024", "more than 5"):
        assert words in said
    assert "K fused kernel; KP kernel, then two products; + another" in said


def test_results_are_written_and_drawn(tmp_path: Path) -> None:
    results, drawn = tmp_path / "results.json", tmp_path / "map.svg"
    results.write_text(json.dumps(document()))
    choice_map.main(str(results), str(drawn))
    assert drawn.read_text().startswith("<svg")
    assert {*document()["machine"]} < {*setting()["machine"]}


def test_names_of_rules_are_those_that_exist() -> None:
    shipped = {rule.name for rule in choice.inference.RULES}
    assert {name for rules in choice_map.APPLIED for name in rules} <= shipped
