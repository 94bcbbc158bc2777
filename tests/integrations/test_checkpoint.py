"""Checkpoints under `torch.compile`: what backward computes anew is the same with rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.traceback import NodeSource, NodeSourceAction
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from pypm import pattern, rule
from pypm.core.rules import Rules
from pypm.fx import Report, aten, rewrite
from pypm.integrations import inductor
from pypm.torch_internals import compile_fx

aten_ops = torch.ops.aten


@pattern
def Doubled(x):
    return aten.mul(x, 2)


@pattern
def DoubledProduct(x, w):
    return Doubled(aten.mm(x, w))


@rule(Doubled)
def doubled(x):
    return x + x


@rule(DoubledProduct)
def doubled_product(x, w):
    return (x + x) @ w


def products_are_saved(_: object, operator: object, *__: object, **___: object) -> CheckpointPolicy:
    is_product = operator == aten_ops.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE = {"context_fn": partial(create_selective_checkpoint_contexts, products_are_saved)}


def layer(x: Tensor, w: Tensor) -> Tensor:
    return torch.sin((x @ w) * 2) + x


def trained(options: dict[str, Any], how: dict[str, Any]) -> tuple[int, Tensor]:
    """Return the bytes that four layers save for their backward pass, and the gradient."""
    torch.manual_seed(0)
    weights = [torch.randn(16, 16, requires_grad=True) for _ in range(4)]
    x = torch.randn(64, 16, requires_grad=True)

    def layers(x: Tensor) -> Tensor:
        for w in weights:
            x = checkpoint(layer, x, w, use_reentrant=False, **how)
        return x

    saved: dict[int, Tensor] = {}

    def pack(value: Tensor) -> Tensor:
        return saved.setdefault(value.untyped_storage().data_ptr(), value)

    inner = inductor.run_as_it_is
    backend: Any = partial(compile_fx, inner_compile=inner, config_patches=options)
    with inductor.uncached(), torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        result = torch.compile(layers, backend=backend)(x)
    result.sum().backward()
    assert x.grad is not None
    return sum(value.untyped_storage().nbytes() for value in saved.values()), x.grad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("how", "rules", "rewrites"),
    [
        ({}, doubled, 8),
        ({}, doubled_product, 4),
        (SELECTIVE, doubled, 8),
        (SELECTIVE, doubled_product, 0),
    ],
)
def test_a_checkpoint_saves_no_more(how: dict[str, Any], rules: Rules, rewrites: int) -> None:
    rewriting = inductor.Pass(rules, "joint")
    (before, expected), (after, found) = trained({}, how), trained(rewriting.options(), how)
    assert len(rewriting.report()) == rewrites
    assert after == before
    torch.testing.assert_close(found, expected)
    if not rewrites:
        (refusal,) = rewriting.report().refusals
        assert refusal.kind == "metadata" and "`recompute`" in refusal.reason


def annotated(marks: Callable[[int], dict[str, object]]) -> tuple[fx.GraphModule, Report]:
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    product = graph.call_function(aten_ops.mm.default, (x, w))
    root = graph.call_function(aten_ops.mul.Tensor, (product, 2))
    graph.output(root)
    product.meta |= marks(0)
    root.meta |= marks(1)
    gm = fx.GraphModule({}, graph)
    return gm, rewrite(gm, doubled_product)


@pytest.mark.parametrize("key", ["recompute", "ac_graph_id", "custom"])
def test_a_region_has_one_annotation(key: str) -> None:
    _, report = annotated(lambda index: {key: {"stream": index}})
    (refusal,) = report.refusals
    assert refusal.kind == "metadata"
    where = f"`mm_default` and `mul_tensor` differ in the metadata `{key}`"
    assert refusal.reason == f"{where}: {{'stream': 0}} and {{'stream': 1}}"
    _, report = annotated(lambda index: {key: 1} if index else {})
    assert not len(report) and len(report.refusals) == 1
    gm, report = annotated(lambda _: {key: {"stream": 0}})
    assert len(report) == 1
    assert [n.meta[key] for n in gm.graph.nodes if n.op == "call_function"] == [{"stream": 0}] * 2


def test_new_nodes_name_the_rule_and_what_they_replace() -> None:
    older = NodeSource(None, "older")
    gm, _ = annotated(lambda _: {"from_node": [older], "has_backward_hook": True})
    new = [node for node in gm.graph.nodes if node.op == "call_function"]
    assert len(new) == 2
    for node in new:
        (source,) = node.meta["from_node"]
        assert (source.name, source.pass_name) == ("mul_tensor", "pypm:doubled_product")
        assert [action.name for action in source.action] == ["REPLACE"]
        assert [each.pass_name for each in source.from_node] == ["older"]
        assert node.meta["has_backward_hook"] is True


def test_of_rewrites_in_a_row_the_last_one_is_named() -> None:
    graph = fx.Graph()
    root = graph.call_function(aten_ops.mul.Tensor, (graph.placeholder("x"), 2))
    graph.output(root)
    former = NodeSource(root, "pypm:former", NodeSourceAction.REPLACE)
    former.from_node = [NodeSource(None, "older")]
    root.meta["from_node"] = [former]
    gm = fx.GraphModule({}, graph)
    assert len(rewrite(gm, doubled)) == 1
    (source,) = gm.graph.output_node().args[0].meta["from_node"]  # type: ignore[union-attr]
    assert source.pass_name == "pypm:doubled"
    assert [each.pass_name for each in source.from_node] == ["older"]
