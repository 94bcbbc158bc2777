"""Compilation by `torch.compile` in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor.codecache import FxGraphCache
from torch._inductor.utils import clear_caches


@contextmanager
def fresh_graphs() -> Iterator[None]:
    """No graph that was compiled before is found, inside of the block or after it.

    Unlike with torch's `fresh_cache`, kernels are found by their source, so equal ones of several
    tests are compiled once.
    """
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    torch._dynamo.reset()
    clear_caches()
    FxGraphCache.clear()
    AOTAutogradCache.clear()
