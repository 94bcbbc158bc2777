"""Records: what `let` binds, guards read and bodies receive."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import let, pattern, record, rule, var
from pypm.core.guards import equal
from pypm.core.parsing.limits import growing
from pypm.core.printing import print_pattern
from pypm.core.text import parse_pattern, parse_rule
from pypm.diagnostics import SyntaxDiagnostic
from pypm.fx import aten, rewrite
from tests.lang.subjects import EXP, RELU, SUM, a, assert_answers, b, leaf, make, value


def sum_of(x: Any, dim: int) -> Any:
    return make(SUM, x, dim=dim, keepdim=False)


@pattern
def Reduced(step, x):
    d = var()
    let(step=record(kind="sum", of=x, dim=d))
    return SUM(x, d)


@pattern
def Reduced(step, x):
    let(step=record(kind="relu", of=x, part=record(again=x)))
    return RELU(x)


def test_fields_are_bound_by_name() -> None:
    summed = record(kind="sum", of=value(a), dim=1)
    assert_answers(Reduced, (sum_of(a, 1),), [{"step": summed, "x": a}])
    nested = record(part=record(again=value(a)), of=value(a), kind="relu")
    assert_answers(Reduced, (make(RELU, a),), [{"step": nested, "x": a}])


@pattern
def SecondDim(step, x):
    y = Reduced(step, x)
    assert step.kind == "sum" and step.dim == 1
    return EXP(y)


@pattern
def OfMatrix(step, x):
    y = Reduced(step, x)
    assert step.of.rank == 2 and step.of.shape[0] == step.of.size(1) - 1
    assert step.of.dtype.is_floating_point
    return EXP(y)


@pattern
def Again(step, x):
    y = Reduced(step, x)
    assert step.part.again.ndim == 2
    return EXP(y)


def test_guards_read_fields_and_what_is_in_them() -> None:
    matrix = leaf("m", rank=2, shape=(2, 3), dtype=torch.float32)
    vector = leaf("v", rank=1, shape=(3,), dtype=torch.float32)
    for dim, found in ((0, 0), (1, 1)):
        assert len(answers(SecondDim, make(EXP, sum_of(matrix, dim)))) == found
    for x, found in ((matrix, 1), (vector, 0)):
        assert len(answers(OfMatrix, make(EXP, sum_of(x, 0)))) == found
        assert len(answers(Again, make(EXP, make(RELU, x)))) == found
    # a field that this alternate's record lacks is unknown, and the guard does not hold
    assert answers(Again, make(EXP, sum_of(matrix, 0))) == []


def answers(form: Any, subject: Any) -> list[Any]:
    from tests.lang.subjects import bindings, check

    check(form.core)
    return bindings(form, subject)


@pattern
def Same(x, y):
    one, other = var(), var()
    z = Reduced(one, x) @ Reduced(other, y)
    assert one == other
    return z


@pattern
def SameByName(x, y):
    one = var()
    return Reduced(one, x) @ Reduced(one, y)


def test_records_are_equal_by_their_fields() -> None:
    for form in (Same, SameByName):
        assert_answers(form, (sum_of(a, 1) @ sum_of(a, 1),), [{"x": a, "y": a}])
        assert_answers(form, (sum_of(a, 1) @ sum_of(a, 0),), [])
        assert_answers(form, (sum_of(a, 1) @ make(RELU, a),), [])
        assert_answers(form, (sum_of(a, 1) @ sum_of(b, 1),), [])


@pattern
def Chain(seen, x):
    inner = var()
    y = RELU(Chain(inner, x))
    let(seen=record(last=inner, count=inner.count + 1))
    return y


@pattern
def Chain(seen, x):
    let(seen=record(count=0))
    return EXP(x)


def test_a_record_may_hold_one_of_its_kind() -> None:
    y = make(RELU, make(RELU, make(EXP, a)))
    first = record(count=0)
    expected = record(count=2, last=record(count=1, last=first))
    assert_answers(Chain, (y,), [{"seen": expected, "x": a}])


@rule(Reduced)
def replaced(step, x):
    assert step.kind == "sum"
    with pytest.raises(TypeError):
        _kind, _of, _dim = step
    return step.of.amax(step.dim) if step.kind == "sum" else x


@pattern
def Scaled(step):
    x, s = var(), var()
    let(step=record(factor=s, operand=record(x=x, size=x.shape[0])))
    return aten.relu(x * s)


@rule(Scaled)
def scaled(step):
    assert step.operand.size == 3
    return step.operand.x.clamp(min=0) * step.factor


def test_bodies_receive_traced_values_by_name() -> None:
    inputs = torch.randn(3, 4), torch.rand(3, 4)
    gm = make_fx(lambda x, s: (x * s).relu())(*inputs)
    report = rewrite(gm, scaled)
    assert [r.bindings["step"] for r in report.rewrites] == [
        "record(factor=s_1, operand=record(size=3, x=x_1))"
    ]
    assert torch.equal(gm(*inputs), inputs[0].clamp(min=0) * inputs[1])
    assert rewrite(make_fx(lambda x: (x * 2.0).relu())(torch.randn(4)), scaled).refusals == ()


def test_a_record_is_frozen_and_has_no_positions() -> None:
    step = record(b=1, a=(2,))
    assert (step.a, step.b, repr(step)) == ((2,), 1, "record(a=(2,), b=1)")
    assert step == record(a=(2,), b=1) and hash(step) == hash(record(a=(2,), b=1))
    assert step != record(a=(2,)) and step != ((2,), 1)
    assert pickle.loads(pickle.dumps(step)) == step
    with pytest.raises(AttributeError, match="no field `c` in this record of a, b"):
        step.c
    with pytest.raises(AttributeError, match="frozen"):
        step.a = 3
    for use in (lambda: step[0], lambda: len(step), lambda: [*step], lambda: step < step):
        with pytest.raises(TypeError):
            use()
    for wrong in ({}, {"_a": 1}):
        with pytest.raises(TypeError, match="a record has one field or more"):
            record(**wrong)


def test_equality_of_records_is_three_valued() -> None:
    assert equal(record(a=1), record(a=1.0)) is True
    assert equal(record(a=1, b=2), record(a=1)) is False
    assert equal(record(a=1), (("a",), 1)) is False


@pytest.mark.parametrize(
    "text",
    [
        "x let s = record(a=x, b=record(c=2)) where s.b.c == 2",
        "x let s = record(a=[x, 1][0].shape, `b c`=2) where -s.`b c` ** 2 < 3",
        "x let s = record(a=(@torch.float32).itemsize)",
        "x where [record(a=x).a, `record`.b][1] == 2",
    ],
)
def test_text(text: str) -> None:
    names = {"torch.float32": torch.float32}.__getitem__
    assert print_pattern(parse_pattern(text, names=names)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x let s = record(a=1, a=2)", "field `a` is given twice"),
        ("x let s = record(_a=1)", "`_a` is no name of a field"),
        ("x let s = record()", "unexpected `)`"),
        ("x let s = record(1)", "unexpected `1`"),
    ],
)
def test_mistakes_in_text(text: str, message: str) -> None:
    with pytest.raises(SyntaxDiagnostic, match=message.replace("(", r"\(").replace(")", r"\)")):
        parse_pattern(text)


def test_records_that_may_double_at_each_step_are_refused() -> None:
    body = "rec P(x, r; out: r) {{ (f(P^0(x, q)) let r = record(l={}, m={})) | (x let r = 1) }}"
    for one, other, grows in (("q", "q", 1), ("q.l", "q.l", 1), ("q.v", "q.v", 0), ("q", "1", 0)):
        found = parse_rule(f"rule t(x): exists r q. {body.format(one, other)}(x, r) => g(x)")
        assert len([*growing(found)]) == grows
