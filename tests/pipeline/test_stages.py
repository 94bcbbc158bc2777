"""Graphs cut into stages: the same results, balanced, and refusals of what cannot be cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import PyPMError, pattern
from pypm.fx import aten
from pypm.pipeline import Cut, mark_stage_end, measured, stages
from pypm.pipeline.stages import balanced
from tests.models.build import build, inputs


def exported(model: nn.Module, *args: Tensor, **dynamic: Any) -> torch.export.ExportedProgram:
    return torch.export.export(model, args, strict=False, **dynamic)


class Blocks(nn.Module):
    """Four linear layers, each with its end marked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = mark_stage_end(layer(x).relu())
        return x


X, Y = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(0))


# --- where stages end ---------------------------------------------------------------------------


def test_stages_by_marks() -> None:
    model = Blocks()
    cut = stages(exported(model, X), count=4)
    assert cut.blocks == (1, 1, 1, 1)
    assert torch.equal(cut(X)[0], model(X))
    assert [[*dict(s.named_parameters())] for s in cut.stages] == [
        [f"module.layers.{i}.weight", f"module.layers.{i}.bias"] for i in range(4)
    ]
    assert all("mark_stage_end" not in str(s.module.graph) for s in cut.stages)


def test_stages_by_a_pattern() -> None:
    @pattern
    def Block(x, w, b):  # type: ignore[no-untyped-def]
        return aten.relu(aten.linear(x, w, b))

    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)])
    cut = stages(exported(model, X), Block, count=2)
    assert cut.blocks == (2, 2)
    assert torch.equal(cut(X)[0], model(X))


def test_stages_by_layers() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    cut = stages(exported(model, X), count=3)
    assert torch.equal(cut(X)[0], model(X))


def test_a_mark_has_a_gradient() -> None:
    x = X.clone().requires_grad_()
    mark_stage_end(x).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))  # type: ignore[arg-type]


class WritingMarks(Blocks):
    """A mark is written while its source is used, and the other way around."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        marked = mark_stage_end(x)
        x = self.layers[1](x + marked.mul_(2))
        marked = mark_stage_end(x)
        x = self.layers[2](x.neg_() + marked)
        x = mark_stage_end(x) + marked
        for _ in range(7):
            x = self.layers[3](x)
        return x


@pytest.mark.parametrize("count", [1, 2])
def test_a_mark_that_is_written_is_a_copy(count: int) -> None:
    model = WritingMarks()
    cut = stages(exported(model, X), count=count, cost=len)
    assert torch.equal(cut(X)[0], model(X))
    assert all("torch.ops.pypm" not in str(s.module.graph) for s in cut.stages)


def test_no_ends() -> None:
    gm = make_fx(torch.relu, tracing_mode="fake")(X)
    with pytest.raises(PyPMError, match="no layers, and no marks: no block ends"):
        stages(gm, count=1)
    with pytest.raises(PyPMError, match="4 blocks cannot make 5 stages"):
        stages(exported(Blocks(), X), count=5)


# --- balance ------------------------------------------------------------------------------------


def worst(costs: Sequence[float], sizes: Sequence[int]) -> float:
    rest = iter(costs)
    return max(sum(next(rest) for _ in range(size)) for size in sizes)


def best(costs: Sequence[float], groups: int) -> float:
    """Return the cost of the largest group in the best of all groupings."""
    count = len(costs)
    places = ((0, *each, count) for each in combinations(range(1, count), groups - 1))
    return min(worst(costs, [b - a for a, b in pairwise(p)]) for p in places)


def test_the_best_grouping() -> None:
    draw = random.Random(0)
    for _ in range(200):
        costs = [draw.random() for _ in range(draw.randint(1, 9))]
        groups = draw.randint(1, len(costs))
        sizes = balanced(costs, groups)
        assert sum(sizes) == len(costs)
        assert min(sizes) > 0
        assert worst(costs, sizes) == pytest.approx(best(costs, groups))


class Model(nn.Module):
    """Twelve layers between an embedding and a head, each block marked."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))
        self.head = nn.Linear(64, 2000)

    def forward(self, x: Tensor) -> Tensor:
        x = mark_stage_end(self.embedding(x))
        for layer in self.layers:
            x = mark_stage_end(layer(x).relu())
        return self.head(x)


@pytest.mark.parametrize("count", [2, 4])
def test_twelve_layers_with_an_embedding_and_a_head(count: int) -> None:
    costs: list[float] = []

    def cost(nodes: Sequence[fx.Node]) -> float:
        from pypm.roofline import bound

        costs.append(bound(nodes, "H100").seconds)
        return costs[-1]

    program = exported(Model(), torch.zeros(8, 16, dtype=torch.int64))
    cut = stages(program, count=count, cost=cost)
    assert len(costs) == 14
    assert cut.seconds == stages(program, count=count).seconds
    assert max(cut.seconds) <= 1.1 * best(costs, count)


def test_blocks_are_timed() -> None:
    program = exported(Model(), torch.zeros(8, 16, dtype=torch.int64))
    cut = stages(program, count=14, cost=measured(seconds=0.0))
    assert cut.blocks == (1,) * 14
    assert len({*cut.seconds[1:13]}) == 1  # layers are equal, and timed once
    assert len({*cut.seconds}) == 3


