"""The text that every kernel begins with: names of Gluon, and functions of tiles."""

from __future__ import annotations

from typing import Final

__all__ = ["PRELUDE"]

PRELUDE: Final = """\
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait)

# Names differ between versions of Triton.
sync = getattr(gl, "thread_barrier", None) or gl.barrier
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


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
