"""Measures of the size of the house: `python -m tests.house [FOLDER]` (`-v` names what is counted).

FOLDER is `pypm` of this tree if none is given, so that two trees can be compared.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.floors import ROOT

PARAMETERS: Final = 8
"""The most of one function."""
LENGTH: Final = 60
"""The most lines of one function."""
BUDGETS: Final[Mapping[str, int]] = {
    "lines": 89_877,
    "class names in two modules or more": 2,
    "functions of more than 8 parameters": 25,
    "functions of more than 60 lines": 0,
    "`object` in signatures": 289,
}
"""The most of each measure in `pypm/`: lower one when it has shrunk, and argue for more."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def measures(folder: Path) -> dict[str, list[str]]:
    """For each measure the places that count; of lines, one place a line would say nothing."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    trees = {str(path.relative_to(folder)): ast.parse(text) for path, text in texts.items()}
    functions = [
        (f"{path}:{node.lineno} {node.name}", node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    ]
    return {
        "lines": [str(path) for path, text in texts.items() for _ in text.splitlines()],
        "class names in two modules or more": _names(trees),
        f"functions of more than {PARAMETERS} parameters": [
            place for place, node in functions if len([*_parameters(node)]) > PARAMETERS
        ],
        f"functions of more than {LENGTH} lines": [
            place for place, node in functions if _length(node) > LENGTH
        ],
        "`object` in signatures": [
            place for place, node in functions for _ in range(_objects(node))
        ],
    }


def _names(trees: Mapping[str, ast.Module]) -> list[str]:
    homes: dict[str, set[str]] = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(path)
    return [" ".join([name, *sorted(paths)]) for name, paths in homes.items() if len(paths) > 1]


def _parameters(node: Function) -> Iterator[ast.arg]:
    some = node.args
    yield from (*some.posonlyargs, *some.args, *some.kwonlyargs)
    yield from filter(None, (some.vararg, some.kwarg))


def _length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _objects(node: Function) -> int:
    annotations = [node.returns, *(parameter.annotation for parameter in _parameters(node))]
    names = (part for some in annotations if some for part in ast.walk(some))
    return sum(isinstance(part, ast.Name) and part.id == "object" for part in names)


def main(arguments: list[str]) -> None:
    """Print the measures of a folder."""
    folders = [Path(name) for name in arguments if name != "-v"] or [ROOT / "pypm"]
    for folder in folders:
        for name, places in measures(folder).items():
            print(f"{len(places):6} {name}")
            if "-v" in arguments and name != "lines":
                print(*(f"       {place}" for place in places), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
