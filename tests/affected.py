"""Test files that a change can affect, the nearest first: `python -m tests.affected [BASE]`.

A change is all that differs from the commit BASE in the working tree. Without BASE this is the
commit where the branch left `main`; on `main` itself, the last commit but one.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final

from tests.floors import ROOT, imports

MOST_FILES: Final = 25
MOST_SECONDS: Final = 150.0
"""CPU time of all chosen files, as when each was run last: with types and style, three minutes."""
UNKNOWN: Final = 8.0
"""The seconds of a file that was not run here yet; of most it is less."""
SECONDS: Final = ROOT / ".pytest_cache/v/pypm/seconds"
"""Written by `tests/conftest.py`."""
MOST_HOPS: Final = 3
FOLDERS: Final = ("pypm", "tests", "benchmarks", "examples")

READERS: Final[Mapping[str, tuple[str, ...]]] = {
    "pypm/": ("tests/test_floors.py",),
    "pypm/match/compile/steps.py": ("tests/mutants/test_mutants.py", "tests/test_floors.py"),
    "pypm/match/search_state.py": ("tests/mutants/test_mutants.py", "tests/test_floors.py"),
    "coq/theories/": ("tests/mutants/test_mutants.py",),
    "coq/extraction/": ("tests/mutants/test_mutants.py",),
    "pypm/core/parsing/grammar.lark": (
        "tests/core/test_text.py",
        "tests/core/test_hostile_text.py",
    ),
    "pypm/tools/cli/": (
        "tests/tools/test_cli.py",
        "tests/pipeline/test_command.py",
        "tests/tools/test_headroom.py",
        "tests/problems/test_command.py",
        "tests/tiles/test_command.py",
        "tests/events/test_command.py",
    ),
    "pypm/rules/vllm/": (
        "tests/rules/test_vllm.py",
        "tests/rules/test_vllm_collectives.py",
        "tests/rules/test_vllm_packed.py",
    ),
    "pypm/rules/events/": ("tests/rules/test_events.py",),
    "pypm/problems/jail.py": ("tests/evolve/test_programs.py",),
    "pypm/evolve/operators/bridge.py": ("tests/evolve/test_programs.py",),
    "pypm/evolve/judge_process.py": ("tests/evolve/test_judge.py",),
    "benchmarks/evolve/": ("tests/evolve/test_command.py",),
    "benchmarks/evolve/last_position/": (
        "tests/evolve/test_rules.py",
        "tests/evolve/test_command.py",
    ),
    "benchmarks/evolve/hopper_gelu/": (
        "tests/evolve/test_tiles.py",
        "tests/evolve/test_command.py",
    ),
    "pypm/problems/worker/": ("tests/problems/test_problems.py",),
    "pypm/tools/report_page/": ("tests/tools/test_show.py", "tests/tools/test_browser.py"),
    "tests/golden/": ("tests/lang/test_golden.py",),
    "tests/golden/explain/": ("tests/fx/test_explain.py",),
    "tests/golden/rewriting/": ("tests/fx/test_golden.py",),
    "tests/golden/rules/": ("tests/rules/test_golden.py",),
    "tests/golden/suggest/": ("tests/fx/test_suggest.py",),
    "tests/golden/text/": ("tests/fx/test_golden.py",),
    "tests/properties/regressions.txt": ("tests/properties/test_engines.py",),
    "examples/": ("tests/test_examples.py",),
    "benchmarks/gpu/claims.toml": ("tests/benchmarks/test_claims.py",),
    "docs/": ("tests/test_docs.py", "tests/benchmarks/test_claims.py"),
    "docs/packs.md": (
        "tests/test_docs.py",
        "tests/benchmarks/test_claims.py",
        "tests/fx/test_exactness.py",
    ),
    "docs/pictures/blocks.svg": ("tests/kernels/test_score_programs.py",),
    "docs/pictures/tiles.svg": ("tests/tiles/test_timeline.py",),
    "docs/floors.svg": ("tests/test_floors.py",),
    "docs/notebooks/": ("tests/test_notebooks.py",),
    "docs/tiles.md": ("tests/tiles/test_command.py", "tests/tiles/test_timeline.py"),
    "docs/events.md": ("tests/events/test_command.py",),
    "pypm/events/workers.h": ("tests/events/test_workers.py", "tests/events/test_step.py"),
    "pypm/events/": ("tests/events/test_step.py", "tests/rules/test_events.py"),
    "docs/suggest.md": ("tests/test_docs.py", "tests/fx/test_suggest.py"),
    "README.md": ("tests/test_readme.py", "tests/test_docs.py", "tests/benchmarks/test_claims.py"),
    "CONTRIBUTING.md": ("tests/test_docs.py",),
}
"""Tests that read files without importing them; the longest beginning of a file's path counts."""


