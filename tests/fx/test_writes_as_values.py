"""Writes that nothing else can see match as the operators that return new values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule
from pypm.fx import aten, explain, rewrite
from pypm.integrations import export
from pypm.rules import attention


@pattern
def SumOfProduct(x, y, z):
    return x * y + z


@rule(SumOfProduct)
def fused(x, y, z):
    return aten.addcmul(z, x, y)


@pattern
def Written(x, y):
    return aten.add_(x, y)


@rule(Written)
def written(x, y):
    return aten.sub_(x, -y)


def operands() -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randn(3, 4, generator=made, dtype=torch.float64) for _ in range(3)]


def traced(function: Callable[..., Any], args: list[Tensor]) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake", pre_dispatch=True)(*args)


def names(gm: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def in_place(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    product = x * y
    product += z
    return product


def test_a_sum_that_nothing_else_sees() -> None:
    args = operands()
    gm = traced(in_place, args)
    assert explain(gm, fused, "add_")
    assert names(gm) == ["aten.mul.Tensor", "aten.add_.Tensor"]
    assert len(rewrite(gm, fused)) == 1
    assert names(gm) == ["aten.addcmul.default"]
    torch.testing.assert_close(gm(*args), in_place(*args))


def read_before(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    product = x * y
    square = product.square()
    return product.add_(z), square


def seen_by_a_view(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    product = x * y
    row = product[0]
    return product.add_(z), row


def a_view_is_written(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    product = x * y
    return product.view(4, 3).add_(z.view(4, 3)), product


def narrowed(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return (x.float() * y.float()).add_(z)


@pytest.mark.parametrize("function", [read_before, seen_by_a_view, a_view_is_written, narrowed])
def test_writes_that_are_seen_or_round(function: Callable[..., Any]) -> None:
    args = operands()
    gm = traced(function, args)
    before = names(gm)
    assert len(rewrite(gm, fused)) == 0
    assert names(gm) == before
    torch.testing.assert_close(gm(*args), function(*args))


def test_an_input_is_written() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return x.mul_(y).add_(z)

    args, others = operands(), operands()
    gm = traced(function, args)
    assert len(rewrite(gm, fused)) == 0
    gm(*args), function(*others)
    for one, other in zip(args, others, strict=True):
        assert torch.equal(one, other)


def test_writes_that_are_left_are_written_again() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return in_place(x, y, z) * x.exp().add_(1).add_(z)

    args = operands()
    gm = traced(function, args)
    assert len(rewrite(gm, fused)) == 1
    assert names(gm).count("aten.add_.Tensor") == 2
    torch.testing.assert_close(gm(*args), function(*args))


def test_rules_may_name_the_write_itself() -> None:
    args = operands()
    gm = traced(in_place, args)
    assert rewrite(gm, [written, fused]).count("fused") == 0
    assert names(gm) == ["aten.mul.Tensor", "aten.add_.Tensor"]


class Evoformer(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, *biases: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-1, -2))
        for bias in biases:
            scores += bias
        return torch.matmul(torch.softmax(scores, -1), v)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_attention_of_evoformers_as_exported(dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(0)
    shapes = [*[(2, 3, 4, 5, 8)] * 3, (2, 3, 1, 1, 5), (2, 1, 4, 5, 5)]
    args = tuple(torch.randn(*shape, generator=made, dtype=dtype) for shape in shapes)
    program = torch.export.export(Evoformer(), args)
    report = export.rewrite(program, attention.RULES)
    assert [rewrite.rule for rewrite in report.rewrites] == ["sdpa"]
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(
        program.module()(*args), Evoformer()(*args), atol=tolerance, rtol=tolerance
    )


def test_attention_whose_scores_are_read_elsewhere() -> None:
    class Model(Evoformer):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, *biases: Tensor) -> Any:
            scores = torch.matmul(q, k.transpose(-1, -2))
            plain = scores.amax(-1)
            scores += biases[0]
            return torch.matmul(torch.softmax(scores, -1), v), plain

    args = (*torch.randn(3, 2, 3, 4, 5, 8), torch.randn(2, 3, 1, 1, 5))
    program = torch.export.export(Model(), args)
    assert len(export.rewrite(program, attention.RULES)) == 0
