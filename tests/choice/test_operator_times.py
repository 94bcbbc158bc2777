"""Comparisons that operators, run one by one, decide without compiling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from pypm.choice import operator_times
from pypm.choice.execution import Unknown, concrete, copies, optimized
from pypm.choice.operator_times import OperatorTimes
from pypm.fx import metadata
from pypm.kernels.attention import block_sparse
from pypm.kernels.support import registration
from pypm.torch_internals import inductor_config

Function = Callable[..., object]
aten: Any = torch.ops.aten


def graph_of(function: Function, inputs: tuple[Tensor, ...]) -> fx.GraphModule:
    with torch.no_grad():
        return concrete(function, inputs)  # type: ignore[arg-type]


def compared(
    inputs: tuple[Tensor, ...],
    before: Function,
    after: Function,
    times: OperatorTimes | None = None,
) -> Any:
    times = times or OperatorTimes()
    with torch.no_grad():
        return times.compared(graph_of(before, inputs), graph_of(after, inputs), inputs)


SQUARES = torch.randn(512, 512), torch.randn(512, 512)


def all_columns(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x @ y)[:, :32]


def some_columns(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x @ y[:, :32])


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


PRODUCT, RELU = 1e-9 * 512**3, 4e-9 * 512**2
"""Seconds of a product of two squares, and of other operators on one, as in `by_work`."""
HEADS = tuple(torch.randn(3, 1, 4, 128, 64).unbind())


@pytest.fixture
def by_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators take as long as they have work: what other programs do to times does not count."""

    def seconds(self: OperatorTimes, node: fx.Node, **_: bool) -> float:
        is_product = node.target is aten.mm.default
        each = metadata(node.args[0]).shape[-1] if is_product else 4  # type: ignore[arg-type, union-attr]
        return 1e-9 * each * metadata(node).numel()  # type: ignore[union-attr]

    monkeypatch.setattr(OperatorTimes, "_of", seconds)
    others = OperatorTimes._others
    monkeypatch.setattr(operator_times, "_fused", lambda graph: others(OperatorTimes(), graph))


@pytest.mark.usefixtures("by_work")
def test_a_region_whose_products_take_longer_is_left_for_certain() -> None:
    found = compared(SQUARES, all_columns, some_columns)
    assert found["rounds"] == 0
    assert 0 < found["ratio"] == found["upper"] <= operator_times.CERTAIN
    assert found["before"] > 0


@pytest.mark.usefixtures("by_work")
def test_a_replacement_whose_products_take_longer_is_slower_for_certain() -> None:
    found = compared(SQUARES, some_columns, all_columns)
    assert found["rounds"] == 0 and found["ratio"] > 1


