"""A pattern of several outputs: mean and variance by one operator, whichever of them is used."""

import torch

from pypm import pattern, rule
from pypm.fx import aten
from pypm.integrations import export


@pattern
def MeanAndVariance(x):
    mean = aten.mean(x, [-1], True)
    centered = x - mean
    return aten.mean(centered * centered, [-1], True), mean


@rule(MeanAndVariance)
def var_mean(x):
    return torch.var_mean(x, -1, correction=0, keepdim=True)


class Normalize(torch.nn.Module):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        centered = x - mean
        variance = (centered * centered).mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + 1e-5)


class Spread(torch.nn.Module):
    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        return (centered * centered).mean(-1, keepdim=True).sqrt()


x = torch.randn(8, 32, dtype=torch.float64)
for model in Normalize(), Spread():
    program = torch.export.export(model, (x,))
    report = export.rewrite(program, var_mean)
    torch.testing.assert_close(program.module()(x), model(x))
    print(type(model).__name__, report)
    print(program.graph_module.code)
