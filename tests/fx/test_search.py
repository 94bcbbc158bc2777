"""What a search may take: at one root, and all searches of a run together."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from pypm import op_var, pattern
from pypm.fx import aten, program_of
from pypm.fx.legality.region import Refusal
from pypm.fx.matching import search
from pypm.fx.matching.patterns_as_rules import as_rule
from pypm.fx.matching.search import Allowance, Candidate, Search
from pypm.fx.subject.view import View


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
    node.meta["val"] = torch.zeros(2)
    for _ in range(length):
        node = graph.call_function(torch.ops.aten.relu.default, (node,))
    graph.output(
        tuple(graph.call_function(torch.ops.aten.sin.default, (node,)) for _ in range(ends))
    )
    return fx.GraphModule(torch.nn.Module(), graph)


def candidates(length: int, ends: int, allowance: Allowance) -> list[list[Candidate]]:
    gm = chain(length, ends)
    program = program_of([as_rule(Endless)])
    view = View(gm.graph, program.reader)
    found = Search(view, allowance, confining=False)
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