@pytest.mark.usefixtures("by_work")
@pytest.mark.parametrize("times", [2, 3])
def test_what_differs_by_less_is_compiled(times: int) -> None:
    """All operators of the one take longer than half of the products of the other."""

    def repeated(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(times * 200):
            y = y.sin()
        return x @ y

    assert compared(SQUARES, lambda x, y: x @ y, repeated) is None
    assert compared(SQUARES, repeated, lambda x, y: x @ y @ y) is None


@pytest.mark.usefixtures("by_work")
@pytest.mark.parametrize(
    ("seconds", "ratio"),
    [(PRODUCT / 2, 2.0), (PRODUCT, None), (2 * PRODUCT, (PRODUCT + RELU) / (2 * PRODUCT))],
)
def test_a_region_that_was_timed_beside_the_operators_of_its_replacement(
    seconds: float, ratio: float | None
) -> None:
    """Elementwise operators do not make it slower, since the compiler may fuse them."""
    graph = graph_of(all_columns, SQUARES)
    found = OperatorTimes().beside(seconds, graph, SQUARES)
    assert (found and found["ratio"]) == (ratio and pytest.approx(ratio))


@pytest.mark.usefixtures("by_work")
def test_kernels_are_slower_only_if_they_are_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else the machine does may make them slow once."""
    monkeypatch.setattr(OperatorTimes, "_kernels", lambda *given, anew, **_: 1.0 if anew else 9.0)
    assert OperatorTimes().beside(1.0, graph_of(all_columns, SQUARES), SQUARES) is None


def test_an_operator_that_compiles_by_itself_is_timed_at_best_first() -> None:
    q = torch.zeros(1, 2, 64, 8)
    text = "score = s; visible = True; hidden rows = none"

    def blocks(q: Tensor) -> Tensor:
        attend: Any = torch.ops.pypm.block_sparse_attention
        found: Tensor = attend(q, q, q, [], text, 0.5)
        return found

    graph, times = graph_of(blocks, (q,)), OperatorTimes()
    compiled = block_sparse._kernel.cache_info().misses
    least = times.at_best(graph, (q,))
    with torch.no_grad():
        found = times.beside(least / 8, graph, (q,))
    assert 0 < least < 0.01
    assert found is not None and found["ratio"] > 2
    assert block_sparse._kernel.cache_info().misses == compiled


@pytest.mark.parametrize("mask", ["k > (q - 16)", "(t0[k] == t0[q]) & (k > (q - 16))"])
def test_at_best_it_takes_what_is_seen(mask: str) -> None:
    """By data, as these are: equal numbers hide nothing."""
    q, documents = torch.zeros(1, 1, 512, 8), torch.zeros(512, dtype=torch.int64)
    stand_in = registration.STAND_INS[torch.ops.pypm.block_sparse_attention.default]
    seen: list[int] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        seen.append(k.shape[2])
        return q

    text = f"score = s; visible = ({mask}) & (k <= q); hidden rows = none"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_sparse.F, "scaled_dot_product_attention", attend)
        stand_in(q, q, q, [documents], text, 0.5)
    assert seen == [int(block_sparse.FLEX * 15 / 64 * 512)]


def test_operators_that_are_fused_decide_nothing() -> None:
    x = (torch.randn(64, 64),)
    assert compared(x, lambda x: x.exp(), lambda x: x.sort(-1)[0].exp()) is None


def test_inductor_may_make_the_same_of_both() -> None:
    """It knows attention: its two products are not what it calls."""
    found = compared(HEADS, attention, fused)
    assert (found["ratio"], found["rounds"]) == (1.0, 0)


def test_attention_is_judged_by_the_kernel_that_inductor_calls() -> None:
    graph = graph_of(attention, HEADS)
    before = str(graph.graph)
    with torch.no_grad():
        made = optimized(graph, HEADS)
    names = [str(node.target) for node in made.graph.nodes]
    assert any("_scaled_dot_product" in name for name in names)
    assert not any("bmm" in name for name in names)
    assert str(graph.graph) == before, "the graph that is compiled afterwards is another"


def test_an_operator_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[float] = []

    def shortest(call: object, seconds: float) -> float:
        timed.append(seconds)
        return 1.0

    monkeypatch.setattr(operator_times, "shortest", shortest)
    times = OperatorTimes()
    x, y = SQUARES
    for inputs in ((x, y), (y, x), (x, y.T), (x.double(), y.double())):
        assert compared(inputs, lambda x, y: x @ y, lambda x, y: x @ y, times)["before"] == 1
    assert len(timed) == 3, "other numbers are no other question; strides and types are"


def test_a_region_that_several_rules_take_is_optimized_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def counted(module: fx.GraphModule, inputs: Any) -> fx.GraphModule:
        made.append(len(module.graph.nodes))
        return optimized(module, inputs)

    monkeypatch.setattr(operator_times, "optimized", counted)
    times = OperatorTimes()
    for other in (fused, lambda q, k, v: attention(q, k, v) * 1.0):
        compared(HEADS, attention, other, times)
    assert len(made) == 3
    compared(tuple(x[:, :2] for x in HEADS), attention, fused, times)
    assert len(made) == 5


def test_constants_of_a_graph_are_timed() -> None:
    weight = torch.randn(512, 512)
    assert compared(SQUARES[:1], lambda x: x @ weight, lambda x: weight @ x)["ratio"] == 1


def test_what_is_no_operator_is_left_to_the_compiler() -> None:
    node = fx.Graph().call_function(math.sqrt, (2.0,))
    with pytest.raises(Unknown):
        OperatorTimes()._of(node)


def test_products_that_are_tuned_decide_nothing() -> None:
    """Inductor then writes kernels of its own, and fuses into them."""
    for option in ("max_autotune", "max_autotune_gemm"):
        with inductor_config.patch({option: True}):
            assert compared(SQUARES, all_columns, some_columns) is None


def called(function: Function, *inputs: Tensor) -> list[bool]:
    """Whether each operator of a function is a kernel that Inductor calls."""
    calls = graph_of(function, inputs).graph.nodes
    return [operator_times._is_kernel(node) for node in calls if node.op == "call_function"]


@pytest.mark.parametrize(
    ("left", "right", "is_kernel"),
    [
        (torch.ones(3, 4, 5), torch.ones(3, 5, 6), True),
        (torch.ones(3, 5, 4).mT, torch.ones(3, 5, 6), True),
        (torch.ones(3, 1, 5), torch.ones(3, 5, 6), False),  # written out as a sum
        (torch.ones(3, 4, 5), torch.ones(3, 5, 1), False),
        (torch.ones(3, 4, 5, 2)[..., 0], torch.ones(3, 5, 6), False),  # copied first
        (torch.ones(0, 4, 5), torch.ones(0, 5, 6), False),
    ],
)
def test_products_that_are_kernels(left: Tensor, right: Tensor, is_kernel: bool) -> None:
    assert called(torch.bmm, left, right) == [is_kernel]


def test_kernels_are_products_attention_and_operators_of_others() -> None:
    @torch.library.custom_op("pypm_operators::own", mutates_args=())
    def own(x: Tensor) -> Tensor:
        return x.clone()

    own.register_fake(torch.empty_like)
    x, bias = torch.ones(4, 4), torch.ones(4)
    assert called(lambda x: own(x.exp()).sin(), x) == [False, True, False]
    assert called(torch.addmm, bias, x, x) == [True]
    assert True in called(fused, *HEADS)


def test_what_fails_by_itself_is_left_to_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> float:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(operator_times, "shortest", fails)
    assert compared(SQUARES, some_columns, all_columns) is None


def test_other_devices_decide_nothing() -> None:
    inputs = tuple(x.to("meta") for x in SQUARES)
    assert compared(inputs, some_columns, all_columns) is None
    assert OperatorTimes().beside(1e-12, graph_of(all_columns, inputs), inputs) is None


def test_large_tensors_are_timed_as_copies_in_turn() -> None:
    """So many that no cache holds them; small ones and integers are the same in each."""
    large = torch.randn(3, 1, 2**20).expand(3, 2, 2**20)
    small, places = torch.randn(8), torch.zeros(2**20, dtype=torch.int64)
    made = copies([large, small, places, 2])
    assert made[0][0] is large
    assert len(made) == 1 + 2**26 // large.nbytes
    for copied, *others in made[1:]:
        assert torch.equal(copied, large) and copied.stride() == large.stride()
        assert all(x is y for x, y in zip(others, (small, places, 2), strict=True))
    assert len({each[0].data_ptr() for each in made}) == len(made)
    assert len(copies([small, places])) == 1
