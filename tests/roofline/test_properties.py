"""Bounds of random regions: views are free, more calls take no less work, and results count."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.roofline import Bound, bound

Step = Callable[[Tensor], Tensor]

VIEWS: dict[str, Step] = {
    "transpose": lambda x: x.transpose(-2, -1),
    "unsqueeze": lambda x: x.unsqueeze(0).squeeze(0),
    "view": lambda x: x.unsqueeze(1).squeeze(1),
    "alias": lambda x: x.view_as(x),
    "expand": lambda x: x.unsqueeze(0).expand(3, *x.shape)[1],
    "split": lambda x: x.split(x.shape[0])[0],
}
COMPUTED: dict[str, Step] = {
    "relu": torch.relu,
    "product": lambda x: x @ x.transpose(-2, -1),
    "softmax": lambda x: torch.softmax(x, -1),
    "residual": lambda x: x + torch.sigmoid(x),
    "norm": lambda x: x - x.mean(-1, keepdim=True),
    "scaled": lambda x: x * 0.5,
    "slice": lambda x: x[: max(x.shape[0] // 2, 1)] + 1,
    "columns": lambda x: x[:, :1] * x,
    "masked": lambda x: torch.where(torch.ones(x.shape[-1]).bool(), x, 0.0),
    "causal": lambda x: x.tril(),
    "repeat": lambda x: x.repeat_interleave(2, 0),
    "cast": lambda x: x.to(torch.bfloat16).to(torch.float32),
}
STEPS = {**VIEWS, **COMPUTED}
steps = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6)
shapes = st.tuples(st.integers(1, 5), st.integers(1, 5))


def graph(names: list[str], shape: tuple[int, int]) -> fx.GraphModule:
    def model(x: Tensor) -> Tensor:
        for name in names:
            x = STEPS[name](x)
        return x

    return make_fx(model, tracing_mode="fake")(torch.ones(shape))


def of(names: list[str], shape: tuple[int, int]) -> Bound:
    return bound(graph(names, shape), "H100")


def total(found: Bound) -> int:
    return sum(found.flops.values())


@settings(max_examples=60, deadline=None)
@given(steps, shapes, st.sampled_from(sorted(VIEWS)), st.integers(0, 6))
@example(["residual", "softmax"], (2, 3), "expand", 0)
@example(["residual", "softmax"], (2, 3), "split", 0)
@example(["norm", "softmax"], (2, 2), "expand", 1)
def test_a_view_changes_nothing(
    names: list[str], shape: tuple[int, int], view: str, at: int
) -> None:
    at = min(at, len(names))
    same = [view, view] if view == "transpose" else [view]
    before = of(["relu", *names, "relu"], shape)
    after = of(["relu", *names[:at], *same, *names[at:], "relu"], shape)
    assert (after.flops, after.bytes) == (before.flops, before.bytes)


@settings(max_examples=60, deadline=None)
@given(steps, shapes, st.integers(1, 30))
def test_a_larger_region_takes_no_less_work(
    names: list[str], shape: tuple[int, int], count: int
) -> None:
    gm = graph(["relu", *names], shape)
    nodes = [node for node in gm.graph.nodes if node.op == "call_function"]
    gm.graph.output_node().args = (tuple(nodes),)
    assert total(bound(nodes[:count], "H100")) <= total(bound(nodes, "H100"))


@settings(max_examples=60, deadline=None)
@given(steps, shapes)
def test_results_are_written_and_no_input_is_read_twice(
    names: list[str], shape: tuple[int, int]
) -> None:
    gm = graph(["relu", *names, "scaled"], shape)
    (result,) = gm.graph.output_node().args
    assert isinstance(result, fx.Node)
    written = 4 * result.meta["val"].numel()
    assert written <= bound(gm, "H100").bytes <= written + 4 * shape[0] * shape[1]
