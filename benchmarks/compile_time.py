"""The choice's share of compilation: `python -m benchmarks.compile_time [MODEL ...]`.

Each compilation is in a process of its own, without torch's caches of compiled graphs: alone; with
the shipped rules and the default choice, which times what it does not know; and again, with the
answers on disk. Of the second, all that it takes more is told, since compilers and kernels that it
starts or makes first serve the rest as well; of the third, what the pass takes, with preparing the
rules. Seconds are those of processors, of compilers that were started too, so that other work on
the machine counts little.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Final

import torch
from torch import fx

from benchmarks.models.wide import Point
from pypm.integrations import inductor
from pypm.rules import inference

LAYERS: Final = 4
TOKENS: Final = 128
MODELS: Final = ("bert", "gpt2", "llama-gqa")
DTYPES: Final = ("float32", "bfloat16")
WAYS: Final = ("alone", "default", "answers on disk")


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


def compile_once(name: str, dtype: str, way: str) -> None:
    """Print the seconds of the first call, and of these the pass's."""
    torch.set_num_threads(1)
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    point = Point(name, dtype, 1, TOKENS, layers=LAYERS)
    model, given = point.build("eager"), point.inputs()
    hook = Timed([] if way == "alone" else inference.RULES)
    compiled = torch.compile(model, options=hook.options())
    began = processors()
    with torch.no_grad():
        compiled(**given)
    print(processors() - began, hook.seconds)


def main(names: list[str]) -> None:
    for name in names or MODELS:
        for dtype in DTYPES:
            found = {}
            with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as shared:
                for way in WAYS:
                    folder = alone if way == "alone" else shared
                    found[way] = _in_a_process(name, dtype, way, folder)
            (base, _), (whole, _), (_, again) = (found[way] for way in WAYS)
            print(
                f"{name} {dtype}: {base:.1f} s alone; default {whole / base - 1:+.1%}; "
                f"answers on disk {again / base:+.1%}",
                flush=True,
            )


def _in_a_process(name: str, dtype: str, way: str, folder: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.compile_time", "--one", name, dtype, way]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, spent = run.stdout.split()[-2:]
    return float(seconds), float(spent)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--one"]:
        compile_once(*arguments[1:])
    else:
        main(arguments)
