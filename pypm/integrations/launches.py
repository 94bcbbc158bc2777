"""A pass of Inductor's for GPUs: kernels that operators launch become a part of its own code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, TypeVar

import torch
from torch import fx

from pypm.kernels.support.inlining import inline_launches
from pypm.sources import sources_hash
from pypm.torch_internals import PASSES, CustomGraphPass

__all__ = ["LAST", "Launches", "passes_of", "with_launches"]

T = TypeVar("T")

LAST: Final = PASSES["post_grad_post"]
"""The option of the last passes of a graph, after which Inductor removes copies."""


class Launches(CustomGraphPass):
    """Inlines launches of Triton, as `pypm.kernels.support.inlining` says."""

    def __call__(self, graph: fx.Graph) -> None:
        inline_launches(graph)

    def uuid(self) -> str:
        """Return the key of the pass in Inductor's caches: a hash of the kernels' sources."""
        return hashlib.sha256(f"launches {sources_hash()} {torch.__version__}".encode()).hexdigest()


def with_launches(passes: Iterable[T]) -> list[T | Launches]:
    """Return the last passes of a graph with `Launches` behind all others."""
    return [*(each for each in passes if not isinstance(each, Launches)), Launches()]


def passes_of(value: object) -> list[object]:
    """Return the passes that an option of Inductor holds: none, one, or several."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
