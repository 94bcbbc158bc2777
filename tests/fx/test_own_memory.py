"""Bodies that write memory which they allocated, and that give uninitialized memory away."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule
from pypm.core.rules import Rule
from pypm.diagnostics import PatternError
from pypm.fx import (
    EXPORT,
    GETITEM,
    INDUCTOR,
    JOINT,
    POST_GRAD,
    PRE_GRAD,
    TORCH,
    Namespace,
    aten,
    declare,
    rewrite,
)
from pypm.fx.operators.dialects import PROGRAM, Dialect
from pypm.integrations import inductor
from tests.axes import axes
from tests.compiled import fresh_graphs, without_code


@torch.library.custom_op("own_memory::twice", mutates_args=("out",))
def twice(out: torch.Tensor, x: torch.Tensor) -> None:
    out.copy_(x * 2)


@torch.library.custom_op("own_memory::first_row", mutates_args=("out",))
def first_row(out: torch.Tensor, x: torch.Tensor) -> None:
    out[0].copy_(x[0] * 2)


twice.register_fake(lambda out, x: None)
first_row.register_fake(lambda out, x: None)
torch.library.define("own_memory::doubled", "(Tensor(a!) x) -> Tensor(a!)")
torch.library.impl("own_memory::doubled", "CompositeExplicitAutograd", lambda x: x.mul_(2))
torch.library.register_fake("own_memory::doubled", lambda x: x)
LIBRARY, OWN = torch.ops.own_memory, Namespace("own_memory")
declare(LIBRARY.twice, fills=["out"])


@pattern
def Doubled(x):
    return aten.sin(aten.mul(x, 2))


def as_rule(body: Callable[..., object]) -> Rule:
    def doubled(x):
        return body(x)

    return Rule("doubled", ("x",), rule(Doubled)(unused).roots, doubled)


def unused(x):
    return x


def accumulated(x):
    y = x.cos()
    y.add_(x - y).add_(x)
    return y.sin()


def through_a_view(x):
    y = x * 1.0
    y[0].add_(x[0])
    y[1:].add_(x[1:])
    return y.sin()


def by_items(x):
    y = torch.zeros(x.shape, dtype=x.dtype)
    y[0] = x[0] * 2
    y[1:] = x[1:] * 2
    return y.sin()


def with_a_number(x):
    y = x + x
    y.add_(torch.tensor(0.0))
    return y.sin()


def normalized(x):
    norm = torch.nn.functional.rms_norm(x, (4,))
    return (x * 2).clone().sin_() + (norm - norm)


def filled(x):
    out = torch.empty_like(x)
    LIBRARY.twice(out, x)
    return out.sin()


def copied(x):
    out = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    out.copy_(x)
    out.add_(x)
    return out.sin()


def filled_with_a_number(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    out.fill_(2.0)
    return (x * out).sin()


def filled_as_out(x):
    out = torch.empty_like(x)
    return torch.add(x, x, out=out).sin()


def filled_by_a_functional_call(x):
    call, out = torch.ops.higher_order.auto_functionalized, torch.empty_like(x)
    return call(LIBRARY.twice.default, out=out, x=x)[1].sin()


def filled_by_a_functional_call_of_bases(x):
    call, bases = torch.ops.higher_order.auto_functionalized_v2, [torch.empty_like(x)]
    return call(LIBRARY.twice.default, x=x, _out_base_index=0, _all_bases=bases)[1].sin()


RIGHT = (
    *(
        accumulated,
        through_a_view,
        by_items,
        with_a_number,
        normalized,
        filled,
        copied,
        filled_as_out,
    ),
    *(filled_with_a_number, filled_by_a_functional_call, filled_by_a_functional_call_of_bases),
)


def foreign(x):
    return x.mul_(2).sin()


def foreign_view(x):
    return x.view(-1)[:].view(x.shape).mul_(2).sin()


def perhaps_foreign(x):
    return x.contiguous().mul_(2).sin()


def foreign_and_own(x):
    y = x.clone()
    x.add_(1)
    return y.mul_(2).sin()


HELD = torch.ones(3, 4)


def held(x):
    return HELD.mul_(x * 2).sin()


def read(x):
    return (torch.empty_like(x) * 0 + x * 2).sin()


def partly(x):
    out = torch.empty_like(x)
    out[0] = x[0] * 2
    return out.sin()


def partly_by_an_operator(x):
    out = torch.empty_like(x)
    LIBRARY.first_row(out, x)
    return out.sin()


def filled_in_part(x):
    out = torch.empty_like(x)
    LIBRARY.twice(out[:2], x[:2])
    return out.sin()


def read_before(x):
    out = torch.empty_like(x)
    seen = out + 0
    LIBRARY.twice(out, x)
    return (out + 0 * seen).sin()


def read_by_what_fills_it(x):
    out = torch.empty_like(x)
    LIBRARY.twice(out, out)
    return out.sin()


def drawn(x):
    return torch.empty_like(x).uniform_().mul(0).add(x * 2).sin()


def by_an_operator_that_returns_it(x):
    return LIBRARY.doubled(x.clone()).sin()


WRONG = (
    *(foreign, foreign_view, perhaps_foreign, foreign_and_own, held, read, partly),
    *(partly_by_an_operator, filled_in_part, read_before, read_by_what_fills_it, drawn),
    by_an_operator_that_returns_it,
)
DIALECTS = (TORCH, PRE_GRAD, EXPORT, PROGRAM, JOINT, INDUCTOR, POST_GRAD)


def program(x):
    return (x * 2).sin()


def traced():
    return make_fx(program, tracing_mode="fake")(torch.randn(3, 4))


@axes(body=RIGHT, dialect=DIALECTS)
def test_own_memory_may_be_written(body: Callable[..., object], dialect: Dialect) -> None:
    gm = traced()
    report = rewrite(gm, as_rule(body), dialect=dialect)
    assert len(report) == 1, report.refusals
    x = torch.randn(3, 4)
    before = x.clone()
    torch.testing.assert_close(gm(x), program(before))
    assert torch.equal(x, before)


@axes(body=WRONG, dialect=DIALECTS)
def test_what_reads_or_writes_other_memory_is_refused(body, dialect: Dialect) -> None:
    gm = traced()
    code = gm.code
    (refusal,) = rewrite(gm, as_rule(body), dialect=dialect).refusals
    assert refusal.kind in ("effect", "random", "constant")
    assert gm.code == code


@pattern
def SineAndDoubled(x, out):
    return aten.sin(x), GETITEM(OWN.twice(out, x), 1)


@rule(SineAndDoubled)
def both_at_once(x, out):
    made = torch.ops.higher_order.auto_functionalized(LIBRARY.twice.default, out=out, x=x)[1]
    return (made / 2).sin(), made


@pytest.mark.parametrize(("make", "rewrites"), [(torch.empty_like, 1), (torch.rand_like, 0)])
def test_an_allocation_may_move_before_another_output(make, rewrites: int) -> None:
    def program(x):
        first = x.sin()
        call = torch.ops.higher_order.auto_functionalized
        return first, call(LIBRARY.twice.default, out=make(x), x=x)[1]

    gm = make_fx(program, tracing_mode="fake")(torch.randn(3, 4))
    report = rewrite(gm, both_at_once, dialect=POST_GRAD)
    assert len(report) == rewrites, report.refusals
    x = torch.randn(3, 4)
    torch.testing.assert_close(gm(x), (x.sin(), x * 2))


@axes(stage=inductor.STAGES, body=[filled, accumulated])
def test_own_memory_when_compiled(body: Callable[..., object], stage: str) -> None:
    hook = inductor.Pass(as_rule(body), stage)
    x = torch.randn(3, 4)
    with fresh_graphs(), torch.no_grad(), without_code(stage):
        made = torch.compile(program, options=hook.options())(x)
    assert len(hook.report()) == 1
    torch.testing.assert_close(made, program(x))


@pytest.mark.parametrize("stage", inductor.STAGES)
def test_a_norm_whose_decomposition_writes_when_compiled(stage: str) -> None:
    @pattern
    def Norm(x):
        return x / aten.sqrt(aten.mean(x * x, [-1], True) + 1e-6)

    @rule(Norm)
    def norm(x):
        return torch.nn.functional.rms_norm(x, (4,), None, 1e-6)

    def program(x):
        return x / torch.sqrt((x * x).mean(-1, True) + 1e-6)

    hook = inductor.Pass(norm, stage)
    x = torch.randn(3, 4)
    with fresh_graphs(), torch.no_grad(), without_code(stage):
        made = torch.compile(program, options=hook.options())(x)
    assert len(hook.report()) == 1
    torch.testing.assert_close(made, program(x))


@without_code()
def test_gradients_flow_through_own_memory_before_autograd() -> None:
    hook = inductor.Pass(as_rule(accumulated), "pre_grad")
    x = torch.randn(3, 4, requires_grad=True)
    with fresh_graphs():
        made = torch.compile(program, options=hook.options())(x)
    assert len(hook.report()) == 1
    found = torch.autograd.grad(made.sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(program(x).sum(), x))


@without_code()
@pytest.mark.parametrize("body", [filled, by_items])
def test_gradients_do_not_flow_through_what_is_filled(body: Callable[..., object]) -> None:
    hook = inductor.Pass(as_rule(body), "pre_grad")
    x = torch.randn(3, 4, requires_grad=True)
    with fresh_graphs():
        made = torch.compile(program, options=hook.options())(x)
    (refusal,) = hook.report().refusals
    called = "auto_functionalized_v2" if body is filled else "aten.copy.default"
    assert refusal.reason == f"`sin` needs a gradient, and `{called}` has none"
    made.sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(2 * x.detach()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: declare(LIBRARY.twice, fills=["x"]),
            "error: `own_memory.twice.default` does not write an argument `x`\n"
            "  = help: its schema: own_memory::twice(Tensor(a0!) out, Tensor x) -> ()",
        ),
        (
            lambda: declare(len, fills=["x"]),
            "error: `<built-in function len>` is no operator: `fills` is for these\n"
            "  = help: name the operator, as `torch.ops.mylib.norm`",
        ),
    ],
)
def test_only_what_is_written_is_filled(make: Callable[[], object], message: str) -> None:
    with pytest.raises(PatternError) as raised:
        make()
    assert str(raised.value) == message
