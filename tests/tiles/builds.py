"""Kernels of every family built for Hopper, by this Triton or another one.

    python -m tests.tiles.builds [--triton 3.6.0] [--family attention]

prints what the assembler says about each, and returns 1 if one is not as the page says: without
spills and serialized products, within Hopper's shared memory, specialized if it has products.
Another Triton is installed into a folder of its own in `build`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from pypm.kernels.attention.programs import ScoreProgram
from pypm.tiles.build import INSTRUCTIONS, Built, built
from pypm.tiles.configurations import configurations
from pypm.tiles.emit import emitted
from pypm.tiles.families.attention import attention_tiles
from pypm.tiles.families.experts import experts_tiles
from pypm.tiles.families.rows import NormOf, gated_tiles, norm_tiles
from pypm.tiles.partition import SHARED_MEMORY, Specialized, partitioned
from pypm.tiles.plain.kernel import plain
from pypm.tiles.plain.launch import plain_built
from pypm.tiles.search import kernel_in
from tests.floors import ROOT
from tests.tiles import test_attention, test_rows

Case = tuple[str, Specialized]
"""A name, and a partitioned program."""


def products() -> Iterator[Case]:
    for at in configurations():
        name = f"{at.products} products, {at.rows} x {at.columns}, {at.depth} slots"
        yield f"{name}, {at.in_flight} in flight", kernel_in(at).source


def attention() -> Iterator[Case]:
    for n, (name, text) in enumerate(test_attention.PROGRAMS.items()):
        for m, width in enumerate((64, 80, 128, 256)):
            dtype = (torch.bfloat16, torch.float16)[(n + m) % 2]
            q, k, v, *tensors = test_attention.drawn((1, 1, 1, 8, 8), width, dtype, 0)
            made = attention_tiles(ScoreProgram.parse(text), q, k, v, tensors, 0.125)
            source = partitioned(made.program, made.rings)
            yield f"{name}, heads of {width}, {str(dtype)[6:]}", source


def experts() -> Iterator[Case]:
    for dtype in (torch.bfloat16, torch.float16):
        for is_turned in (False, True):
            x, w = torch.empty(8, 8, dtype=dtype), torch.empty(1, 8, 8, dtype=dtype)
            made = experts_tiles(x, w, is_turned)
            kind = "transposed" if is_turned else "plain"
            yield f"{kind}, {str(dtype)[6:]}", partitioned(made.program, made.rings)


def rows() -> Iterator[Case]:
    for columns in (1000, 4096, 8192):
        x, y, w, b = test_rows.drawn(1, columns, torch.bfloat16, 0)
        made = {"norm": norm_tiles(x, y, w, b, NormOf(1e-5, 1.0, True))}
        for steps in (test_rows.INT8, test_rows.FP8):
            made[f"norm, {steps.dtype}"] = norm_tiles(x, y, w, None, NormOf(1e-5), steps)
            made[f"gated, {steps.dtype}"] = gated_tiles(x, y, "silu", steps)
        for name, each in made.items():
            yield f"{name}, {columns} columns", partitioned(each.program, each.rings)


FAMILIES: Final = {"products": products, "attention": attention, "experts": experts, "rows": rows}


def faults(source: Specialized, found: Built) -> list[str]:
    """What of a build differs from the page."""
    needed = INSTRUCTIONS if source.arefs else {}
    wrong = {
        "spills": found.spilled > 0,
        "is serialized": found.is_serialized,
        "has too much shared memory": found.shared > min(SHARED_MEMORY, source.shared),
        "is for another GPU": ".target sm_90a" not in found.ptx,
        **{f"has no {name}": op not in found.ptx for name, op in needed.items()},
    }
    return [what for what, is_so in wrong.items() if is_so]


def report(families: Sequence[str], *, is_plain: bool = False) -> list[str]:
    """Build the kernels of families, print what the assembler says, and return what is wrong."""
    import triton

    wrong = []
    for family in families:
        for name, source in FAMILIES[family]():
            found = built(emitted(source))
            what = faults(source, found)
            print(f"{triton.__version__} {family}: {name}: {found} {', '.join(what)}", flush=True)
            wrong += [f"{family}: {name} {each}" for each in what]
            if is_plain:
                print(f"  plain: {plain_built(plain(source))}", flush=True)
    return wrong


def with_triton(version: str, arguments: Sequence[str]) -> int:
    """Run this command by another Triton, and return its exit code."""
    folder = ROOT / "build" / f"triton-{version}"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*command, str(folder), f"triton=={version}"], check=True)
    paths = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "tests.tiles.builds", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Build them, and say what is wrong."""
    parser = argparse.ArgumentParser(description="Build the kernels of all families for Hopper.")
    parser.add_argument("--triton", help="the version of another Triton")
    parser.add_argument("--family", action="append", choices=[*FAMILIES])
    parser.add_argument("--plain", action="store_true", help="build the plain kernels as well")
    given = parser.parse_args(arguments)
    families = given.family or [*FAMILIES]
    if given.triton is not None:
        again = [f"--family={name}" for name in families] + ["--plain"] * given.plain
        return with_triton(given.triton, again)
    wrong = report(families, is_plain=given.plain)
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
