"""Every hole can be opened in the sources as they are, and the hunt draws graphs to show it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache

import pytest

from tests.hunt.graphs import Case, drawn
from tests.hunt.holes import HOLES, ROOT, Hole

OPENED = pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.name.replace(" ", "-"))


@cache
def cases() -> Sequence[Case]:
    return [drawn(seed) for seed in range(3_000)]


@OPENED
def test_hole_can_be_opened(hole: Hole) -> None:
    source = (ROOT / "pypm" / hole.module).read_text()
    changed = hole.changed(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


@OPENED
def test_graphs_may_show_it(hole: Hole) -> None:
    assert any(map(hole.may_show, cases()))


def test_names_are_unique() -> None:
    assert len({hole.name for hole in HOLES}) == len(HOLES)
