"""Products and what follows them as tile programs: where the rules fire, what they leave alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import RuleSet
from pypm.fx import Report, rewrite
from pypm.integrations import export, inductor
from pypm.rules import tiles
from tests.axes import axes
from tests.compiled import without_code
from tests.rules.capture import HOOKS, WAYS_AND_HOOKS, hooked
from tests.rules.norms import over_length, unit
from tests.rules.test_epilogue import LINEARS, LINKS, OUT, B, N, assert_no_worse, chain, values

torch.set_num_threads(1)

RULES: Final = RuleSet(tuple(replace(rule, pays="always") for rule in tiles.RULES), "tiles")
"""The pack without the choice that it asks for."""
REPEATED: Final = "a side input is repeated for some of the rows"
LINK_NAMES: Final = sorted(set(LINKS) - {"clone", "column"})


def run(way: str, function: Callable[..., Any], args: list[Tensor]) -> tuple[Report, Any]:
    return WAYS_AND_HOOKS[way](function, args, RULES)


def roots(report: Report) -> list[str]:
    return [record.root for record in report.rewrites]


def reasons(report: Report) -> set[str]:
    return {refusal.reason for refusal in report.refusals}


def programs(module: fx.GraphModule) -> list[str]:
    """The pointwise program of each kernel."""
    calls = [n for n in module.graph.nodes if "tile_kernel" in str(n.target)]
    return [re.findall(r'y = map "(.*)"', str(node.args[1]))[0] for node in calls]


# --- where it fires ------------------------------------------------------------------------------


def perceptron(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b)) * 0.5 + r


def operands(dtype: torch.dtype = torch.float16) -> list[Tensor]:
    given = values(dtype=dtype)
    return [given[name] for name in ("x", "w", "b", "full")]


@pytest.mark.usefixtures("hopper")
@axes(dtype=[torch.float16, torch.bfloat16], way=WAYS_AND_HOOKS)
def test_bias_activation_and_residual(dtype: torch.dtype, way: str) -> None:
    args = operands(dtype)
    report, result = run(way, perceptron, args)
    assert len(report) == 1, str(report)
    assert_no_worse(perceptron, args, result, perceptron(*args))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("stage", list(inductor.STAGES))
def test_it_compiles_at_every_hook(stage: str) -> None:
    torch._dynamo.reset()
    passed, args = inductor.Pass(RULES, stage), operands()
    with torch.no_grad(), without_code(stage):
        result = torch.compile(perceptron, options=passed.options())(*args)
    assert [len(report) for report in passed.reports] == [1]
    assert_no_worse(perceptron, args, result, perceptron(*args))


@pytest.mark.usefixtures("hopper")
@axes(link=LINK_NAMES, way=["export", "decomposed"])
def test_every_link(link: str, way: str) -> None:
    args = list(values(dtype=torch.float16).values())
    function = chain("linear", (link,))
    report, result = run(way, function, args)
    assert len(report) == 1, str(report)
    assert_no_worse(function, args, result, function(*args))


@pytest.mark.usefixtures("hopper")
@axes(linear=LINEARS, way=["export", "decomposed"])
def test_every_linear(linear: str, way: str) -> None:
    args = list(values(dtype=torch.float16).values())
    function = chain(linear, ("gelu", "residual"))
    report, result = run(way, function, args)
    assert len(report) == 1, str(report)
    assert_no_worse(function, args, result, function(*args))


@pytest.mark.usefixtures("hopper")
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from(sorted(LINEARS)),
    st.lists(st.sampled_from(LINK_NAMES), min_size=1, max_size=6),
    st.integers(0, 9),
)
def test_random_chains(linear: str, links: list[str], seed: int) -> None:
    """Within a few of eager's roundings: a cast that is kept rounds other values than there."""
    args = list(values(seed, torch.float16).values())
    function = chain(linear, tuple(links))
    report, result = run("decomposed", function, args)
    assert len(report) == 1, str(report)
    eager = function(*args)
    wide = function(*(x.double() if x.is_floating_point() else x for x in args)).double()
    assert (result.dtype, result.shape) == (eager.dtype, eager.shape)
    ours, theirs, once = ((y.double() - wide).abs().max() for y in (result, eager, wide.half()))
    assert ours <= 3 * max(theirs, 2 * once)


