"""The sizes at which candidates with symbolic sizes are timed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.choice.execution import Unknown, example, real_inputs
from pypm.choice.sizes import ends
from pypm.fx import metadata


def values_of(gm: fx.GraphModule) -> list[object]:
    return [metadata(node) for node in gm.graph.find_nodes(op="placeholder")]


def captured(**limits: int) -> list[object]:
    """The values of a graph whose first size a user limits."""
    found: list[object] = []

    def backend(gm: fx.GraphModule, inputs: list[object]) -> fx.GraphModule:
        nodes = gm.graph.find_nodes(op="placeholder")
        found.extend(node.meta["example_value"] for node in nodes)
        return gm

    x = torch.ones(64, 4)
    torch._dynamo.mark_dynamic(x, 0, **limits)
    torch.compile(lambda x: x.exp(), backend=backend)(x)
    return found


def test_numbers_have_no_ends() -> None:
    assert ends([*torch.ones(2, 8, 4), 5, 0.5, None]) == []


def test_a_quarter_and_four_times() -> None:
    values = values_of(make_fx(lambda x: x.exp(), tracing_mode="symbolic")(torch.ones(64, 6)))
    texts = [example(values, sizes) for sizes in ends(values)]
    assert texts == ["[([16, 2], [2, 1])]", "[([256, 24], [24, 1])]"]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({"min": 16, "max": 2048}, [16, 2048]),
        ({"min": 32, "max": 64}, [32]),
    ],
)
def test_limits_that_a_user_gave(limits: dict[str, int], sizes: list[int]) -> None:
    torch._dynamo.reset()
    values = captured(**limits)
    for size, point in zip(sizes, ends(values), strict=True):
        tensors = [x for x in real_inputs(values, point) if isinstance(x, Tensor)]
        assert [x.shape for x in tensors] == [(size, 4)]


def test_sizes_above_the_least() -> None:
    def model(x: Tensor) -> Tensor:
        return x.exp() if x.shape[0] > 20 else x

    values = values_of(make_fx(model, tracing_mode="symbolic")(torch.ones(64, 3)))
    assert [example(values, sizes)[3:5] for sizes in ends(values)] == ["21", "25"]


def test_sizes_that_a_guard_forbids_are_left_out() -> None:
    def model(x: Tensor) -> Tensor:
        return x.exp() if x.shape[0] % 32 == 0 else x

    values = values_of(make_fx(model, tracing_mode="symbolic")(torch.ones(64, 3)))
    assert [example(values, sizes) for sizes in ends(values)] == ["[([256, 12], [12, 1])]"]


def test_sizes_that_need_too_much_memory_are_left_out() -> None:
    gm = make_fx(lambda x: x @ x.T, tracing_mode="symbolic")(torch.ones(2**13, 2))
    inputs, inside = values_of(gm), [metadata(node) for node in gm.graph.nodes]
    assert len(ends(inputs)) == 2
    assert [example(inputs, sizes)[2:8] for sizes in ends(inputs, inside)] == ["[2048,"]


def test_sizes_that_depend_on_data_have_no_example() -> None:
    gm = make_fx(lambda x: x.nonzero().exp(), tracing_mode="symbolic")(torch.ones(8))
    (exp,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.nonzero.default)
    with pytest.raises(Unknown):
        real_inputs([metadata(exp)])
