"""A search for configurations: `python -m pypm.tiles.search [FILE]` writes the shipped table.

For each shape of tiles it compiles kernels for Hopper, which needs Triton and no GPU: with as many
slots as fit into shared memory, one and two products in flight, and the fewest pieces in which
nothing is spilled and no product is serialized. The programs have a bias, an activation and a
residual, as many registers as models need.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from pypm.tiles.build import built
from pypm.tiles.configurations import TABLE, TileConfiguration
from pypm.tiles.emit import Emitted, emitted
from pypm.tiles.partition import partitioned
from pypm.tiles.program import TileError
from pypm.tiles.reading import parsed

__all__ = ["PROGRAMS", "found_by_compiling", "kernel_in"]

PROGRAMS: Final = {
    1: """\
x: bf16[M, K]
w: bf16[N, K]
bias: bf16[1, N]
rest: bf16[M, N]
out: bf16[M, N]
tile i: ROWS of M, j: COLUMNS of N
acc = 0.0[i, j]
for k: INNER of K
  a = x[i, k]
  b = w[j, k]
  acc = dot(a, b.T, acc)
s = bias[1, j]
r = rest[i, j]
y = map "add(acc,s0);gelu(v0);add(v1,s1)" acc, s, r
out[i, j] = y
""",
    2: """\
x: bf16[M, K]
gate: bf16[N, K]
up: bf16[N, K]
rest: bf16[M, N]
out: bf16[M, N]
tile i: ROWS of M, j: COLUMNS of N
g = 0.0[i, j]
u = 0.0[i, j]
for k: INNER of K
  a = x[i, k]
  b = gate[j, k]
  c = up[j, k]
  g = dot(a, b.T, g)
  u = dot(a, c.T, u)
r = rest[i, j]
y = map "silu(acc);mul(v0,s0);add(v1,s1)" g, u, r
out[i, j] = y
""",
}
"""Programs by the number of their products."""
SHAPES: Final = (
    (1, 128, 256, 2), (1, 128, 128, 2), (1, 64, 256, 1), (1, 64, 128, 1), (1, 64, 64, 1),
    (2, 128, 128, 2), (2, 64, 128, 1), (2, 64, 64, 1),
)  # fmt: skip
"""Products, rows and columns of a tile, and groups."""
INNER: Final = 64
DEEPEST: Final = 6
PIECES: Final = (1, 2, 4, 8)


def kernel_in(at: TileConfiguration) -> Emitted:
    """Return the kernel of the program with as many products, in a configuration.

    Raises TileError if it cannot be placed.
    """
    text = PROGRAMS[at.products]
    for name in ("rows", "columns", "inner"):
        text = text.replace(f" {name.upper()} of", f" {getattr(at, name)} of")
    return emitted(partitioned(parsed(text), at.rings))


def found_by_compiling() -> Iterator[TileConfiguration]:
    """Yield the configurations without spills and serialized products, for each shape and number
    of products in flight.
    """
    for products, rows, columns, groups in SHAPES:
        for in_flight in (1, 2):
            for pieces in PIECES:
                at = TileConfiguration(products, rows, columns, INNER, 0, in_flight, groups, pieces)
                made = _deepest(at)
                if made is not None and not made.spilled:
                    yield made
                    break


def _deepest(at: TileConfiguration) -> TileConfiguration | None:
    """Return a configuration with as many slots as fit, and what the assembler says of it."""
    for depth in range(DEEPEST, at.in_flight, -1):
        deep = replace(at, depth=depth)
        try:
            kernel = kernel_in(deep)
        except TileError:
            continue
        found = built(kernel)
        if found.is_serialized:
            return None
        return replace(deep, registers=found.registers, spilled=found.spilled, shared=found.shared)
    return None


def main(arguments: list[str]) -> None:
    """Write the table to a file."""
    rows = []
    for at in found_by_compiling():
        print(at, flush=True)
        rows.append(json.dumps(asdict(at)))
    target = Path(arguments[0]) if arguments else TABLE
    target.write_text("[\n " + ",\n ".join(rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