FOLLOWED: Final[dict[str, tuple[Callable[..., Tensor], str]]] = {
    "a scale and a residual": (lambda y, a: y * 0.125 + a["full2"], "mul(acc,0.125);add(v0,s0)"),
    "a column": (lambda y, a: y * a["rows"], "mul(acc,s0)"),
    "one element": (lambda y, a: y / a["one"], "div(acc,s0)"),
    "one tensor twice": (lambda y, a: (y + a["row"]) * a["row"], "add(acc,s0);mul(v0,s0)"),
    "a mask": (lambda y, a: y.masked_fill(a["bits"], 0), "where(m0,0.0,acc)"),
    "bits as numbers": (lambda y, a: y * ~a["bits"], "mul(acc,m0)"),
    "its own sign": (
        lambda y, a: torch.where(y > 0, y, -y),
        "gt(acc,0.0);neg(acc);where(v0,acc,v1)",
    ),
    "a cube": (lambda y, a: y**3, "mul(acc,acc);mul(v0,acc)"),
    "a root": (lambda y, a: (y * y + 1) ** -0.5, "mul(acc,acc);add(v0,1.0);rsqrt(v1)"),
    "a number first": (lambda y, a: 1 - y, "sub(1.0,acc)"),
    "with alpha": (
        lambda y, a: torch.sub(y, a["full2"], alpha=2),
        "mul(s0,2.0);sub(acc,v0)",
    ),
    "relu6": (lambda y, a: F.relu6(y), "maximum(acc,0.0);minimum(v0,6.0)"),
    "leaky": (
        lambda y, a: F.leaky_relu(y, 0.5),
        "mul(acc,0.5);gt(acc,0.0);where(v1,acc,v0)",
    ),
    "a view between": (
        lambda y, a: torch.relu((y + a["row"]).view(B, N, OUT)).flatten(0, 1),
        "add(acc,s0);relu(v0)",
    ),
}


def product_of(rest: Callable[..., Any]) -> Callable[..., Any]:
    def function(x: Tensor, w: Tensor, row: Tensor, full: Tensor, bits: Tensor) -> Any:
        given = {
            "row": row, "full": full, "full2": full.flatten(0, 1), "bits": bits.flatten(0, 1),
            "rows": full[..., :1].flatten(0, 1), "one": full[0, 0, 0], "column": full[0, :, :1],
        }  # fmt: skip
        return rest(torch.mm(x, w), given)

    return function


def product_operands(dtype: torch.dtype = torch.float16) -> list[Tensor]:
    given = values(dtype=dtype)
    return [given[name] for name in ("x2", "wt", "row", "full", "gate")]


def rewritten(function: Callable[..., Any], args: list[Tensor], **options: Any) -> Any:
    """What the rule did, the graph, and what it computes."""

    class Model(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor, row: Tensor, full: Tensor, bits: Tensor) -> Any:
            return function(x, w, row, full, bits)

    program = torch.export.export(Model(), tuple(args), **options)
    report = export.rewrite(program, RULES)
    return report, program.graph_module, program.module()


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", FOLLOWED)
def test_what_follows_becomes_the_program(name: str) -> None:
    rest, expected = FOLLOWED[name]
    function, args = product_of(rest), product_operands()
    report, module, call = rewritten(function, args)
    assert programs(module) == [expected], str(report)
    assert_no_worse(function, args, call(*args), function(*args))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("stage", HOOKS)
def test_two_layers_at_a_hook(stage: str) -> None:
    """The product that is not followed by anything of its own is a side input."""

    def mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return x + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    made = torch.Generator().manual_seed(0)
    shapes = ((2, 8, 16), (24, 16), (24, 16), (16, 24))
    args = [torch.randn(*shape, generator=made).half() / 2 for shape in shapes]
    report, result = hooked(mlp, args, RULES, stage)
    assert len(report) == 2, str(report)
    assert_no_worse(mlp, args, result, mlp(*args))


