"""What is equal over the reals: it fires, it is equal up to rounding, and it is off."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.rules import Rule
from pypm.fx import rewrite
from pypm.rules.reals import EVERY, RULES
from pypm.tools import verify

FIRES = [
    ("scaled_twice", lambda x, y, z: x * 3 / 7),
    ("shifted_twice", lambda x, y, z: x + 0.1 - 0.3),
    ("sum_of_sums", lambda x, y, z: x.sum(0).sum(0)),
    ("sum_of_sums", lambda x, y, z: x.sum(-1).sum(-1)),
    ("distributed", lambda x, y, z: x @ y + x @ z),
    ("chain", lambda x, y, z: x @ y @ z[:, :1]),
]
LEFT = [
    lambda x, y, z: x.long() * 3 * 7,
    lambda x, y, z: x * 3 * 7j,  # another type
    lambda x, y, z: x * 3 / 7j,
    lambda x, y, z: x + 3 + 7j,
    lambda x, y, z: x + 3 - 7j,
    lambda x, y, z: x.sum(0, dtype=torch.float32).sum(0),
    lambda x, y, z: x.sum(0).sum(0, dtype=torch.float32),
    lambda x, y, z: x * 3 + 7,
    lambda x, y, z: x * y * 7,
    lambda x, y, z: x.sum(0, True).sum(0),
    lambda x, y, z: x @ y + y @ z,
    lambda x, y, z: x @ y + x @ z[:, :1],
    lambda x, y, z: x[:1] @ y @ z,
    lambda x, y, z: x @ y[:, :1] @ y[:1],
]


def matrices() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 6, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize(("name", "function"), FIRES)
def test_it_fires(name: str, function) -> None:
    gm = make_fx(function)(*matrices())
    assert rewrite(gm, EVERY).count(name) == 1
    torch.testing.assert_close(gm(*matrices()), function(*matrices()))


@pytest.mark.parametrize("function", LEFT)
def test_it_leaves_the_rest(function) -> None:
    assert not len(rewrite(make_fx(function)(*matrices()), EVERY))


def test_it_is_off() -> None:
    assert not len(RULES)


@pytest.mark.parametrize("each", EVERY.rules, ids=str)
def test_verify(each: Rule) -> None:
    verification = verify(each, samples=20, seed=1, nonfinite=False)
    assert verification.ok, str(verification)
