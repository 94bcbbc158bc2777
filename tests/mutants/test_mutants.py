"""The changes that `python -m tests.mutants` makes can be made to the sources as they are."""

from pathlib import Path

import pytest

from tests.mutants.calculus import CALCULUS
from tests.mutants.legality import LEGALITY
from tests.mutants.matcher import MATCHER
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.oracle import ORACLE
from tests.rules import guard_mutants


@pytest.mark.parametrize("mutant", [*CALCULUS, *ORACLE, *MATCHER, *LEGALITY], ids=str)
def test_a_mutant_differs_from_its_file(mutant: Mutant) -> None:
    assert mutant.applied() != (ROOT / mutant.file).read_text(encoding="utf-8")


def test_every_module_with_guards_has_tests_that_miss_them() -> None:
    folder = Path(ROOT, "pypm", "rules")
    found = {
        str(path.relative_to(folder).with_suffix(""))
        for path in folder.rglob("*.py")
        if any(guard_mutants.mutants("", path.read_text(encoding="utf-8")))
    }
    assert guard_mutants.TESTS.keys() == found
    for names in guard_mutants.TESTS.values():
        for name in names.split():
            assert Path(ROOT, "tests", "rules", f"test_{name}.py").is_file(), name
