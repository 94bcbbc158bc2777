"""Decoding over a static cache: `python -m benchmarks.decoding [--seconds S] [POINT ...]`.

One step writes a key and a value at a position into the cache and attends over what the position
leaves, written out as models do. It is compiled once by `torch.compile` alone and once with the
shipped rules and the default choice, and then timed at several positions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import FunctionType
from unittest import mock

import torch
from torch import Tensor

from benchmarks.results import Results, option
from pypm.integrations import inductor
from pypm.rules import inference
from pypm.tools import interleave

COMPILED, DEFAULT = "torch.compile", "with the rules"
HEADS = ((32, 8), (12, 12))
"""Heads of queries and of keys."""
SIZES = (64, 128)
CAPACITIES = (1024, 8192, 32768)
SHARES = (1 / 32, 1 / 4, 1)
"""Parts of the cache that are filled."""
SLOWER = 0.95


@dataclass(frozen=True)
class Point:
    dtype: torch.dtype
    heads: tuple[int, int]
    size: int
    capacity: int

    def inputs(self) -> list[Tensor]:
        """Return the query, the cache, and the key and value that are written."""
        heads, groups = self.heads
        counts = ((heads, 1), (groups, self.capacity), (groups, self.capacity), *[(groups, 1)] * 2)
        return [torch.randn(1, *count, self.size).to(self.dtype) for count in counts]

    def __str__(self) -> str:
        heads, groups = self.heads
        return f"{str(self.dtype)[6:]:8} {heads}/{groups} heads of {self.size:3} in {self.capacity}"


def written_out(
    q: Tensor, k: Tensor, v: Tensor, key: Tensor, value: Tensor, position: Tensor
) -> Tensor:
    """Return one step's attention; k and v [1, G, T, D] are written at `position` [1]."""
    k.index_copy_(2, position, key)
    v.index_copy_(2, position, value)
    shown = torch.arange(k.shape[2]) <= position
    mask = torch.where(shown, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = (x[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2) for x in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5 + mask
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def gains_of(point: Point, seconds: float) -> Iterator[tuple[int, float, float, str]]:
    """Return, for each number of filled keys, milliseconds, the gain, and the rules applied."""
    inputs = point.inputs()
    hook = inductor.Pass(inference.RULES)
    torch._dynamo.reset()
    steps: dict[str, Callable[..., Tensor]] = {}
    for name, options in ((COMPILED, None), (DEFAULT, hook.options())):
        # code of its own: else all that was compiled of the function is tried at each call
        alone = FunctionType(written_out.__code__.replace(), written_out.__globals__)
        steps[name] = torch.compile(alone, options=options, dynamic=False)  # type: ignore[call-overload]
    for share in SHARES:
        filled = max(1, int(share * point.capacity))
        given = [*inputs, torch.tensor([filled - 1])]
        calls: dict[str, Callable[[], object]] = {
            name: partial(step, *given) for name, step in steps.items()
        }
        expected, found = (step(*given).double() for step in steps.values())
        assert torch.allclose(found, expected, atol=3e-2), f"{point}: the results differ"
        times = interleave(calls, seconds=seconds, rounds=400)
        gain = times.speedup(COMPILED, DEFAULT)
        if gain < SLOWER:
            times = interleave(calls, seconds=4 * seconds, rounds=400)
            gain = times.speedup(COMPILED, DEFAULT)
        rules = ", ".join(dict.fromkeys(record.rule for record in hook.report().rewrites))
        yield filled, 1e3 * times.median(COMPILED), gain, rules or "-"
    assert len(hook.reports) == 1, f"{point}: compiled {len(hook.reports)} times"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="*", help="parts of the names of points; all, if left out")
    parser.add_argument("--seconds", type=float, default=1.0, help="for the rounds of one position")
    option(parser)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    results = Results(given.output)
    results.table("step", "filled", f"{COMPILED}, ms", "gain", "rules")
    torch._inductor.config.fx_graph_cache = False  # where code is found, the pass is not called
    torch._functorch.config.enable_autograd_cache = False
    slower, began = [], time.monotonic()
    environment = {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp()}
    kinds = product((torch.bfloat16, torch.float32), HEADS, SIZES, CAPACITIES)
    with torch.no_grad(), mock.patch.dict("os.environ", environment):
        for point in (Point(*kind) for kind in kinds):
            if given.points and not any(name in str(point) for name in given.points):
                continue
            for filled, milliseconds, gain, rules in gains_of(point, given.seconds):
                slower += [f"{point}, {filled} filled"] * (gain < SLOWER)
                results.row(str(point), filled, milliseconds, gain, rules)
    print(f"{time.monotonic() - began:.0f} s; below {SLOWER}: {'; '.join(slower) or 'none'}")
    return bool(slower)


if __name__ == "__main__":
    sys.exit(main())
