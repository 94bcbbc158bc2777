"""The text that every kernel begins with: names of Gluon or Triton, and functions of tiles."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["PLAIN_PRELUDE", "PRELUDE", "in_triton"]

_GLUON: Final = """\
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait)

# Names differ between versions of Triton.
sync = getattr(gl, "thread_barrier", None) or gl.barrier
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


# Indices from `start`, as a column and as a row.
@gluon.jit
def down(start, size: gl.constexpr, layout: gl.constexpr):
    return gl.expand_dims(start + gl.arange(0, size, layout=gl.SliceLayout(1, layout)), 1)


@gluon.jit
def across(start, size: gl.constexpr, layout: gl.constexpr):
    return gl.expand_dims(start + gl.arange(0, size, layout=gl.SliceLayout(0, layout)), 0)


# The larger number, NaN if one is.
@gluon.jit
def larger(a, b):
    return gl.where((a > b) | (a != a), a, b)
"""

_FUNCTIONS: Final = """\
@gluon.jit
def sigmoid(x):
    return 1.0 / (1.0 + gl.exp(-x))


@gluon.jit
def tanh(x):
    y = gl.abs(x)
    t = 1.0 - 2.0 / (gl.exp(2.0 * y) + 1.0)
    z = x * x
    series = x + x * z * (-1 / 3 + z * (2 / 15 + z * (-17 / 315 + z * (62 / 2835))))
    return gl.where(y < 0.25, series, gl.where(x < 0.0, -t, t))


@gluon.jit
def between(x, low: gl.constexpr, high: gl.constexpr):
    x = gl.where(x < low, low, x)
    return gl.where(x > high, high, x)


@gluon.jit
def to_int8(x):
    y = between(x, -128.0, 127.0)
    return (y + 12582912.0 - 12582912.0).to(gl.int8)  # to the nearest, half to even


@gluon.jit
def to_fp8(x):
    return between(x, -448.0, 448.0).to(gl.float8e4nv)
"""

PRELUDE: Final = f"{_GLUON}\n\n{_FUNCTIONS}"
"""In Gluon."""

_TRITON: Final = """\
import triton
import triton.language as tl


# Indices from `start`, as a column and as a row.
@triton.jit
def down(start, size: tl.constexpr):
    return tl.expand_dims(start + tl.arange(0, size), 1)


@triton.jit
def across(start, size: tl.constexpr):
    return tl.expand_dims(start + tl.arange(0, size), 0)


# The larger number, NaN if one is.
@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""


def in_triton(text: str) -> str:
    """Return text of statements and functions in plain Triton's names, from Gluon's."""
    return re.sub(r"\bgl\.", "tl.", text.replace("@gluon.jit", "@triton.jit"))


PLAIN_PRELUDE: Final = f"{_TRITON}\n\n{in_triton(_FUNCTIONS)}"
"""In plain Triton."""
