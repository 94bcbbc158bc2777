"""Guards of the rule packs that no test misses: each is left out in turn, and tests are run.

    python -m tests.rules.guard_mutants                       every pack
    python -m tests.rules.guard_mutants rotary norm           two of them
    python -m tests.rules.guard_mutants attention --sample 5  five of its guards, drawn at random

A guard is an assertion, or one operand of an `and`, or one link of a chain of comparisons. The
packs' tests run on a copy of the sources, one guard at a time; a run ends at the first failure.
All of them take an hour or two on one core. Exits with 1 where a guard is not missed: it needs a
near miss, or is not needed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

TESTS: Final[Mapping[str, str]] = {
    "activation": "activation",
    "attention": "attention causal_attention softcap dropout combinations",
    "cleanup": "cleanup",
    "convolution": "convolution",
    "epilogue": "epilogue",
    "gemm": "gemm",
    "horizontal": "horizontal",
    "norm": "norm",
    "quantization": "quantization",
    "reals": "reals",
    "rotary": "rotary",
    "spellings": "rotary norm activation attention causal_attention combinations epilogue",
    "training": "training",
}
"""The tests of each module of `pypm.rules` that has guards, the nearest first."""


@dataclass(frozen=True)
class Mutant:
    """A module of rules without one of its guards."""

    pack: str
    line: int
    guard: str
    source: str

    def __str__(self) -> str:
        return f"pypm/rules/{self.pack}.py:{self.line}: {self.guard}"


def mutants(pack: str, source: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    for node in sorted(found, key=lambda node: node.lineno):
        guards = list(parts(node.test))
        for i, guard in enumerate(guards):
            rest = " and ".join(guards[:i] + guards[i + 1 :])
            yield Mutant(pack, node.lineno, guard, _replaced(source, node, rest))


def parts(test: ast.expr) -> Iterator[str]:
    """The conditions that hold together.

    >>> list(parts(ast.parse("a == b == c and (d or e)", mode="eval").body))
    ['a == b', 'b == c', '(d or e)']
    """
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            for value in values:
                yield from parts(value)
        case ast.Compare(left, operators, comparators) if len(operators) > 1:
            operands = [left, *comparators]
            for one, operator, other in zip(operands, operators, comparators, strict=False):
                yield ast.unparse(ast.Compare(one, [operator], [other]))
        case ast.BoolOp():
            yield f"({ast.unparse(test)})"
        case _:
            yield ast.unparse(test)


def _replaced(source: str, node: ast.Assert, rest: str) -> str:
    lines = source.splitlines(keepends=True)
    assertion = [f"{node.col_offset * ' '}assert {rest}\n"] if rest else []
    return "".join(lines[: node.lineno - 1] + assertion + lines[node.end_lineno :])


def is_missed(mutant: Mutant, copy: Path) -> bool:
    """Whether a test of the pack fails, on a copy of the sources, without the guard."""
    module = copy / "pypm" / "rules" / f"{mutant.pack}.py"
    whole = module.read_text()
    module.write_text(mutant.source)
    files = [f"tests/rules/test_{name}.py" for name in TESTS[mutant.pack].split()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False)
        return ended.returncode != 0
    finally:
        module.write_text(whole)


def copied(to: Path) -> Path:
    """A copy of what the tests need."""
    for name in ("pypm", "tests"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def survivors(packs: Sequence[str], sample: int | None, seed: int) -> Iterator[Mutant]:
    """The mutants that pass the tests of their pack."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for pack in packs:
            found = list(mutants(pack, (copy / "pypm" / "rules" / f"{pack}.py").read_text()))
            chosen = found if sample is None else draw.sample(found, min(sample, len(found)))
            for mutant in chosen:
                if not is_missed(mutant, copy):
                    yield mutant


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packs", nargs="*", help=f"by default all: {', '.join(TESTS)}")
    parser.add_argument("--sample", type=int, help="so many guards of each pack")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    count = 0
    for mutant in survivors(given.packs or [*TESTS], given.sample, given.seed):
        count += 1
        print(f"no test misses {mutant}", flush=True)
    print(f"{count} guards that no test misses")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
