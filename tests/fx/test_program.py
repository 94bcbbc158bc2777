"""Compiled programs: what they share, as text, and that no shipped rule stands in another's way."""

from __future__ import annotations

import warnings

from pypm.core.text import parse_rules
from pypm.fx import program_of
from pypm.fx.matching.program import RuleProgram
from pypm.rules import attention, epilogue

RULES = """
rules r {
  rule first(x, y): relu(add(x, y)) | relu(mul(y, x)) => x
  rule second(x, y): exp(add(x, y)) => y
}
"""

COMPILED = """\
#0 anything
#1 add(_, _)
#2 relu(#1)
#3 mul(_, _)
#4 relu(#3)
#5 #2 | #4
#6 exp(#1)
first at #5
second at #6
"""


def test_rules_share_what_they_test() -> None:
    """Rules that look for the same operator below different roots ask for it once."""
    assert str(RuleProgram(parse_rules(RULES))) == COMPILED.rstrip("\n")


def test_no_shipped_rule_stands_in_the_way_of_another() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program_of([*attention.RULES, *epilogue.RULES])


def test_the_shipped_rules_for_attention_share_one_search() -> None:
    targets = {target.rule.name: target for target in RuleProgram(attention.RULES).targets}
    names = ("sdpa", "attention_by_products", "attention_by_blocks", "decoding")
    assert len({targets[name].sought for name in names}) == 1
