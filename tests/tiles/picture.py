"""The picture of the pipeline on the page about tiles: `python -m tests.tiles.picture`."""

from __future__ import annotations

import re
from typing import Final

from pypm.tiles.partition import Rings
from pypm.tiles.timeline import timeline
from tests.floors import ROOT
from tests.tiles.cases import kernel

FILE: Final = ROOT / "docs" / "pictures" / "tiles.svg"
RINGS: Final = Rings(3, 1, 2, 4)


def svg() -> str:
    """The first program of the page, over time."""
    page = (ROOT / "docs/tiles.md").read_text(encoding="utf-8")
    found = re.search(r"^```tiles\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    return timeline(kernel(found[1], RINGS))


if __name__ == "__main__":
    FILE.write_text(svg(), encoding="utf-8")
