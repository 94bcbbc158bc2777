"""Acting as on a Hopper GPU which any size fills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from pypm.kernels.support.devices import as_on_a_gpu
from pypm.tiles import launch

__all__ = ["as_on_a_small_gpu"]


@contextmanager
def as_on_a_small_gpu() -> Iterator[None]:
    """`as_on_a_gpu`, where kernels of `pypm.tiles` are not refused for want of tiles."""
    with as_on_a_gpu(), mock.patch.object(launch, "FEWEST", 0):
        yield
