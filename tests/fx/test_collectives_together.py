"""Declared collectives, and rules that are applied together on every process or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.distributed._functional_collectives as funcol
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule
from pypm.core.rules import Rule, as_rule_set, print_rule
from pypm.diagnostics import PatternError, RewriteError
from pypm.fx import Recording, Report, aten, declare, find, rewrite
from pypm.fx.operators.effects import is_pure
from pypm.integrations import inductor
from pypm.integrations.identity import identity
from pypm.torch_internals import compile_fx
from tests.fx import sequence_parallel as sp
from tests.process_group import process_group_of_one

c10d = torch.ops._c10d_functional
OWN = torch.ops.pypm_collectives
LIBRARY = torch.library.Library("pypm_together", "DEF")


def defined(name: str, schema: str, fake: Callable[..., object]) -> torch._ops.OpOverload:
    """An operator that fake tensors run."""
    LIBRARY.define(f"{name}{schema}")
    torch.library.register_fake(f"pypm_together::{name}", fake)
    return getattr(torch.ops.pypm_together, name).default


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone."""
    with process_group_of_one():
        yield


X, R, W = (torch.randn(4, 6, dtype=torch.float64) for _ in range(3))
W = W[0]
MATRICES = (torch.randn(6, 8), torch.randn(8, 6)) * 3


def traced(function: Callable[..., object], *inputs: torch.Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*(inputs or (X, R, W)))


def issued(gm: fx.GraphModule) -> list[str]:
    """The operators that communicate, in order."""
    spaces = ("_c10d_functional", "pypm_collectives", "pypm_together")
    calls = [str(n.target) for n in gm.graph.nodes if str(n.target).startswith(spaces)]
    return [name.split(".")[1] for name in calls if "wait" not in name]


def residual(x, r, w):
    y = r + sp.reduced(x)
    return y, sp.norm(y, w)


def refused(gm: fx.GraphModule, rules: Rule | list[Rule]) -> str:
    """The reason for which rules leave a graph as it is."""
    before = gm.graph.python_code("self").src
    report = rewrite(gm, rules)
    assert gm.graph.python_code("self").src == before
    gm.graph.lint()
    assert (len(report), {rule.rewrites for rule in report.rules}) == (0, {0})
    (refusal, *_) = [r for r in report.refusals if r.kind == "effect"]
    return refusal.reason


# --- what is done --------------------------------------------------------------------------------


def test_a_declared_operator_takes_the_place_of_a_collective() -> None:
    gm = traced(residual)
    expected = gm(X, R, W)
    report = rewrite(gm, sp.fused)
    assert (len(report), report.refusals, issued(gm)) == (1, (), ["add_and_norm"])
    torch.testing.assert_close(gm(X, R, W), expected)


def test_and_collectives_that_of_a_declared_operator() -> None:
    @pattern
    def Fused(x, r, w, op, group):
        return OwnNamespace.add_and_norm(x, r, w, op, group)

    @rule(Fused, communicates="together")
    def unfused(x, r, w, op, group):
        return sp.as_collectives(x, r, w, op, group)

    gm = traced(lambda x, r, w: OWN.add_and_norm(x, r, w, "sum", "0"))
    expected = gm(X, R, W)
    assert len(rewrite(gm, unfused)) == 1
    assert issued(gm) == ["all_reduce"]
    torch.testing.assert_close(gm(X, R, W), expected)


OwnNamespace = sp.Namespace("pypm_collectives")


def test_layers_become_sequence_parallel() -> None:
    inputs = (X.float(), *MATRICES, W.float())
    gm = traced(sp.layers, *inputs)
    expected = gm(*inputs)
    report = rewrite(gm, sp.SEQUENCE)
    assert (len(report), report.refusals) == (5, ())
    assert issued(gm) == ["reduce_scatter_tensor", "all_gather_into_tensor"] * 3
    torch.testing.assert_close(gm(*inputs), expected)


def test_no_measured_time_decides_and_no_rule_comes_first() -> None:
    """Times differ between processes, which must apply the same rules."""

    @pattern
    def Product(x, y):
        return aten.mul(x, y)

    @rule(Product)
    def turned(x, y):
        return torch.ops.aten.div(x, 1 / y)

    gm = traced(residual)
    report = rewrite(gm, [turned, sp.fused], choose=lambda candidate: -1.0)
    assert [each.rule for each in report.rewrites] == ["fused"]
    assert len(rewrite(traced(residual), [turned, sp.fused])) == 1


