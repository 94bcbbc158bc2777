"""Custom operators from their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

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


def test_operands_of_another_shape_type_or_device() -> None:
    """Each is named with what was found and what is needed, by the operator and by its fake."""
    takes = {"x": "[n, *rows] T", "y": "[2*n|1, *] T|float32?", "others": "[n] any..."}
    operator = custom_operator("pypm_tests::declared", summed, outputs=like_x, operands=takes)
    x = torch.ones(3, 4, dtype=torch.float64)
    assert operator(x, torch.ones(6), [x[:, 0]]).shape == (3, 4)
    for wrong, error, message in (
        (
            (x, torch.ones(5), []),
            ValueError,
            r"`y` has the sizes \[5\]; it must have \[6 or 1, \*\]: \[2\*n\|1, \*\] T\|float32\?, "
            r"with n = 3 of `x`",
        ),
        ((x, None, [x[:, 0], x[0]]), ValueError, r"`others\[1\]` has the sizes \[4\]; .* \[3\]: "),
        ((None, None, []), TypeError, r"`x` is None; it must be \[n, \*rows\] T"),
        ((x[0, 0], None, []), ValueError, r"`x` has the sizes \[\]; it must have \[n, \*rows\]: "),
        ((x, x[:1].half(), []), TypeError, r"`y` is float16; it must be float64 or float32: .*`x`"),
        ((x, None, [x[:, 0].to("meta")]), TypeError, r"is on meta, .* on cpu; all must be on one"),
        ((x.to_sparse(), None, []), TypeError, r"`x` is .* sparse_coo; it must be strided, as `to"),
    ):  # fmt: skip
        with pytest.raises(error, match=f"^`pypm_tests::declared`: {message}|{message}"):
            operator(*wrong)


def summed(x: Tensor, y: Tensor | None, others: list[Tensor]) -> Tensor:
    return x.clone()


def like_x(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_symbolic_sizes_are_refused_where_they_are_known_to_differ() -> None:
    """Others are compared at run time: the trace adds no guard."""
    operator = custom_operator(
        "pypm_tests::symbolic",
        summed,
        outputs=like_x,
        operands={"x": "[n] float", "y": "[n] float?", "others": "[n] any..."},
        requires=lambda x, others: None if len(x) else f"`x` is empty beside {len(others)} others",
    )
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    x, y = (
        mode.from_tensor(torch.ones(n), source=ConstantSource(f"x{n}"), symbolic_context=DYNAMIC)
        for n in (3, 5)
    )
    with mode:
        assert operator(x, y, []).shape == x.shape
        with pytest.raises(ValueError, match=r"`y` has the sizes \[\(?s\d+ ?\+ ?1\)?\]"):
            operator(x, torch.cat([x, x[:1]]), [])
        assert not environment.guards
    with pytest.raises(ValueError, match="`pypm_tests::symbolic`: `x` is empty beside 0 others"):
        operator(torch.ones(0), None, [])


DYNAMIC = StatelessSymbolicContext([DimDynamic.DYNAMIC])


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ({"z": "[n] T"}, "has no argument `z`; it has x, y, others"),
        ({"x": "n T"}, r"`x`: 'n T' declares no operand; '\[rows, \*others\] T' does"),
        ({"x": "[*n, *m] T"}, "declares no operand"),
    ],
)
def test_a_declaration_that_is_none(operands: dict[str, str], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        custom_operator("pypm_tests::none", summed, outputs=like_x, operands=operands)
