"""The counterexamples of `coq/theories/legality/Illegal.v` as graphs of torch's.

Coq's judge refuses each for the condition that Coq's theorem names, and its outcome differs. PyPM
refuses it as well, or inserts a copy that makes it legal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pytest
import torch
from torch import Tensor, fx

from pypm.fx import rewrite
from tests.hunt.outcomes import Make, difference, kept_modes, observed
from tests.legality.cases import NEG_TWICE, SAMPLED, TURNED_TWICE, Case, Planted, applied, copied
from tests.legality.judge import question, roots_of, verdicts
from tests.legality.operators import OPERATORS
from tests.properties.oracle import COQ, require_oracle

ABSORBED: Final = ("maximum", "x", ("minimum", "x", "y"))
"""It is `x`, whatever `y` is."""


@dataclass(frozen=True)
class Illegal:
    """A rewrite that meets every condition but one."""

    condition: str
    steps: str
    """Calls in order, `name = operator operands`, and the outputs."""
    roots: tuple[object, ...]
    results: tuple[object, ...]
    verdict: str
    """The kind of PyPM's refusal; "copied" if a copy makes the rewrite legal."""
    region: str
    """The nodes of the region, of which the last ones are the roots."""
    operands: str = "x"
    """What the rule's variables `x`, `y` stand for."""
    aliased: bool = False
    exchanged: str = ""
    """Two nodes that change places, so that a replacement can stand before the first root."""


