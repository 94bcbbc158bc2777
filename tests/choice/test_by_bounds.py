"""Choices by bounds, for machines that are not at hand."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import PyPMError
from pypm.choice import bounds
from pypm.fx import rewrite
from pypm.rules import attention


def scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def test_the_fused_kernel_moves_fewer_bytes() -> None:
    inputs = [torch.randn(2, 8, 512, 64) for _ in range(3)]
    gm = make_fx(scores, tracing_mode="fake")(*inputs)
    report = rewrite(gm, attention.RULES, choose=bounds("H100"))
    (record,) = report.rewrites
    assert record.rule == "sdpa" and record.worth is not None
    worth = record.worth
    assert worth.before is not None and worth.after is not None and worth.bound is not None
    assert worth.bound <= worth.after < worth.before
    assert "bounds on H100" in str(worth)
    assert torch.allclose(gm(*inputs), scores(*inputs), atol=1e-5)


def test_without_metadata_nothing_is_chosen() -> None:
    gm = make_fx(scores, tracing_mode="fake")(*[torch.randn(2, 8, 16, 64) for _ in range(3)])
    for node in gm.graph.nodes:
        node.meta.clear()
    assert not len(rewrite(gm, attention.RULES, choose=bounds("H100")))


def test_unknown_hardware() -> None:
    with pytest.raises(PyPMError, match="H100"):
        bounds("H1000")