def changed(base: str) -> list[str]:
    """Paths that differ from a commit, or that git does not know yet."""
    return [
        *_git("diff", "--name-only", base),
        *_git("ls-files", "--others", "--exclude-standard"),
    ]


def default_base() -> str:
    """The commit where the branch left `main`; the parent of HEAD if that is HEAD itself."""
    [head] = _git("rev-parse", "HEAD")
    try:
        [left] = _git("merge-base", "HEAD", "main")
    except subprocess.CalledProcessError:  # no branch of that name
        left = head
    return left if left != head else "HEAD~1"


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


# --- imports ------------------------------------------------------------------------------------


@cache
def _imports(path: str) -> tuple[str, ...]:
    """Dotted names that a file imports."""
    module = path.removesuffix(".py").replace("/", ".")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return tuple(name for _, name in imports(module, tree))


def _files(name: str) -> Iterator[str]:
    """The files of this repository that a dotted name stands for.

    A name that a package takes from one of its modules stands for both.
    """
    path, folder = name.replace(".", "/"), name.rpartition(".")[0].replace(".", "/")
    module = next(filter(_exists, (f"{path}.py", f"{path}/__init__.py", f"{folder}.py")), None)
    if module:
        yield module
    elif _exists(package := f"{folder}/__init__.py"):
        yield package
        for source in _imports(package):
            if source != name and source.rpartition(".")[2] == name.rpartition(".")[2]:
                yield from _files(source)


def _exists(path: str) -> bool:
    return (ROOT / path).is_file()


@cache
def importers() -> Mapping[str, frozenset[str]]:
    """For each file those that import from it, late imports and those for types included."""
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            for imported in {other for name in _imports(path) for other in _files(name)} - {path}:
                found.setdefault(imported, set()).add(path)
    return {path: frozenset(others) for path, others in found.items()}


# --- tests --------------------------------------------------------------------------------------


def affected(paths: Iterable[str]) -> list[str]:
    """Test files that a change of these files can affect, the nearest first.

    At distance 0 are changed tests, doctests of changed modules, tests that read a changed file,
    and those named after one. The distance of another test is the number of imports from it to a
    changed file: at most `MOST_HOPS`, if there are tests so near. Of equal distance, tests in the
    folder of the same name come first.
    """
    nearest: dict[str, tuple[int, bool]] = {}
    for path in paths:
        for test, hops in _distances(path).items():
            rank = (hops, _folder(test) != _folder(path))
            nearest[test] = min(rank, nearest.get(test, rank))
    return sorted(nearest, key=lambda test: (nearest[test], test))


def _distances(path: str) -> dict[str, int]:
    """For each test file its distance from a changed file."""
    found = dict.fromkeys(_nearest(path), 0)
    seen = layer = {path}
    hops = 0
    while layer and (hops < MOST_HOPS or not any(found.values())):
        hops += 1
        layer = {other for file in layer for other in importers().get(file, ())} - seen
        seen = seen | layer
        for test in filter(_is_test, layer):
            found.setdefault(test, hops)
        # who imports a name from a package is an importer of the module that defines it
        layer = {file for file in layer if not file.endswith("/__init__.py")}
    return found


def _nearest(path: str) -> list[str]:
    beginning = max((name for name in READERS if path.startswith(name)), key=len, default="")
    tests = [*READERS.get(beginning, ())]
    if path.endswith(".py"):
        if _exists(path) and (_is_test(path) or _has_doctests(path)):
            tests.append(path)
        stem = path.removesuffix("/__init__.py").rpartition("/")[2].removesuffix(".py")
        tests.append(f"tests/{_folder(path)}/test_{stem}.py")
    return [test for test in tests if _exists(test)]


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and path.rpartition("/")[2].startswith("test_")


def _has_doctests(path: str) -> bool:
    return path.startswith("pypm/") and ">>> " in (ROOT / path).read_text(encoding="utf-8")


def _folder(path: str) -> str:
    """`fx`, of `pypm/fx/rewriting/driver.py` and of `tests/fx/test_driver.py`."""
    return [*path.split("/"), ""][1]


def taken(tests: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """The first test files, without those for which no time is left."""
    found: list[str] = []
    left = MOST_SECONDS
    for test in tests:
        needed = seconds.get(test, UNKNOWN)
        if not found or (needed <= left and len(found) < MOST_FILES):
            found.append(test)
            left -= needed
    return found


def main(arguments: list[str]) -> None:
    """Print the nearest test files; on standard error, those that are left out."""
    tests = affected(changed(arguments[0] if arguments else default_base()))
    seconds = json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.is_file() else {}
    chosen = taken(tests, seconds)
    print(*chosen, sep="\n")
    if others := [test for test in tests if test not in chosen]:
        print(f"left out, as farther away or long: {len(others)} test files:", file=sys.stderr)
        print(*others, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
