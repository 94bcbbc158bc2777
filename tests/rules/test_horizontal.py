"""Linear layers of one input as one product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import rewrite
from pypm.integrations import inductor
from pypm.rules.horizontal import ANYWHERE, RULES
from pypm.tools import UpToRounding, verify

X = torch.randn(2, 5, 8, dtype=torch.float64)


class Attention(nn.Module):
    """Queries, keys and values; `biased` says which have a bias."""

    def __init__(self, *biased: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, b, dtype=torch.float64) for b in biased)
        self.out = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, x):
        return self.out(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(8, 12, False, dtype=torch.float64) for _ in range(2))
        self.down = nn.Linear(12, 8, False, dtype=torch.float64)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


MODELS = [
    Attention(True, True, True),
    Attention(False, False, False),
    Attention(True, False, True),
    Gated(),
]


@pytest.mark.parametrize("model", MODELS)
def test_exported(model: nn.Module) -> None:
    gm = torch.export.export(model, (X,)).module()
    assert len(rewrite(gm, ANYWHERE)) == 1
    assert sum("linear" in str(node.target) for node in gm.graph.nodes) == 2
    torch.testing.assert_close(gm(X), model(X))


@pytest.mark.parametrize("model", MODELS)
def test_at_the_joint_stage_with_gradients(model: nn.Module) -> None:
    fusing = inductor.Pass(ANYWHERE, "joint")
    compiled = torch.compile(model, options=fusing.options())
    expected = torch.autograd.grad(model(X).sin().sum(), list(model.parameters()))
    actual = torch.autograd.grad(compiled(X).sin().sum(), list(model.parameters()))
    assert fusing.report().count("linears_anywhere") >= 1
    for one, two in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, two)


def other_inputs(x, v, w):
    return x @ v, x.exp() @ w


def one_from_another(x, v, w):
    return x @ (x @ v) + w


def full_bias(x, v, w):  # is a residual
    return torch.addmm(w, x, v), torch.addmm(v, x, w)


def scaled(x, v, w):
    return torch.addmm(w[0], x, v, alpha=2), torch.addmm(v[0], x, w, alpha=2)


@pytest.mark.parametrize("function", [other_inputs, one_from_another, full_bias, scaled])
def test_it_leaves_the_rest(function) -> None:
    inputs = [torch.randn(4, 4, dtype=torch.float64) for _ in range(3)]
    gm = make_fx(function)(*inputs)
    assert not len(rewrite(gm, ANYWHERE))


def test_it_is_off_on_a_cpu() -> None:
    gm = torch.export.export(Gated(), (X,)).module()
    report = rewrite(gm, RULES)
    assert not len(report)
    assert "declined" in {refusal.kind for refusal in report.refusals}


def test_verify() -> None:
    """But an output may need a gradient for another's weight alone, in a graph whose
    metadata does not tell."""
    verification = verify(ANYWHERE, samples=20, nonfinite=False)
    assert isinstance(verification.findings[0], UpToRounding), str(verification)
    (wrong,) = verify(ANYWHERE, samples=20, nonfinite=False, gradients=True).findings
    assert "requires a gradient where" in wrong.detail, str(wrong)
