"""Regions in their surroundings: what the compiler would fuse with them is in both versions."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule
from pypm.choice.fused_around import MOST, in_its_surroundings
from pypm.fx import Appraisal, Candidate, aten, rewrite

A = torch.ops.aten


@pattern
def Exp(x):
    return aten.exp(x)


@rule(Exp, pays="mostly")
def by_exp2(x):
    return torch.exp2(x * 1.4426950408889634)


@pattern
def Product(a, b):
    return aten.mm(a, b)


@rule(Product, pays="mostly")
def product(a, b):
    return torch.mm(b.t(), a.t()).t()


def surrounded(gm: fx.GraphModule, one: object) -> Candidate:
    found: list[Candidate] = []

    def choose(candidate: Candidate) -> Appraisal:
        found.append(in_its_surroundings(candidate))
        return Appraisal(0.0)

    rewrite(gm, one, choose=choose)  # type: ignore[arg-type]
    return found[0]


def names(module: fx.GraphModule) -> list[str]:
    calls = (node for node in module.graph.nodes if node.op == "call_function")
    return [node.target._schema.name for node in calls]


def both(function: object, one: object, *inputs: Tensor) -> Candidate:
    """The candidate of a rule in a graph; both of its graphs give the same."""
    gm = make_fx(function, tracing_mode="fake")(*inputs)  # type: ignore[arg-type]
    found = surrounded(gm, one)
    values = [torch.randn(value.shape, dtype=torch.float64) for value in found.values]  # type: ignore[union-attr]
    before, after = found.before(*values), found.after(*values)
    assert len(before) == len(after) > 0
    for x, y in zip(before, after, strict=True):
        assert torch.allclose(x, y)
    return found


def test_elementwise_work_on_both_sides_is_in_both_graphs() -> None:
    x = torch.ones(4, 4)
    found = both(lambda x, y: torch.mm((x * 2).exp() + y, y), by_exp2, x, x.clone())
    assert names(found.before) == ["aten::mul", "aten::exp", "aten::add"]
    assert names(found.after) == ["aten::mul", "aten::mul", "aten::exp2", "aten::add"]
    assert len(found.values) == 2


def test_products_and_what_is_before_them_are_not() -> None:
    x = torch.ones(4, 4)
    found = both(lambda x, y: torch.mm(x * 2, y).exp().sum(0) * 2, by_exp2, x, x.clone())
    assert names(found.before) == ["aten::exp"]


def test_a_product_is_fused_with_nothing() -> None:
    x = torch.ones(4, 4)
    found = both(lambda x, y: torch.mm(x * 2, y) * 2, product, x, x.clone())
    assert names(found.before) == ["aten::mm"]


def test_what_others_read_is_computed_anew_if_it_is_small() -> None:
    x, row = torch.ones(4, 4), torch.ones(4)

    def function(x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        small, large = row + 1, x + 1
        y = (large + small).exp()
        return torch.mm(y, x), torch.mm(large, x), torch.mv(x, small)

    found = both(function, by_exp2, x, row)
    assert [node.name for node in found.inputs] == ["row_1", "add_1"]
    results = found.before.graph.output_node().args[0]
    assert [n.name for n in results] == ["exp"]  # type: ignore[union-attr]


def test_after_the_region_all_that_others_read_is_a_result() -> None:
    x = torch.ones(4, 4)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        part = (x.exp() * 2)[0]
        return torch.mv(x, part), part + 1

    found = both(function, by_exp2, x)
    assert [n.name for n in found.before.graph.output_node().args[0]] == ["select", "add"]  # type: ignore[union-attr]


def test_what_is_in_memory_for_others_ends_a_layer() -> None:
    """A sum that products and a later sum read; and a sum of what depends on the region."""
    x = torch.ones(4, 4)

    def function(x: Tensor, y: Tensor) -> Tensor:
        first = x + 1
        second = first + torch.mm(first, y).exp()
        return second + torch.mm(second, y)

    found = both(function, by_exp2, x, x.clone())
    assert names(found.before) == ["aten::exp", "aten::add"]


def test_an_index_by_what_the_graph_creates_is_elementwise_too() -> None:
    x, places = torch.ones(4, 4), torch.zeros(4, dtype=torch.int64)

    def function(x: Tensor, places: Tensor) -> Tensor:
        rows = torch.arange(4) % 2
        return (x[rows] * 2 + x[places]).exp()

    gm = make_fx(function, tracing_mode="fake")(x, places)
    around = {node.name for node in surrounded(gm, by_exp2).around}
    assert around == {"arange", "remainder", "index", "mul", "add"}


def test_a_long_chain_is_cut() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(2 * MOST):
            x = x + 1
        return x.exp()

    found = both(function, by_exp2, torch.ones(4, 4))
    assert len(found.around) == MOST
