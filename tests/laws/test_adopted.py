"""Rules of other systems: all are proved, and no wrong variant is."""

from __future__ import annotations

import pytest

from pypm.laws.verdicts import Proved
from pypm.tools import prove
from tests.laws.adopted import ADOPTED, Adopted

OPEN = frozenset(
    {
        "reduce_of_reduce",
        "dot_of_concats",
        "matmul_add_fusion",
        "simplify_inference_of_group_norm",
    }
)
"""Rules whose variant raises for some sizes, or has none: there is no counterexample."""


@pytest.mark.parametrize("adopted", ADOPTED, ids=lambda each: each.rule.name)
def test_adopted(adopted: Adopted) -> None:
    laws = prove(adopted.rule)
    assert laws.ok, str(laws)
    wrong = prove(adopted.wrong)
    (verdict,) = wrong.verdicts
    assert not isinstance(verdict, Proved)
    assert ("REFUTED" in str(wrong)) == (adopted.rule.name not in OPEN), str(wrong)


def test_all_sources() -> None:
    sources = [each.source for each in ADOPTED]
    assert len(sources) >= 40 and len(set(sources)) == 5
