"""A small task for the judge itself: a scaled ReLU, on hardware that makes bounds near zero."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

from pypm.evolve import SearchTask
from pypm.evolve.candidate import write_files
from tests.problems.small import DEFINITION, WORKLOAD, write

HARDWARE = """\
name = "test"
source = "test"
matrix = { float32 = 1e18 }
vector = 1e18
memory_bandwidth = 1e18
memory = 1e9
cache = 1e4
"""
TASK = """\
name = "scaled"
hardware = "hardware.toml"
rounds = 12
timeout = 30
memory = 4
"""
SLOW = """
import time
def run(x, factor):
    time.sleep(0.05)
    return (x.relu() * factor).flatten()
"""
FAST = "def run(x, factor):\n    return x.relu().mul_(factor).flatten()\n"


def candidate(source: str) -> dict[str, bytes]:
    manifest = b'entry = "kernel.py::run"\n'
    return {"candidate.toml": manifest, "kernel.py": dedent(source).encode()}


def small_task(folder: Path) -> SearchTask:
    write(folder, definition=DEFINITION, workloads=(WORKLOAD,))
    held_out = {**WORKLOAD, "uuid": "large", "axes": {"rows": 32}}
    (folder / "held_out.jsonl").write_text(json.dumps(held_out))
    (folder / "hardware.toml").write_text(HARDWARE)
    (folder / "task.toml").write_text(TASK)
    write_files(candidate(SLOW), folder / "first")
    return SearchTask.from_folder(folder)
