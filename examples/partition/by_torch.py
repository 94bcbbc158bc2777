"""Linear layers with what follows them, each compiled by itself; the rest of the graph is eager."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pypm import op_var, pattern
from pypm.fx import Partition, aten, partition


@pattern
def Region(x, w, b):
    f = op_var(tag="pointwise")
    return f(..., Region(x, w, b), ...)


@pattern
def Region(x, w, b):
    return aten.linear(x, w, b)


def compiled(region: fx.GraphModule, examples: list[Any]) -> Any:
    return torch.compile(region)


def split(gm: fx.GraphModule) -> Partition:
    return partition(gm, Region, compile=compiled, name="compiled")
