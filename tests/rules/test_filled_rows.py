"""Rows of scores that are filled everywhere: no gradient goes back through them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pypm.fx import first, rewrite
from pypm.integrations import export, inductor
from pypm.rules import attention
from tests.compiled import without_code

S = 8
FILLED = torch.zeros(S, S, dtype=torch.bool)
FILLED[3] = True


def filled(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax((q @ k.transpose(-2, -1) * 0.3).masked_fill(m, -1e9), -1) @ v


def operands(trained: bool) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 2, S, 16).requires_grad_(trained) for _ in range(3)]


@without_code()
def compiled(function: Callable[..., Tensor], args: list[Tensor]) -> tuple[int, Tensor]:
    torch._dynamo.reset()
    passed = inductor.Pass(attention.RULES, "pre_grad", choose=first)
    with inductor.uncached():
        result = torch.compile(function, options=passed.options())(*args)
    return len(passed.report()), result


def test_gradients_are_those_of_the_model() -> None:
    args = operands(trained=True)
    rewrites, result = compiled(filled, [*args, FILLED])
    assert rewrites == 0
    ours = torch.autograd.grad(result.sum() * 3, args)
    theirs = torch.autograd.grad(filled(*args, FILLED).sum() * 3, args)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


class Weighted(torch.nn.Module):
    """Attention of queries that a parameter scales."""

    def __init__(self, is_trained: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((16,), 2.0), is_trained)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return filled(q * self.weight, k, v, m)


@pytest.mark.parametrize("is_program", [False, True])
@pytest.mark.parametrize("is_trained", [False, True])
def test_programs_of_parameters(is_trained: bool, is_program: bool) -> None:
    """Metadata says of the parameters alone that they need gradients."""
    model, args = Weighted(is_trained), (*operands(trained=False), FILLED)
    program = torch.export.export(model, args)
    module = program.module()
    report = (
        export.rewrite(program, attention.RULES) if is_program else rewrite(module, attention.RULES)
    )
    assert len(report) == (not is_trained)
    result = (program.module() if is_program else module)(*args)
    torch.testing.assert_close(result, model(*args))
    if is_trained:
        assert (
            report.refusals[0].reason == "a row that is filled everywhere would send gradients back"
        )


def test_beside_one_without_gradients() -> None:
    """What became of the first match does not hold for the second, which is the same otherwise."""

    def both(*args: Tensor) -> tuple[Tensor, Tensor]:
        *given, m = args
        later = filled(*given[:3], m)
        return later, filled(*given[3:], m)

    args = operands(trained=True)
    for others in ((*args, *operands(trained=False)), (*operands(trained=False), *args)):
        rewrites, results = compiled(both, [*others, FILLED])
        assert rewrites == 1
        ours = torch.autograd.grad(sum(y.sum() for y in results) * 3, args)
        theirs = torch.autograd.grad(filled(*args, FILLED).sum() * 3, args)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_without_gradients_it_is_replaced() -> None:
    with torch.no_grad():
        rewrites, result = compiled(filled, [*operands(trained=True), FILLED])
    assert rewrites == 1
    torch.testing.assert_close(result, filled(*operands(trained=False), FILLED))
