"""Triton's interpreter, which tests of several kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import pytest


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Executor]:
    """A process whose kernels are interpreted on the CPU: Triton decides when it is imported.

    What bfloat16 the interpreter makes is cut off, not rounded, its `tl.dot` of bfloat16 is wrong,
    and so is its float8.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            process.submit(int).result()
        yield process
