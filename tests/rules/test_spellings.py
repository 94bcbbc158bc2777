"""Spellings that other rules are made of, by themselves."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import pypm.rules
from pypm import pattern
from pypm.fx import aten, find
from pypm.rules.vocabulary.shapes import NoOp, Reshape


@pattern(through=NoOp)
def Twice(x):
    return aten.exp(x) + aten.exp(x)


def test_a_bitcast_is_no_reshape() -> None:
    def views(x):
        bits = x.exp().view(torch.int64)
        return bits + bits, x.view(8, 2), x.reshape(2, 8)

    gm = make_fx(views, tracing_mode="fake")(torch.ones(4, 4, dtype=torch.float64))
    assert [match.root.target for match in find(gm, Reshape)] == 2 * [torch.ops.aten.view.default]
    assert find(gm, Twice) == []


def test_the_vocabulary_is_listed() -> None:
    """Each pattern has an example in the table of `pypm/rules/README.md`."""
    folder = Path(pypm.rules.__path__[0])
    listed = set(re.findall(r"`(\w+)\(", (folder / "README.md").read_text()))
    for path in (folder / "vocabulary").glob("*.py"):
        names = set(re.findall(r"^@pattern.*\ndef (\w+)", path.read_text(), re.MULTILINE))
        assert names <= listed, path.name
