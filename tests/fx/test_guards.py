"""Guards on what a variable is bound to: a tensor, a literal, None, or a computed value."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import pypm
from pypm import RuleSet
from pypm.fx import aten, find
from pypm.lang.pattern_function import PatternFunction


def pattern_of(source: str) -> PatternFunction:
    """The pattern P of a source, which can be read as if it were a file."""
    file = f"<guards {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {name: getattr(pypm, name) for name in pypm.__all__}
    scope: dict[str, Any] = {"__name__": "guards", "aten": aten, "torch": torch, **names}
    exec(compile(source, file, "exec"), scope)
    found: PatternFunction = scope["P"]
    return found


def linear(*, bias: bool) -> fx.GraphModule:
    graph = fx.Graph()
    x, w, b = (graph.placeholder(name) for name in "xwb")
    arguments = (x, w, b) if bias else (x, w)
    graph.output(graph.call_function(torch.ops.aten.linear.default, arguments))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("guard", ["b is None", "b == None", "None == b", "None is b"])
def test_a_missing_argument_is_none(guard: str) -> None:
    for condition, with_bias in ((guard, False), (f"not ({guard})", True)):
        form = pattern_of(
            f"@pattern\ndef P(x, w, b):\n    assert {condition}\n    return aten.linear(x, w, b)\n"
        )
        assert len(find(linear(bias=with_bias), form)) == 1
        assert find(linear(bias=not with_bias), form) == []


@pytest.mark.parametrize("guard", ["b is not None", "b != None", "None != b"])
def test_an_argument_that_is_there_is_not_none(guard: str) -> None:
    form = pattern_of(
        f"@pattern\ndef P(x, w, b):\n    assert {guard}\n    return aten.linear(x, w, b)\n"
    )
    assert len(find(linear(bias=True), form)) == 1
    assert find(linear(bias=False), form) == []


@pytest.mark.parametrize(
    ("guard", "holds"),
    [
        ("c == 2.5", True),
        ("2.5 == c", True),
        ("c == 2", False),
        ("c != 2.5", False),
        ("c != 2", True),
        ("c in (1, 2.5)", True),
        ("c in {1, 2}", False),
        ("c not in (1, 2)", True),
        ("c not in (2.5,)", False),
        ("c is not None", True),
        ("s == 2.5", True),
        ("s in (2.5, 3.5)", True),
        ("s != 2.5", False),
        ("x == 2.5", False),
        ("x != 2.5", True),
        ("x in (1, 2)", False),
    ],
)
def test_a_literal_is_the_constant_that_it_is(guard: str, holds: bool) -> None:
    form = pattern_of(
        "@pattern\ndef P(x):\n    c = var()\n    let(s=c.value)\n"
        f"    assert {guard}\n    return x * c\n"
    )
    found = find(make_fx(lambda x: x * 2.5)(torch.ones(3)), form)
    assert len(found) == holds


def test_rule_sets_hold_rules() -> None:
    for given in ((1, 2), ("r",), (None,)):
        with pytest.raises(TypeError, match="which is not a rule"):
            RuleSet(given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a tuple of rules"):
        RuleSet(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("guard", "holds"),
    [
        ("x.ndim == 2 and x.dim() == 2 and x.ndimension() == 2", True),
        ("x.numel() == 12 and x.nelement() == 12", True),
        ("x.size(0) == 3 and x.size(-1) == 4 and x.size() == (3, 4) and x.size()[1] == 4", True),
        ("x.size(2) == 1", False),
        ("x.is_contiguous() and x.is_floating_point() and not x.is_complex()", True),
        ("x.element_size() == 4 and x.dtype.itemsize == 4 and x.dtype.is_signed", True),
        ("x.device.type == 'cpu' and x.device == torch.device('cpu')", True),
        ("x.device.type in ('cuda', 'xpu')", False),
        ("x.device.index == 0", False),
        ("x.dtype in (torch.float16, torch.float32)", True),
    ],
)
def test_guards_know_the_names_that_tensors_have(guard: str, holds: bool) -> None:
    form = pattern_of(f"@pattern\ndef P(x):\n    assert {guard}\n    return aten.relu(x)\n")
    assert len(find(make_fx(torch.relu)(torch.ones(3, 4)), form)) == holds


@pytest.mark.parametrize("guard", ["x.dim == 1", "x.dim in (1, -1)"])
def test_an_argument_keeps_its_name(guard: str) -> None:
    form = pattern_of(
        f"@pattern\ndef P(y):\n    x = aten.softmax(y, _)\n    assert {guard}\n    return x\n"
    )
    assert len(find(make_fx(lambda x: x.softmax(1))(torch.ones(3, 4)), form)) == 0
    gm = fx.symbolic_trace(lambda x: torch.softmax(x, 1))
    assert len(find(gm, form)) == 1
