"""Every shipped rule, on graphs whose inputs have other layouts or types than it is meant for.

What a rule makes is what the graph computes, in value, type and promised strides. A rule declines
operands that its kernel does not take, and never raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

import pytest
import torch
from torch import Tensor, fx

from tests.hunt.bases import RULES, base_of
from tests.hunt.graphs import Case, Inputs, compared, overruns
from tests.layouts import LAYOUTS, Layout

torch.set_num_threads(1)

TYPES: Final = (
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float16),
    *(torch.complex64, torch.int64, torch.uint8, torch.bool),
)
WHICH: Final = {"all inputs": slice(None), "the first": slice(1), "the last": slice(-1, None)}
KINDS: Final = {
    torch.get_default_dtype(),
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.complex128,
}
"""Types of inputs that are exchanged for others."""


@dataclass(frozen=True)
class LaidOut(Inputs):
    """Makes the same inputs each time it is called, in a layout."""

    layout: Layout

    def __call__(self, moved: float = 0.0) -> list[Tensor]:
        return [self.layout(x) for x in super().__call__(moved)]


def likes_of(module: fx.GraphModule) -> list[Tensor]:
    """Return tensors of the shapes and types of a graph's inputs."""
    found = [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")]
    return [torch.empty(x.shape, dtype=x.dtype) for x in found]


def bases(name: str) -> list[fx.GraphModule]:
    """Return graphs that a rule matches, mostly."""
    made = [base_of(name, Random(seed)) for seed in (0, 1)]
    return [module for module in made if not any(map(overruns, module.graph.nodes))]


def case(name: str, way: str = "as it is") -> Case:
    return Case(1, name, (), way, "alone", tracked=False, special=False)


@pytest.mark.parametrize("way", ["as it is", "without metadata"])
@pytest.mark.parametrize("name", sorted(RULES))
def test_layouts(name: str, way: str) -> None:
    for base in bases(name):
        for layout in LAYOUTS.values():
            inputs = LaidOut(tuple(likes_of(base)), 1, False, False, layout)
            found = compared(case(name, way), base, inputs)
            assert not found.problem, f"{layout.__name__}: {found.problem}\n{found.graphs[0]}"


@pytest.mark.parametrize("name", sorted(RULES))
def test_types_that_kernels_do_not_take(name: str) -> None:
    for base in bases(name):
        for dtype in TYPES:
            for which, part in WHICH.items():
                likes = likes_of(base)
                likes[part] = [x.to(dtype) if x.dtype in KINDS else x for x in likes[part]]
                found = compared(case(name), base, Inputs(tuple(likes), 1, False, False))
                problem = f"{dtype}, {which}: {found.problem}\n{found.graphs[0]}"
                assert not found.problem.startswith("rewrite raises"), problem
