"""Patterns as deep as generated ones are: no RecursionError, whatever reads them."""

from __future__ import annotations

import linecache
import sys
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import pypm
from pypm import RuleSet, rule
from pypm.core.patterns import Op, Pattern, Var
from pypm.core.printing import print_pattern
from pypm.core.python_settings import with_room
from pypm.fx import aten, explain, find, rewrite, suggest_function
from pypm.lang.pattern_function import PatternFunction
from pypm.match.requirements import TermSizes, lacking
from pypm.tools import verify

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


def locals_in_a_row(count: int) -> str:
    lines = [f"    v{i} = aten.relu(v{i - 1})\n" for i in range(1, count + 1)]
    return "@pattern\ndef P(v0):\n" + "".join(lines) + f"    return v{count}\n"


def patterns_in_a_row(count: int) -> str:
    first = "@pattern\ndef P(v0):\n    return aten.relu(v0)\n"
    calls = (f"@pattern\ndef P{i}(v0):\n    return aten.relu({{}}(v0))\n" for i in range(1, count))
    names = ["P0", *(f"P{i}" for i in range(1, count - 1))]
    rest = "".join(call.format(name) for call, name in zip(calls, names, strict=True))
    return first.replace("P(", "P0(") + rest + f"P = P{count - 1}\n"


@pytest.mark.parametrize("source", [locals_in_a_row(300), patterns_in_a_row(300)])
def test_whatever_reads_a_pattern_of_three_hundred_operators(source: str) -> None:
    form = defined(source)

    @rule(form)
    def shorter(v0):
        return v0.clamp(min=0)

    assert repr(shorter) == "<rule shorter(v0)>"
    assert {shorter: 1}[shorter] == 1
    assert print_pattern(form.core[0]).count("relu") == 300
    assert explain(make_fx(lambda x: chain(x, 300))(X), shorter, "relu_299")
    near = explain(make_fx(lambda x: chain(x.sin(), 298))(X), shorter)
    assert "aten.relu is asked for, the graph has" in str(near)
    verification = verify(shorter, samples=2, nonfinite=False)
    assert verification.trials[0].fired == 2, str(verification)


def test_parts_that_occur_often_are_read_once() -> None:
    part: Pattern = Op(aten.exp, (Var("x"),))
    for _ in range(60):
        part = Op(aten.add, (part, part))
    size, lacked = TermSizes().of(part), lacking(part, {"aten.add"})
    assert (size, lacked) == (2**61 - 1, {"aten.exp"})


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
