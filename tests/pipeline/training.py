"""Models trained as a whole and in stages, to be compared: also what runs in other processes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from pypm import pattern, rule
from pypm.fx import aten
from pypm.pipeline import Cut, Pipeline, Schedule, mark_stage_end, stages
from tests.pipeline.runtime_model import Listed, random_lists

ROWS, WORDS, LENGTH = 8, 11, 6
X = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % WORDS
TARGET = (3 * X + 1) % WORDS
TOLERANCE = 1e-12


class Model(nn.Module):
    """Layers with an embedding that is the head too, a skip over all, and a bias made on the way.

    The second layer computes the bias from weights alone, and later ones use it.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.bias = nn.Embedding(3, 8)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        bias = None
        first = x = self.words(x)
        for number, layer in enumerate(self.layers):
            if number == 1:
                bias = self.bias(torch.arange(3)).sum(0)
            x = layer(x).relu() + x
            x = x if bias is None else x + bias
            if number + 1 < len(self.layers):
                x = mark_stage_end(x)
        return functional.linear(x + first, self.words.weight)


def loss(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten())


@pattern
def Residual(x, y):  # type: ignore[no-untyped-def]
    return aten.relu(x) + y


@rule(Residual)
def clamped(x, y):  # type: ignore[no-untyped-def]
    """What a layer computes, by another operator."""
    return aten.clamp_min(x, 0) + y


@dataclass(frozen=True)
class Case:
    """A schedule for a model with a layer in each stage."""

    schedule: Schedule
    stages: int
    microbatches: int = 4


def random_cases(ranks: int, count: int) -> list[Case]:
    """Return random legal schedules for some ranks, of 1, 2 or 4 microbatches."""
    draw, found = random.Random(0), []
    while len(found) < count:
        lists, stages, microbatches = random_lists(draw)
        if len(lists) == ranks and ROWS % microbatches == 0:
            found.append(Case(Listed(lists), stages, microbatches))
    return found


@dataclass(frozen=True)
class Trained:
    """The losses, the results of the last step, and weights by name; lists cross processes."""

    losses: list[float]
    results: Any
    weights: dict[str, Any]


def whole(layers: int, steps: int = 3) -> Trained:
    """Train the model without a pipeline."""
    model = Model(layers)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        results = model(X)
        value = loss(results, TARGET)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return Trained(losses, results.tolist(), {n: w.tolist() for n, w in model.named_parameters()})


def cut_model(layers: int, rows: int = ROWS) -> Cut:
    """Cut the model, for microbatches of some rows, into a stage for each layer."""
    program = torch.export.export(Model(layers), (X[:rows],), strict=False)
    return stages(program, count=layers)


def pipeline(case: Case, **options: Any) -> Pipeline:
    cut = cut_model(case.stages, ROWS // case.microbatches)
    return Pipeline(cut, case.schedule, microbatches=case.microbatches, loss=loss, **options)


def in_stages(case: Case, steps: int = 3, **options: Any) -> Trained:
    """Train the model on the ranks of this process group."""
    own = pipeline(case, **options)
    optimizer = torch.optim.Adam(own.parameters(), 1e-2)
    losses, results = [], None
    for _ in range(steps):
        optimizer.zero_grad()
        found = own.step(X, target=TARGET, outputs=True)
        optimizer.step()
        if found.loss is not None and found.outputs is not None:
            losses.append(found.loss.item())
            results = found.outputs[0].tolist()
    return Trained(losses, results, {n: w.tolist() for n, w in own.named_parameters()})


def all_in_stages(cases: Sequence[Case]) -> list[Trained]:
    return [in_stages(case) for case in cases]


def check(found: Sequence[Trained], layers: int) -> None:
    """Compare what all ranks have with the training of the whole."""
    expected = whole(layers)
    names: set[str] = set()
    for each in found:
        names |= each.weights.keys()
        for name, weight in each.weights.items():
            _is_close(weight, expected.weights[name])
        if each.losses:
            _is_close(each.losses, expected.losses)
            _is_close(each.results, expected.results)
    assert names == expected.weights.keys() - ({"bias.weight"} if layers == 1 else set())
    assert sum(bool(each.losses) for each in found) == 1


def _is_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64),
        torch.tensor(expected, dtype=torch.float64),
        rtol=TOLERANCE,
        atol=TOLERANCE,
    )


# --- failures -----------------------------------------------------------------------------------


class Failing(nn.Module):
    """A stage that fails in its third forward."""

    def __init__(self, stage: nn.Module, fail: Callable[[], None]) -> None:
        super().__init__()
        self.stage = stage
        self.fail = fail
        self.calls = 0

    def forward(self, *values: Tensor) -> Any:
        self.calls += 1
        if self.calls == 3:
            self.fail()
        return self.stage(*values)


def raises() -> None:
    raise ValueError("no such word")


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs() -> None:
    time.sleep(600)


def failing(case: Case, rank: int, fail: Callable[[], None], folder: str) -> None:
    """Train in stages, of which those on a rank fail; leave a file with the process' number."""
    own = dist.get_rank()
    (Path(folder) / str(os.getpid())).touch()
    in_stages(case, prepare=lambda gm: Failing(gm, fail) if own == rank else gm)
