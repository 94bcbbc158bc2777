"""The choice's share of compilation: `python -m benchmarks.compile_time [--pass] [MODEL ...]`.

Each compilation is in a process of its own, without torch's caches of compiled graphs: alone; with
the shipped rules and the default choice, which times what it does not know; and again, with the
answers on disk. Of the second, all that it takes more is told, since compilers and kernels that it
starts or makes first serve the rest as well; of the last, what the pass takes, with preparing the
rules. Seconds are those of processors, of compilers that were started too, so that other work on
the machine counts little.

With `--pass`, no code is generated for the models, except alone: of both others the pass is told,
the least of three runs where the answers are on disk. A first pass then starts the compilers
itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from functools import partial
from typing import Final

import torch
from torch import fx

from benchmarks.models.wide import Point
from benchmarks.results import Results, option
from pypm.integrations import inductor
from pypm.rules import inference
from pypm.torch_internals import compile_fx, make_boxed_func

LAYERS: Final = 4
TOKENS: Final = 128
MODELS: Final = ("bert", "gpt2", "llama-gqa")
DTYPES: Final = ("float32", "bfloat16")


class Timed(inductor.Pass):
    """A pass that counts the seconds that it takes."""

    seconds = 0.0

    def __call__(self, graph: fx.Graph) -> None:
        began = processors()
        super().__call__(graph)
        self.seconds += processors() - began


def processors() -> float:
    """Return the seconds that processors worked for this process, and for those it waited for."""
    return sum(os.times()[:4])


def compile_once(name: str, dtype: str, way: str, part: str) -> None:
    """Print the seconds of the first call, of these the pass's, and the number of rewrites."""
    torch.set_num_threads(1)
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    point = Point(name, dtype, 1, TOKENS, layers=LAYERS)
    model, given = point.build("eager"), point.inputs()
    hook = Timed([] if way == "alone" else inference.RULES)
    if part == "pass":
        backend = partial(compile_fx, inner_compile=_as_it_is, config_patches=hook.options())
        compiled = torch.compile(model, backend=backend)
    else:
        compiled = torch.compile(model, options=hook.options())
    began = processors()
    with torch.no_grad():
        compiled(**given)
    print(processors() - began, hook.seconds, len(hook.report()))


def _as_it_is(graph: fx.GraphModule, *_: object, **__: object) -> object:
    return make_boxed_func(graph.forward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help=", ".join(MODELS))
    parser.add_argument("--pass", action="store_true", dest="only_pass", help="count it alone")
    option(parser)
    given = parser.parse_args()
    part, runs = ("pass", 3) if given.only_pass else ("all", 1)
    results = Results(given.output)
    second = "first pass, s" if given.only_pass else "default, % more"
    share = "answers on disk, %"
    results.table("", "`torch.compile` alone, s", second, share, "rewrites")
    for name in given.models:
        for dtype in DTYPES:
            with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as shared:
                base, *_ = _in_a_process(name, dtype, "alone", "all", alone)
                whole, first, rewrites = _in_a_process(name, dtype, "default", part, shared)
                again = min(
                    _in_a_process(name, dtype, "default", part, shared)[1] for _ in range(runs)
                )
            more = first if given.only_pass else 100 * (whole / base - 1)
            results.row(f"{name}, {dtype}", base, more, 100 * again / base, rewrites)


def _in_a_process(
    name: str, dtype: str, way: str, part: str, folder: str
) -> tuple[float, float, int]:
    command = [sys.executable, "-m", "benchmarks.compile_time", "--one", name, dtype, way, part]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, spent, rewrites = run.stdout.split()[-3:]
    return float(seconds), float(spent), int(rewrites)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        compile_once(*sys.argv[2:])
    else:
        main()
