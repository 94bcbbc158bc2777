"""Rules that return what their patterns keep: as many outputs as a match has."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import keep, pattern, rule
from pypm.core.rules import Rule, print_rules
from pypm.core.text import parse_rules
from pypm.fx import aten, rewrite


@pattern
def Sums(x):
    return keep(Sums(x) + 1)


@pattern
def Sums(x):
    return keep(aten.exp(x))


@rule(Sums, returns_kept=True)
def sums(x, match):
    """Each output by its own number of additions, which are counted in the graph."""
    y, results = torch.exp2(x / math.log(2)), []
    for root in match.roots:
        node, count = root, 0
        while node.target is torch.ops.aten.add.Tensor:
            node, count = node.args[0], count + 1
        results.append(y + count)
    return tuple(results)


@rule(Sums, returns_kept=True)
def too_few(x):
    return torch.exp2(x / math.log(2)) + 3


def chain(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    one = y + 1
    two = one + 1
    return two + 1, one * 2, y * 3


def rewritten(by: Rule) -> tuple[Any, Any]:
    gm = make_fx(chain)(torch.ones(3))
    report = rewrite(gm, by)
    gm.graph.lint()
    return gm, report


def test_kept_values_with_users_are_outputs() -> None:
    gm, report = rewritten(sums)
    x = torch.randn(3)
    assert all(map(torch.allclose, gm(x), chain(x)))
    assert len(report) == 1
    names = [node.name for node in gm.graph.nodes if node.op == "call_function"]
    assert [name for name in names if "exp" in name] == ["exp2"]


def test_a_body_that_returns_too_few_is_refused() -> None:
    _, report = rewritten(too_few)
    reasons = {refusal.reason for refusal in report.refusals}
    assert "the replacement has 1 value, not 3" in reasons


def test_the_text_says_it() -> None:
    text = "rules r {\n  rule kept(x) returns_kept: keep aten.exp(x) => aten.exp(x)\n}\n"
    parsed = parse_rules(text)
    assert print_rules(parsed) == text and next(iter(parsed)).returns_kept
