"""Rules with `together_by`: which matches are taken at once, which are left, and why."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import Group, RuleSet, decline, op_var, pattern, rule
from pypm.core.rules import Rule
from pypm.fx import aten, explain, find, partition, rewrite
from pypm.tools import UpToRounding, verify


@pattern
def Product(x, w, b=None):
    return aten.addmm(b, x, w)


@pattern
def Product(x, w, b=None):
    return aten.mm(x, w)


def product_of_all(x: Tensor, w: list[Tensor], b: list[Tensor | None]) -> list[Tensor]:
    parts = (x @ torch.cat(w, 1)).split([v.shape[1] for v in w], 1)
    return [y if c is None else y + c for y, c in zip(parts, b, strict=True)]


@rule(Product, together_by=("x",))
def products(x, w, b):
    assert w.rank == 2
    return product_of_all(x, w, b)


@pattern
def Rounded(x, w):  # its cast is one node for all that share x
    return aten.mm(aten._to_copy(x, dtype=torch.float32), w)


@rule(Rounded, together_by=("x",))
def rounded_products(x, w):
    return (x.float() @ torch.cat(w, 1)).split([v.shape[1] for v in w], 1)


@pattern
def CastWeights(x, w):
    return aten.mm(x, aten._to_copy(w, dtype=torch.float32))


@pattern
def Chain(x, w):
    f = op_var(tag="pointwise")
    return f(Chain(x, w))


@pattern
def Chain(x, w):
    return aten.mm(x, w)


@rule(Chain, together_by=("x",))
def chains(x, w, match):
    return decline("only looking")


def matrices(count: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 4, dtype=dtype) for _ in range(count)]


def three(x, a, b, c):
    return x @ a, x @ b, x @ c


def with_bias(x, a, b, c):
    return x @ a, torch.addmm(c[0], x, b)


def and_an_output_layer(x, a, b, c):
    return ((x @ a) * (x @ b)) @ c


def two_inputs(x, a, b, c):
    return x @ a, x.exp() @ a, x @ b, x.exp() @ c


def equal_inputs(x, a, b, c):  # computed twice, and so two nodes
    return x.exp() @ a, x.exp() @ b


def one_from_another(x, a, b, c):
    y = x @ a
    return x @ (y + b), x @ (y + c)


def one_between(x, a, b, c):
    y = x @ a
    return x @ b, x @ (y + c)


def shared_cast(x, a, b, c):
    y = x.float()
    return y @ a.float(), y @ b.float()


def chained(x, a, b, c):
    return (x @ a).exp().relu(), (x @ b).sin(), x @ c


CASES = [
    (products, three, [["mm", "mm_1", "mm_2"]]),
    (products, with_bias, [["mm", "addmm"]]),
    (products, and_an_output_layer, [["mm", "mm_1"]]),
    (products, two_inputs, [["mm_1", "mm_3"], ["mm", "mm_2"]]),
    (products, equal_inputs, [["mm", "mm_1"]]),
    (products, one_from_another, [["mm_1", "mm_2"]]),
    (products, one_between, [["mm_1", "mm_2"]]),
    (rounded_products, shared_cast, [["mm", "mm_1"]]),
    (chains, chained, [["relu", "sin", "mm_2"]]),
]


@pytest.mark.parametrize(("taken", "function", "groups"), CASES)
def test_what_is_taken_together(taken: Rule, function, groups: list[list[str]]) -> None:
    gm = make_fx(function)(*matrices(4))
    found = [[root.name for root in match.roots] for match in find(gm, taken)]
    assert list(map(list, dict.fromkeys(map(tuple, found))))[: len(groups)] == groups


@pytest.mark.parametrize(("taken", "function", "groups"), CASES[:-1])
def test_it_is_replaced_at_once(taken: Rule, function, groups: list[list[str]]) -> None:
    inputs = matrices(4)
    gm = make_fx(function)(*inputs)
    expected = gm(*inputs)
    report = rewrite(gm, taken)
    gm.graph.lint()
    torch.testing.assert_close(gm(*inputs), expected)
    assert len(report) == len(groups)
    again = rewrite(gm, taken)
    assert not len(again)
    assert {refusal.kind for refusal in again.refusals} <= {"alone"}


def test_the_rest_is_taken_where_one_may_not() -> None:
    """The weights of the third, as they are cast, are used elsewhere."""

    def function(x, a, b, c):
        weights = c.float()
        return x @ a.float(), x @ b.float(), x @ weights, weights.exp()

    @rule(CastWeights, together_by=("x",))
    def cast_together(x, w):
        return (x @ torch.cat(w, 1).float()).split([v.shape[1] for v in w], 1)

    x, *weights = matrices(4)
    inputs = [x.float(), *weights]
    gm = make_fx(function)(*inputs)
    (record,) = rewrite(gm, cast_together).rewrites
    assert [node.name for node in record.before if node.name.startswith("mm")] == ["mm", "mm_1"]
    torch.testing.assert_close(gm(*inputs), function(*inputs))


def test_what_the_body_gets() -> None:
    """What is shared once, the rest as lists in graph order."""
    seen = []

    @rule(Product, together_by=("x",))
    def looking(w, b, x, match):
        seen.append((x.shape, len(w), b[0], len(match.inputs), len(match.roots)))
        return decline("only looking")

    gm = make_fx(lambda x, a, b: (x @ a, torch.addmm(b[0], x, b)))(*matrices(3))
    (refusal,) = rewrite(gm, looking).refusals
    assert seen == [((4, 4), 2, None, 4, 2)]
    assert (refusal.kind, refusal.reason, refusal.count) == ("declined", "only looking", 2)


# --- what is left alone, and why -----------------------------------------------------------------


def written_between(x, a, b, c):
    y = x @ a
    c.add_(1)
    return y, x @ b


def drawn_between(x, a, b, c):
    y = x @ a
    return y, torch.rand(4, 4), x @ torch.rand_like(b)


def cast_used_elsewhere(x, a, b, c):
    y = x.float()
    return y @ a.float(), y @ b.float(), y.exp()


def cast_used_by_a_third(x, a, b, c):
    y = x.float()
    z = y @ a.float()
    return z, y @ z


LEFT = [
    (products, lambda x, a, b, c: x @ a, "mm", "no other match shares `x`"),
    (products, lambda x, a, b, c: (x @ a, b @ a), "mm_1", "no other match shares `x`"),
    (
        products,
        lambda x, a, b, c: x @ (x @ a),
        "mm",
        "the match at `mm_1` shares `x`, but it is computed from `mm`",
    ),
    (
        products,
        lambda x, a, b, c: x @ (x @ a),
        "mm_1",
        "the match at `mm` shares `x`, but `mm_1` is computed from it",
    ),
    (
        products,
        written_between,
        "mm",
        "the match at `mm_1` shares `x`, but memory may be written between it and `mm`",
    ),
    (
        rounded_products,
        cast_used_elsewhere,
        "mm",
        "`_to_copy` is also used by `exp`, outside of the match",
    ),
    (
        rounded_products,
        cast_used_by_a_third,
        "mm",
        "`_to_copy` is also used by `mm_1`, outside of the match",
    ),
]


@pytest.mark.parametrize(("taken", "function", "at", "reason"), LEFT)
def test_what_is_left_alone(taken: Rule, function, at: str, reason: str) -> None:
    gm = make_fx(function)(*matrices(4))
    code = gm.code
    assert reason in str(explain(gm, taken, at=at))
    assert not len(rewrite(gm, taken))
    assert gm.code == code


# --- with everything else ------------------------------------------------------------------------


@pattern
def Erased(x):
    return aten.relu(aten.neg(aten.relu(x)))


@rule(Erased)
def erased(x):
    return torch.zeros(x.shape, dtype=x.dtype)


def test_a_match_that_comes_late_is_taken_with_those_that_waited() -> None:
    """`mm_1` reads `mm` until the rule before has dropped what lies between."""

    def function(x, a, b):
        y = x @ a
        return y, x @ (y.relu().neg().relu() + b)

    inputs = matrices(3)
    gm = make_fx(function)(*inputs)
    expected = gm(*inputs)
    report = rewrite(gm, [products, erased])
    assert [record.rule for record in report.rewrites] == ["erased", "products"]
    torch.testing.assert_close(gm(*inputs), expected)
    assert not len(rewrite(gm, [products, erased]))


def test_it_does_not_shadow_a_rule_for_one() -> None:
    @rule(Product)
    def one(x, w):
        return decline("only looking")

    gm = make_fx(and_an_output_layer)(*matrices(4))
    report = rewrite(gm, RuleSet((products, one)))
    assert report.count("products") == 1
    assert {refusal.rule: refusal.count for refusal in report.refusals}["one"] >= 1


def test_what_matches_alone_does_not_keep_a_group_from_landing() -> None:
    gm = make_fx(and_an_output_layer)(*matrices(4))
    assert rewrite(gm, Group((products,), "group")).count("products") == 1


def test_a_group_does_not_land_where_a_body_declines() -> None:
    @rule(Product, together_by=("x",))
    def declines(x, w):
        return decline("never")

    gm = make_fx(three)(*matrices(4))
    (refusal,) = rewrite(gm, Group((declines,), "group")).refusals
    assert (refusal.kind, refusal.reason) == (
        "group",
        "rule `declines` is refused at `mm_2`: never",
    )


def test_a_partition_has_one_region_for_all() -> None:
    inputs = matrices(4)
    gm = make_fx(and_an_output_layer)(*inputs)
    expected = gm(*inputs)
    made = partition(gm, products)
    assert [len(region.outputs) for region in made.regions] == [2]
    torch.testing.assert_close(gm(*inputs), expected)


def test_one_replacement_for_each() -> None:
    @rule(Product, together_by=("x",))
    def too_few(x, w):
        return x @ w[0]

    gm = make_fx(three)(*matrices(4))
    (refusal,) = rewrite(gm, too_few).refusals
    assert (refusal.kind, refusal.reason) == (
        "mismatch",
        "the replacement has 1 value, not 3",
    )


def test_equal_matches_are_taken_together() -> None:
    """Everything may be shared: what is computed twice is then computed once."""

    @rule(Product, together_by=("x", "w"))
    def once(x, w):
        return [x @ w * 1] * 2

    def function(x, a):
        return (x @ a).exp(), (x @ a).sin()

    inputs = matrices(2)
    gm = make_fx(function)(*inputs)
    expected = gm(*inputs)
    assert len(rewrite(gm, once)) == 1
    torch.testing.assert_close(gm(*inputs), expected)


STEPS = {
    "product": lambda values, i, j: values[i % 3] @ values[-1 - j % len(values)],
    "of the first": lambda values, i, j: values[0] @ values[-1 - j % len(values)],
    "erased": lambda values, i, j: values[-1 - i % len(values)].relu().neg().relu(),
    "tanh": lambda values, i, j: values[-1 - i % len(values)].tanh(),
}
NUMBERS = st.integers(0, 9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), NUMBERS, NUMBERS), max_size=9))
def test_the_fixpoint_is_exact(program: list[tuple[str, int, int]]) -> None:
    def function(*inputs):
        values = list(inputs)
        for name, i, j in program:
            values.append(STEPS[name](values, i, j))
        return values[-1], values[len(values) // 2] * 2

    inputs = [matrix / 8 for matrix in matrices(4)]
    gm = make_fx(function)(*inputs)
    expected = gm(*inputs)
    rules = [products, erased]
    rewrite(gm, rules)
    gm.graph.lint()
    torch.testing.assert_close(gm(*inputs), expected)
    assert not len(rewrite(gm, rules))


def test_many() -> None:
    """As many as the decoder's layers that read one encoder's output."""
    count = 40

    def function(x, *weights):
        y = x
        for w in weights:
            y = y + x.sin() @ w
        return y

    inputs = matrices(count + 1)
    gm = make_fx(function)(*inputs)
    expected = gm(*inputs)
    report = rewrite(gm, products)
    assert report.rewrites[0].bindings["w"].count(",") == count - 1
    torch.testing.assert_close(gm(*inputs), expected)


def test_verify() -> None:
    verification = verify(products, samples=30, nonfinite=False)  # one product may spread a NaN
    assert isinstance(verification.findings[0], UpToRounding), str(verification)
    assert verification.trials[0].fired >= 5
