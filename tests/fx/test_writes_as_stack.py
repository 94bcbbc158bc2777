"""Results that are written into a new tensor are read as their stack, where that is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm import RuleSet, pattern, rule
from pypm.fx import aten
from pypm.integrations import export
from tests.axes import axes
from tests.rules.capture import exported, fired, hooked
from tests.rules.gradients import assert_gradients_pass

torch.set_num_threads(1)
Function = Callable[[Tensor, Tensor], Any]
N: Final = 4


@pattern
def Read(x, y, z, w, d):
    return aten.relu(aten.stack([x, y, z, w], d))


@rule(Read)
def read(x, y, z, w, d):
    return torch.stack([torch.relu(x), torch.relu(y), torch.relu(z), torch.relu(w)], d)


@pattern
def ReadMoved(x, y, z, w, d, source, destination):
    return aten.relu(aten.movedim(aten.stack([x, y, z, w], d), source, destination))


@rule(ReadMoved)
def read_moved(x, y, z, w, d, source, destination):
    return torch.stack([x, y, z, w], d).relu().movedim(source, destination)


READ: Final = RuleSet((read, read_moved))


class Module(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y)


def run(function: Function, way: str) -> Any:
    """What was done; the result is eager's."""
    made = torch.Generator().manual_seed(0)
    args = [torch.randn(2, N, 3, generator=made, dtype=torch.float64) for _ in range(2)]
    expected = function(*(x.clone() for x in args))
    given = [x.clone() for x in args]
    report, found = exported(function, given, READ) if way == "export" else hooked(
        function, given, READ, way
    )  # fmt: skip
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    return report


def filled(index: Callable[[int], Any], make: Callable[[Tensor], Tensor]) -> Function:
    def function(x: Tensor, y: Tensor) -> Tensor:
        out = make(x)
        for t in range(N):
            out[index(t)] = x[:, t] * y[:, t]
        return out.relu()

    return function


FILLED: Final[dict[str, Function]] = {
    "slice": filled(lambda t: (slice(None), t), torch.zeros_like),
    "ellipsis": filled(lambda t: (..., t), lambda x: x.new_empty(2, 3, N)),
    "first": filled(lambda t: t, lambda x: torch.ones(N, 2, 3, dtype=x.dtype)),
    "from the end": filled(lambda t: (..., -1 - t, slice(None)), torch.empty_like),
    "another order": filled(lambda t: (slice(None), t ^ 1), lambda x: torch.full_like(x, 2.0)),
}


@axes(name=FILLED, way=["export", "pre_grad"])
def test_filled(name: str, way: str) -> None:
    assert fired(run(FILLED[name], way)) == ["read"]


