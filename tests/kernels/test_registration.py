"""Custom operators from their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pypm.kernels.support.registration import Gradients, custom_operator


def scaled(xs: list[Tensor], factor: float) -> list[Tensor]:
    return [x * factor for x in xs]


def like(xs: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for x in xs]


def test_the_schema_is_the_signature() -> None:
    operator = custom_operator("pypm_tests::schema", scaled, outputs=like)
    assert str(torch.ops.pypm_tests.schema.default._schema) == (
        "pypm_tests::schema(Tensor[] xs, float factor) -> Tensor[]"
    )
    torch.library.opcheck(operator, ([torch.ones(2)], 3.0))


def test_saved_values_come_back_as_they_were() -> None:
    def backward(
        xs: list[Tensor], factor: float, none: None, grads: list[Tensor]
    ) -> tuple[object, ...]:
        assert none is None
        assert [tuple(x.shape) for x in xs] == [(2,), (3,)]
        return [g * factor for g in grads], None

    gradients = Gradients(backward, lambda inputs, output, needed: (*inputs, None))
    operator = custom_operator("pypm_tests::saved", scaled, outputs=like, gradients=gradients)
    x, y = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    sum(out.sum() for out in operator([x, y], 3.0)).backward()  # type: ignore[union-attr]
    assert (x.grad.tolist(), y.grad.tolist()) == ([3, 3], [3, 3, 3])  # type: ignore[union-attr]


def test_what_needs_gradients_is_given_for_each_input() -> None:
    def sums(xs: list[Tensor], y: Tensor, factor: float, z: Tensor) -> Tensor:
        return sum(xs, y + z) * factor

    def saves(inputs: tuple[Any, ...], output: Any, needed: Sequence[Any]) -> tuple[Any, ...]:
        seen.append(needed)
        return (inputs[2],)

    def backward(factor: float, grad: Tensor) -> tuple[Any, ...]:
        return [grad * factor] * 2, grad * factor, None, grad * factor

    seen: list[Sequence[Any]] = []
    operator = custom_operator(
        "pypm_tests::needed",
        sums,
        outputs=lambda y: y.clone(),
        gradients=Gradients(backward, saves),
    )
    x, y, z = (torch.ones(2, requires_grad=i != 1) for i in range(3))
    operator([x, x.detach()], y, 2.0, z)
    assert seen == [[[True, False], False, False, True]]


def test_results_may_be_written() -> None:
    """Though the function returns views: autograd refuses writes to those."""

    def views(xs: list[Tensor], factor: float) -> list[Tensor]:
        return [(x * factor).view(-1) for x in xs]

    gradients = Gradients(lambda xs, factor, grads: ([g * factor for g in grads], None))
    operator = custom_operator("pypm_tests::views", views, outputs=like, gradients=gradients)
    x = torch.ones(2, requires_grad=True)
    operator([x], 3.0)[0].add_(1).sum().backward()
    assert x.grad.tolist() == [3, 3]  # type: ignore[union-attr]


def test_outputs_of_an_unknown_argument() -> None:
    with pytest.raises(TypeError, match=r"`pypm_tests::unknown` depend on `x`.*are `xs`, `factor`"):
        custom_operator("pypm_tests::unknown", scaled, outputs=lambda x: [x])


def test_a_launch_with_other_arguments() -> None:
    with pytest.raises(TypeError, match=r"does not take its arguments \(xs, factor\): too many"):
        custom_operator("pypm_tests::launch", scaled, outputs=like, launch=lambda xs: xs)