@pytest.mark.usefixtures("hopper")
def test_a_row_as_the_first_operand() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x[0] @ w)

    args = product_operands()[:2]
    report, result = run("export", function, args)
    assert roots(report) == ["relu"]
    assert_no_worse(function, args, result, function(*args))


@pytest.mark.usefixtures("hopper")
def test_gradients_pass() -> None:
    args = [x.requires_grad_() for x in operands()]
    report, result = hooked(perceptron, args, RULES, "pre_grad")
    assert len(report) == 1
    wide = [x.detach().double().requires_grad_() for x in args]
    exact = torch.autograd.grad(perceptron(*wide).sum(), wide)
    for ours, theirs in zip(torch.autograd.grad(result.sum(), args), exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-2, rtol=2e-2)


@pytest.mark.usefixtures("hopper")
def test_what_is_not_read_is_not_the_result() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.mm(x, w)
        return (y * 2).to(torch.exp(y))

    args = product_operands()[:2]
    report, result = run("symbolic_trace", function, args)
    assert len(report) == 1, str(report)
    assert_no_worse(lambda x, w: 2 * torch.mm(x, w), args, result, 2 * torch.mm(*args))


@pytest.mark.usefixtures("hopper")
def test_a_cast_that_rounds_is_kept() -> None:
    function = product_of(lambda y, a: y - y.to(torch.bfloat16).half())
    report, module, _ = rewritten(function, product_operands())
    assert programs(module) == ["bfloat16(acc);float16(v0);sub(acc,v1)"], str(report)


@pytest.mark.usefixtures("hopper")
def test_a_cast_to_a_type_with_smaller_limits_is_kept() -> None:
    function = product_of(lambda y, a: y.half().bfloat16())
    args = [200 * torch.ones_like(x) for x in product_operands(torch.bfloat16)]
    report, module, call = rewritten(function, args)
    assert programs(module)[0].startswith("float16(acc)"), str(report)
    assert call(*args).isinf().all() and function(*args).isinf().all()


# --- where it holds back -------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS_AND_HOOKS)
def test_not_on_a_cpu(way: str) -> None:
    args = operands()
    report, result = run(way, perceptron, args)
    assert len(report) == 0
    assert "the kernel is for GPUs" in reasons(report)
    assert torch.equal(result, perceptron(*args))


HOLDS_BACK: Final[dict[str, tuple[Callable[..., Any], str | None]]] = {
    "nothing": (lambda y, a: y, None),
    "a copy": (lambda y, a: y.clone(), "nothing follows the product"),
    "a reduction": (lambda y, a: y.sum(-1), None),
    "softmax": (lambda y, a: torch.softmax(y, -1), None),
    "the product is an output": (lambda y, a: (y, y * 2), "`mm` is also used by `output`"),
    "the product is reduced": (lambda y, a: y / y.sum(-1, keepdim=True), "`mm` is also used by"),
    "an operator without an expression": (lambda y, a: torch.digamma(y), "`aten.digamma` has no"),
    "rounding": (lambda y, a: torch.round(y), "`aten.round` has no"),
    "rounding by division": (lambda y, a: torch.div(y, 0.1, rounding_mode="floor"), "`aten.div`"),
    "another power": (lambda y, a: y.abs() ** 2.5, "`aten.pow` has no"),
    "a power of the product": (lambda y, a: 2**y, "`aten.pow` has no"),
    "integers": (lambda y, a: y.int(), "gives torch.int32"),
    "a wider result": (lambda y, a: y.float() + 1, "the result is fp32"),
    "float64": (lambda y, a: y.double(), "gives torch.float64"),
    "float8": (lambda y, a: y.to(torch.float8_e4m3fn), "gives torch.float8_e4m3fn"),
    "bits": (lambda y, a: y > 0, "the result is torch.bool"),
    "bits times bits": (lambda y, a: torch.where(y > 0, a["bits"], y < -1), "`aten.where` has no"),
    "an integer beside": (lambda y, a: y * a["bits"].long(), "a side input is torch.int64"),
    "a larger one beside": (
        lambda y, a: y + a["full2"].expand(2, -1, -1),
        "larger than the product",
    ),
    "some rows": (lambda y, a: y.view(B, N, OUT) + a["column"], REPEATED),
    "batches": (lambda y, a: y.view(B, N, OUT) * a["full"][:, :1], REPEATED),
    "dropout": (lambda y, a: F.dropout(y, 0.5, True), None),
    "a transposed product": (lambda y, a: torch.relu(y.t()), None),
    "other columns": (lambda y, a: torch.relu(y.view(-1, 2 * OUT)), None),
}


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", HOLDS_BACK)
def test_what_is_left_alone(name: str) -> None:
    rest, reason = HOLDS_BACK[name]
    report, _, _ = rewritten(product_of(rest), product_operands())
    assert len(report) == 0 or name == "another power", str(report)  # there, `abs` is taken
    if reason is None:
        assert not report.refusals, str(report)
    else:
        assert any(reason in found for found in reasons(report)), str(report)