@pytest.mark.parametrize("stage", ["joint", "joint_post"])
def test_under_torch_compile(stage: str) -> None:
    """No code is generated."""

    def layer(x, r, w):
        y = r + funcol.all_reduce(x, "sum", "0")
        return sp.norm(y, w)

    rewriting = inductor.Pass(sp.SEQUENCE, stage, choose=lambda candidate: -1.0)
    backend = partial(
        compile_fx, inner_compile=inductor.run_as_it_is, config_patches=rewriting.options()
    )
    with inductor.uncached(), torch.no_grad():
        found = torch.compile(layer, backend=backend, fullgraph=True)(X, R, W)
    assert [record.rule for record in rewriting.report().rewrites] == ["in_parts"]
    torch.testing.assert_close(found, sp.norm(R + X, W))


# --- all or nothing ------------------------------------------------------------------------------


def sum_as_well(x, *weights):
    (*matrices, w), y = weights, sp.norm(x, weights[-1])
    for up, down in zip(matrices[::2], matrices[1::2], strict=True):
        x = x + sp.reduced((y @ up).relu() @ down)
        y = sp.norm(x, w)
    return x, y


def other_residual(x, *weights):
    (*matrices, w), y = weights, sp.norm(x, weights[-1])
    for up, down in zip(matrices[::2], matrices[1::2], strict=True):
        x = x.abs() + sp.reduced((y @ up).relu() @ down)
        y = sp.norm(x, w)
    return y


@pytest.mark.parametrize("function", [sum_as_well, other_residual])
def test_where_one_more_collective_would_stay_none_is_rewritten(function) -> None:
    gm = traced(function, X.float(), *MATRICES, W.float())
    reason = refused(gm, sp.SEQUENCE)
    assert "rewrites that communicate together none is made: the graph would issue" in reason


def test_what_is_undone_is_no_part_of_a_recording() -> None:
    gm, record = traced(sum_as_well, X.float(), *MATRICES, W.float()), Recording()

    @pattern
    def Relu(x):
        return aten.relu(x)

    @rule(Relu)
    def clamped(x):
        return x.clamp(min=0)

    report = rewrite(gm, [*sp.SEQUENCE, clamped], record=record)
    assert [each.rule for each in report.rewrites] == ["clamped"] * 3
    assert len(record.changes) == 3
    assert {each.rule for each in report.refusals} == {"in_parts", "own_part"}


# --- near misses ---------------------------------------------------------------------------------


def body_of(function: Callable[..., object]) -> Rule:
    return Rule("r", sp.fused.parameters, sp.fused.roots, function, communicates="together")


def other_group(x, r, w, op, group):
    return OWN.add_and_norm(x, r, w, op, "1")


def other_reduction(x, r, w, op, group):
    return OWN.add_and_norm(x, r, w, "max", group)


def missing(x, r, w, op, group):
    return x + r, sp.norm(x + r, w)


def too_many(x, r, w, op, group):
    return OWN.add_and_norm(sp.reduced(x, op, group), r, w, op, group)


def in_single(x, r, w, op, group):
    y, n = OWN.add_and_norm(x.float(), r.float(), w.float(), op, group)
    return y.double(), n.double()


def in_halves(x, r, w, op, group):
    parts = [OWN.add_and_norm(x[i : i + 2], r[i : i + 2], w, op, group) for i in (0, 2)]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def scattered_alone(x, r, w, op, group):
    y = sp.scattered(x, op, 1, group) + r
    return y, sp.norm(y, w)


def gathered_of_another_group(x, r, w, op, group):
    y = sp.gathered(sp.scattered(x, op, 1, group), 1, "1") + r
    return y, sp.norm(y, w)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (other_group, "reduce_scatter_tensor([4, 6], 'sum', '1') at"),
        (other_reduction, "reduce_scatter_tensor([4, 6], 'max', '0') at"),
        (missing, "the graph would no longer issue _c10d_functional.reduce_scatter_tensor"),
        (too_many, "one collective too many"),
        (in_single, "in place of"),
        (in_halves, "reduce_scatter_tensor([2, 6], 'sum', '0')"),
        (scattered_alone, "would no longer issue _c10d_functional.all_gather_into_tensor([4, 6]"),
        (gathered_of_another_group, "all_gather_into_tensor([4, 6], '1')"),
    ],
)
def test_other_collectives_are_refused(body: Callable[..., object], words: str) -> None:
    reason = refused(traced(residual), body_of(body))
    assert words in reason
    assert "of 1 rewrites that communicate together none is made" in reason


