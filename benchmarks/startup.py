"""What a user waits for before the first match: importing, in a fresh interpreter."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.jobs import Record

__all__ = ["records"]

_PROGRAM = """\
import sys, time
start = time.perf_counter()
import {module}
print(time.perf_counter() - start, "torch" in sys.modules)
"""


def records(*, rounds: int) -> list[Record]:
    """Milliseconds to import pypm and torch, interleaved."""
    modules = ("pypm", "torch")
    seconds: dict[str, list[float]] = {module: [] for module in modules}
    for _ in range(rounds):
        for module in modules:
            program = _PROGRAM.format(module=module)
            done = subprocess.run(
                [sys.executable, "-c", program], check=True, capture_output=True, text=True
            )
            took, has_torch = done.stdout.split()
            if module == "pypm" and has_torch == "True":
                raise AssertionError("`import pypm` imports torch")
            seconds[module].append(float(took))
    return [
        {"part": "startup", "label": f"import {m}", "ms": statistics.median(s) * 1e3}
        for m, s in seconds.items()
    ]
