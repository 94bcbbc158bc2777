"""What calls do besides computing a value: nothing is assumed of what no table or schema names."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._C._functorch import _grad_decrement_nesting, _grad_increment_nesting
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule
from pypm.core.rules import Rule
from pypm.diagnostics import PatternError
from pypm.fx import (
    EXPORT,
    INDUCTOR,
    PRE_GRAD,
    TORCH,
    Dialect,
    Report,
    aten,
    declare,
    describe,
    rewrite,
)
from pypm.fx.operators.effects import effects, has_effect, is_border, is_pure, is_random
from pypm.integrations import export
from tests.fx.small_rules import reshaped_twice, same, viewed_as_it_is

A = torch.ops.aten


@pattern
def ReluOfNeg(x):
    return aten.relu(aten.neg(x))


@rule(ReluOfNeg)
def relu_of_neg(x):
    return (-x).clamp(min=0)


@pattern
def Silu(x):
    return aten.mul(x, aten.sigmoid(x))


@rule(Silu)
def silu(x):
    return F.silu(x)


def foreign(*values: Any) -> None:
    """A function of the user's of which nothing is known."""


def graph_of(build: Callable[[fx.Graph, fx.Node], object]) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(build(graph, x))
    return fx.GraphModule(torch.nn.Module(), graph)


