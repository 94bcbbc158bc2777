"""A graph for each shipped rule, on inputs of other layouts and types than it is meant for.

`python -m tests.rules.other_inputs layouts` and `... types` try every rule; the tests try some of
each pack.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

import torch
from torch import Tensor, fx

from tests.hunt.bases import RULES, base_of
from tests.hunt.graphs import Case, Found, Inputs, compared
from tests.layouts import LAYOUTS, Layout

TYPES: Final = (
    *(torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.int64, torch.bool),
)
FLOATS: Final = {torch.float64, torch.float32, torch.bfloat16, torch.complex128}
"""Types of inputs that are exchanged for others."""
PARTS: Final = {"all": slice(None), "the first": slice(1), "the last": slice(-1, None)}
"""Inputs that are exchanged."""
SEEDS: Final = {
    "attention_by_blocks": 6, "attention_by_fixed_weights": 2,
    "attention_of_fixed_queries": 1, "called_decoding": 1, "decoding": 2,
    "gated_products": 1, "group_norm": 2, "grouped_experts": 1, "product_and_epilogue": 3,
    "scaled_unit": 1, "sdpa_of_two_widths": 1,
}  # fmt: skip
"""Numbers of graphs that rules match, other than 0."""


BY_TORCH: Final = frozenset(
    f"called_{name}"
    for name in (
        "attention_by_blocks",
        "attention_by_products",
        "decoding",
        "decoding_without_mask",
    )
)
"""Rules for graphs that call torch's fused attention, which leaves most of its result uninitialized
if queries are windows moved by one element: there is no right value to compare with.
"""


@dataclass(frozen=True)
class LaidOut(Inputs):
    """Makes the same inputs each time it is called, in a layout."""

    layout: Layout = LAYOUTS["contiguous"]

    def __call__(self, moved: float = 0.0) -> list[Tensor]:
        return [self.layout(x) for x in super().__call__(moved)]


def base(name: str) -> tuple[fx.GraphModule, list[Tensor]]:
    """Return a graph that the rule of this name rewrites, and tensors like its inputs."""
    draw = Random(0)
    draw.randrange = lambda stop: SEEDS.get(name, 0)  # type: ignore[method-assign, misc, assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = base_of(name, draw)
    found = [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")]
    return module, [torch.empty(x.shape, dtype=x.dtype) for x in found]


def in_layout(name: str, layout: str, way: str = "as it is") -> Found:
    module, likes = base(name)
    inputs = LaidOut(tuple(likes), 1, False, False, LAYOUTS[layout])
    return compared(Case(1, name, (), way, "alone", False, False), module, inputs)


def in_type(name: str, dtype: torch.dtype, part: str) -> Found:
    module, likes = base(name)
    likes[PARTS[part]] = [x.to(dtype) if x.dtype in FLOATS else x for x in likes[PARTS[part]]]
    inputs = Inputs(tuple(likes), 1, False, False)
    return compared(Case(1, name, (), "as it is", "alone", False, False), module, inputs)


def problems(what: str, names: list[str]) -> Iterator[str]:
    for name in names:
        if what == "layouts":
            tried = {
                f"{layout}, {way}": in_layout(name, layout, way)
                for layout in LAYOUTS
                if not (layout == "overlapping" and name in BY_TORCH)
                for way in ("as it is", "without metadata")
            }
        else:
            tried = {f"{t}, {p}": in_type(name, t, p) for t in TYPES for p in PARTS}
        fired = sum(bool(found.fired) for found in tried.values())
        ran = sum(found.counts for found in tried.values())
        print(f"{name}: {fired} of {ran} of {len(tried)}", flush=True)
        for text, found in tried.items():
            if found.problem:
                yield f"{name}, {text}: {found.problem}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for problem in problems(sys.argv[1], sys.argv[2:] or sorted(RULES)):
        print("  ", problem, flush=True)
