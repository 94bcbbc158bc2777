"""Graphs that tests capture quickly are those that users have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from tests.rules.capture import whole_operators

torch.set_num_threads(1)


def attend(q: Tensor, k: Tensor) -> Tensor:
    scores = (q @ k.mT / 3).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
    return F.dropout(scores.softmax(-1), 0.1, training=False) @ k


def loop(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    h, results = torch.zeros_like(q[0]), k.new_zeros(k.shape)
    for t in range(4):
        h = q[t].sigmoid() * h + torch.lerp(k[t], h, 0.5)
        results[t] = h.double().chunk(2, -1)[0].repeat(1, 2)
    return results, h


def layers(q: Tensor, k: Tensor) -> Tensor:
    x = F.layer_norm(F.linear(q, k[0], k[0, 0]), (4,))
    return F.gelu(F.instance_norm(x)) + torch.einsum("bij,bkj->bik", x, k)


@pytest.mark.parametrize("function", [attend, loop, layers])
def test_whole_operators_are_those_of_an_export(function: Callable[..., Any]) -> None:
    class Model(torch.nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return function(*args)

    def calls(graph: fx.Graph) -> list[tuple[str, str]]:
        nodes = [node for node in graph.nodes if node.op == "call_function"]
        called = [(str(node.target), str(node.meta["val"])) for node in nodes]
        return [call for call in called if call[0] != "aten._assert_tensor_metadata.default"]

    args = (torch.randn(4, 4, 4), torch.randn(4, 4, 4))
    found = whole_operators(function, args)
    assert calls(found.graph) == calls(torch.export.export(Model(), args).graph)