def test_a_block_that_cannot_be_timed() -> None:
    class OfSquares(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.cholesky(mark_stage_end(x @ x.mT))

    program = exported(OfSquares(), torch.eye(4))
    with pytest.raises(PyPMError, match="cannot be timed") as error:
        stages(program, count=2, cost=measured(seconds=0.0))
    assert "not positive-definite" in str(error.value)


# --- values -------------------------------------------------------------------------------------


class Skips(Blocks):
    """An input, a mask, a size, a value and a half of it are used far from their origin."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        mask = (y > 0).float()
        first = x = mark_stage_end(self.layers[0](x))
        halves = first.split(2, -1)
        for layer in self.layers[1:]:
            x = mark_stage_end(layer(x * mask))
        return (x + first + y).view(first.shape[0], -1) + halves[1].sum()


def test_skips_pass_through_and_masks_are_computed_where_they_are_used() -> None:
    batch = torch.export.Dim("batch")
    program = exported(Skips(), X, Y, dynamic_shapes=({0: batch}, {0: batch}))
    cut = stages(program, count=4)
    sent = [stage.sent for stage in cut.stages]
    assert [len(names) for names in sent] == [1, 3, 3, 0]
    assert sent[1][0] == sent[2][0] == sent[0][0]
    assert [stage.inputs for stage in cut.stages] == [("x",), ("y",), ("y",), ("y",)]
    for rows in (1, 2):
        assert torch.equal(cut(X[:rows], y=Y[:rows])[0], Skips()(X[:rows], Y[:rows]))


class Permuted(Blocks):
    """Values with the channels in another place, as a view that was traced relies on."""

    def forward(self, x: Tensor) -> Tensor:
        first = x.permute(0, 2, 1)
        for layer in self.layers[:2]:
            x = mark_stage_end(layer(x))
            first = first + x.permute(0, 2, 1)
        x = mark_stage_end(self.layers[2](x).permute(2, 0, 1))
        return self.layers[3](x.permute(1, 2, 0).view(-1, 4)) + first.permute(0, 2, 1).view(-1, 4)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_strides_are_those_of_the_trace(count: int) -> None:
    batch, model = torch.export.Dim("batch"), Permuted()
    program = exported(model, torch.stack((X, Y, X + Y)), dynamic_shapes=({0: batch},))
    cut = stages(program, count=count, cost=len)
    for x in (X[None], torch.stack((X, Y))):
        torch.testing.assert_close(cut(x)[0], model(x), atol=0, rtol=0)


def test_tied_weights_are_found() -> None:
    cut = stages(exported(Tied(), X), count=2)
    assert cut.ties == (((0, "one.weight"), (1, "one.weight")),)
    assert str(cut).endswith("one weight: `one.weight` of stage 0 and `one.weight` of stage 1")


def test_weights_that_share_memory_become_one() -> None:
    gm = torch.export.export(Tied(), (X,), strict=False).module(check_guards=False)
    gm.other.weight = nn.Parameter(gm.one.weight.detach())  # type: ignore[union-attr]
    cut = stages(gm, count=2)  # type: ignore[arg-type]
    one, other = (dict(stage.module.named_parameters()) for stage in cut.stages)
    assert other["one.weight"] is one["one.weight"]
    assert len(set(other.values())) == 2
    assert cut.stages[1].module.get_parameter("other.weight") is one["one.weight"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4, bias=False)
        self.other = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = mark_stage_end(self.one(x))
        return nn.functional.linear(self.other(x), self.one.weight)


def test_inputs_that_do_not_fit() -> None:
    cut = stages(exported(Blocks(), X), count=2)
    with pytest.raises(PyPMError, match=r"1 inputs by position and z by name\n.*inputs are x"):
        cut(X, z=X)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_models(name: str) -> None:
    """A layer a stage; attention's mask is not sent, and an autocast region stays whole."""
    model, given = build(name, layers=2), inputs(2)
    cut = stages(torch.export.export(model, (), given, strict=False), count=2)
    assert torch.equal(cut(**given)[0], model(**given).logits)
    assert [len(stage.sent) for stage in cut.stages] == [1, 0]
    assert len(cut.ties) == (name == "gpt2")


# --- refusals -----------------------------------------------------------------------------------


class Counting(Blocks):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = mark_stage_end(layer(x))
            self.count.add_(1)
        return x


class Writing(Blocks):
    def forward(self, x: Tensor) -> Tensor:
        x = mark_stage_end(self.layers[0](x))
        y = self.layers[1](x)
        z = mark_stage_end(y.neg())
        return self.layers[2](z) + y.add_(1)


class Reading(Blocks):
    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        size = x.sum().item()
        return mark_stage_end(x) * size


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Counting, "`count` is written in stage 1 and used in stage 0"),
        (Writing, "`linear_1` is written in stage 1 and used in stage 0"),
        (Reading, "`item` of stage 0 cannot be sent to stage 1: it is no tensor but a"),
    ],
)
def test_refusals_name_the_value_and_the_stages(
    make: Callable[[], nn.Module], message: str
) -> None:
    program = exported(make(), X)
    with pytest.raises(PyPMError) as error:
        stages(program, count=2)
    assert message in str(error.value)


def test_a_switch_of_gradients_is_refused() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = mark_stage_end(x + 1)
        return y * 2

    gm = make_fx(function, pre_dispatch=True, tracing_mode="fake")(X)
    with pytest.raises(PyPMError, match="switches gradients, autocast or random numbers"):
        stages(gm, count=2)


def test_statistics_of_a_batch_belong_to_one_stage() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2)])

    cut: Cut = stages(exported(model(), X), count=2)
    plain = model()
    assert torch.equal(cut(X)[0], plain(X))
    kept = dict(cut.stages[1].module.named_buffers())
    assert torch.equal(kept["1.1.running_mean"], plain[1][1].running_mean)  # type: ignore[index]
