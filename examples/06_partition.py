"""Partitioning: the regions that a pattern describes become submodules for a compiler of yours."""

import numpy as np
import torch

from pypm import op_var, pattern
from pypm.fx import aten, partition

TABLE = {
    torch.ops.aten.linear.default: lambda x, w, b: x @ w.T + b,
    torch.ops.aten.add.Tensor: np.add,
    torch.ops.aten.mul.Tensor: np.multiply,
    torch.ops.aten.tanh.default: np.tanh,
}


# A linear layer and any number of elementwise operators that the backend knows, longest first.
@pattern
def Region(x):
    f = op_var(tag="pointwise")
    assert f.name in ("aten.add", "aten.mul", "aten.tanh")
    return f(..., Region(x), ...)


@pattern
def Region(x):
    return aten.linear(x, _, _)


def compile_by_numpy(region, examples):
    """The backend: it gets a region and fake inputs, and returns what computes it."""
    print("compiling", *(node.name for node in region.graph.nodes if node.op == "call_function"))

    class Numpy(torch.fx.Interpreter):
        def call_function(self, target, args, kwargs):
            return TABLE[target](*args, **kwargs)

    run = Numpy(region)
    return lambda *inputs: torch.from_numpy(run.run(*(x.detach().numpy() for x in inputs)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.second(self.norm(torch.tanh(self.first(x) * 2))) + x


model, x = Model().double(), torch.randn(4, 8, dtype=torch.float64)
gm = torch.export.export(model, (x,)).module()
print(partition(gm, Region, compile=compile_by_numpy, name="numpy"))
torch.testing.assert_close(gm(x), model(x))