NAMES, WRITTEN, MODES = "NamesDefined", "NothingWritten", "ModesKept"
EFFECTS, WRITES, VISIBLE = "SameEffects", "WritesApart", "VisibleApart"
CLONED = (("clone", "x"),)
ILLEGAL: Final = {
    "L1_escape": Illegal(
        NAMES, "t = neg x; r = neg t; s = abs t -> r s", (NEG_TWICE,), CLONED, "escape", "t r"
    ),
    "L2_cycle": Illegal(
        NAMES, "r = neg x; t = clone r; s = abs t -> r s", (("neg", "x"), ("abs", "y")),
        (("neg", ABSORBED), ("abs", "y")), "cycle", "r s", "x t",
    ),
    "L3_written_between": Illegal(
        WRITTEN, "t = neg x; u = neg_ x; r = neg t -> r", (NEG_TWICE,), CLONED, "effect", "t r"
    ),
    "L4_region_writes": Illegal(
        WRITTEN, "r = neg_ x; s = abs r -> s", (("neg_", "x"),), (("neg", "x"),), "effect", "r"
    ),
    "L5_replacement_writes": Illegal(
        WRITTEN, "r = neg x; s = abs r -> s", (("neg", "x"),), (("clone", ("neg_", "x")),),
        "effect", "r",
    ),
    "L6_switched_between": Illegal(
        MODES, "t = mm x y; u = enter; r = mm t y; v = exit u -> r",
        (("mm", ("mm", "x", "y"), "y"),), (("neg", ("mm", ("mm", ("neg", "x"), "y"), "y")),),
        "effect", "t r", "x y",
    ),
    "L8_draw_dropped": Illegal(
        EFFECTS, "t = rand_like x; u = minimum x t; r = maximum x u; s = rand_like x -> r s",
        (SAMPLED,), CLONED, "random", "t u r",
    ),
    "L9_draw_added": Illegal(
        EFFECTS, "t = neg x; r = neg t; s = rand_like x -> r s", (NEG_TWICE,), (SAMPLED,),
        "random", "t r",
    ),
    "L10_draws_exchanged": Illegal(
        EFFECTS, "r = neg x; u = rand_like x; t = rand_like x; s = abs t -> r u s",
        (("neg", "x"), ("abs", "y")), (("neg", ABSORBED), ("abs", "y")), "random", "r s", "x t",
        exchanged="u t",
    ),
    "L11_effect_dropped": Illegal(
        EFFECTS, "r = note x -> r", (("note", "x"),), CLONED, "effect", "r"
    ),
    "L12_effect_added": Illegal(
        EFFECTS, "t = neg x; r = neg t -> r", (NEG_TWICE,), (("note", "x"),), "effect", "t r"
    ),
    "L13_copy_of_written": Illegal(
        WRITES, "t = neg x; r = neg t; u = fill_ x; s = neg r -> s", (NEG_TWICE,), ("x",),
        "copied", "t r",
    ),
    "L14_written_copy": Illegal(
        WRITES, "t = neg x; r = neg t; u = fill_ r; s = neg r -> s", (NEG_TWICE,), ("x",),
        "copied", "t r",
    ),
    "L15_view_of_written": Illegal(
        WRITES, "t = t x; r = t t; u = fill_ x; s = neg r -> s", (TURNED_TWICE,), CLONED,
        "layout", "t r",
    ),
    "L16_written_view": Illegal(
        WRITES, "t = t x; r = t t; u = fill_ r; s = neg u -> s", (TURNED_TWICE,), CLONED,
        "layout", "t r",
    ),
    "L17_written_reshape": Illegal(
        WRITES, "t = neg x; r = neg t; u = fill_ x; s = neg r -> s", (NEG_TWICE,),
        (("contiguous", "x"),), "copied", "t r",
    ),
    "L18_view_of_copy": Illegal(
        WRITES, "t = neg x; r = neg t; v = row r; u = fill_ x; s = neg v -> s", (NEG_TWICE,),
        ("x",), "copied", "t r",
    ),
    "L19_same_inputs": Illegal(
        WRITES, "t = neg x; r = neg t; u = fill_ y; s = neg r -> s", (NEG_TWICE,), ("x",),
        "copied", "t r", aliased=True,
    ),
    "L20_returned_input": Illegal(
        VISIBLE, "t = neg x; r = neg t -> r", (NEG_TWICE,), ("x",), "copied", "t r"
    ),
    "L21_returned_view": Illegal(
        VISIBLE, "t = t x; r = t t -> r", (TURNED_TWICE,), CLONED, "layout", "t r"
    ),
    "L22_joined_outputs": Illegal(
        VISIBLE, "r = abs x; t = neg x; s = abs t -> r s", (("abs", "x"), ("abs", ("neg", "x"))),
        (("abs", "x"), ("abs", "x")), "copied", "t r s",
    ),
    "L24_last_draw_dropped": Illegal(
        EFFECTS, "t = rand_like x; u = minimum x t; r = maximum x u -> r", (SAMPLED,), CLONED,
        "random", "t u r",
    ),
}  # fmt: skip
MIRRORED: Final = ("maximum", "x", ("t", "x"))
"""Its transpose is its equal."""
OTHER_PARTS: Final = {
    "L23_other_parts": Illegal(
        "", "u = t x; v = maximum x u; r = alias v; s = t v -> r s",
        (("alias", MIRRORED), ("t", MIRRORED)), (("alias", MIRRORED), ("t", ("t", MIRRORED))),
        "layout", "u v r s",
    ),
}  # fmt: skip
"""What signatures allow: results that share memory become other parts of it."""
WITHOUT_A_GRAPH: Final = {"L7_region_switches", "L25_mode_left"}
"""The value of a call that changes a mode is no tensor, so no rule can replace it."""


def drawn(illegal: Illegal) -> Case:
    """Return the graph as a case."""
    graph = fx.Graph()
    named = {name: graph.placeholder(name) for name in ("x", "y")}
    steps, outputs = illegal.steps.split(" -> ")
    for step in steps.split("; "):
        name, call = step.split(" = ")
        operator, *read = call.split()
        named[name] = OPERATORS[operator].node(graph, *map(named.get, read), name=f"{name}_")
    graph.output(tuple(named[name] for name in outputs.split()))
    region = [named[name].name for name in illegal.region.split()]
    planted = Planted(illegal.roots, illegal.results)
    operands = zip("xy", illegal.operands.split(), strict=False)

    def make(_: float) -> list[Tensor]:
        made = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(0))
        return [made[0], made[0] if illegal.aliased else made[1].clone()]

    return Case(
        planted,
        fx.GraphModule(torch.nn.Module(), graph),
        {variable: named[name].name for variable, name in operands},
        region[-len(illegal.roots) :],
        region,
        illegal.aliased,
        make,
    )


