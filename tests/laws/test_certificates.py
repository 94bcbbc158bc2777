"""The checker extracted from Coq accepts certificates of what is proved, and no damaged ones."""

from __future__ import annotations

from math import isclose
from random import Random

import pytest
from typer.testing import CliRunner

from pypm.laws.algebra import NoMeaning
from pypm.laws.certified.certificates import certificates, written
from pypm.laws.equations import compared
from pypm.rules import activation, norm
from pypm.tools.cli import app
from tests.laws.adopted import ADOPTED
from tests.laws.expressions import damaged, parsed, shown, value
from tests.laws.pairs import FALSE, TRUE
from tests.laws.sides import between
from tests.properties.oracle import EXECUTABLE, ask, require_oracle

SEEDS = range(3)


@pytest.fixture(scope="module", autouse=True)
def oracle() -> None:
    require_oracle()


def answers(table):
    """The answers on all certificates of a table of pairs, by name."""
    queries, found = {}, []
    for name in table:
        equation = between(*table[name])
        compared(equation)
        try:
            queries |= {f"equation\t{a}\t{b}": name for a, b in written(equation)}
        except NoMeaning as why:
            found.append((name, str(why)))
    return [*found, *zip(queries.values(), ask(list(queries)), strict=True)]


def differ(one, two) -> bool:
    for seed in SEEDS:
        try:
            found = value(one, seed, {}), value(two, seed, {})
            if not isclose(*found, rel_tol=1e-6, abs_tol=1e-9):
                return True
        except (OverflowError, ZeroDivisionError, TypeError, ValueError):
            pass
    return False


UNKNOWN = frozenset(
    {
        "a softmax that is zero where nothing is seen",
        "a softmax of products that is 0 where nothing is seen",
        "a softmax of products that is 0 where all is hidden",
    }
)
"""Equations by a law that the checker has not: a sum of what is seen is zero where nothing is."""


def test_true_equations_are_accepted() -> None:
    assert {name for name, answer in answers(TRUE) if answer != "accepted"} == UNKNOWN


def test_false_equations_are_refused() -> None:
    found = answers(FALSE)
    refused = {name for name, answer in found if answer.startswith("refused")}
    assert refused == {name for name, _ in found}


RULES = frozenset(
    {
        "not_of_not",
        "or_of_its_opposite",
        "less_than_itself",
        "select_by_not",
        "reduce_of_concat",
        "root_of_square",
        "reciprocal_root_of_power",
        "gelu_fusion",
        "relu_clip_fusion",
    }
)


def test_proved_equations_are_accepted_and_damaged_ones_refused() -> None:
    others = [each.rule for each in ADOPTED if each.rule.name in RULES]
    found = certificates([norm.rms_norm, norm.layer_norm, activation.whole, *others])
    assert found.missing == ()
    assert found.accepted(EXECUTABLE) == len(found.equations)
    random = Random(0)
    wrong = []
    for query in random.sample(found.queries, 200):
        _, *sides = query.split("\t")
        trees = [parsed(side) for side in sides]
        assert not differ(*trees)
        place = random.randrange(2)
        trees[place] = damaged(trees[place], random)
        if differ(*trees):
            wrong.append("\t".join(["equation", *map(shown, trees)]))
    assert len(wrong) > 100
    assert all(answer.startswith("refused") for answer in ask(wrong))


def test_the_command_writes_certificates(tmp_path) -> None:
    path = tmp_path / "queries"
    rules = ["tests.laws.test_prove:softmax", "tests.laws.test_prove:no_copies"]
    result = CliRunner().invoke(app, ["prove", *rules, "--certificates", str(path)])
    assert result.exit_code == 0, result.output
    queries = path.read_text().splitlines()
    assert len(queries) > 5 and set(ask(queries)) == {"accepted"}
