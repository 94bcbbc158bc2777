"""Measured times by key, kept beside Inductor's caches: an answer is never changed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Final

import torch

from pypm.kept_figures import keep_first, kept, stored
from pypm.timing import Times

__all__ = ["Answers", "figures", "numbers"]

_KIND: Final = "answers"


class Answers:
    """Numbers by key, on disk; in memory while torch's caches are disabled.

    Of several processes that answer the same question, the first wins.
    """

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, float]] = {}

    def get(self, key: str, names: Iterable[str]) -> Mapping[str, float] | None:
        """Return the answer to a key; None if there is none with numbers of just these names."""
        if key not in self._known and _are_kept():
            wanted = {*names}
            found = kept(_KIND, key, lambda value: numbers(value, wanted))
            if found is not None:
                self._known[key] = found
        return self._known.get(key)

    def put(self, key: str, answer: Mapping[str, float]) -> Mapping[str, float]:
        """Keep an answer, unless there is one already; return the one that is kept."""
        found = None
        if _are_kept():
            given, names = dict(answer), {*answer}
            found = keep_first(_KIND, key, given, lambda value: numbers(value, names))
        self._known[key] = dict(answer) if found is None else found
        return self._known[key]

    def listing(self) -> str:
        """Return text that changes where an answer is added."""
        return " ".join(stored(_KIND)) if _are_kept() else ""

    def identity(self) -> str:
        """Return the name of this collection: while it is the same, no answer changes."""
        found = keep_first(_KIND, "identity", uuid.uuid4().hex, _text) if _are_kept() else None
        return found or f"in memory {os.getpid()} {id(self)}"


def figures(times: Times) -> dict[str, float]:
    """Return an answer: the median of the times "before", the middle and the upper quartile of the
    ratios of those "after" to them, and the number of rounds.
    """
    ratios = sorted(times.ratios("after", "before"))
    return {
        "before": times.median("before"),
        "ratio": ratios[len(ratios) // 2],
        "upper": ratios[3 * len(ratios) // 4],
        "rounds": len(ratios),
    }


def _are_kept() -> bool:
    return not torch.compiler.config.force_disable_caches


def numbers(value: object, names: set[str] | None = None) -> dict[str, float] | None:
    """Return finite numbers by these names, or by any if None; None for anything else."""
    if not isinstance(value, dict) or (names is not None and value.keys() != names):
        return None
    if any(type(part) not in (int, float) or not isfinite(part) for part in value.values()):
        return None
    return {name: float(part) for name, part in value.items()}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