@pattern
def ReducedBoth(x, y):
    first = sp.collective.wait_tensor(sp.collective.all_reduce(x, "sum", "0"))
    return first - sp.collective.wait_tensor(sp.collective.all_reduce(y, "sum", "0"))


def difference_of_sums(x, y):
    return sp.reduced(x) - sp.reduced(y)


def exchanged(x, y):
    return -sp.reduced(y) + sp.reduced(x)


both = defined("both", "(Tensor x, Tensor y) -> Tensor", lambda x, y: torch.empty_like(x))
declare(both, issues=difference_of_sums)
turned = defined("turned", "(Tensor x, Tensor y) -> Tensor", lambda x, y: torch.empty_like(x))
declare(turned, issues=exchanged)


def of_both(body: Callable[..., torch.Tensor]) -> Rule:
    @rule(ReducedBoth, communicates="together")
    def replaced(x, y):
        return body(x, y)

    return replaced


@pytest.mark.parametrize("body", [exchanged, turned])
def test_two_collectives_are_not_exchanged(body: Callable[..., torch.Tensor]) -> None:
    gm = traced(lambda x, r, w: sp.reduced(x) - sp.reduced(x.exp()))
    assert "on `exp`, not on `x_1`" in refused(gm, of_both(body))
    assert len(rewrite(gm, of_both(both))) == 1


def test_nor_moved_over_another_one() -> None:
    def between(x, r, w):
        y = c10d.all_reduce(x, "sum", "0")
        z = c10d.all_reduce(w, "sum", "0")
        y = r + c10d.wait_tensor(y)
        return y, sp.norm(y, w), c10d.wait_tensor(z)

    reason = refused(traced(between), sp.fused)
    assert "reduce_scatter_tensor([6], 'sum', '0') at `all_reduce_1` in place of" in reason


def test_a_rule_that_communicates_alone_says_how_it_could() -> None:
    """Other processes may leave the region as it is, and the operator meets only itself."""
    alone = Rule("r", sp.fused.parameters, sp.fused.roots, sp.fused.replacement, communicates=True)
    reason = refused(traced(residual), alone)
    assert "issues pypm_collectives.add_and_norm, the region _c10d_functional.all_reduce" in reason
    assert "`communicates='together'` allows declared operators" in reason


def test_a_declared_operator_is_no_computation() -> None:
    gm = traced(lambda x, r, w: OWN.add_and_norm(x, r, w, "sum", "0"))
    (call,) = gm.graph.find_nodes(op="call_function", target=OWN.add_and_norm.default)
    assert not is_pure(call)

    @pattern
    def Fused(x, r, w, op, group):
        return OwnNamespace.add_and_norm(x, r, w, op, group)

    assert find(gm, Fused) == []

    @rule(Fused)
    def gone(x, r, w, op, group):
        return x, r

    assert "which only rules with `communicates=True` replace" in refused(gm, gone)


def test_declared_after_it_was_met() -> None:
    late = defined("late", "(Tensor x) -> Tensor", torch.empty_like)
    listed = defined("listed", "(Tensor[] x) -> Tensor", lambda x: torch.empty_like(x[0]))
    gm = traced(lambda x, r, w: late(x) + listed([x, r]))
    for target, meaning in ((late, sp.reduced), (listed, lambda x: sp.reduced(x[0]))):
        (call,) = gm.graph.find_nodes(op="call_function", target=target)
        assert is_pure(call)
        declare(target, issues=meaning)
        assert not is_pure(call)


# --- torch's own fused operators -----------------------------------------------------------------


def product_of_gathered(x, r, w):
    return sp.gathered(x, 1, "0") @ r.t()


def scattered_product(x, r, w):
    return sp.scattered(x @ r.t(), "sum", 1, "0")


@pytest.mark.parametrize("function", [product_of_gathered, scattered_product])
def test_products_with_collectives_become_torchs_operators(function) -> None:
    gm = traced(function)
    expected = gm(X, R, W)
    assert len(rewrite(gm, sp.FUSED_PRODUCTS)) == 1
    assert any(str(node.target).startswith("symm_mem.fused") for node in gm.graph.nodes)
    torch.testing.assert_close(gm(X, R, W), expected)


