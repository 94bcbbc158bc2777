"""Attention with heads folded into the batch and a scale that depends on a symbolic size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pypm.rules import attention
from tests.rules.capture import compile_to_graphs

torch.set_num_threads(1)


def folded(x: Tensor, heads: int = 4) -> Tensor:
    b, s, c = x.shape
    x = x.reshape(b, s, heads, c // heads).permute(0, 2, 1, 3)
    return x.reshape(b * heads, s, c // heads)


def attend(x: Tensor, y: Tensor, m: Tensor, is_read: bool) -> Tensor:
    beta = 1 if is_read else 0
    q, k, v = folded(x), folded(y), folded(y)
    scores = torch.baddbmm(m, q, k.transpose(-1, -2), beta=beta, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), v)


@pytest.mark.parametrize("is_read", [False, True])
def test_scale_of_a_symbolic_size(is_read: bool) -> None:
    """The kernel's scale would depend on the size: the rule declines, and nothing breaks."""
    compiled, hook = compile_to_graphs(attend, attention.RULES, "pre_grad", dynamic=True)
    for batch, channels in ((2, 32), (3, 48)):
        made = torch.Generator().manual_seed(batch)
        x, y, m = (
            torch.randn(*shape, generator=made, dtype=torch.float64)
            for shape in ((batch, 5, channels), (batch, 7, channels), (4 * batch, 5, 7))
        )
        m = m if is_read else m.fill_(torch.nan)
        expected = attend(x, y, m, is_read)
        torch.testing.assert_close(compiled(x, y, m, is_read), expected, atol=1e-12, rtol=1e-12)
    assert {refusal.kind for refusal in hook.report().refusals} == {"symbolic"}
