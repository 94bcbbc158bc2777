"""Patterns as deep as generated ones are: no RecursionError, whatever reads them."""

from __future__ import annotations

import linecache
import sys
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import pypm
from pypm import RuleSet, rule
from pypm.core.runtime import with_room
from pypm.fx import aten, find, rewrite, suggest_function
from pypm.lang.pattern_function import PatternFunction

X = torch.ones(2, 2)


def defined(source: str) -> PatternFunction:
    file = f"<depth {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {name: getattr(pypm, name) for name in pypm.__all__}
    scope: dict[str, Any] = {"__name__": "depth", "aten": aten, **names}
    exec(compile(source, file, "exec"), scope)
    found: PatternFunction = scope["P"]
    return found


def chain(x: torch.Tensor, length: int) -> torch.Tensor:
    for _ in range(length):
        x = x.relu()
    return x


def total(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(199):
        y = y + x
    return y


def test_a_hundred_locals() -> None:
    lines = [f"    v{i} = aten.relu(v{i - 1})\n" for i in range(1, 101)]
    form = defined("@pattern\ndef P(v0):\n" + "".join(lines) + "    return v100\n")
    gm = make_fx(lambda x: chain(x, 100))(X)
    assert len(find(gm, form)) == 1

    @rule(form)
    def shorter(v0):
        return v0.relu()

    assert len(RuleSet((shorter,)).content_hash()) == 64
    assert len(rewrite(gm, shorter)) == 1
    assert gm.code.count("relu") < 10


def test_a_sum_of_two_hundred_terms() -> None:
    form = defined(f"@pattern\ndef P(x):\n    return {' + '.join(['x'] * 200)}\n")
    assert len(find(make_fx(total)(X), form)) == 1


def test_a_suggestion_of_many_operators() -> None:
    found = suggest_function(lambda x: chain(x, 120), [X])
    assert found.source.count("aten.relu") == 120


def test_room_is_given_where_it_is_wanted_and_taken_back() -> None:
    @with_room
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + depth.__wrapped__(n - 1)  # type: ignore[attr-defined]

    limit = sys.getrecursionlimit()
    assert depth(20_000) == 20_000
    assert sys.getrecursionlimit() == limit
