"""A loop that tracing unrolled, found by a recursive pattern, becomes one operator again."""

import torch

from pypm import let, pattern, rule, var
from pypm.fx import aten
from pypm.integrations import export
from pypm.kernels.recurrence import linear_recurrence


# The state after step t: the pattern calls itself for the step before. Each call binds t to the
# index that the graph has, and requires that the state below belongs to t - 1.
@pattern
def State(a, b, h, t):
    n = var()
    before = State(a, b, h, n)
    y = aten.select(a, 0, t) * before + aten.select(b, 0, t)
    let(n=t - 1)
    return y


@pattern
def State(a, b, h, t):  # the first step
    y = aten.select(a, 0, t) * h + aten.select(b, 0, t)
    assert t == 0
    return y


@rule(State)
def rolled_up(a, b, h, t):
    assert t == a.shape[0] - 1
    return linear_recurrence(a, b, h, False)[-1]


class Model(torch.nn.Module):
    def forward(self, a, b, h):
        for t in range(a.shape[0]):
            h = a[t] * h + b[t]
        return h


inputs = torch.rand(100, 8), torch.randn(100, 8), torch.zeros(8)
program = torch.export.export(Model(), inputs)
before = len(program.graph.nodes)
report = export.rewrite(program, rolled_up)
torch.testing.assert_close(program.module()(*inputs), Model()(*inputs))
print(report)
print(f"{before} nodes, now {len(program.graph.nodes)}")