def outcome_differs(before: fx.GraphModule, after: fx.GraphModule, make: Make) -> bool:
    with kept_modes():
        expected = observed(before, make)
    with kept_modes():
        return bool(difference(before, expected, observed(after, make), make, None))


@pytest.fixture(autouse=True, scope="module")
def _oracle() -> None:
    require_oracle()


@pytest.mark.parametrize("name", ILLEGAL)
def test_each_condition_is_needed(name: str) -> None:
    illegal = ILLEGAL[name]
    made = drawn(illegal)
    by_hand = applied(made)
    if illegal.exchanged:
        named = {node.name: node for node in by_hand.module.graph.nodes}
        one, other = (named[f"{name}_"] for name in illegal.exchanged.split())
        other.append(one)
        by_hand.module.recompile()
    asked = question(
        made.module.graph, by_hand.module.graph, by_hand.roots, made.region,
        apart=not made.aliased, without=by_hand.escaping,
    )  # fmt: skip
    assert verdicts([asked]) == [{illegal.condition}]
    if illegal.condition != NAMES:
        assert outcome_differs(made.module, by_hand.module, made.make)


@pytest.mark.parametrize("name", ILLEGAL)
def test_pypm_refuses_it_or_copies(name: str) -> None:
    illegal = ILLEGAL[name]
    made = drawn(illegal)
    before = fx.GraphModule(torch.nn.Module(), copied(made.module.graph))
    report = rewrite(made.module, (made.planted.rule,))
    if illegal.verdict != "copied":
        assert not report.rewrites
        assert illegal.verdict in {refusal.kind for refusal in report.refusals}
        return
    assert len(report.rewrites) == 1
    assert torch.ops.aten.clone.default in {node.target for node in made.module.graph.nodes}
    roots = roots_of(before.graph, made.module.graph)
    asked = question(before.graph, made.module.graph, roots, made.region, apart=not made.aliased)
    assert verdicts([asked]) == [frozenset()]
    assert not outcome_differs(before, made.module, made.make)


@pytest.mark.parametrize("name", OTHER_PARTS)
def test_signatures_do_not_tell_parts_of_memory(name: str) -> None:
    made = drawn(OTHER_PARTS[name])
    before = fx.GraphModule(torch.nn.Module(), copied(made.module.graph))
    by_hand = applied(made)
    asked = question(
        before.graph, by_hand.module.graph, by_hand.roots, made.region,
        apart=True, without=by_hand.escaping,
    )  # fmt: skip
    assert verdicts([asked]) == [frozenset()]
    results = [module(*made.make(0.0)) for module in (before, by_hand.module)]
    assert all(map(torch.equal, *results))
    for one, _ in results:
        one[0].fill_(5.0)
    assert not torch.equal(results[0][1], results[1][1])
    report = rewrite(made.module, (made.planted.rule,))
    assert [refusal.kind for refusal in report.refusals] == [OTHER_PARTS[name].verdict]


def test_every_counterexample_has_a_graph() -> None:
    source = (COQ / "theories" / "legality" / "Illegal.v").read_text()
    others = re.findall(r"^Theorem (L\w+) : parts_needed", source, re.MULTILINE)
    assert others == [*OTHER_PARTS]
    stated = re.findall(r"^Theorem (L\w+) : needed (\w+)", source, re.MULTILINE)
    conditions = {name: illegal.condition for name, illegal in ILLEGAL.items()}
    assert dict(stated).keys() == ILLEGAL.keys() | WITHOUT_A_GRAPH
    assert all(conditions[name] == condition for name, condition in stated if name in conditions)
