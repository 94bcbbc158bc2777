"""Tile programs of the tests, and their runs in the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from pypm.tiles.emit import Emitted, emitted
from pypm.tiles.emulator import Emulation, emulate
from pypm.tiles.partition import Rings, partitioned
from pypm.tiles.program import DTYPES, TileProgram
from pypm.tiles.reading import parsed

GEMM: Final = """\
x: bf16[M, K]
w: bf16[N, K]
bias: bf16[1, N]
out: bf16[M, N]
tile i: 128 of M, j: 64 of N
acc = 0.0[i, j]
for k: 64 of K
  a = x[i, k]
  b = w[j, k]
  acc = dot(a, b.T, acc)
s = bias[1, j]
y = map "add(acc,s0);silu(v0)" acc, s
out[i, j] = y
"""

GATED: Final = """\
x: bf16[M, K]
gate: bf16[K, N]
up: bf16[N, K]
out: bf16[M, N]
tile i: 128 of M, j: 64 of N
g = 0.0[i, j]
u = 0.0[i, j]
for k: 64 of K
  a = x[i, k]
  b = gate[k, j]
  c = up[j, k]
  g = dot(a, b, g)
  u = dot(a, c.T, u)
y = map "silu(acc);mul(v0,s0)" g, u
out[i, j] = y
"""

SIDES: Final = """\
x: bf16[M, K]
w: bf16[K, N]
scale: fp32[M, 1]
one: fp32[1, 1]
mask: i1[M, N]
rest: bf16[M, N]
out: bf16[M, N]
copy: bf16[M, N]
tile i: 128 of M, j: 64 of N
acc = 0.0[i, j]
for k: 64 of K
  a = x[i, k]
  b = w[k, j]
  acc = dot(a, b, acc)
s = scale[i, 1]
o = one[1, 1]
m = mask[i, j]
r = rest[i, j]
y = map "mul(acc,s0);add(v0,s1);where(m2,v1,-1.0);add(v2,s3)" acc, s, o, m, r
copy[i, j] = acc
out[i, j] = y
"""

TOLERANCES: Final = {"bf16": 2e-2, "fp16": 2e-3}


def with_blocks(text: str, rows: int, columns: int, inner: int) -> str:
    """The same program for tiles of another shape."""
    blocks = ((": 128 of M", rows), (": 64 of N", columns), (": 64 of K", inner))
    for given, block in blocks:
        text = text.replace(given, f": {block} {' '.join(given.split()[2:])}")
    return text


@lru_cache(maxsize=8)
def kernel(text: str, rings: Rings) -> Emitted:
    return emitted(partitioned(parsed(text), rings))


def drawn(program: TileProgram, sizes: Mapping[str, int], seed: int) -> dict[str, Tensor]:
    """Random operands; the results are NaN, so that an element that is not stored is seen."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for operand in program.operands:
        shape = [1 if name == "1" else sizes[name] for name in operand.sizes]
        x = torch.randn(shape, generator=generator)
        dtype = DTYPES[operand.dtype]
        found[operand.name] = x > 0 if dtype == torch.bool else x.to(dtype)
        if operand.name in program.results:
            found[operand.name].fill_(float("nan"))
    return found


def expected(text: str, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The results by plain torch in float64."""
    wide = {n: x if x.dtype == torch.bool else x.double() for n, x in given.items()}
    x, silu = wide["x"], torch.nn.functional.silu
    if "gate:" in text:
        return {"out": silu(x @ wide["gate"]) * (x @ wide["up"].T)}
    if "bias:" in text:
        return {"out": silu(x @ wide["w"].T + wide["bias"])}
    product = x @ wide["w"]
    scaled = product * wide["scale"] + wide["one"]
    kept = torch.where(wide["mask"], scaled, -torch.ones_like(scaled))
    return {"copy": product, "out": kept + wide["rest"]}


def assert_near(found: Any, exact: Any, tolerance: float) -> None:
    """One result or several agree with float64; numbers of steps are at most one away, since what
    is rounded to them may have been rounded before.
    """
    single = (found,) if isinstance(found, Tensor) else found
    for ours, right in zip(single, (exact,) if isinstance(exact, Tensor) else exact, strict=True):
        if ours.dtype == torch.int8:
            assert (ours.int() - right.int()).abs().max() <= 1
        elif ours.dtype == torch.float8_e4m3fn:
            torch.testing.assert_close(ours.double(), right.double(), rtol=1 / 7, atol=2**-8)
        else:
            torch.testing.assert_close(
                ours.double(), right.double(), rtol=tolerance, atol=tolerance
            )


def agrees(
    text: str, rings: Rings, sizes: tuple[int, int, int], seed: int, *, programs: int = 1,
    changed: tuple[str, str] = ("", ""), lateness: float | None = None,
) -> Emulation:  # fmt: skip
    """Emulate a kernel, whose results must agree with float64; its text may be changed before.

    `sizes` are M, N and K.
    """
    made = kernel(text, rings)
    given = drawn(made.source.program, dict(zip("MNK", sizes, strict=True)), seed)
    if lateness is None:
        lateness = (0.5, 0.9, 1.0)[seed % 3]
    old, new = changed
    assert old in made.text
    found = emulate(
        made, given, programs=programs, seed=seed, lateness=lateness,
        text=made.text.replace(old, new),
    )  # fmt: skip
    for name, exact in expected(text, given).items():
        tolerance = TOLERANCES[made.source.program.operand(name).dtype]
        ours = given[name].double()
        assert ours.isfinite().all(), f"{name} is not stored"
        worst = ((ours - exact).abs() / (1 + exact.abs())).max()
        assert worst <= tolerance, f"{name} is off by {worst:.3g}"
    return found
