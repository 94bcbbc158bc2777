"""Claims of the pages about GPUs, as data in `claims.toml`, and what results say of them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["CLAIMS", "Claim", "words"]

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Claim:
    """A sentence of a page, and the figure that decides whether it is true."""

    id: str
    page: str
    sentence: str
    part: str
    figure: str
    least: float | None = None
    most: float | None = None

    def stands(self) -> bool:
        """Return whether the sentence is on its page."""
        return words(self.sentence) in words((ROOT / self.page).read_text(encoding="utf-8"))

    def verdict(self, figures: Mapping[str, float]) -> str:
        """Return "confirmed" or "refuted" with the figure, by those of its part; else "open"."""
        found = figures.get(self.figure)
        if found is None:
            return "open"
        is_right = (self.least is None or found >= self.least) and (
            self.most is None or found <= self.most
        )
        bounds = [f"least {self.least}"] * (self.least is not None)
        bounds += [f"most {self.most}"] * (self.most is not None)
        return f"{'confirmed' if is_right else 'refuted'}: {found:.3g}, {', '.join(bounds)}"


def words(text: str) -> str:
    """Return text without the comments that name figures, and with single spaces."""
    return " ".join(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split())


CLAIMS: Final = tuple(
    Claim(**each)
    for each in tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))[
        "claim"
    ]
)
