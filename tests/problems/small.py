"""A small problem in the files of SOL-ExecBench, and solutions for it."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

DEFINITION = {
    "name": "scaled",
    "axes": {
        "rows": {"type": "var"},
        "columns": {"type": "const", "value": 64},
        "all": {"type": "expr", "expression": "rows * columns"},
    },
    "constraints": ["rows % 2 == 0"],
    "inputs": {
        "x": {"shape": ["rows", "columns"], "dtype": "float32"},
        "factor": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["all"], "dtype": "float32"}},
    "reference": "def run(x, factor):\n    return (x.relu() * factor).flatten()\n",
}
WORKLOAD = {
    "uuid": "small",
    "axes": {"rows": 16},
    "inputs": {"x": {"type": "random"}, "factor": {"type": "scalar", "value": 3.0}},
    "tolerance": {"max_atol": 1e-5, "max_rtol": 1e-5},
}


def solution(name: str, source: str, destinations: bool = False) -> dict[str, object]:
    return {
        "name": name,
        "definition": "scaled",
        "author": "tests",
        "spec": {
            "language": "python",
            "target_hardware": ["LOCAL"],
            "entry_point": "main.py::run",
            "destination_passing_style": destinations,
        },
        "sources": [{"path": "main.py", "content": dedent(source)}],
    }


def write(
    folder: Path,
    *solutions: dict[str, object],
    definition: object = DEFINITION,
    workloads: tuple[object, ...] = (WORKLOAD,),
) -> list[Path]:
    """Write the files of a problem, and return the paths of the solutions."""
    folder.mkdir(exist_ok=True)
    (folder / "definition.json").write_text(json.dumps(definition))
    (folder / "workload.jsonl").write_text("".join(f"{json.dumps(w)}\n" for w in workloads))
    paths = []
    for each in solutions:
        paths.append(folder / f"{each['name']}.json")
        paths[-1].write_text(json.dumps(each))
    return paths
