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


def test_true_equations_are_accepted() -> None:
    assert {name for name, answer in answers(TRUE) if answer != "accepted"} == set()


def test_false_equations_are_refused() -> None:
    found = answers(FALSE)
    refused = {name for name, answer in found if answer.startswith("refused")}
    assert refused == {name for name, _ in found}


X, Y, Z = "(read 0 i4)", "(read 1)", "(read 2)"
LENGTH = f"(pow (pow {Z} 2) 1/2)"
SEEN = "(sum 1 s0 (mul (fn 0 (read 0 i1)) (read 1 i1)))"
LAWS = {
    f"(fn 12 (each 1 s0 (read 0 i1)) {Y})": {
        f"(fn 12 (each 2 s0 (read 0 i2)) {Y})": True,
        f"(fn 12 (each 1 s1 (read 0 i1)) {Y})": False,
        f"(fn 12 {Y} (each 1 s0 (read 0 i1)))": False,
        f"(fn 12 (each 1 s0 (read 0 i4)) {Y})": False,
    },
    "(fn 12 (each 1 s0 (each 2 s0 (read 0 i1 i2))))": {
        "(fn 12 (each 2 s0 (each 1 s0 (read 0 i2 i1))))": True,
        "(fn 12 (each 1 s0 (each 2 s0 (read 0 i2 i1))))": False,
    },
    "(sum 3 s0 (fn 12 (each 1 s0 (read 0 i1 i3))))": {
        "(sum 1 s0 (fn 12 (each 3 s0 (read 0 i3 i1))))": True,
        "(sum 1 s0 (fn 12 (each 1 s0 (read 0 i1 i1))))": False,
    },
    f"(fn 8 (fn 3 {X} (mul -1 (fn 3 {Y} -5))))": {
        f"(fn 3 (fn 8 {X}) (mul -1 (fn 3 (fn 8 {Y}) -5)))": True,
        f"(fn 3 (fn 8 {X}) (mul -1 (fn 3 (fn 8 {Y}) -4)))": False,
        f"(fn 3 {X} (mul -1 (fn 3 (fn 8 {Y}) -5)))": False,
    },
    f"(fn 8 (add (fn 8 {X}) (fn 3 s0 i4)))": {f"(add (fn 8 {X}) (fn 3 i4 s0))": True},
    f"(fn 8 (mul 1/2 (fn 8 {X})))": {f"(mul 1/2 (fn 8 {X}))": False},
    f"(fn 8 (fn 3 {X} 5/2))": {f"(fn 3 (fn 8 {X}) 5/2)": False},
    f"(fn 8 (fn 3 {X} {Y}))": {f"(fn 3 {X} (fn 8 {Y}))": False},
    f"(fn 8 {X} {Y})": {f"(add 1 (add -1 (fn 8 {X} {Y})))": True, f"(fn 8 (fn 8 {X} {Y}))": False},
    f"(mul 2 (fn 3 {X} (mul 3 {Y})))": {
        f"(fn 3 (mul 2 {X}) (mul 6 {Y}))": True,
        f"(mul 6 (fn 3 {Y} (mul 1/3 {X})))": True,
        f"(fn 3 (mul 2 {X}) (mul 3 {Y}))": False,
    },
    f"(mul -2 (fn 3 {X} {Y}))": {
        f"(fn 3 (mul -2 {X}) (mul -2 {Y}))": False,
        f"(mul -1 (fn 3 (mul 2 {X}) (mul 2 {Y})))": True,
    },
    f"(fn 3 (mul {X} (pow {LENGTH} -1)) {Y})": {
        f"(mul (pow {LENGTH} -1) (fn 3 {X} (mul {LENGTH} {Y})))": True,
        f"(mul (pow {LENGTH} -1) (fn 3 {X} {Y}))": False,
    },
    f"(fn 3 (mul {X} (pow {Z} -1)) {Y})": {f"(mul (pow {Z} -1) (fn 3 {X} (mul {Z} {Y})))": False},
    f"(fn 3 (pow {X} 2) -3)": {f"(pow {X} 2)": True},
    f"(fn 3 (pow {X} 3) -3)": {f"(pow {X} 3)": False},
    f"(fn 3 (pow {X} 2) 1/3)": {f"(pow {X} 2)": False},
    f"(fn 3 (mul -1 (pow {X} 1/2)) 0)": {"0": True, f"(mul -1 (pow {X} 1/2))": False},
    "(fn 3 (max 1 s0 (exp (read 0 i1))) 0)": {"(max 2 s0 (exp (read 0 i2)))": True},
    "(fn 3 (max 1 s0 (read 0 i1)) 0)": {"(max 2 s0 (read 0 i2))": False},
    f"(mul (pow {Z} -1) (exp (fn 1 (mul {Z} (exp {X})))))": {f"(pow {Z} -1)": True},
    f"(mul (pow {Y} -1) (exp (fn 1 {Z})))": {f"(pow {Y} -1)": False},
    f"(mul (pow {Z} -1) (exp (fn 1 (add {Z} 1))))": {f"(pow {Z} -1)": False},
    f"(mul (pow {Z} 2) (add 1 (fn 1 {Z})))": {f"(pow {Z} 2)": False},
    f"(add (mul (pow {Z} -1) (fn 0 {X})) (fn 1 {Z}))": {f"(mul (pow {Z} -1) (fn 0 {X}))": True},
    f"(add (mul (fn 0 (fn 0 {X})) (pow {Z} -1)) (fn 1 {Z}))": {
        f"(mul (fn 0 (fn 0 {X})) (pow {Z} -1))": False
    },
    f"(mul (pow {SEEN} -1) (fn 1 (sum 1 s0 (fn 0 (read 0 i1)))))": {"0": True},
    f"(mul (pow {SEEN} -1) (fn 1 (sum 1 s0 (read 1 i1))))": {"0": False},
    "(sum 1 s0 (mul (pow (read 0 i1) -1) (fn 1 (read 0 i1))))": {"0": True},
    "(sum 1 s0 (mul (pow (read 0 i1) -1) (fn 1 (read 0 i2))))": {"0": False},
    "(pow (add 1 (mul (add s0 -1) (fn 1 (fn 2 s0)))) -1)": {"1": True},
    "(pow (add 1 (mul (add s0 -2) (fn 1 (fn 2 s0)))) -1)": {"1": False},
    f"(fn -12 (fn -12 {X}))": {f"(fn -12 {X})": True, f"(fn -13 {X})": False, X: False},
    f"(fn -12 (fn -13 {X}))": {f"(fn -12 {X})": False},
    "(max 1 s0 (exp s0))": {"(exp s0)": True, "(exp i1)": False},
    "(mul (pow (read 0 i1) -1) (sum 1 s0 (fn 1 (read 0 i1))))": {"0": False},
    "(mul (pow (read 0 i1) -1) (sum 2 s0 (fn 1 (mul i2 (read 0 i1)))))": {"0": False},
}


def test_laws_are_used_where_they_hold() -> None:
    queries = {
        f"equation\t{one}\t{two}": holds
        for one, others in LAWS.items()
        for two, holds in others.items()
    }
    found = zip(queries.items(), ask(list(queries)), strict=True)
    assert [query for (query, holds), answer in found if (answer == "accepted") != holds] == []


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
