"""The changes that `python -m tests.mutants` makes can be made to the sources as they are."""

import pytest

from tests.mutants.calculus import CALCULUS
from tests.mutants.legality import LEGALITY
from tests.mutants.matcher import MATCHER
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.oracle import ORACLE


@pytest.mark.parametrize("mutant", [*CALCULUS, *ORACLE, *MATCHER, *LEGALITY], ids=str)
def test_a_mutant_differs_from_its_file(mutant: Mutant) -> None:
    assert mutant.applied() != (ROOT / mutant.file).read_text(encoding="utf-8")