@rule(sp.ScatteredProduct, communicates="together")
def averaged(x, w, op, group):
    return sp.symmetric.fused_matmul_reduce_scatter(x, w, "avg", 0, group)


@rule(sp.GatheredProduct, communicates="together")
def gathered_elsewhere(x, w, group):
    return sp.symmetric.fused_all_gather_matmul(x, [w], 0, "1", return_A=False)[1][0]


@pytest.mark.parametrize(
    ("function", "wrong", "words"),
    [
        (scattered_product, averaged, "reduce_scatter_tensor([4, 4], 'avg', '0')"),
        (product_of_gathered, gathered_elsewhere, "Could not resolve the process group"),
    ],
)
def test_of_other_arguments_they_are_refused(function, wrong: Rule, words: str) -> None:
    gm = traced(function)
    if wrong is averaged:
        assert words in refused(gm, wrong)
        return
    with pytest.raises(RewriteError, match=words):
        rewrite(gm, wrong)


# --- declarations --------------------------------------------------------------------------------


def failing(x):
    raise ValueError("no group")


@pytest.mark.parametrize(
    ("meaning", "message"),
    [
        (failing, "raised ValueError: no group"),
        (lambda x: x + 1, "calls none"),
    ],
)
def test_a_false_declaration_is_an_error_at_its_place(meaning, message: str) -> None:
    name = f"false{len(message)}"
    operator = defined(name, "(Tensor x) -> Tensor", torch.empty_like)
    declare(operator, issues=meaning)

    @pattern
    def Sum(x, op, group):
        return sp.collective.wait_tensor(sp.collective.all_reduce(x, op, group))

    @rule(Sum, communicates="together")
    def summed(x, op, group):
        return operator(x)

    gm = traced(lambda x, r, w: sp.reduced(x))
    before = gm.graph.python_code("self").src
    with pytest.raises(RewriteError) as raised:
        rewrite(gm, summed)
    found = raised.value.diagnostic
    assert f"which collectives `pypm_together.{name}.default` issues {message}" in found.message
    assert found.span is not None
    assert found.span.file == __file__
    assert found.help
    assert gm.graph.python_code("self").src == before


def test_a_declaration_takes_the_arguments_of_the_operator() -> None:
    with pytest.raises(PatternError) as raised:
        declare(both, issues=sp.norm)
    found = raised.value.diagnostic
    assert "does not take its arguments" in found.message
    assert found.span is not None
    assert "pypm_together::both(Tensor x, Tensor y) -> Tensor" in (found.help or "")
    with pytest.raises(PatternError, match="`issues` is for these"):
        declare(len, issues=lambda x: x)


def test_an_operator_that_writes_its_results() -> None:
    def norm_into(out, x, w):
        y = sp.reduced(x)
        return sp.norm(y, w)

    into = defined("into", "(Tensor(a!) out, Tensor x, Tensor w) -> ()", lambda out, x, w: None)
    declare(into, fills=["out"], issues=norm_into)

    @pattern
    def Plain(x, w, op, group):
        return sp.Norm(sp.Reduced(x, op, group), w)

    @rule(Plain, communicates="together")
    def written(x, w, op, group):
        out = torch.empty_like(x)
        into(out, x, w)
        return out

    gm = traced(lambda x, r, w: sp.norm(sp.reduced(x), w))
    report: Report = rewrite(gm, written)
    assert (len(report), report.refusals) == (1, ())
    assert any(into in node.args for node in gm.graph.nodes)


def test_the_option_is_printed_and_read() -> None:
    text = print_rule(sp.fused)
    assert text.startswith("rule fused(x, r, w, op, group) communicates 'together' ")
    with pytest.raises(ValueError, match="`communicates` is True, False or 'together'"):
        rule(sp.ReducedNorm, communicates="apart")  # type: ignore[arg-type]


def test_a_declaration_is_part_of_the_key_of_torchs_caches() -> None:
    operator = defined("keyed", "(Tensor x) -> Tensor", torch.empty_like)

    @pattern
    def Relu(x):
        return aten.relu(x)

    @rule(Relu)
    def keyed(x):
        return operator(x)

    keys = {identity(as_rule_set(keyed))}
    for operation in ("sum", "max"):
        declare(operator, issues=lambda x, operation=operation: sp.reduced(x, operation))
        keys.add(identity(as_rule_set(keyed)))
    assert len(keys) == 3