@pytest.mark.usefixtures("hopper")
def test_a_chain_ends_before_what_has_no_expression() -> None:
    function = product_of(lambda y, a: torch.digamma(F.gelu(y + a["row"])))
    report, module, _ = rewritten(function, product_operands())
    assert roots(report) == ["gelu"]
    assert programs(module) == ["add(acc,s0);gelu(v0)"]


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("norm", [unit, over_length])
def test_rows_of_a_least_length_before_a_product(norm: Callable[..., Any]) -> None:
    """They are no RMSNorm, and computed as they were: also those near zero."""

    def function(x: Tensor, scale: Tensor, w: Tensor) -> Tensor:
        return F.gelu(F.linear(norm(x, scale), w))

    given = values(dtype=torch.bfloat16)
    x, w = 1e-13 * given["x"], given["w"]
    args = [x, torch.ones_like(x[0, 0]), w]
    report, result = run("export", function, args)
    assert len(report) == 1, str(report)
    assert_no_worse(function, args, result, function(*args))


@pytest.mark.usefixtures("hopper")
def test_other_types_are_declined() -> None:
    args = [x.long() for x in product_operands()[:4]]
    report, _, _ = rewritten(product_of(lambda y, a: y * 2), [*args, product_operands()[4]])
    assert len(report) == 0
    assert any("torch.int64" in reason for reason in reasons(report)), str(report)


@pytest.mark.usefixtures("hopper")
def test_a_bias_of_another_type_is_left_alone() -> None:
    """Of rows that are not contiguous, eager's result has the type of the rows, a trace's not."""
    x, w = (
        torch.randn(6, 5, 4, dtype=torch.bfloat16).transpose(0, 1),
        torch.randn(4, 4, dtype=torch.bfloat16),
    )
    args = [x, w, torch.randn(4)]
    report, result = run("symbolic_trace", lambda x, w, b: F.gelu(F.linear(x, w, b)), args)
    assert len(report) == 0
    assert result.dtype == torch.bfloat16


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("product", [torch.bmm, torch.matmul])
def test_batches_of_products_are_left_alone(product: Callable[..., Tensor]) -> None:
    x = values(dtype=torch.float16)["x"]
    report, _ = run("export", lambda x: torch.relu(product(x, x.mT)), [x])
    assert len(report) == 0
    assert not report.refusals


@pytest.mark.usefixtures("hopper")
def test_shapes_that_are_not_known() -> None:
    report = rewrite(fx.symbolic_trace(lambda x, w: torch.relu(torch.mm(x, w))), RULES)
    assert len(report) == 0
    assert not report.refusals


@pytest.mark.usefixtures("hopper")
def test_symbolic_sizes_are_left_alone() -> None:
    args = operands()[:2]
    gm = make_fx(lambda x, w: F.gelu(F.linear(x, w)), tracing_mode="symbolic")(*args)
    report = rewrite(gm, RULES)
    assert len(report) == 0
    assert reasons(report) == {"the sizes are not known"}
