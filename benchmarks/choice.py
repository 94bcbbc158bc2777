"""Attention under the default choice: `python -m benchmarks.choice [--output FILE] [POINT ...]`.

For each shape, with and without a mask, in bfloat16 and float32: attention written out, as
`torch.compile` makes it alone and with the shipped rules; and the ways to write it by hand. A point
that comes out slower than torch.compile alone is timed once more. `benchmarks.choice_map` draws
what is written to the file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import geometric_mean
from types import FunctionType
from typing import Any, TypeAlias
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.results import Results, option
from pypm.integrations import inductor
from pypm.kernels.attention import products
from pypm.rules import inference
from pypm.timing import on_threads
from pypm.tools import Times, interleave

SHAPES = (
    (1, 32, 8, 1, 4096), (8, 32, 8, 1, 1024), (1, 12, 12, 1, 1024), (1, 12, 12, 1, 128),
    (8, 12, 12, 1, 512), (1, 32, 8, 16, 1024), (1, 32, 8, 64, 1024), (1, 32, 8, 512, 512),
    (1, 12, 12, 128, 128), (8, 12, 12, 128, 128), (1, 12, 12, 512, 512), (64, 4, 4, 16, 16),
    (256, 4, 4, 49, 49),
)  # fmt: skip
"""Batch, heads, heads of keys, queries, keys."""
HEAD = 64
COMPILED, DEFAULT = "torch.compile", "with the rules"
BY_HAND = ("kernel by hand", "products by hand")
SLOWER = 0.95

Result: TypeAlias = dict[str, Any]
"""What is kept of a point, as JSON."""
Measured: TypeAlias = tuple[Times, list[str]]
"""The times of each version, and the rules that the default applied."""


@dataclass(frozen=True)
class Point:
    shape: tuple[int, int, int, int, int]
    has_mask: bool
    dtype: torch.dtype

    def inputs(self) -> list[Tensor]:
        batch, heads, groups, queries, keys = self.shape
        sizes = ((heads, queries), (groups, keys), (groups, keys))
        made = [torch.randn(batch, *size, HEAD).to(self.dtype) for size in sizes]
        mask = torch.zeros(batch, 1, queries, keys)
        mask[..., keys - keys // 8 :] = torch.finfo(self.dtype).min
        return [*made, *([mask.to(self.dtype)] if self.has_mask else [])]

    def __str__(self) -> str:
        batch, heads, groups, queries, keys = self.shape
        mask = "mask" if self.has_mask else "no mask"
        return f"{str(self.dtype)[6:]:8} {mask:7} {batch}x{heads}/{groups}x{queries}x{keys}"


def written_out(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
    """Attention as models write it: keys repeated for each head, softmax in float32."""
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = (x[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2) for x in (k, v))
    scores = q @ k.transpose(2, 3) * HEAD**-0.5
    scores = scores + mask[0] if mask else scores
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def kernel(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, *mask, enable_gqa=q.shape[1] != k.shape[1])


def with_its_own_code(function: FunctionType) -> FunctionType:
    """Return a copy: of one function, all that was compiled is tried at each call."""
    alone = FunctionType(function.__code__.replace(), function.__globals__)
    alone.__defaults__, alone.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return alone


def times_of(point: Point, seconds: float) -> Measured:
    inputs = point.inputs()
    hook = inductor.Pass(inference.RULES)
    versions: dict[str, tuple[FunctionType, object]] = {
        COMPILED: (written_out, None),
        DEFAULT: (written_out, hook.options()),
        BY_HAND[0]: (kernel, None),
        BY_HAND[1]: (products, None),
    }
    calls: dict[str, Callable[[], object]] = {}
    results = {}
    torch._dynamo.reset()
    for name, (function, options) in versions.items():
        alone = with_its_own_code(function)
        compiled = torch.compile(alone, options=options, dynamic=False)  # type: ignore[call-overload]
        results[name] = compiled(*inputs)
        calls[name] = partial(compiled, *inputs)
    expected = results[COMPILED].double()
    for name, found in results.items():
        assert torch.allclose(found.double(), expected, atol=3e-2), f"{point}: {name} differs"
    rules = dict.fromkeys(record.rule for record in hook.report().rewrites)
    return interleave(calls, seconds=seconds, rounds=400), [*rules]


def careful(measure: Callable[[float], Measured], seconds: float, least: float) -> Measured:
    """Measure; once more, and longer, if it comes out slower than `torch.compile` alone."""
    times, rules = measure(seconds)
    slower = times.speedup(COMPILED, DEFAULT) < least
    return measure(4 * seconds) if slower else (times, rules)


@contextmanager
def uncached() -> Iterator[None]:
    """One thread, no gradients, no warnings, and none of torch's caches: where compiled code is
    found, the pass is not called.
    """
    with (
        warnings.catch_warnings(),
        on_threads(1),
        torch.no_grad(),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._dynamo.config.patch(recompile_limit=10_000),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        mock.patch.dict("os.environ", {"TORCHINDUCTOR_CACHE_DIR": folder}),
    ):
        warnings.simplefilter("ignore")
        yield


def points(wanted: list[str]) -> Iterator[Point]:
    for dtype, has_mask, shape in product((torch.bfloat16, torch.float32), (True, False), SHAPES):
        point = Point(shape, has_mask, dtype)
        if not wanted or any(name in str(point) for name in wanted):
            yield point


def result_of(point: Point, seconds: float) -> Result:
    """Time a point."""
    times, rules = careful(partial(times_of, point), seconds, SLOWER)
    best = min((*BY_HAND, COMPILED), key=times.median)
    return {
        "shape": [*point.shape],
        "mask": point.has_mask,
        "dtype": str(point.dtype)[6:],
        "rules": rules,
        "milliseconds": 1e3 * times.median(COMPILED),
        "gain": times.speedup(COMPILED, DEFAULT),
        "best": best,
        "over_best": 1 / times.speedup(best, DEFAULT),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="*", help="parts of the names of points; all, if left out")
    parser.add_argument("--seconds", type=float, default=1.0, help="for the rounds of one point")
    option(parser)
    given = parser.parse_args()
    began = time.monotonic()
    with uncached():
        results = Results(given.output)
        found_points: list[Result] = []
        results.document["points"] = found_points
        columns = ("point", f"{COMPILED}, ms", "gain", "rules", "over the best", "best")
        results.table(*columns, name="points")
        for point in points(given.points):
            found = result_of(point, given.seconds)
            found_points.append(found)
            rules = ", ".join(found["rules"]) or "-"
            gain, best = found["gain"], found["best"]
            results.row(str(point), found["milliseconds"], gain, rules, found["over_best"], best)
    gains = [found["gain"] for found in found_points]
    slower = sum(gain < SLOWER for gain in gains)
    results.figure("least", min(gains))
    results.figure("largest", max(gains))
    results.figure("geometric mean", geometric_mean(gains))
    over = geometric_mean(found["over_best"] for found in found_points)
    results.figure("geometric mean over the best", over)
    print(f"{len(gains)} points in {time.monotonic() - began:.0f} s; {slower} below {SLOWER}")
    return bool(slower)


if __name__ == "__main__":
    sys.exit(main())
