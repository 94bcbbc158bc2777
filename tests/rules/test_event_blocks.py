"""MLP blocks of few rows as one persistent kernel: forms, near misses, numbers of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.fx import every, rewrite
from pypm.rules.events import RULES
from tests.rules.capture import compile_to_graphs, decomposed, fired, whole_operators

torch.set_num_threads(1)

WIDTH, INNER = 36, 75
Block = Callable[..., Tensor]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float() if x.dtype == torch.bfloat16 else x
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def gated(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    y = rms(x, w["scale"])
    return x + F.linear(F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])


def plain(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    y = F.layer_norm(x, (WIDTH,), w["scale"], w["shift"], 1e-5)
    hidden = F.gelu(F.linear(y, w["up"], w["inner"]), approximate="tanh")
    return F.linear(hidden, w["down"], w["shift"]) + x


def residual_of_norm(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    y = rms(x, w["scale"])
    return y + F.linear(F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])


def other_activation(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    y = rms(x, w["scale"])
    return x + F.linear(F.relu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])


def other_gate(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    y = rms(x, w["scale"])
    return x + F.linear(F.silu(F.linear(x, w["gate"])) * F.linear(y, w["up"]), w["down"])


def narrow_weights(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    y = rms(x, w["scale"]).bfloat16()
    gate, up, down = (w[name].bfloat16() for name in ("gate", "up", "down"))
    return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)


def operands(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, dict[str, Tensor]]:
    made = torch.Generator().manual_seed(rows)

    def random(*shape: int) -> Tensor:
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
        return (torch.randn(shape, generator=made, dtype=torch.float64) * scale).to(dtype)

    shapes = {
        "gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER), "scale": (WIDTH,),
        "shift": (WIDTH,), "inner": (INNER,),
    }  # fmt: skip
    return random(rows, 1, WIDTH) * WIDTH**0.5, {n: random(*shape) for n, shape in shapes.items()}


def rewritten(block: Block, args: tuple[Any, ...]) -> tuple[Any, Any]:
    graph = whole_operators(block, args)
    report = rewrite(graph, RULES, choose=every)
    return graph, report


@pytest.mark.parametrize("block", [gated, plain])
def test_blocks_agree_with_float64(block: Block) -> None:
    """In bfloat16, as near to it as torch's operators."""
    for rows in (1, 5, 16):
        x, w = operands(rows)
        exact = block(x.double(), {name: each.double() for name, each in w.items()})
        graph, report = rewritten(block, (x, w))
        assert fired(report) == ["mlp_block"], str(report)
        torch.testing.assert_close(graph(x, w).double(), exact, atol=1e-5, rtol=1e-5)
        x, w = operands(rows, torch.bfloat16)
        exact = block(x.double(), {name: each.double() for name, each in w.items()})
        graph, report = rewritten(block, (x, w))
        assert fired(report) == ["mlp_block"], str(report)
        ours, eager = ((y - exact).square().mean() for y in (graph(x, w), block(x, w)))
        assert 0 < ours < 1.3 * eager


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (residual_of_norm, ""),
        (other_activation, ""),
        (other_gate, ""),
        (narrow_weights, "an operand is torch.bfloat16, not torch.float32"),
    ],
)
def test_near_misses(block: Block, reason: str) -> None:
    _, report = rewritten(block, operands(3))
    assert not fired(report)
    reasons = [refusal.reason for refusal in report.refusals]
    assert reasons == [reason] if reason else not reasons, reasons


@pytest.mark.parametrize(("rows", "reason"), [(17, "more than 16 rows"), (0, "there are no rows")])
def test_other_numbers_of_rows(rows: int, reason: str) -> None:
    _, report = rewritten(gated, operands(rows))
    assert not fired(report) and [refusal.reason for refusal in report.refusals] == [reason]


def test_as_inductor_decomposes_them() -> None:
    args = operands(2)
    report, found = decomposed(plain, args, RULES, choose=every)
    assert fired(report) == ["mlp_block"], str(report)
    torch.testing.assert_close(found, plain(*args), atol=1e-5, rtol=1e-5)


class Two(torch.nn.Module):
    """Two blocks, and between them what is no layer."""

    def __init__(self) -> None:
        super().__init__()
        for name, each in operands(1)[1].items():
            self.register_buffer(name, each)

    def forward(self, x: Tensor) -> Tensor:
        w = dict(self.named_buffers())
        return gated(gated(x, w).sin(), w)


def test_a_symbolic_number_of_rows() -> None:
    """One graph for all; but sizes of weights are numbers in a program."""
    two = Two()
    compiled, hook = compile_to_graphs(two, RULES, choose=every, dynamic=True)
    for rows in (3, 2, 16, 40):
        x, _ = operands(rows)
        torch.testing.assert_close(compiled(x), two(x), atol=1e-5, rtol=1e-5)
    assert [fired(report) for report in hook.reports] == [["mlp_block"] * 2]
    compiled, hook = compile_to_graphs(gated, RULES, choose=every, dynamic=True)
    compiled(*operands(3))
    assert [each.reason for each in hook.report().refusals] == ["a size of weights is symbolic"]
