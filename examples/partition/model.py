"""The model that is partitioned: two layers with a normalization between them, in float64."""

from __future__ import annotations

import torch
from torch import Tensor, fx

WIDTH = 64


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x) * 2)
        return torch.sigmoid(self.second(self.norm(hidden))) + x


def exported(model: Model, x: Tensor) -> fx.GraphModule:
    """The model as a graph, for any number of rows."""
    rows = torch.export.Dim("rows")
    program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
    module = program.module()
    assert isinstance(module, fx.GraphModule)
    return module
