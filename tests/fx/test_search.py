"""The steps of searches, at one root and in a run, and searches that rules share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import let, op_var, pattern, record, rule, var
from pypm.core.guards import Apply, Function, Holds, Reference
from pypm.core.rules import Rule
from pypm.fx import Match, Reading, aten, find, program_of, rewrite
from pypm.fx.legality.region import Refusal
from pypm.fx.matching import search
from pypm.fx.matching.attempts import Attempt, Attempts, Matched, RefusedMatch
from pypm.fx.matching.patterns_as_rules import as_rule
from pypm.fx.matching.program import RuleProgram
from pypm.fx.matching.search import Allowance, Candidate, MatchSearch
from pypm.fx.subject.view import View
from pypm.match.matcher import Answer, Matcher


@pattern
def Many(x):
    """As many derivations as there are ways to choose an alternate at each operator."""
    return aten.relu(Many(x)) | x


@pattern
def Many(x):
    f = op_var(tag="pointwise")
    return f(Many(x))


@pattern
def Endless(x):
    assert x.rank == 9
    return aten.sin(Many(x))


class Counted(Allowance):
    taken = 0

    def charge(self, taken: int) -> None:
        self.taken += taken
        super().charge(taken)


def chain(length: int, ends: int) -> fx.GraphModule:
    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(length):
        node = graph.call_function(torch.ops.aten.relu.default, (node,))
    sines = [graph.call_function(torch.ops.aten.sin.default, (node,)) for _ in range(ends)]
    for made in graph.nodes:
        made.meta["val"] = torch.zeros(2)
    graph.output(tuple(sines))
    return fx.GraphModule(torch.nn.Module(), graph)


def candidates(length: int, ends: int, allowance: Allowance) -> list[list[Candidate]]:
    gm = chain(length, ends)
    program = program_of([as_rule(Endless)])
    view = View(gm.graph, program.reader)
    found = MatchSearch(view, allowance, confining=False)
    return [
        list(found.candidates(target, node))
        for node in view.starts
        for target in program.at(view, node)
    ]


def test_the_searches_of_a_run_share_what_they_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FREE", 100)
    allowance = Counted(1_000)
    refusals = [one for (one,) in candidates(12, 40, allowance)]
    assert len(refusals) == 40
    assert all(isinstance(one, Refusal) and one.kind == "budget" for one in refusals)
    assert allowance.taken <= search.ROOTS * 1_000 + 40 * (100 + 1)
    whole = [one for one in refusals if "searches before" not in one.reason]
    assert len(whole) == search.ROOTS + 1  # each has the free steps as well
    assert refusals[-1].reason.endswith("100 because of what the searches before it have taken")


def test_searches_that_need_few_steps_take_nothing_from_others() -> None:
    allowance = Allowance(20_000)
    assert candidates(2, 40, allowance) == [[]] * 40
    assert allowance.grant() == 20_000


@pattern
def Doubled(x):
    f = op_var(tag="pointwise")
    assert x.rank == 1
    return aten.sin(f(Many(x)))


def same_pattern(names: str) -> list[Rule]:
    return [replace(as_rule(Doubled), name=name) for name in names.split()]


def searched(
    rules: list[Rule], allowance: Allowance, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Attempt], int]:
    """Return the attempts at the end of a chain, and how many searches there were."""
    gm = chain(5, 1)
    program = RuleProgram(rules)
    view = View(gm.graph, program.reader)
    attempts = Attempts(program, MatchSearch(view, allowance))
    count = 0
    answers = Matcher.answers

    def counted(*arguments: Any, **options: Any) -> Iterator[Answer]:
        nonlocal count
        count += 1
        return answers(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Matcher, "answers", counted)
        return [attempt for node in view.starts for attempt in attempts.at(node)], count


def shown(attempt: Attempt) -> str:
    """Return an attempt as text, without the name of its rule."""
    found = getattr(attempt, "match", None), getattr(attempt, "refusal", None)
    return f"{type(attempt).__name__} {found}".replace(repr(attempt.target.rule.name), "")


def test_one_pattern_is_searched_once_for_all_rules_that_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone, single = searched(same_pattern("one"), Allowance(), monkeypatch)
    shared, count = searched(same_pattern("one other third"), Allowance(), monkeypatch)
    assert count == single == 1
    assert any(isinstance(attempt, Matched) for attempt in alone)
    for name in ("one", "other", "third"):
        own = [attempt for attempt in shared if attempt.target.rule.name == name]
        assert [*map(shown, own)] == [*map(shown, alone)]
        assert {a.match.rule for a in own if isinstance(a, Matched)} == {name}


def test_a_shared_search_counts_for_each_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, whole = Counted(), Counted()
    searched(same_pattern("one"), alone, monkeypatch)
    searched(same_pattern("one other third"), whole, monkeypatch)
    assert whole.taken == 3 * alone.taken > 0


def test_a_search_is_repeated_where_fewer_steps_are_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "FREE", 5)
    monkeypatch.setattr(search, "ROOTS", 1)
    attempts, count = searched(same_pattern("one other"), Allowance(40), monkeypatch)
    refused = [a.refusal for a in attempts if isinstance(a, RefusedMatch)]
    assert count > 1
    assert any("searches before" in refusal.reason for refusal in refused)


def test_rules_that_read_or_widen_differently_keep_their_own_matches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other, third = same_pattern("one other third")
    reading = replace(other, reads=lambda match: Reading(match.rule))
    absorbing = replace(third, absorb="pointwise")
    attempts, count = searched([one, reading, absorbing], Allowance(), monkeypatch)
    assert count == 2
    read = {
        a.target.rule.name: a.match.reading and a.match.reading.value
        for a in attempts
        if isinstance(a, Matched)
    }
    assert read == {"one": None, "other": "other", "third": None}


def test_guards_that_call_different_functions_of_one_name_are_not_shared() -> None:
    guards = [Holds(Apply(Function("test", apply), (Reference("x"),))) for apply in (id, hash)]
    rules = [replace(as_rule(Doubled), guard=guard) for guard in (*guards, guards[0])]
    first, second, third = (target.matcher for target in RuleProgram(rules).targets)
    assert first is third
    assert first is not second


READ: list[str] = []


def once(match: Match) -> Reading:
    if once not in match.memory:
        match.memory[once] = None
        READ.append(match.root.name)
    return Reading(None)


@pattern
def Twice(x):
    return aten.relu(aten.relu(x))


@rule(Twice, reads=once)
def relu_once(x):
    return aten.relu(x)


@rule(Twice, reads=lambda match: Reading(None, declined="no use"))
def never(x):
    raise AssertionError


def test_what_was_read_is_forgotten_with_a_change_of_the_graph() -> None:
    READ.clear()
    gm = make_fx(lambda x: (x.relu().relu().sin().relu().relu(), x.cos().relu().relu()))(
        torch.randn(3)
    )
    assert len(find(gm, relu_once)) == 3
    assert len(READ) == 1
    READ.clear()
    assert len(rewrite(gm, relu_once)) == 3
    assert len(READ) == 3


def test_a_body_is_not_called_where_the_reading_declines() -> None:
    gm = make_fx(lambda x: x.relu().relu())(torch.randn(3))
    report = rewrite(gm, never)
    assert [(r.kind, r.reason) for r in report.refusals] == [("declined", "no use")]
    assert not len(report)


@pattern
def Numbered(held):
    x = var()
    let(held=record(x=x, number=1))
    return aten.sin(x)


@pattern
def Numbered(held):
    x = var()
    let(held=record(x=x, number=2))
    return aten.sin(x)


def test_answers_differ_if_their_records_do() -> None:
    gm = chain(1, 1)
    program = program_of([as_rule(Numbered)])
    view = View(gm.graph, program.reader)
    [node], search_ = view.starts[-1:], MatchSearch(view)
    [target] = program.at(view, node)
    matches = [each for each in search_.candidates(target, node) if isinstance(each, Match)]
    assert [each.bindings["held"].number for each in matches] == [1, 2]


@pattern
def Joined(held):
    parts, d = var(), var()
    let(held=record(parts=parts, along=record(dim=d)))
    assert held.along.dim == 1
    return aten.cat(parts, d)


@rule(Joined)
def joined(held):
    return torch.hstack([x * held.along.dim for x in held.parts])


@pattern
def Product(held):
    x, y = var(), var()
    let(held=record(x=x, inner=record(y=y)))
    assert held.x.rank == 2 and held.inner.y.shape[1] == 4
    return aten.mm(x, y)


@rule(Product)
def product(held):
    return torch.einsum("ij,jk->ik", held.x, held.inner.y)


def test_bodies_receive_what_records_hold_of_lists_and_numbers() -> None:
    x, y = torch.ones(2, 2), torch.ones(2, 2)
    gm = make_fx(lambda x, y: torch.cat([x.sin(), y], 1))(x, y)
    assert len(rewrite(gm, joined)) == 1
    assert torch.equal(gm(x, y), torch.cat([x.sin(), y], 1))


def test_no_term_is_made_for_what_a_record_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> Any:
        raise AssertionError("a term is made")

    monkeypatch.setattr(View, "make", refused)
    gm = make_fx(lambda x, y: x @ y)(torch.ones(2, 3), torch.ones(3, 4))
    [found] = find(gm, Product)
    assert [str(found.bindings["held"].x), str(found.bindings["held"].inner.y)] == ["x_1", "y_1"]