def two_at_once(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    one, other = torch.zeros_like(x), torch.zeros_like(x)
    for t in range(N):
        one[:, t] = x[:, t] * y[:, t]
        other[:, t] = x[:, t] + y[:, t]
    return one.relu(), other.relu()


def inside_of_another(x: Tensor, y: Tensor) -> Tensor:
    outer, inner = x.new_zeros(N, 2, N, 3), torch.zeros_like(x)
    for t in range(N):
        inner[:, t] = x[:, t] * y[:, t]
    for t in range(N):
        outer[t] = inner
    return outer.relu()


def written_again(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(x)
    for t in range(N):
        out[:, t] = x[:, t] * y[:, t]
    read = out.relu()
    out[:, 1] = 7
    return read, out


@pytest.mark.parametrize("way", ["export", "pre_grad"])
@pytest.mark.parametrize(
    ("function", "count"),
    [(two_at_once, 2), (inside_of_another, 1)],
)
def test_several(function: Function, count: int, way: str) -> None:
    assert fired(run(function, way)) == ["read"] * count


def read_in_between(x: Tensor, y: Tensor) -> Tensor:
    out, total = torch.zeros_like(x), x[:, 0]
    for t in range(N):
        out[:, t] = total * y[:, t]
        total = out.sum(1)
    return out.relu()


def one_is_missing(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros(2, N + 1, 3, dtype=x.dtype)
    for t in range(N):
        out[:, t] = x[:, t] * y[:, t]
    return out.relu()


def one_is_written_twice(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for t in (0, 1, 1, 2, 3):
        out[:, t] = x[:, t] * y[:, t] + t
    return out.relu()


def cast(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x, dtype=torch.float32)
    for t in range(N):
        out[:, t] = x[:, t] * y[:, t]
    return out.relu()


def repeated(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for t in range(N):
        out[:, t] = x[0, t] * y[0, t]
    return out.relu()


def of_a_number(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for t in range(N):
        out[:, t] = x[:, t] if t else 2.0
    return out.relu()


def into_an_input(x: Tensor, y: Tensor) -> Tensor:
    for t in range(N):
        x[:, t] = x[:, t] * y[:, t]
    return x.relu()


def into_a_copy(x: Tensor, y: Tensor) -> Tensor:
    out = x.clone()
    for t in range(N):
        out[:, t] = x[:, t] * y[:, t]
    return out.relu()


def a_value_is_written(x: Tensor, y: Tensor) -> Tensor:
    out, total = torch.zeros_like(x), x[:, 0].clone()
    for t in range(N):
        total.add_(y[:, t])
        out[:, t] = total
    return out.relu()


def other_strides(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x.transpose(0, 2).contiguous().transpose(0, 2))
    for t in range(N):
        out[:, t] = x[:, t] * y[:, t]
    return out.relu()


def slices(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for t in range(N):
        out[:, t : t + 1] = x[:, t : t + 1] * y[:, t : t + 1]
    return out.relu()


def along_two_dimensions(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros(N, N, dtype=x.dtype)
    for t in range(N // 2):
        out[:, t] = x[0, :, 0] * y[0, :, t]
        out[t + N // 2] = x[1, :, 0] * y[1, :, t]
    return out.relu()


def a_view_is_read(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    first, total = out[:, 0], x[:, 0]
    for t in range(N):
        out[:, t] = total * y[:, t]
        total = first.exp()
    return out.relu()


NEAR: Final = (
    read_in_between, one_is_missing, one_is_written_twice, written_again, cast, of_a_number,
    into_an_input, into_a_copy, a_value_is_written, other_strides, slices, along_two_dimensions,
    a_view_is_read,
)  # fmt: skip


@axes(
    make=[lambda x: x.mT.contiguous().mT, lambda x: x.movedim(1, 0).contiguous().movedim(0, 1)],
    way=["export", "pre_grad"],
)
def test_memory_in_another_order(make: Callable[[Tensor], Tensor], way: str) -> None:
    function = filled(lambda t: (slice(None), t), lambda x: torch.zeros_like(make(x)))
    assert fired(run(function, way)) == ["read_moved", "read"]
    x = torch.randn(2, N, 3, dtype=torch.float64)
    program = torch.export.export(Module(function), (x, x))
    export.rewrite(program, READ)
    found, expected = program.module()(x, x), function(x, x)
    assert found.stride() == expected.stride()


@axes(function=NEAR, way=["export", "pre_grad"])
def test_near_misses(function: Function, way: str) -> None:
    assert fired(run(function, way)) == []


def test_values_that_are_repeated() -> None:
    """In an exported program they have the shape of an item."""
    assert fired(run(repeated, "export")) == ["read"]
    assert fired(run(repeated, "pre_grad")) == []


def test_modes_that_change_meanwhile() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for t in range(N):
            with torch.no_grad() if t == 1 else torch.enable_grad():
                out[:, t] = x[:, t] * y[:, t]
        return out.relu()

    args = [torch.randn(2, N, 3, dtype=torch.float64).requires_grad_() for _ in range(2)]
    report, found = hooked(function, args, read, "pre_grad")
    assert fired(report) == []
    assert_gradients_pass(found, function(*args), args)


def test_gradients() -> None:
    args = [torch.randn(2, N, 3, dtype=torch.float64).requires_grad_() for _ in range(2)]
    report, found = hooked(FILLED["slice"], args, read, "pre_grad")
    assert fired(report) == ["read"]
    assert_gradients_pass(found, FILLED["slice"](*args), args)


def test_a_graph_that_no_rule_changes_stays_as_it_is() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            for t in range(N):
                out[:, t] = x[:, t] * y[:, t]
            return out.exp()

    args = tuple(torch.randn(2, N, 3) for _ in range(2))
    program = torch.export.export(Model(), args)
    before = str(program.graph)
    assert len(export.rewrite(program, read)) == 0
    assert str(program.graph) == before
    torch.testing.assert_close(program.module()(*args), Model()(*args))
