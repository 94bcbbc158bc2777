"""Measured times by key, kept beside Inductor's caches: an answer is never changed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Final

import torch

from pypm.cost.stored import keep_first, kept, stored

__all__ = ["Answers"]

_KIND: Final = "answers"


class Answers:
    """Numbers by key, on disk; in memory while torch's caches are disabled.

    Of several processes that answer the same question, the first wins.
    """

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, float]] = {}

    def get(self, key: str) -> Mapping[str, float] | None:
        """Return the answer to a key; None if there is none that can be read."""
        if key not in self._known and _are_kept():
            found = _numbers(kept(_KIND, key))
            if found is not None:
                self._known[key] = found
        return self._known.get(key)

    def put(self, key: str, answer: Mapping[str, float]) -> Mapping[str, float]:
        """Keep an answer, unless there is one already; return the one that is kept."""
        found = _numbers(keep_first(_KIND, key, dict(answer))) if _are_kept() else None
        self._known[key] = dict(answer) if found is None else found
        return self._known[key]

    def listing(self) -> str:
        """Return text that changes where an answer is added."""
        return " ".join(stored(_KIND)) if _are_kept() else ""

    def identity(self) -> str:
        """Return the name of this collection: while it is the same, no answer changes."""
        found = keep_first(_KIND, "identity", uuid.uuid4().hex) if _are_kept() else None
        return str(found or f"in memory {os.getpid()} {id(self)}")


def _are_kept() -> bool:
    return not torch.compiler.config.force_disable_caches


def _numbers(value: object) -> dict[str, float] | None:
    """Return numbers by name; None for anything else, as in a damaged file."""
    if not isinstance(value, dict) or not value:
        return None
    if not all(isinstance(part, (int, float)) for part in value.values()):
        return None
    return {str(name): float(part) for name, part in value.items()}