def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function between `neg` and `relu`; "x" stands for the input."""

    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        n = graph.call_function(torch.neg, (x,))
        given = [x if a == "x" else n if a == "n" else a for a in args]
        graph.call_function(function, tuple(given), kwargs)
        return graph.call_function(torch.relu, (n,))

    return graph_of(build)


BORDERS: list[tuple[str, Callable[..., Any], tuple[Any, ...], str]] = [
    ("grad mode", torch._C._set_grad_enabled, (False,), "changes how calls compute"),
    (
        "autocast",
        torch.amp.autocast_mode._enter_autocast,
        ("cpu", torch.bfloat16, True, None),
        "changes how calls compute",
    ),
    (
        "inference mode",
        torch.autograd.grad_mode._enter_inference_mode,
        (True,),
        "changes how calls compute",
    ),
    ("seed", torch.manual_seed, (0,), "changes how calls compute"),
    ("a level of grad", _grad_increment_nesting, (), "changes how calls compute"),
    ("the end of a level", _grad_decrement_nesting, (), "changes how calls compute"),
    ("default dtype", torch.set_default_dtype, (torch.float64,), "changes how calls compute"),
    ("unnamed mode", torch.set_deterministic_debug_mode, (0,), "whose effects are unknown"),
    ("user's function", foreign, ("x",), "whose effects are unknown"),
    ("user's function of nothing", foreign, (), "whose effects are unknown"),
    ("setitem", operator.setitem, ("x", 0, 1), "memory may be written"),
    ("max_norm", F.embedding, ("x", "x", None, 1.0), "whose effects are unknown"),
]


@pytest.mark.parametrize(
    ("name", "function", "args", "reason"), BORDERS, ids=[b[0] for b in BORDERS]
)
def test_no_match_crosses(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], reason: str
) -> None:
    gm = called(function, *args)
    code = gm.code
    report = rewrite(gm, relu_of_neg)
    assert gm.code == code
    (refusal,) = report.refusals
    assert refusal.kind == "effect" and reason in refusal.reason, refusal


NO_BORDERS: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("an assertion", torch._assert, (True, "")),
    ("a print", print, ("n is computed",)),
    ("a length", len, ("x",)),
    ("an attribute", getattr, ("x", "shape")),
    ("a product", torch.mul, ("x", 2)),
]


@pytest.mark.parametrize(("name", "function", "args"), NO_BORDERS, ids=[b[0] for b in NO_BORDERS])
def test_a_match_goes_on_beside(name: str, function: Callable[..., Any], args: Any) -> None:
    gm = called(function, *args)
    assert len(rewrite(gm, relu_of_neg)) == 1


def test_equal_computations_in_different_modes_are_two() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        first = graph.call_function(torch.neg, (x,))
        graph.call_function(torch._C._set_grad_enabled, (False,))
        second = graph.call_function(torch.neg, (x,))
        gate = graph.call_function(torch.sigmoid, (second,))
        return graph.call_function(torch.mul, (first, gate))

    assert len(rewrite(graph_of(build), silu)) == 0


def test_what_nothing_is_known_of_stays() -> None:
    """A rewrite drops neither what has only an effect nor what draws."""

    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        graph.call_function(torch.manual_seed, (0,))
        n = graph.call_function(torch.neg, (x,))
        r = graph.call_function(torch.relu, (n,))
        graph.call_function(foreign, (r,))
        graph.call_function(print, ("hello",))
        graph.call_method("backward", (r,))
        graph.call_function(_grad_increment_nesting, ())
        return r

    gm = graph_of(build)
    before = [str(n.target) for n in gm.graph.nodes if has_effect(n) and not is_pure(n)]
    assert len(rewrite(gm, relu_of_neg)) == 1
    assert [str(n.target) for n in gm.graph.nodes if has_effect(n) and not is_pure(n)] == before
    assert len(before) == 6


# --- equal values that change --------------------------------------------------------------------


def written_by_setitem(graph: fx.Graph, b: fx.Node) -> None:
    graph.call_function(operator.setitem, (b, 0, 5.0))


def written_through_a_view(graph: fx.Graph, b: fx.Node) -> None:
    row = graph.call_function(torch.select, (b, 0, 0))
    graph.call_method("fill_", (row, 5.0))


def written_through_what_may_be_a_view(graph: fx.Graph, b: fx.Node) -> None:
    flat = graph.call_method("reshape", (b, (-1,)))
    graph.call_method("add_", (flat, 5.0))


def written_through_an_attribute(graph: fx.Graph, b: fx.Node) -> None:
    turned = graph.call_function(getattr, (b, "T"))
    graph.call_method("mul_", (turned, 5.0))


def written_as_out(graph: fx.Graph, b: fx.Node) -> None:
    graph.call_function(torch.exp, (b,), {"out": b})


def written_by_a_function(graph: fx.Graph, b: fx.Node) -> None:
    graph.call_function(foreign, (b,))


WRITES = [
    written_by_setitem,
    written_through_a_view,
    written_through_what_may_be_a_view,
    written_through_an_attribute,
    written_as_out,
    written_by_a_function,
]


@pytest.mark.parametrize("write", WRITES)
def test_equal_fresh_tensors_are_two_where_one_is_written(
    write: Callable[[fx.Graph, fx.Node], None],
) -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        a, b = graph.call_method("clone", (x,)), graph.call_method("clone", (x,))
        write(graph, b)
        gate = graph.call_function(torch.sigmoid, (b,))
        return graph.call_function(torch.mul, (a, gate))

    gm = graph_of(build)
    x = torch.randn(3, 3)
    expected = gm(x.clone())
    assert len(rewrite(gm, silu)) == 0
    torch.testing.assert_close(gm(x.clone()), expected)


def test_equal_fresh_tensors_are_one_where_another_is_written() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        a, b, c = (graph.call_method("clone", (x,)) for _ in range(3))
        graph.call_method("add_", (c, 1))
        gate = graph.call_function(torch.sigmoid, (b,))
        return graph.call_function(torch.mul, (a, gate))

    assert len(rewrite(graph_of(build), silu)) == 1


DRAWN: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("gumbel_softmax", F.gumbel_softmax, {}),
    ("dropout2d", F.dropout2d, {}),
    ("alpha_dropout", F.alpha_dropout, {"training": True}),
    ("rrelu", F.rrelu, {"training": True}),
    ("fractional_max_pool", F.fractional_max_pool2d, {"kernel_size": 2, "output_size": 2}),
    ("rand_like", torch.rand_like, {}),
    ("memory as it was", torch.empty_like, {}),
    ("a function", foreign, {}),
]


@pytest.mark.parametrize(("name", "function", "options"), DRAWN, ids=[d[0] for d in DRAWN])
def test_drawn_values_are_never_equal(
    name: str, function: Callable[..., Any], options: dict[str, Any]
) -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        a, b = (graph.call_function(function, (x,), options) for _ in range(2))
        return graph.call_function(torch.mul, (a, graph.call_function(torch.sigmoid, (b,))))

    assert len(rewrite(graph_of(build), silu)) == 0


@pytest.mark.parametrize(
    ("function", "options", "draws"),
    [
        (F.rrelu, {}, False),
        (F.rrelu, {"training": True}, True),
        (F.dropout2d, {"training": False}, False),
        (F.dropout2d, {"p": 0.0}, False),
        (A.dropout.default, {"p": 0.0, "train": True}, False),
        (A.native_dropout.default, {"p": 0.0, "train": True}, True),
        (A.bernoulli.p, {"p": 0.0}, True),
        (torch.bernoulli, {"p": 0.0}, True),
        (F.dropout, {"training": True, "inplace": True}, True),
        (F.dropout, {"training": False, "inplace": True}, False),
    ],
)
def test_what_draws_nothing_is_not_random(
    function: Callable[..., Any], options: dict[str, Any], draws: bool
) -> None:
    graph = fx.Graph()
    node = graph.call_function(function, (graph.placeholder("x"),), options)
    assert is_random(node) is draws
    assert is_border(node) is bool(options.get("inplace"))


def as_it_was(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def with_an_assertion(x: torch.Tensor) -> torch.Tensor:
    A._assert_async.msg((x > 0).all(), "")
    return (-x).clamp(min=0)


def with_a_write(x: torch.Tensor) -> torch.Tensor:
    return x.neg_().clamp(min=0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (as_it_was, "reads memory as it was"),
        (with_an_assertion, "has an effect: `aten._assert_async.msg`"),
        (with_a_write, "has an effect: `aten.neg_.default`"),
    ],
)
def test_a_replacement_has_no_effect(
    body: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    gm = make_fx(lambda x: x.neg().relu())(torch.randn(3))
    code = gm.code
    rewriting = Rule("r", ("x",), relu_of_neg.roots, body)
    (refusal,) = rewrite(gm, rewriting).refusals
    assert gm.code == code
    assert refusal.kind == "effect" and reason in refusal.reason, refusal


# --- functionalized writes -----------------------------------------------------------------------


@torch.library.custom_op("pypm_effects::double", mutates_args=("out",))
def double(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


@pytest.mark.parametrize(
    "view",
    [
        {"_out_slice_dim": 0, "_out_slice_start": 0, "_out_slice_end": 1},
        {"_out_size": (1, 8), "_out_stride": (8, 1), "_out_storage_offset": 0},
    ],
)
def test_a_write_into_a_view_is_no_write_of_the_base(view: dict[str, Any]) -> None:
    target = torch.ops.higher_order.auto_functionalized_v2
    graph = fx.Graph()
    x, base = graph.placeholder("x"), graph.placeholder("base")
    op = torch.ops.pypm_effects.double.default
    options = {"x": x, "_out_base_index": 0, "_all_bases": [base]}
    whole = graph.call_function(target, (op,), options)
    part = graph.call_function(target, (op,), {**options, **view})
    alias = graph.call_function(target, (op,), {**options, "_out_alias": True})
    assert describe(whole).operator.name == describe(alias).operator.name == "pypm_effects.double"
    assert describe(part).operator.name == "higher_order.auto_functionalized_v2"
    assert is_pure(whole) and is_pure(part)


# --- declarations --------------------------------------------------------------------------------


def test_a_declared_function_is_no_border() -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert len(rewrite(called(mine, "x"), relu_of_neg)) == 0
    assert declare(mine) is mine
    assert len(rewrite(called(mine, "x"), relu_of_neg)) == 1

    @functools.wraps(mine)
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return mine(x)

    assert len(rewrite(called(wrapper, "x"), relu_of_neg)) == 0


def test_what_is_declared() -> None:
    def mine(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(x + y)

    declare(mine, writes=["out"], shares=[2], draws=True, acts=True)
    graph = fx.Graph()
    x, y, out = (graph.placeholder(name) for name in ("x", "y", "out"))
    for node in (
        graph.call_function(mine, (x, y, out)),
        graph.call_function(mine, (x, y), {"out": out}),
    ):
        found = effects(node)
        assert (found.writes, found.shares) == ((out,), (out,))
        assert (found.draws, found.acts, found.unknown) == (True, True, None)


def calling(module: torch.nn.Module) -> fx.Node:
    owner, graph = torch.nn.Module(), fx.Graph()
    owner.inner = module
    node = graph.create_node("call_module", "inner", (graph.placeholder("x"),))
    assert fx.GraphModule(owner, graph).inner is module
    return node


class Mine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.neg()


class Other(Mine):
    pass


def test_a_declared_class_of_modules() -> None:
    declare(Mine)
    assert [is_pure(calling(module)) for module in (Mine(), Other())] == [True, False]


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (len, {}, "takes no attributes"),
        (A.relu.default, {}, "has a schema"),
        (lambda x: x, {"shares": ["y"]}, "has no parameter `y`"),
    ],
)
def test_what_cannot_be_declared(
    function: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(PatternError, match=message) as raised:
        declare(function, **arguments)
    assert raised.value.diagnostic.help


# --- modules -------------------------------------------------------------------------------------


def hooked() -> torch.nn.Module:
    module = torch.nn.ReLU()
    module.register_forward_hook(lambda *_: None)
    return module


def replaced() -> torch.nn.Module:
    module = torch.nn.ReLU()
    module.forward = foreign  # type: ignore[method-assign]
    return module


MODULES: list[tuple[str, Callable[[], torch.nn.Module], bool]] = [
    ("linear", lambda: torch.nn.Linear(2, 2), True),
    ("several", lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU()), True),
    ("dropout", lambda: torch.nn.Dropout().eval(), True),
    ("dropout in training", torch.nn.Dropout, False),
    ("in place", lambda: torch.nn.ReLU(inplace=True), False),
    ("max_norm", lambda: torch.nn.Embedding(2, 2, max_norm=1.0), False),
    ("hooked", hooked, False),
    ("replaced", replaced, False),
    ("lazy", lambda: torch.nn.LazyLinear(2), False),
    ("of the user's", Other, False),
    ("inside", lambda: torch.nn.Sequential(torch.nn.ReLU(), Other()), False),
]


@pytest.mark.parametrize(("name", "make", "pure"), MODULES, ids=[m[0] for m in MODULES])
def test_modules(name: str, make: Callable[[], torch.nn.Module], pure: bool) -> None:
    node = calling(make())
    assert is_pure(node) is pure
    assert effects(node).shares == tuple(node.all_input_nodes)


# --- gradients -----------------------------------------------------------------------------------


def detached(x: torch.Tensor) -> torch.Tensor:
    return x * x.detach().sigmoid()


@pattern
def SiluOfDetached(x):
    return aten.mul(x, aten.sigmoid(aten.detach(x)))


@rule(SiluOfDetached)
def silu_of_detached(x):
    return F.silu(x)


@rule(SiluOfDetached)
def silu_that_cuts(x):
    return torch.exp(x.detach()) * x


@pytest.mark.parametrize("dialect", [EXPORT, INDUCTOR])
def test_a_gradient_that_is_cut_stays_cut(dialect: Dialect) -> None:
    gm = make_fx(detached, pre_dispatch=True)(torch.randn(3))
    report = rewrite(gm, silu_of_detached, dialect=dialect)
    assert len(report) == (dialect is INDUCTOR)
    if dialect is EXPORT:
        assert "cuts the gradient" in report.refusals[0].reason
        assert len(rewrite(gm, silu_that_cuts)) == 1


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("inside", [True, False])
def test_a_result_of_inference_mode_needs_no_gradient(mode: Callable, inside: bool) -> None:
    reports: list[Report] = []

    def backend(gm: fx.GraphModule, _: object) -> Callable:
        reports.append(rewrite(gm, same))
        return gm.forward

    def function(x):
        if inside:
            with mode():
                y = x.neg().neg()
            return y + x
        with mode():
            y = x.exp()
        return x.neg().neg() + y

    gradients = []
    for each in (function, torch.compile(function, backend=backend)):
        x = torch.ones(2, requires_grad=True)
        each(x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert [len(report) for report in reports] == [0 if inside else 1]


@pattern
def SineOfDetached(x):
    return aten.sin(aten.detach(x))


@rule(SineOfDetached)
def sine(x):
    return torch.sin(x)


@pytest.mark.filterwarnings("ignore")  # torch's own, of what it loads
def test_a_tangent_that_is_cut_stays_cut() -> None:
    def function(x, tangent):
        return torch.func.jvp(lambda y: y.detach().sin() * y, (x,), (tangent,))[1]

    def backend(gm: fx.GraphModule, _: object) -> Callable:
        rewrite(gm, sine)
        return gm.forward

    x = torch.ones(2)
    assert torch.equal(torch.compile(function, backend=backend)(x, x), function(x, x))


def test_no_gradient_is_cut_where_none_is_needed() -> None:
    def backend(gm: fx.GraphModule, inputs: object) -> fx.GraphModule:
        counts.append(len(rewrite(gm, silu_of_detached)))
        return gm

    for needed in (False, True):
        counts: list[int] = []
        torch._dynamo.reset()
        x = torch.randn(3, requires_grad=needed)
        torch.compile(detached, backend=backend)(x)
        assert counts == [int(not needed)]


@pytest.mark.parametrize("trained", [False, True])
def test_a_view_that_autograd_does_not_know_stays(trained: bool) -> None:
    def viewed(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.ops.aten._unsafe_view(x, [1, 2]).view(2)

    def backend(gm: fx.GraphModule, inputs: object) -> fx.GraphModule:
        reports.append(rewrite(gm, reshaped_twice))
        return gm

    reports: list[Report] = []
    torch._dynamo.reset()
    x = torch.randn(2, requires_grad=trained)
    y = torch.compile(lambda x: viewed(x * 1), backend=backend)(x)
    assert not y.requires_grad
    assert [len(report) for report in reports] == [not trained]


@torch.library.custom_op("pypm_tests::silu_without_gradient", mutates_args=())
def silu_without_gradient(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


@torch.library.custom_op("pypm_tests::silu_with_gradient", mutates_args=())
def silu_with_gradient(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


silu_without_gradient.register_fake(torch.empty_like)
silu_with_gradient.register_fake(torch.empty_like)
silu_with_gradient.register_autograd(lambda ctx, g: g)


@rule(Silu)
def fused_without_gradient(x):
    return torch.ops.pypm_tests.silu_without_gradient(x)


@rule(Silu)
def fused_with_gradient(x):
    return torch.ops.pypm_tests.silu_with_gradient(x)


@pytest.mark.parametrize("mode", ["trained", "frozen", "no_grad"])
@pytest.mark.parametrize("fused", [fused_without_gradient, fused_with_gradient], ids=str)
def test_an_operator_without_a_gradient_is_used_where_none_is_needed(
    fused: Rule, mode: str
) -> None:
    def backend(gm: fx.GraphModule, inputs: object) -> fx.GraphModule:
        reports.append(rewrite(gm, fused))
        return gm

    reports: list[Report] = []
    torch._dynamo.reset()
    x = torch.randn(3, requires_grad=mode != "frozen")
    with torch.set_grad_enabled(mode != "no_grad"):
        torch.compile(lambda x: x * x.sigmoid(), backend=backend)(x)
    is_lost = mode == "trained" and fused is fused_without_gradient
    assert [len(report) for report in reports] == [not is_lost]
    if is_lost:
        assert "needs a gradient, and `pypm_tests.silu_without" in reports[0].refusals[0].reason
        assert reports[0].refusals[0].reason.endswith("` has none")


@rule(ReluOfNeg)
def relu_of_neg_that_saves_its_input(x):
    return -x.clamp(max=0)


@pattern
def ClampOfNeg(x):
    return aten.clamp_min(aten.neg(x), 0)


@rule(ClampOfNeg)
def clamp_of_neg_that_saves_its_result(x):
    return torch.relu(-x)


def writes_an_input(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    z = y.neg().relu()
    return z * 2 + y.add_(1)


def writes_a_result(x: torch.Tensor) -> torch.Tensor:
    return x.neg().clamp_min(0).view(-1).add_(1)


def rewritten_by_dynamo(
    function: Callable[..., torch.Tensor], fused: Rule, dialect: Dialect, x: torch.Tensor
) -> tuple[Report, fx.GraphModule, torch.Tensor]:
    def backend(gm: fx.GraphModule, inputs: object) -> fx.GraphModule:
        rewritten.append((rewrite(gm, fused, dialect=dialect), gm))
        return gm

    rewritten: list[tuple[Report, fx.GraphModule]] = []
    torch._dynamo.reset()
    result = torch.compile(function, backend=backend)(x)
    return *rewritten[0], result


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dialect", [TORCH, PRE_GRAD], ids=lambda dialect: dialect.name)
def test_an_input_that_autograd_may_save_is_not_written(dialect: Dialect, trained: bool) -> None:
    x = torch.randn(3, requires_grad=trained)
    fused = relu_of_neg_that_saves_its_input
    report, _, _ = rewritten_by_dynamo(writes_an_input, fused, dialect, x)
    assert len(report) == (dialect is PRE_GRAD or not trained)
    if not report.rewrites:
        assert "autograd may save `y` for `z`" in report.refusals[0].reason


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dialect", [TORCH, PRE_GRAD], ids=lambda dialect: dialect.name)
def test_a_copy_of_a_result_that_autograd_may_save_is_written(
    dialect: Dialect, trained: bool
) -> None:
    x = torch.randn(3, requires_grad=trained)
    fused = clamp_of_neg_that_saves_its_result
    report, gm, result = rewritten_by_dynamo(writes_a_result, fused, dialect, x)
    assert len(report) == 1
    is_copied = trained and dialect is TORCH
    assert ("clone" in gm.code) is is_copied
    if is_copied:
        (gradient,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(gradient, -(x < 0).float())


def viewed_without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y, z = x.view(3), x.exp().view(3)
    return y * x + z


@pytest.mark.parametrize("trained", [False, True])
def test_views_without_gradients_are_not_their_bases(trained: bool) -> None:
    """Except of what was computed there. Torch says of each view that it needs a gradient."""
    x = torch.randn(3, requires_grad=trained)
    report, _, result = rewritten_by_dynamo(viewed_without_gradients, viewed_as_it_is, TORCH, x)
    assert len(report) == (1 if trained else 2)
    if trained:
        assert "gradients off" in report.refusals[0].reason
        assert torch.equal(torch.autograd.grad(result.sum(), x)[0], x)
    gm = make_fx(viewed_without_gradients, pre_dispatch=True)(x.detach())
    assert len(rewrite(gm, viewed_as_it_is)) == 1


@pattern
def Sigmoid(x):
    return aten.sigmoid(x)


@rule(Sigmoid)
def sigmoid_of_parts(x):
    return 1 / (1 + torch.exp(-x))


@pattern
def SigmoidOfParts(x):
    return 1 / (1 + aten.exp(aten.neg(x)))


@rule(SigmoidOfParts)
def sigmoid_without_gradient(x):
    return torch.ops.pypm_tests.silu_without_gradient(x)


@pattern
def NegOfDetached(x):
    return aten.neg(aten.detach(x))


@rule(NegOfDetached)
def as_a_product(x):
    return (x + 0).detach() * -1


@pattern
def ProductOfDetached(x):
    return aten.detach(x) * -1


@rule(ProductOfDetached)
def without_a_cut(x):
    return -x


@pytest.mark.parametrize(
    ("function", "first", "second", "words"),
    [
        (torch.sigmoid, sigmoid_of_parts, sigmoid_without_gradient, "has none"),
        (lambda x: x * x.detach().neg(), as_a_product, without_a_cut, "cuts the gradient"),
    ],
)
def test_new_nodes_need_gradients_too(
    function: Callable[..., torch.Tensor], first: Rule, second: Rule, words: str
) -> None:
    def backend(gm: fx.GraphModule, inputs: object) -> fx.GraphModule:
        reports.extend(rewrite(gm, each) for each in (first, second))
        return gm

    reports: list[Report] = []
    torch._dynamo.reset()
    torch.compile(function, backend=backend)(torch.randn(3, requires_grad=True))
    assert [len(report) for report in reports] == [1, 0]
    assert words in reports[1].refusals[0].reason


class Branches(torch.nn.Module):
    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.one, self.two = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
        self.two.requires_grad_(trained)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x), self.two(x)


@pytest.mark.parametrize("trained", [False, True])
def test_an_output_needs_a_gradient_as_before(trained: bool) -> None:
    x = torch.randn(4, 4)
    gm = torch.export.export(Branches(trained), (x,)).module()
    report = rewrite(gm, linears)
    assert len(report) == trained
    assert [y.requires_grad for y in gm(x)] == [True, trained]
    if not trained:
        assert "needs no gradient" in report.refusals[0].reason


def without_gradients(weight: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return weight * 2


@pattern
def TwoLinears(x, v, w):
    return aten.linear(x, v), aten.linear(x, w)


@rule(TwoLinears)
def linears(x, v, w):
    return torch.split(F.linear(x, torch.cat([v, w])), [v.shape[0], w.shape[0]], -1)


WITHOUT_A_GRADIENT = {
    "detach": torch.Tensor.detach,
    "grad mode": without_gradients,
    "comparison": lambda weight: (weight > 0).to(torch.float32),
    "numbers": lambda weight: weight.argsort().to(torch.float32),
}


@pytest.mark.parametrize("program", [True, False], ids=["program", "module"])
@pytest.mark.parametrize("weight_of", WITHOUT_A_GRADIENT.values(), ids=WITHOUT_A_GRADIENT)
def test_a_weight_without_a_gradient_gets_none(
    weight_of: Callable[[torch.Tensor], torch.Tensor], program: bool
) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
            return [F.linear(x, weight_of(v)), F.linear(x, w)]

    v, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    inputs = (torch.randn(4, 4), v, w)
    exported = torch.export.export(Model(), inputs)
    gm = exported.module()
    report = export.rewrite(exported, linears) if program else rewrite(gm, linears)
    assert "`linear` needs no gradient" in report.refusals[0].reason
    after = exported.module() if program else gm
    assert [y.requires_grad for y in after(*inputs)] == [False, True]


@pytest.mark.parametrize("ends", ["detach", "compare", "nowhere", "later", ""])
def test_what_gets_no_gradient_is_sent_no_zeros(ends: str) -> None:
    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        one, two = F.linear(x, v), F.linear(x, w)
        match ends:
            case "detach":
                one = (one * 2).detach()
            case "compare":
                one = one.sin() > 0
            case "nowhere":
                return [one.sin().detach(), two.sin().detach()]
            case "later":
                return [one.sin().detach(), two, one.sin()]
        return [one, two]

    def backend(gm: fx.GraphModule, inputs: object) -> fx.GraphModule:
        reports.append(rewrite(gm, linears))
        return gm

    reports: list[Report] = []
    torch._dynamo.reset()
    args = [torch.randn(*size, requires_grad=True) for size in ((3, 4), (5, 4), (5, 4))]
    results = torch.compile(function, backend=backend)(*args)
    if tracked := [y for y in results if y.requires_grad]:
        torch.cat(tracked).sum().backward()
    is_one_sided = ends in ("detach", "compare")
    assert [len(report) for report in reports] == [not is_one_sided]
    assert (args[1].grad is None) == (is_one_sided or ends == "nowhere")
    if is_one_sided:
        assert "no gradient arrives at `one`" in str(reports[0].refusals)
