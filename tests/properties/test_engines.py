"""The Python engines are held to the machine extracted from Coq, on many pairs at random.

On each pair the Python machine, the extracted one, its compiled code, its big-step enumeration, the
fast matcher, and on small pairs brute force over the declarative rules, must find the same answers
in the same order; the two machines go through the same states; and the static checks agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from pypm.core.guards import Apply, Constant, Equal, Less, Not
from pypm.core.machine import Store, answers, theta
from pypm.core.operators import Operator
from pypm.core.patterns import Guarded, Let, Op, Pattern, Var
from pypm.core.printing import print_pattern, print_term
from pypm.core.terms import Term, Terms
from pypm.core.text import parse_pattern, parse_term
from tests.core.strategies import cases as drawn_cases
from tests.core.table import TABLE
from tests.core.table import Case as TableCase
from tests.properties import oracle
from tests.properties.engines import (
    Report,
    compare,
    declarative_problem,
    is_small,
    matcher_problem,
    problem_of,
    search,
)
from tests.properties.generate import CONSTANTS, DOMAIN, OPERATORS, Case, cases
from tests.properties.oracle import Dialogue, as_text, ask, read_answers, shown_answers
from tests.properties.shrink import shrink, smaller_cases

BATCH = 1_000
REGRESSIONS = Path(__file__).with_name("regressions.txt")


@pytest.fixture(scope="module", autouse=True)
def _oracle() -> None:
    oracle.require_oracle()


def read(line: str) -> Case:
    """A case from the two fields of a line."""
    pattern_text, term_text = line.split("\t")
    pattern = parse_pattern(pattern_text, functions=DOMAIN)
    term = parse_term(term_text, Terms())
    if isinstance(pattern, Op) and pattern.operator == oracle.ROOTS:
        return Case(pattern.arguments, term.children)
    return Case((pattern,), (term,))


def lines() -> list[str]:
    every = REGRESSIONS.read_text(encoding="utf-8").splitlines()
    return [line for line in every if line and not line.startswith("#")]


def assert_agreement(report: Report) -> None:
    if report.problems:
        case, problem = report.problems[0]
        case = shrink(case, lambda smaller: problem_of(smaller) != "")
        text = as_text(case.patterns, case.terms)
        pytest.fail(
            f"{len(report.problems)} disagreements; the first, made small:\n\n{text}\n\n"
            f"{problem_of(case) or problem}\n\nKeep the line above in {REGRESSIONS.name}.",
            pytrace=False,
        )


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_table(case: TableCase) -> None:
    patterns, subjects, _ = case.read()
    assert_agreement(compare([Case(tuple(patterns), tuple(subjects))]))


@pytest.mark.parametrize("line", lines())
def test_regressions(line: str) -> None:
    case = read(line)
    assert as_text(case.patterns, case.terms) == line
    assert_agreement(compare([case]))


@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 10), marks=pytest.mark.soak)], ids=str
)
def test_random_pairs(seeds: range) -> None:
    """The first are as many as find each planted bug."""
    report = Report()
    for seed in seeds:
        report.add(compare(cases(seed, BATCH)))
        assert_agreement(report)
    print(report)
    assert report.shares["pairs"] == len(seeds) * BATCH
    floors = {
        "matching": 0.3,
        "several answers": 0.08,
        "ill-formed": 0.1,
        "unguarded": 0.05,
        "several roots": 0.05,
        "recursive": 0.3,
        "by brute force": 0.15,
    }
    assert {name: share for name, share in floors.items() if report.share(name) < share} == {}
    assert report.share("unfinished") < 0.2


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn_cases())
def test_drawn_pairs(case: tuple[Pattern, Term]) -> None:
    """The same on the cases of the other tests, where hypothesis makes counterexamples small."""
    pattern, term = case
    assert problem_of(Case((pattern,), (term,))) == "", as_text([pattern], [term])


OUTSIDE = {"div", "close", "same_dims"}
"""Functions that the oracle has not: they are about floats and dimensions."""


def operations() -> Iterator[tuple[str, Pattern]]:
    """Each function of guards, and each comparison, at each choice of constants."""
    here = Var("x")
    for name in sorted(DOMAIN.keys() - OUTSIDE):
        for count in (1, 2, 3) if name == "slice" else (1, 2):
            for values in product(map(Constant, CONSTANTS), repeat=count):
                yield name, Let(here, "y", Apply(DOMAIN[name], values))
    for form in (Equal, Less):
        for one, other in product(map(Constant, CONSTANTS), repeat=2):
            yield form.__name__, Guarded(here, form(one, other))
            yield f"not {form.__name__}", Guarded(here, Not(form(one, other)))


def test_every_operation_at_every_choice_of_constants() -> None:
    term = parse_term("a", Terms())
    named = [(name, pattern) for name, pattern in operations()]
    replies = ask([f"run\t9\t{as_text([pattern], [term])}" for _, pattern in named])
    defined = set()
    for (name, pattern), reply in zip(named, replies, strict=True):
        found = shown_answers(answers(pattern, term))
        assert reply == found, print_pattern(pattern)
        defined |= {name} if found != "fail" else set()
    assert defined == {name for name, _ in named}
    assert set(ask([f"run\t9\tx where {name}(1, 2)\ta" for name in OUTSIDE])) == {
        f"unsupported the function {name}" for name in OUTSIDE
    }


def test_one_by_one() -> None:
    """A dialogue gives the answers of a batch, and they read back as what Python finds."""
    some = [c for c in cases("one by one", 300) if len(c.patterns) == 1]
    queries = [f"run\t2000\t{as_text(c.patterns, c.terms)}" for c in some]
    with Dialogue() as dialogue:
        replies = [dialogue.ask(query) for query in queries]
    assert replies == ask(queries)
    several = 0
    for case, reply in zip(some, replies, strict=True):
        found = search(case)
        answers = [theta(store) for store in found.stores]
        values = [value for answer in answers for value in answer.values()]
        if found.ended and all(isinstance(value, Term) for value in values):
            read_back = read_answers(reply, Terms())
            assert read_back is not None
            assert shown_answers(read_back) == shown_answers(answers)
            several += len(answers) > 1
    assert several > 10


def test_errors_are_told() -> None:
    replies = ask(["all\t((\ta", "nonsense", "all\tx where close(x.n, 1)\ta", "all\tx\ta"])
    assert [reply.split()[0] for reply in replies] == ["error", "error", "unsupported", "ok"]
    assert read_answers(replies[0], Terms()) is None


# --- that the tests can fail ----------------------------------------------------------------------


def test_a_wrong_machine_is_told() -> None:
    """With a machine that takes alternates in the wrong order."""
    case = read("f(x | y, z | g(z))\tf(a, g(b))")
    found = search(case)
    assert matcher_problem(case, found) == ""
    found.stores.reverse()
    assert matcher_problem(case, found).startswith("the matcher finds")


def test_brute_force_can_object() -> None:
    case = read("f(x | y, z)\tf(a, b)")
    found = search(case)
    assert is_small(case, 1000) and declarative_problem(case, found, 1000) == ""
    left_out = replace(found, stores=found.stores[1:])
    assert declarative_problem(case, left_out, 1000).startswith("a match that extends no answer")
    wrong = [Store(0, {**store.values, "z": case.terms[0]}) for store in found.stores]
    assert declarative_problem(case, replace(found, stores=wrong), 1000).startswith("no match")


def test_counterexamples_are_made_small() -> None:
    """All that is left is what the failure needs: here, an `h` matched with an `h`."""

    def fails(case: Case) -> bool:
        pairs = zip(map(print_pattern, case.patterns), map(print_term, case.terms), strict=True)
        return any("h(" in pattern and "h(" in term for pattern, term in pairs)

    large = next(case for case in cases("shrink", 1000) if fails(case) and len(case.patterns) > 1)
    small = shrink(large, fails)
    (pattern,), (term,) = small.patterns, small.terms
    assert isinstance(pattern, Op) and isinstance(pattern.arguments[0], Var)
    assert term.operator == OPERATORS[1][1] and not term.children[0].children
    assert not any(map(fails, smaller_cases(small)))


def test_a_missing_oracle_is_a_skip_but_not_under_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "which", lambda tool: None if tool == "coqc" else tool)
    monkeypatch.setattr(oracle, "build", oracle.build.__wrapped__)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="coqc missing"):
        oracle.require_oracle()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="coqc missing"):
        oracle.require_oracle()


def test_operators_above_roots_are_no_others() -> None:
    assert all(oracle.ROOTS not in operators for operators in OPERATORS.values())
    assert Operator("roots") == oracle.ROOTS
