"""Mutants of the calculus, oracle, matcher and judge of legality, and the check that notices each.

    python -m tests.mutants                    all of them: about an hour on one core
    python -m tests.mutants oracle matcher     some groups
    python -m tests.mutants --only "one alternate"    those of which the line says so

Each change is made on a copy of the sources, and the checks of its group run until one fails. Exits
with 1 where none does: a test is missing, or the change makes nothing wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.calculus import CALCULUS
from tests.mutants.legality import LEGALITY
from tests.mutants.matcher import MATCHER
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.oracle import ORACLE

LIMIT: Final = 900.0
"""Seconds that a check may take; one that takes longer has noticed the change."""


@dataclass(frozen=True)
class Check:
    """A command that fails where it notices something, and what to call it."""

    name: str
    command: tuple[str, ...]

    def noticed(self, root: Path) -> str:
        """What the check says about the copy, or nothing where it passes."""
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                self.command,
                check=False,
                cwd=root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            return f"{self.name}: does not end"
        return f"{self.name}: {_reason(done.stdout + done.stderr)}" if done.returncode else ""


def _reason(output: str) -> str:
    """The line of an output that tells what failed."""
    lines = [line.strip() for line in output.splitlines()]
    marks = ("FAILED", "ERROR ", "coq:", "File ")
    return next((line for mark in marks for line in lines if line.startswith(mark)), lines[-1])


def _make(*targets: str) -> Check:
    return Check(f"make -C coq {' '.join(targets)}", ("make", "-s", "-C", "coq", *targets))


def _torch_tests(*arguments: str) -> Check:
    options = ("-q", "-x", "-p", "no:cacheprovider")
    return Check("pytest", (sys.executable, "-m", "pytest", *options, *arguments))


def _tests(*arguments: str) -> Check:
    # The configuration imports torch, which these tests do not need.
    return _torch_tests("--noconftest", *arguments)


ENGINES: Final = "tests/properties/test_engines.py"
QUICK: Final = (ENGINES, "-k", "table or regressions or operation")
EVERY: Final = (ENGINES, "-m", "")
LEGAL: Final = (
    "tests/legality/test_illegal.py",
    "tests/legality/test_sharing.py",
    "tests/legality/test_conditions.py",
    *(
        f"tests/fx/test_{name}.py"
        for name in ("legality", "memory", "effects", "gradients", "collectives")
    ),
)
GROUPS: Final = {
    "calculus": (
        CALCULUS,
        (*map(_make, ("sources", "all", "statements", "recheck", "test")), _tests(*QUICK)),
    ),
    "oracle": (ORACLE, (_make("test"), _tests(*QUICK), _tests(*EVERY))),
    "matcher": (MATCHER, (_tests(*QUICK), _tests("tests/match"), _tests(*EVERY))),
    "legality": (LEGALITY, (_torch_tests(*LEGAL), _torch_tests("tests/legality/test_judges.py"))),
}


@dataclass(frozen=True)
class Copy:
    """The sources with what was built of them, to which files can be restored."""

    root: Path
    pristine: Path

    def notices(self, mutant: Mutant, checks: Sequence[Check]) -> str:
        """The first check that notices a change, or nothing."""
        (self.root / mutant.file).write_text(mutant.applied(self.root), encoding="utf-8")
        try:
            return next(filter(None, (check.noticed(self.root) for check in checks)), "")
        finally:
            for folder in {"coq", mutant.file.split("/", maxsplit=1)[0]}:
                shutil.rmtree(self.root / folder)
                shutil.copytree(self.pristine / folder, self.root / folder)


def copied(folder: Path) -> Copy:
    """A copy of what the checks need, with the development and the oracle built."""
    pristine = folder / "pristine"
    skipped = shutil.ignore_patterns("__pycache__", "html")
    for name in ("pypm", "tests", "coq"):
        shutil.copytree(ROOT / name, pristine / name, ignore=skipped)
    shutil.copy(ROOT / "pyproject.toml", pristine)
    for target in ("statements", "test"):
        subprocess.run(["make", "-s", "-C", pristine / "coq", target], check=True)
    shutil.copytree(pristine, folder / "copy")
    return Copy(folder / "copy", pristine)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--only", default="", metavar="TEXT", help="in the line of a change")
    chosen = parser.parse_args()
    if not GROUPS.keys() >= {*chosen.groups}:
        parser.error(f"the groups are {', '.join(GROUPS)}")
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for mutant, checks in _chosen(chosen.groups or [*GROUPS], chosen.only):
            by = copy.notices(mutant, checks)
            survivors += not by
            print(f"{mutant}\n    {by or 'NOT NOTICED'}", flush=True)
    print(f"{survivors} not noticed")
    return bool(survivors)


def _chosen(groups: Sequence[str], only: str) -> Iterator[tuple[Mutant, Sequence[Check]]]:
    for group in groups:
        mutants, checks = GROUPS[group]
        for mutant in mutants:
            if only in str(mutant):
                yield mutant, checks


if __name__ == "__main__":
    sys.exit(main())
