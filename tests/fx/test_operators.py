"""Operators from torch's schemas: every spelling of a call is one term; what nodes do."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._higher_order_ops.auto_functionalize import (
    auto_functionalized,
    auto_functionalized_v2,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from pypm.core.guards import FUNCTIONS
from pypm.core.operators import REQUIRED
from pypm.core.terms import UNDEFINED
from pypm.fx import LITERAL, aten, describe, prims
from pypm.fx.legality.strides import reads_layout
from pypm.fx.operators import corrections
from pypm.fx.operators.arguments import bind
from pypm.fx.operators.effects import effects, has_effect, is_pure, is_random, is_view, mutates
from pypm.fx.operators.targets import resolve, torch_operator
from pypm.fx.subject.calls import is_constant, tags
from pypm.fx.subject.view import View

A = torch.ops.aten
FAKE = FakeTensorMode()


def fake(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with FAKE:
        return torch.empty(shape, dtype=dtype)


class Builder:
    """A graph with inputs x, y: (2, 3, 4), w: (5, 4), b: (4,), and i: (2, 3) of integers."""

    def __init__(self, *, metadata: bool = True) -> None:
        self.graph = fx.Graph(torch.nn.Module())
        shapes = {"x": (2, 3, 4), "y": (2, 3, 4), "w": (5, 4), "b": (4,), "i": (2, 3)}
        for name, shape in shapes.items():
            node = self.graph.placeholder(name)
            if metadata:
                dtype = torch.int64 if name == "i" else torch.float32
                node.meta["val"] = fake(*shape, dtype=dtype)
            setattr(self, name, node)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def f(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(target, args, kwargs)

    def m(self, method: str, *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_method(method, args, kwargs)


Spelled = Callable[[Builder], list[fx.Node]]


def test_what_nodes_compute_decides_the_overload() -> None:
    graph = Builder()
    size = graph.m("size", graph.x, 0)
    size.meta["val"] = 2
    calls = [
        (graph.f(torch.pow, graph.x, graph.y), "Tensor_Tensor"),
        (graph.f(torch.pow, graph.x, size), "Tensor_Scalar"),
        (graph.f(torch.pow, size, graph.x), "Scalar"),
        (graph.f(torch.clamp, graph.x, size), ""),
        (graph.f(torch.clamp, graph.x, graph.y), "Tensor"),
    ]
    for node, overload in calls:
        bound = bind(resolve(node.op, node.target), node)
        assert bound is not None
        assert bound[0].name == overload


# The printed term, and the ways to write it.
SPELLINGS: list[tuple[str, Spelled]] = [
    (
        "aten.mul(x, 2)",
        lambda g: [
            g.f(A.mul.Tensor, g.x, 2),
            g.f(A.mul.Scalar, g.x, 2),
            g.f(A.mul, g.x, 2),
            g.f(operator.mul, g.x, 2),
            g.f(operator.mul, 2, g.x),
            g.f(torch.mul, g.x, 2),
            g.f(torch.mul, input=g.x, other=2),
            g.f(torch.multiply, g.x, 2),
            g.f(torch.Tensor.mul, g.x, 2),
            g.m("mul", g.x, 2),
            g.m("__rmul__", g.x, 2),
        ],
    ),
    (
        "aten.add(x, y, alpha=1)",
        lambda g: [
            g.f(A.add.Tensor, g.x, g.y),
            g.f(A.add.Tensor, g.x, g.y, alpha=1),
            g.f(operator.add, g.x, g.y),
            g.f(torch.add, g.x, other=g.y),
            g.m("add", g.x, g.y, alpha=1),
        ],
    ),
    (
        "aten.sub(1, x, alpha=1)",
        lambda g: [
            g.f(operator.sub, 1, g.x),
            g.f(A.sub.Tensor, 1, g.x),
            g.f(A.rsub.Scalar, g.x, 1),
            g.f(A.rsub.Tensor, g.x, 1),
            g.f(torch.rsub, g.x, 1),
            g.f(torch.rsub, input=g.x, other=1),
            g.m("__rsub__", g.x, 1),
        ],
    ),
    (
        "aten.sub(y, x, alpha=2)",
        lambda g: [
            g.f(torch.sub, g.y, g.x, alpha=2),
            g.f(torch.rsub, g.x, g.y, alpha=2),
            g.f(A.rsub.Tensor, g.x, g.y, alpha=2),
        ],
    ),
    (
        "aten.sub(2.5, x, alpha=3)",
        lambda g: [g.f(A.sub.Tensor, 2.5, g.x, alpha=3), g.f(A.rsub.Scalar, g.x, 2.5, 3)],
    ),
    (
        "aten.pow(2, x)",
        lambda g: [
            g.f(operator.pow, 2, g.x),
            g.f(A.pow.Scalar, 2, g.x),
            g.f(torch.pow, 2, g.x),
            g.m("__rpow__", g.x, 2),
        ],
    ),
    (
        "aten.remainder(2, x)",
        lambda g: [
            g.f(operator.mod, 2, g.x),
            g.f(A.remainder.Scalar_Tensor, 2, g.x),
            g.m("__rmod__", g.x, 2),
        ],
    ),
    (
        "aten.div(x, 2, rounding_mode='floor')",
        lambda g: [
            g.f(operator.floordiv, g.x, 2),
            g.f(A.floor_divide.default, g.x, 2),
            g.f(A.floor_divide.Scalar, g.x, 2),
            g.f(A.div.Tensor_mode, g.x, 2, rounding_mode="floor"),
            g.f(torch.div, g.x, 2, rounding_mode="floor"),
            g.m("floor_divide", g.x, 2),
        ],
    ),
    (
        "aten.div(2, x, rounding_mode='floor')",
        lambda g: [
            g.f(operator.floordiv, 2, g.x),
            g.f(A.div.Tensor_mode, 2, g.x, rounding_mode="floor"),
            g.m("__rfloordiv__", g.x, 2),
        ],
    ),
    (
        "aten.div(x, 2, rounding_mode=None)",
        lambda g: [
            g.f(operator.truediv, g.x, 2),
            g.f(torch.div, g.x, 2),
            g.f(torch.true_divide, g.x, 2),
            g.f(A.div.Tensor, g.x, 2),
            g.f(A.div.Scalar, g.x, 2),
            g.f(A.div.Tensor_mode, g.x, 2, rounding_mode=None),
            g.m("div", g.x, 2),
        ],
    ),
    (
        "aten.where(y, x, 2)",
        lambda g: [
            g.f(torch.where, g.y, g.x, 2),
            g.f(A.where.ScalarOther, g.y, g.x, 2),
            g.m("where", g.x, g.y, 2),
            g.m("where", g.x, g.y, other=2),
            g.f(torch.Tensor.where, g.x, g.y, 2),
        ],
    ),
    (
        "aten.polygamma(x, n=2)",
        lambda g: [
            g.f(torch.polygamma, 2, g.x),
            g.f(A.polygamma.default, 2, g.x),
            g.m("polygamma", g.x, 2),
        ],
    ),
    (
        "aten.matmul(x, y)",
        lambda g: [
            g.f(operator.matmul, g.x, g.y),
            g.f(torch.matmul, g.x, g.y),
            g.f(A.matmul.default, g.x, g.y),
            g.m("matmul", g.x, g.y),
            g.m("__matmul__", g.x, g.y),
        ],
    ),
    (
        "aten.pow(x, 2)",
        lambda g: [
            g.f(operator.pow, g.x, 2),
            g.f(torch.pow, g.x, 2),
            g.f(A.pow.Tensor_Scalar, g.x, 2),
            g.m("pow", g.x, exponent=2),
            g.f(torch.square, g.x),
            g.f(A.square.default, g.x),
            g.m("square", g.x),
        ],
    ),
    (
        "aten.relu(x)",
        lambda g: [
            g.f(A.relu.default, g.x),
            g.f(torch.relu, g.x),
            g.f(F.relu, g.x),
            g.f(F.relu, input=g.x, inplace=False),
            g.m("relu", g.x),
        ],
    ),
    (
        "aten.softmax(x, dim=2, dtype=None)",
        lambda g: [
            g.f(A.softmax.int, g.x, -1),
            g.f(A.softmax.int, g.x, 2),
            g.f(torch.softmax, g.x, dim=-1),
            g.f(F.softmax, g.x, dim=-1),
            g.f(F.softmax, g.x, 2, 3),
            g.m("softmax", g.x, -1),
        ],
    ),
    (
        "aten.linear(x, w, None)",
        lambda g: [
            g.f(A.linear.default, g.x, g.w),
            g.f(F.linear, g.x, g.w),
            g.f(F.linear, g.x, weight=g.w, bias=None),
        ],
    ),
    (
        "aten.gelu(x, approximate='none')",
        lambda g: [
            g.f(A.gelu.default, g.x),
            g.f(F.gelu, g.x),
            g.f(F.gelu, g.x, approximate="none"),
        ],
    ),
    ("aten.silu(x)", lambda g: [g.f(A.silu.default, g.x), g.f(F.silu, g.x)]),
    (
        "aten.dropout(x, p=0.5, train=False)",
        lambda g: [
            g.f(A.dropout.default, g.x, 0.5, False),
            g.f(F.dropout, g.x, training=False),
            g.f(torch.dropout, g.x, 0.5, train=False),
        ],
    ),
    (
        "aten.layer_norm(x, None, None, normalized_shape=(4,), eps=1e-05, cudnn_enable=True)",
        lambda g: [
            g.f(A.layer_norm.default, g.x, [4]),
            g.f(F.layer_norm, g.x, (4,)),
            g.f(torch.layer_norm, g.x, [4], None, None, 1e-5),
        ],
    ),
    (
        "aten.sum(x, dim=None, keepdim=False, dtype=None)",
        lambda g: [
            g.f(A.sum.default, g.x),
            g.f(A.sum.dim_IntList, g.x, None),
            g.f(torch.sum, g.x),
            g.m("sum", g.x),
        ],
    ),
    (
        "aten.sum(x, dim=(2,), keepdim=True, dtype=None)",
        lambda g: [
            g.f(A.sum.dim_IntList, g.x, [-1], True),
            g.f(torch.sum, g.x, 2, True),
            g.m("sum", g.x, dim=-1, keepdim=True),
            g.m("sum", g.x, axis=(2,), keepdims=True),
        ],
    ),
    (
        "aten.max(x, dim=2, keepdim=False)",
        lambda g: [g.f(A.max.dim, g.x, -1), g.f(torch.max, g.x, 2), g.m("max", g.x, dim=-1)],
    ),
    ("aten.max(x, dim=None, keepdim=False)", lambda g: [g.f(A.max.default, g.x), g.m("max", g.x)]),
    (
        "aten.max(x, y, dim=None, keepdim=False)",
        lambda g: [g.f(A.max.other, g.x, g.y), g.f(torch.max, g.x, g.y)],
    ),
    (
        "aten.permute(x, dims=(0, 2, 1))",
        lambda g: [
            g.f(A.permute.default, g.x, [0, -1, -2]),
            g.f(torch.permute, g.x, (0, 2, 1)),
            g.m("permute", g.x, 0, 2, 1),
            g.m("permute", g.x, [0, 2, 1]),
        ],
    ),
    (
        "aten.transpose(x, dim0=1, dim1=2)",
        lambda g: [
            g.f(A.transpose.int, g.x, -2, -1),
            g.f(torch.transpose, g.x, 1, 2),
            g.f(torch.swapaxes, g.x, axis0=1, axis1=2),
            g.m("transpose", g.x, 1, -1),
        ],
    ),
    (
        "aten.unsqueeze(x, dim=3)",
        lambda g: [g.f(A.unsqueeze.default, g.x, -1), g.m("unsqueeze", g.x, 3)],
    ),
    (
        "aten.squeeze(x, dim=(2,))",
        lambda g: [
            g.f(A.squeeze.dim, g.x, -1),
            g.f(A.squeeze.dims, g.x, [2]),
            g.f(torch.squeeze, g.x, 2),
        ],
    ),
    (
        "aten.cat(cons(x, cons(y, nil())), dim=2)",
        lambda g: [
            g.f(A.cat.default, [g.x, g.y], -1),
            g.f(torch.cat, (g.x, g.y), dim=2),
            g.f(torch.concat, tensors=[g.x, g.y], dim=2),
        ],
    ),
    (
        "aten.stack(cons(x, cons(y, nil())), dim=3)",
        lambda g: [g.f(A.stack.default, [g.x, g.y], -1), g.f(torch.stack, [g.x, g.y], 3)],
    ),
    (
        "aten.split(x, split_size=2, dim=2)",
        lambda g: [
            g.f(A.split.Tensor, g.x, 2, -1),
            g.f(torch.split, g.x, 2, dim=2),
            g.m("split", g.x, 2, 2),
        ],
    ),
    (
        "aten.view(x, dtype=None, size=(6, 4))",
        lambda g: [
            g.f(A.view.default, g.x, [6, 4]),
            g.m("view", g.x, 6, 4),
            g.m("view", g.x, (6, 4)),
        ],
    ),
    (
        "aten.clamp(x, 0, None)",
        lambda g: [
            g.f(A.clamp.default, g.x, 0),
            g.f(torch.clip, g.x, min=0),
            g.m("clamp", g.x, 0),
            g.f(A.clamp_min.default, g.x, 0),
            g.m("clamp_min", g.x, min=0),
        ],
    ),
    (
        "aten.clamp(x, None, b)",
        lambda g: [
            g.f(torch.clamp, g.x, max=g.b),
            g.f(A.clamp_max.Tensor, g.x, g.b),
            g.f(torch.clamp_max, g.x, g.b),
        ],
    ),
    ("aten.lt(x, 2)", lambda g: [g.f(operator.lt, g.x, 2), g.m("__lt__", g.x, 2)]),
    (
        "aten.where(x, y, 0.0)",
        lambda g: [
            g.f(A.where.self, g.x, g.y, 0.0),
            g.f(A.where.ScalarOther, g.x, g.y, 0.0),
            g.f(torch.where, g.x, g.y, 0.0),
        ],
    ),
    (
        "aten.embedding(w, i, padding_idx=-1, scale_grad_by_freq=False, sparse=False)",
        lambda g: [
            g.f(A.embedding.default, g.w, g.i),
            g.f(F.embedding, g.i, g.w, None, None, float("2")),
        ],
    ),
    (
        "aten.mse_loss(x, y, reduction=1)",
        lambda g: [
            g.f(A.mse_loss.default, g.x, g.y),
            g.f(F.mse_loss, g.x, g.y),
            g.f(F.mse_loss, g.x, g.y, reduction="mean"),
        ],
    ),
    (
        "aten.conv2d(x, w, None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)",
        lambda g: [
            g.f(A.conv2d.default, g.x, g.w),
            g.f(F.conv2d, g.x, g.w, stride=1),
            g.f(torch.conv2d, g.x, g.w, None, [1, 1]),
        ],
    ),
    (
        "aten.batch_norm(x, None, None, b, b, training=False, momentum=0.1, eps=1e-05,"
        " cudnn_enabled=True)",
        lambda g: [
            g.f(F.batch_norm, g.x, g.b, g.b),
            g.f(A.batch_norm.default, g.x, None, None, g.b, g.b, False, 0.1, 1e-5, True),
        ],
    ),
    (
        "aten.bitwise_and(i, i)",
        lambda g: [
            g.f(operator.and_, g.i, g.i),
            g.f(torch.bitwise_and, g.i, g.i),
            g.f(A.__and__.Tensor, g.i, g.i),
        ],
    ),
    (
        "3.0",
        lambda g: [
            g.f(A.full.default, [], 3.0),
            g.f(torch.full, (), 3.0),
            g.f(A.scalar_tensor.default, 3.0),
            g.f(torch.tensor, 3.0),
        ],
    ),
    ("getitem(x, index=0)", lambda g: [g.f(operator.getitem, g.x, 0)]),
    (
        "aten.index(x, cons(None, cons(i, nil())))",
        lambda g: [g.f(A.index.Tensor, g.x, [None, g.i])],
    ),
    (
        "torch.nn.functional.normalize(x, p=2.0, dim=-1, eps=1e-12, out=None)",
        lambda g: [
            g.f(F.normalize, g.x, 2.0, -1),
            g.f(F.normalize, input=g.x, dim=-1),
        ],
    ),
    ("torch.Tensor.no_such(x, argument1=1, @node='no_such')", lambda g: [g.m("no_such", g.x, 1)]),
]


def shown(term: Any) -> str:
    """A term with inputs by name and literals by value."""
    if term.operator.name == "placeholder":
        return str(term.attributes["target"])
    if term.operator == LITERAL:
        return repr(term.attributes["value"])
    parts = [shown(child) for child in term.children]
    parts += [f"{name}={value!r}" for name, value in term.attributes.items()]
    return f"{term.operator}({', '.join(parts)})"


@pytest.mark.parametrize(("expected", "spellings"), SPELLINGS, ids=[s[0] for s in SPELLINGS])
def test_spellings_are_one_term(expected: str, spellings: Spelled) -> None:
    builder = Builder()
    nodes = spellings(builder)
    view = View(builder.graph)
    found = [shown(view.occurrence(node).term) for node in nodes]
    assert sorted(found[0]) == sorted(expected), found[0]
    terms = [view.occurrence(node).term for node in nodes]
    assert [t is terms[0] for t in terms] == [True] * len(nodes), found


NUMBERS = torch.tensor([3.0, 7.5, 0.0, 255.0, 1e-3, math.inf, math.nan, -0.0, -7.5])


@pytest.mark.parametrize("name", sorted(corrections.FORMS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8])
def test_another_name_of_a_call_computes_the_same(name: str, dtype: torch.dtype) -> None:
    other, called, exchanged, given = corrections.FORMS[name]
    x = (NUMBERS if dtype.is_floating_point else NUMBERS[:5]).to(dtype)
    for y in (torch.full_like(x, 2), torch.full_like(x, 3)):
        arguments = (x,) if name == "aten.square" else (x, y)
        found = getattr(A, name.removeprefix("aten."))(*arguments)
        written: tuple[Any, ...] = arguments[::-1] if exchanged else arguments
        if "min" in given:
            written = (x, None, y)
        keywords = {k: v for k, v in given.items() if k not in ("min", "max")}
        packet = getattr(A, other.removeprefix("aten."))
        expected = getattr(packet, called or "Tensor")(*written, **keywords)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", sorted(corrections.ALIASES))
def test_an_alias_has_an_overload_of_the_packet_that_it_stands_for(name: str) -> None:
    found = (getattr(A, n.removeprefix("aten.")) for n in (name, corrections.ALIASES[name]))
    ours, theirs = (
        {tuple(str(a.real_type) for a in getattr(p, o)._schema.arguments) for o in p.overloads()}
        for p in found
    )
    assert ours & theirs


DIFFERENT: list[tuple[str, Spelled]] = [
    ("types of literals", lambda g: [g.f(A.mul.Tensor, g.x, 2), g.f(A.mul.Tensor, g.x, 2.0)]),
    ("order", lambda g: [g.f(torch.sub, g.x, g.y), g.f(torch.sub, g.y, g.x)]),
    ("alpha", lambda g: [g.f(torch.add, g.x, g.y), g.f(torch.add, g.x, g.y, alpha=2)]),
    ("scaled number", lambda g: [g.f(A.add, 2, g.x, alpha=3), g.f(A.add, g.x, 2, alpha=3)]),
    ("split", lambda g: [g.f(torch.split, g.x, 2), g.f(torch.split, g.x, [2])]),
    ("overload", lambda g: [g.f(A.max.default, g.x), g.f(A.max.dim, g.x, 0)]),
    ("dims", lambda g: [g.f(torch.softmax, g.x, -1), g.f(torch.softmax, g.x, 1)]),
    ("variant", lambda g: [g.f(A.std.default, g.x, False), g.f(A.std.default, g.x)]),
    ("inputs", lambda g: [g.x, g.y]),
    ("in place", lambda g: [g.f(F.relu, g.x), g.f(F.relu, g.x, inplace=True)]),
    (
        "optional children",
        lambda g: [g.f(torch.clamp, g.x, 0), g.f(torch.clamp, g.x, max=0)],
    ),
]


@pytest.mark.parametrize(("name", "build"), DIFFERENT, ids=[d[0] for d in DIFFERENT])
def test_different_calls_are_different_terms(name: str, build: Spelled) -> None:
    builder = Builder()
    first, second = build(builder)
    view = View(builder.graph)
    assert view.occurrence(first).term is not view.occurrence(second).term


def test_spellings_without_metadata() -> None:
    g = Builder(metadata=False)
    nodes = [g.f(torch.max, g.x, g.y), g.f(torch.mul, g.x, g.y), g.f(F.softmax, g.x, dim=-1)]
    view = View(g.graph)
    assert [shown(view.occurrence(n).term) for n in nodes] == [
        "aten.max(x, y, dim=None, keepdim=False)",
        "aten.mul(x, y)",
        "aten.softmax(x, dim=-1, dtype=None)",
    ]


# --- operators ----------------------------------------------------------------------------------


def test_signatures() -> None:
    assert [s.name for s in aten.mul.signatures] == ["Tensor", "Scalar"]
    assert [p.kind for p in aten.mul.signatures[1].parameters] == ["term", "term"]
    assert aten.max.signatures[0].name == ""
    assert [p.kind for p in aten.cat.signatures[0].parameters] == ["list", "attribute"]
    linear = aten.linear.signatures[0].parameters
    assert [(p.name, p.default) for p in linear] == [
        ("input", REQUIRED),
        ("weight", REQUIRED),
        ("bias", None),
    ]
    names = {s.name for s in aten.add.signatures}
    assert "out" not in names and "int" not in names


def test_commutative() -> None:
    assert aten.add.commutes == (("alpha", 1),)
    assert aten.mul.commutes == ()
    assert aten.sub.commutes is None


def test_unknown_operator_names_its_neighbours() -> None:
    with pytest.raises(AttributeError, match=r"did you mean .*softmax"):
        _ = aten.sofmax


def test_torch_operator() -> None:
    assert torch_operator(A.relu.default) == aten.relu == torch_operator("relu")
    assert torch_operator(F.linear) == aten.linear
    assert torch_operator(torch.multiply) == aten.mul == aten.multiply
    assert torch_operator(torch.nn.Linear).name == "torch.nn.modules.linear.Linear"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (aten.softmax, {"dim"}),
        (aten.transpose, {"dim0", "dim1"}),
        (aten.flatten, {"start_dim", "end_dim"}),
        (aten.permute, {"dims"}),
        (aten.layer_norm, set()),
        (aten.view, set()),
        (aten.cat, {"dim"}),
        (aten.sum, {"dim"}),
    ],
    ids=lambda value: "" if isinstance(value, set) else str(value),
)
def test_dim_parameters(found: Any, expected: set[str]) -> None:
    parameters = [each for one in found.signatures for each in one.attributes]
    assert {each.name for each in parameters if each.dimension} == expected


@pytest.mark.parametrize(
    ("value", "expected", "rank", "verdict"),
    [
        (2, -1, 3, True),
        (1, -1, 3, False),
        (-1, -1, None, True),
        (2, -1, None, UNDEFINED),
        ((2,), -1, 3, True),
        ((0, 2), (0, -1), 3, True),
        ((0, 2), (1, -1), None, False),
        ((0, 2), (0, -1), None, UNDEFINED),
        (0, -1, 0, True),
    ],
)
def test_same_dims(value: object, expected: object, rank: object, verdict: object) -> None:
    assert FUNCTIONS["same_dims"].apply(value, expected, rank) is verdict


# --- what nodes do ------------------------------------------------------------------------------


@torch.library.custom_op("pypm_tests::scale", mutates_args=())
def scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by


@torch.library.custom_op("pypm_tests::fill", mutates_args=("out",))
def fill(x: torch.Tensor, out: torch.Tensor, by: float = 1.0) -> None:
    out.copy_(x * by)


PREDICATES: list[tuple[str, Callable[[Builder], fx.Node], str]] = [
    ("relu", lambda g: g.f(A.relu.default, g.x), "pure"),
    ("linear", lambda g: g.f(F.linear, g.x, g.w), "pure"),
    ("dropout", lambda g: g.f(F.dropout, g.x, 0.1), "random"),
    ("dropout evaluated", lambda g: g.f(F.dropout, g.x, 0.1, training=False), "pure"),
    ("dropout of nothing", lambda g: g.f(F.dropout, g.x, 0.0), "pure"),
    ("native_dropout", lambda g: g.f(A.native_dropout.default, g.x, 0.1, True), "random"),
    ("rand", lambda g: g.f(A.rand.default, [2]), "random"),
    ("bernoulli", lambda g: g.m("bernoulli", g.x), "random"),
    (
        "attention",
        lambda g: g.f(F.scaled_dot_product_attention, g.x, g.x, g.x),
        "pure",
    ),
    (
        "attention with dropout",
        lambda g: g.f(F.scaled_dot_product_attention, g.x, g.x, g.x, dropout_p=0.1),
        "random",
    ),
    ("add_", lambda g: g.m("add_", g.x, 1), "mutates effect"),
    ("iadd", lambda g: g.f(operator.iadd, g.x, 1), "mutates effect"),
    ("setitem", lambda g: g.f(operator.setitem, g.x, 0, g.y), "mutates effect"),
    ("copy_", lambda g: g.f(A.copy_.default, g.x, g.y), "mutates effect"),
    ("out=", lambda g: g.f(torch.add, g.x, g.y, out=g.x), "mutates effect"),
    ("relu inplace", lambda g: g.f(F.relu, g.x, inplace=True), "mutates effect"),
    (
        "batch_norm in training",
        lambda g: g.f(F.batch_norm, g.x, g.b, g.b, training=True),
        "mutates effect",
    ),
    ("batch_norm", lambda g: g.f(F.batch_norm, g.x, g.b, g.b), "pure"),
    ("assert", lambda g: g.f(A._assert_async.msg, g.x, ""), "effect"),
    ("transpose", lambda g: g.f(torch.transpose, g.x, 0, 1), "pure view"),
    ("view", lambda g: g.m("view", g.x, 6, 4), "pure view layout"),
    ("reshape", lambda g: g.m("reshape", g.x, 6, 4), "pure view"),
    ("expand", lambda g: g.f(A.expand.default, g.b, [3, 4]), "pure view"),
    ("detach", lambda g: g.f(A.detach.default, g.b), "pure view"),
    ("as_strided", lambda g: g.f(A.as_strided.default, g.b, [2], [1]), "pure view layout"),
    ("custom", lambda g: g.f(torch.ops.pypm_tests.scale.default, g.x), "pure layout"),
    (
        "custom writing",
        lambda g: g.f(torch.ops.pypm_tests.fill.default, g.x, g.y),
        "mutates effect layout",
    ),
    ("literal", lambda g: g.f(A.full.default, [], 1.0), "pure constant"),
    ("input", lambda g: g.x, "pure"),
    ("output", lambda g: g.graph.output(g.x), "effect layout"),
    (
        "flex_attention",
        lambda g: g.f(torch.ops.higher_order.flex_attention, g.x, g.x, g.x),
        "pure layout",
    ),
    (
        "unknown higher-order operator",
        lambda g: g.f(torch.ops.higher_order.cond, g.x, g.x),
        "mutates effect layout",
    ),
]


@pytest.mark.parametrize(("name", "build", "expected"), PREDICATES, ids=[p[0] for p in PREDICATES])
def test_predicates(name: str, build: Callable[[Builder], fx.Node], expected: str) -> None:
    node = build(Builder())
    verdicts = {
        "pure": is_pure,
        "random": is_random,
        "mutates": mutates,
        "effect": has_effect,
        "view": is_view,
        "constant": is_constant,
        "layout": reads_layout,
    }
    assert {word for word, holds in verdicts.items() if holds(node)} == set(expected.split())


POINTWISE: list[tuple[Callable[..., Any], tuple[Any, ...], bool]] = [
    (A.relu.default, ("x",), True),
    (A.silu.default, ("x",), True),
    (A.gelu.default, ("x",), True),
    (A.hardswish.default, ("x",), True),
    (A._to_copy.default, ("x",), True),
    (A.where.ScalarOther, ("x", "y", 1), True),
    (torch.ops.prims.convert_element_type.default, ("x", torch.float16), True),
    (torch.ops.prims.mul.default, ("x", "y"), True),
    (A.clone.default, ("x",), True),
    (A.max.other, ("x", "y"), True),
    (A.max.default, ("x",), False),
    (A.rrelu.default, ("x",), False),
    (A.relu_.default, ("x",), False),
    (A.mm.default, ("x", "y"), False),
    (A.sum.default, ("x",), False),
    (A.native_dropout.default, ("x", 0.5, True), False),
]


@pytest.mark.parametrize(("target", "args", "expected"), POINTWISE, ids=str)
def test_pointwise(target: Callable[..., Any], args: tuple[Any, ...], expected: bool) -> None:
    g = Builder()
    node = g.f(target, *[getattr(g, a) if isinstance(a, str) else a for a in args])
    assert ("pointwise" in tags(node)) is expected


def test_every_pointwise_operator_is_elementwise() -> None:
    """An untagged operator in the table commutes with shuffling its inputs, as torch runs it."""
    torch.manual_seed(0)
    x, y = torch.rand(3, 4) + 0.1, torch.rand(3, 4) + 0.1
    for name in ("hardswish", "log_sigmoid", "isreal", "_to_copy", "floor_divide", "copysign"):
        (signature, *_) = getattr(aten, name).signatures
        inputs = (x, y)[: len(signature.children)]
        function = getattr(A, name)
        assert torch.equal(function(*inputs).flip(0, 1), function(*[t.flip(0, 1) for t in inputs]))
    assert "pointwise" in prims.convert_element_type.tags


def test_an_operator_that_the_dispatcher_lacks_may_share_all() -> None:
    g = Builder()
    node = g.f(A.size.default, g.x)
    assert effects(node).shares == (g.x,)
    assert not mutates(node)


# --- functionalized operators -------------------------------------------------------------------


def test_functionalized_operator_is_the_operator_on_its_bases() -> None:
    g = Builder()
    op = torch.ops.pypm_tests.fill.default
    old = g.f(auto_functionalized, op, x=g.x, out=g.y, by=3.0)
    new = g.f(auto_functionalized_v2, op, x=g.x, by=3.0, _out_base_index=0, _all_bases=[g.y])
    view = View(g.graph)
    assert shown(view.occurrence(old).term) == "pypm_tests.fill(x, y, by=3.0)"
    assert view.occurrence(old).term is view.occurrence(new).term
    assert is_pure(old) and is_pure(new)
    part = g.f(
        auto_functionalized_v2,
        op,
        x=g.x,
        by=3.0,
        _out_base_index=0,
        _out_slice_dim=0,
        _out_slice_start=0,
        _out_slice_end=1,
        _all_bases=[g.y],
    )
    assert describe(part).operator.name == "higher_order.auto_functionalized_v2"
    assert view.occurrence(part).term is not view.occurrence(new).term


def test_methods_whose_tensor_is_not_the_first_argument_are_exchanged() -> None:
    packets = {name: getattr(A, name) for name in dir(A) if hasattr(torch.Tensor, name)}
    later = {
        name
        for name, packet in packets.items()
        for overload in getattr(packet, "overloads", list)()
        if "self" in [a.name for a in getattr(packet, overload)._schema.arguments][1:]
    }
    assert later
    assert {f"torch.Tensor.{name}" for name in later} <= {*corrections.EXCHANGED}
