"""Linear layers, convolutions and any chain of elementwise operators behind them, as one region."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import Report, every, rewrite
from pypm.kernels import linear as kernel
from pypm.kernels.support.registration import Gradients, custom_operator
from pypm.rules import attention, epilogue
from tests.axes import axes
from tests.rules.capture import WAYS, compile_to_graphs, decomposed, hooked

torch.set_num_threads(1)

BF16: Final = torch.bfloat16
B, N, IN, OUT = 3, 8, 16, 24


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without instructions for bfloat16."""
    monkeypatch.setattr(epilogue, "has_fast_bfloat16", lambda: False)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epilogue, "has_fast_bfloat16", lambda: True)


def values(seed: int = 0, dtype: torch.dtype = BF16) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64).to(dtype)

    return {
        "x": normal(B, N, IN), "x2": normal(B * N, IN),
        "w": normal(OUT, IN) / 4, "wt": normal(IN, OUT) / 4, "b": normal(OUT),
        "full": normal(B, N, OUT), "row": normal(OUT), "column": normal(N, 1),
        "gate": torch.rand(B, N, OUT, generator=made) < 0.5,
    }  # fmt: skip


# --- linear layers and chains --------------------------------------------------------------------

LINEARS: Final[dict[str, Callable[..., Tensor]]] = {
    "linear": lambda a: F.linear(a["x"], a["w"], a["b"]),
    "linear without bias": lambda a: F.linear(a["x"], a["w"]),
    "mm": lambda a: torch.mm(a["x2"], a["wt"]).view(B, N, OUT),
    "mm transposed": lambda a: torch.mm(a["x2"], a["w"].t()).view(B, N, OUT),
    "addmm": lambda a: torch.addmm(a["b"], a["x2"], a["wt"]).view(B, N, OUT),
    "addmm of a matrix": lambda a: torch.addmm(a["full"].view(B * N, OUT), a["x2"], a["wt"]).view(
        B, N, OUT
    ),
}

LINKS: Final[dict[str, Callable[..., Tensor]]] = {
    "relu": lambda y, a: torch.relu(y),
    "gelu": lambda y, a: F.gelu(y),
    "gelu_tanh": lambda y, a: F.gelu(y, approximate="tanh"),
    "gelu by hand": lambda y, a: 0.5 * y * (1 + torch.erf(y * 0.5**0.5)),
    "silu": lambda y, a: F.silu(y),
    "silu by hand": lambda y, a: y * torch.sigmoid(y),
    "silu times up": lambda y, a: F.silu(y) * a["full"],
    "tanh": lambda y, a: torch.tanh(y),
    "half": lambda y, a: y / 2,
    "shift": lambda y, a: 0.75 + y,
    "residual": lambda y, a: a["full"] + y,
    "row": lambda y, a: y * a["row"],
    "column": lambda y, a: y - a["column"],
    "where": lambda y, a: torch.where(a["gate"], y, a["full"]),
    "keep": lambda y, a: y.masked_fill(a["gate"], 0.0),
    "upcast": lambda y, a: (y.float() * 1.25 + a["row"]).to(y.dtype),
    "twice": lambda y, a: torch.maximum(y, y * 0.1) + torch.minimum(y, torch.neg(y)),
    "negative": lambda y, a: -y,
    "clamp": lambda y, a: y.clamp(-2, 2),
    "clone": lambda y, a: y.clone(),
}


def chain(linear: str, links: tuple[str, ...]) -> Callable[..., Tensor]:
    names = tuple(values())

    def compute(*args: Tensor) -> Tensor:
        given = dict(zip(names, args, strict=True))
        y = LINEARS[linear](given)
        for link in links:
            y = LINKS[link](y, given)
        return y

    return compute


def assert_no_worse(
    function: Callable[..., Tensor], args: list[Tensor], result: Tensor, eager: Tensor
) -> None:
    """No further from float64 than eager, or than one rounding is."""
    assert (result.dtype, result.shape) == (eager.dtype, eager.shape)
    wide = function(*(x.double() if x.is_floating_point() else x for x in args)).double()
    ours, theirs = ((y.double() - wide).abs().max().item() for y in (result, eager))
    once = (wide.to(eager.dtype).double() - wide).abs().max().item()
    assert ours <= max(1.05 * theirs, 2 * once), (ours, theirs, once)


def fired(report: Report) -> list[str]:
    return sorted(record.rule for record in report.rewrites)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_a_bias_of_another_type_is_left_alone(dtype: torch.dtype) -> None:
    """With padding in words, torch takes a bias of any type where oneDNN computes bfloat16."""
    x, w = (torch.randn(n, 2, 3, dtype=torch.bfloat16) for n in (3, 2))
    bias = torch.tensor([1, 2], dtype=dtype)

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.conv1d(x, w, b, padding="same")

    module = make_fx(function, tracing_mode="fake", pre_dispatch=True)(x, w, bias)
    assert fired(rewrite(module, epilogue.RULES)) == []


@pytest.mark.usefixtures("slow")
@axes(link=LINKS, way=WAYS)
def test_every_link(link: str, way: str) -> None:
    args = list(values().values())
    function = chain("linear", (link,))
    if way == "symbolic_trace" and link == "upcast":
        function = chain("linear", ("half",))  # the type of a traced value is not known
    report, result = traced_by(way, function, args)
    assert fired(report) == ["product_in_float32"], str(report)
    assert_no_worse(function, args, result, function(*args))


def traced_by(way: str, function: Callable[..., Tensor], args: list[Tensor]) -> Any:
    if way != "symbolic_trace":
        return WAYS[way](function, args, epilogue.RULES)
    names = ", ".join(values())  # symbolic_trace takes no star
    named = eval(f"lambda {names}: function({names})", {"function": function})
    return WAYS[way](named, args, epilogue.RULES)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("linear", LINEARS)
def test_every_linear(linear: str) -> None:
    args = list(values().values())
    for links in ((), ("gelu", "residual")):
        function = chain(linear, links)
        for way in ("export", "decomposed"):
            report, result = WAYS[way](function, args, epilogue.RULES)
            assert fired(report) == ["product_in_float32"], (way, str(report))
            assert_no_worse(function, args, result, function(*args))


@pytest.mark.usefixtures("slow")
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from(sorted(LINEARS)),
    st.lists(st.sampled_from(sorted(LINKS)), min_size=1, max_size=6),
    st.integers(0, 9),
)
def test_random_chains(linear: str, links: list[str], seed: int) -> None:
    args = list(values(seed).values())
    function = chain(linear, tuple(links))
    report, result = decomposed(function, args, epilogue.RULES)
    assert fired(report) == ["product_in_float32"], str(report)
    assert_no_worse(function, args, result, function(*args))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("stage", ["pre_grad", "joint"])
def test_two_linears_at_a_hook(stage: str) -> None:
    """Each linear is one region, of those that meet one takes the product."""

    def mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return x + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    made = torch.Generator().manual_seed(0)
    shapes = ((2, 8, 16), (24, 16), (24, 16), (16, 24))
    args = [torch.randn(*shape, generator=made).to(BF16) / 2 for shape in shapes]
    report, result = hooked(mlp, args, epilogue.RULES, stage)
    assert fired(report) == 3 * ["product_in_float32"]
    assert_no_worse(mlp, args, result, mlp(*args))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("is_followed", [True, False])
def test_the_compiler_sees_no_casts_of_operands(is_followed: bool) -> None:
    """It would make a kernel for each place out of the casts and what is around them."""

    def function(x: Tensor, w: Tensor, b: Tensor, other: Tensor) -> Tensor:
        y = F.linear(x, w, b)
        return y + other if is_followed else y

    args = [torch.randn(shape).to(BF16) for shape in ((2, 9, 16), (24, 16), (24,), (2, 9, 24))]
    for way in ("export", "decomposed"):
        report, _ = WAYS[way](function, args, epilogue.RULES)
        assert fired(report) == ["product_in_float32"]
        (record,) = report.rewrites
        assert "linear_in_float32" in str(record.after)
        casts = [
            node
            for node in record.after
            if str(node.target).startswith(("aten.to", "aten._to", "prims.convert"))
        ]
        assert len(casts) == 2 * is_followed, record.after  # of `other` and of the result


CONVOLUTIONS: Final[dict[str, Callable[..., Tensor]]] = {
    "2d": lambda x, w, b: F.conv2d(x, w, b, padding=1),
    "without bias": lambda x, w, b: F.conv2d(x, w, stride=2),
    "grouped": lambda x, w, b: F.conv2d(x, w[:, :2], b, groups=2),
    "1d": lambda x, w, b: F.conv1d(x.flatten(2), w[..., 0], b, dilation=2),
    "3d": lambda x, w, b: F.conv3d(x.unsqueeze(2), w.unsqueeze(2), b),
    "transposed": lambda x, w, b: F.conv_transpose2d(x, w.transpose(0, 1), b),
}


@pytest.mark.usefixtures("slow")
@axes(name=CONVOLUTIONS, way=["export", "decomposed"])
def test_convolutions(name: str, way: str) -> None:
    made = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 9, 7), (6, 4, 3, 3), (6,))
    args = [torch.randn(*shape, generator=made).to(BF16) / 2 for shape in shapes]

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.hardtanh(CONVOLUTIONS[name](x, w, b) * 0.5)
        return y + torch.sigmoid(y)

    report, result = WAYS[way](function, args, epilogue.RULES)
    assert fired(report) == ["product_in_float32"], str(report)
    assert_no_worse(function, args, result, function(*args))


# --- where it holds back -------------------------------------------------------------------------


def roots(report: Report) -> list[str]:
    return [record.root for record in report.rewrites]


@axes(dtype=[torch.float32, torch.float64, torch.float16], cpu=["fast", "slow"])
def test_other_types_are_left_alone(
    dtype: torch.dtype, cpu: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(cpu)
    args = list(values(dtype=dtype).values())
    for linear in LINEARS:
        report, _ = decomposed(chain(linear, ("gelu", "residual")), args, epilogue.RULES)
        assert len(report) == 0, str(report)


HOLDS_BACK: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "a result in float32": (lambda y, a: y.float() * 2, ""),
    "an intermediate value returned": (lambda y, a: (y, torch.tanh(y * 2)), "is also used by"),
    "an intermediate value reduced": (
        lambda y, a: torch.tanh(y) * y.sum(-1, keepdim=True),
        "is also used by",
    ),
    "the limits of its type": (lambda y, a: torch.nan_to_num(y), "the limits of its type"),
    "the next number of its type": (
        lambda y, a: torch.nextafter(y, a["full"]),
        "the limits of its type",
    ),
}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("name", HOLDS_BACK)
def test_only_the_linear_is_taken(name: str) -> None:
    rest, reason = HOLDS_BACK[name]

    def function(x: Tensor, w: Tensor, full: Tensor) -> Any:
        return rest(torch.ops.aten.linear(x, w), {"full": full})

    given = values()
    args = [given["x"], given["w"], given["full"]]
    report, result = WAYS["export"](function, args, epilogue.RULES)
    assert roots(report) == ["linear"]
    refused = [refusal.reason for refusal in report.refusals]
    assert any(reason in text for text in refused) if reason else not refused, str(report)
    torch.testing.assert_close(result, function(*args), atol=0.1, rtol=0.05)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    "rest",
    [
        lambda y: torch.softmax(y, -1) * 2,
        lambda y: F.dropout(y, 0.5, True) * 2,
        lambda y: y.sum(-1),
    ],
    ids=["softmax", "dropout", "sum"],
)
def test_a_chain_ends_where_something_else_comes(rest: Callable[..., Tensor]) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return rest(torch.ops.aten.linear(x, w))

    given = values()
    report, _ = WAYS["export"](function, [given["x"], given["w"]], epilogue.RULES)
    assert roots(report) == ["linear"]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("batch", "count"), [(7, 0), (8, 1)])
def test_few_rows_do_not_pay(batch: int, count: int) -> None:
    given = values()
    for way in ("export", "decomposed"):
        args = [given["x2"][:batch], given["w"]]
        report, _ = WAYS[way](lambda x, w: F.linear(x, w).relu(), args, epilogue.RULES)
        assert len(report) == count, str(report)


# --- products of batches -------------------------------------------------------------------------

BATCHED: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "bmm": lambda x, y: torch.bmm(x, y).clone(),
    "matmul": lambda x, y: x @ y,
    "of a view": lambda x, y: torch.bmm(x.view(B, N, IN), y.contiguous()),
    "with more behind it": lambda x, y: torch.bmm(x, y).relu() * 2,
}


@pytest.mark.usefixtures("slow")
@axes(product=BATCHED, way=WAYS)
def test_products_of_batches(product: str, way: str) -> None:
    given = values()
    y = torch.randn(B, IN, OUT, generator=torch.Generator().manual_seed(1))
    args = [given["x"], y.to(BF16)]
    report, result = WAYS[way](BATCHED[product], args, epilogue.RULES)
    assert fired(report) == ["batched_product_in_float32"], str(report)
    assert_no_worse(BATCHED[product], args, result, BATCHED[product](*args))


@pytest.mark.usefixtures("slow")
def test_products_of_batches_that_are_left_alone() -> None:
    x, y = values()["x"], torch.randn(B, OUT, IN).to(BF16).transpose(1, 2)
    few, many = x[:, :7], x
    for rows, count in ((few, 0), (many, 1)):
        report, _ = WAYS["decomposed"](torch.bmm, [rows, y], epilogue.RULES)
        assert len(report) == count, str(report)
    for dtype in (torch.float32, torch.float16):
        report, _ = WAYS["decomposed"](torch.bmm, [x.to(dtype), y.to(dtype)], epilogue.RULES)
        assert len(report) == 0


@pytest.mark.usefixtures("slow")
def test_attention_comes_before_its_products() -> None:
    q = values()["x"]

    def gated(q: Tensor) -> Tensor:
        scores = torch.softmax(q @ q.transpose(1, 2) * 0.25, -1)
        return torch.sigmoid(q) * (scores @ q)

    for way in WAYS:
        report, _ = WAYS[way](gated, [q], [attention.RULES, epilogue.RULES])
        assert fired(report) == ["sdpa"], (way, str(report))


# --- oneDNN's kernel -----------------------------------------------------------------------------

ACTIVATIONS: Final[dict[str, tuple[str, Callable[..., Tensor]]]] = {
    "relu": ("relu", torch.relu),
    "gelu": ("gelu", F.gelu),
    "gelu by hand": ("gelu", lambda y: 0.5 * y * (1.0 + torch.erf(y / 2**0.5))),
    "gelu_tanh": ("gelu_tanh", lambda y: F.gelu(y, approximate="tanh")),
    "gelu_tanh by hand": (
        "gelu_tanh",
        lambda y: 0.5 * y * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3))),
    ),
    "silu": ("silu", F.silu),
    "silu by hand": ("silu", lambda y: y * torch.sigmoid(y)),
    "silu upcast": ("silu", lambda y: F.silu(y.float()).to(y.dtype)),
}


def rounding_once(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, activation: str
) -> Tensor:
    """In the place of the kernel, which may not run here: it too rounds once."""
    wide = [None if y is None else y.float() for y in (x, weight, bias, other)]
    return kernel.reference(*wide, activation).to(x.dtype)


stand_in = custom_operator(
    "pypm_tests::linear_pointwise",
    rounding_once,
    outputs=kernel.empty,
    gradients=Gradients(kernel.backward, kernel.saves),
)


@pytest.mark.usefixtures("fast")
@axes(linear=["linear", "linear without bias", "mm", "mm transposed", "addmm"], name=ACTIVATIONS)
def test_activations_join_the_kernel(
    linear: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, activation = ACTIVATIONS[name]
    monkeypatch.setattr(epilogue, "linear_pointwise", stand_in)
    names = tuple(values())

    def function(*args: Tensor) -> Tensor:
        return activation(LINEARS[linear](dict(zip(names, args, strict=True))))

    args = list(values().values())
    for way in ("export", "decomposed"):
        report, result = WAYS[way](function, args, epilogue.linear_activation)
        assert fired(report) == ["linear_activation"], (way, str(report))
        assert report.rewrites[0].bindings["activation"] == expected
        assert_no_worse(function, args, result, function(*args))


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("linear", ["linear", "mm", "addmm"])
def test_a_residual_joins_the_kernel(linear: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epilogue, "linear_pointwise", stand_in)
    args = list(values().values())
    function = chain(linear, ("residual",))
    for way in ("export", "decomposed"):
        report, result = WAYS[way](function, args, epilogue.RULES)
        assert fired(report) == ["linear_residual"], (way, str(report))
        assert_no_worse(function, args, result, function(*args))


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("linear", "link", "reason"),
    [
        ("linear", "row", None),
        ("addmm of a matrix", "relu", "the bias is not one number for each output"),
        ("addmm of a matrix", "residual", "the bias is not one number for each output"),
    ],
)
def test_what_the_kernel_does_not_take(linear: str, link: str, reason: str | None) -> None:
    args = list(values().values())
    report, _ = decomposed(chain(linear, (link,)), args, epilogue.RULES)
    assert len(report) == 0, str(report)
    assert reason is None or reason in {refusal.reason for refusal in report.refusals}


@pytest.mark.usefixtures("fast")
def test_a_broadcast_operand_does_not_join() -> None:
    args = list(values().values())
    names = tuple(values())

    def function(*args: Tensor) -> Tensor:
        given = dict(zip(names, args, strict=True))
        return F.linear(given["x"], given["w"]) + given["column"]

    report, _ = decomposed(function, args, epilogue.RULES)
    assert "the other operand is broadcast" in {refusal.reason for refusal in report.refusals}
    assert len(report) == 0


def plus(x: Tensor, w: Tensor, other: Tensor) -> Tensor:
    return F.linear(x, w) + other


@pytest.mark.usefixtures("fast")
def test_a_broadcast_layer_does_not_join() -> None:
    given = values()
    wide = given["full"].flatten(0, 1).expand(2, -1, -1)
    report, _ = decomposed(plus, [given["x2"], given["w"], wide], epilogue.RULES)
    assert len(report) == 0, str(report)


@pytest.mark.usefixtures("fast")
def test_an_empty_weight_is_left_alone() -> None:
    args = [torch.empty(shape, dtype=BF16) for shape in ((B, 0), (OUT, 0), (B, OUT))]
    report, result = decomposed(plus, args, epilogue.RULES)
    assert len(report) == 0, str(report)
    assert result.shape == (B, OUT)


@pytest.mark.usefixtures("slow")
def test_a_vector_times_matrices_is_left_alone() -> None:
    args = [values()["row"], values()["full"].transpose(1, 2)]
    report, _ = WAYS["export"](torch.matmul, args, epilogue.RULES)
    assert len(report) == 0, str(report)


@pytest.mark.usefixtures("fast")
def test_a_cast_to_integers_is_no_rounding() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(F.linear(x, w).to(torch.int32)).to(BF16)

    given = values()
    args = [given["x"], given["w"]]
    for way in ("export", "decomposed"):
        report, result = WAYS[way](function, args, epilogue.RULES)
        assert len(report) == 0, str(report)
        torch.testing.assert_close(result, function(*args))


@pytest.mark.usefixtures("slow")
def test_integers_inside_a_region_stay_integers() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = F.linear(x, w)
        return y + torch.relu((y * 4).to(torch.int32)).to(BF16)

    given = values()
    args = [given["x"], given["w"]]
    report, result = decomposed(function, args, epilogue.RULES)
    assert fired(report) == ["product_in_float32"]
    torch.testing.assert_close(result, function(*args), atol=1.1, rtol=0.02)
    assert operator.gt((result - F.linear(*args)).abs().max().item(), 1)


def test_rules_settle_on_their_own_result() -> None:
    given = values()
    args = [given["x"], given["w"]]
    module = make_fx(lambda x, w: F.linear(x, w).relu(), tracing_mode="fake")(*args)
    first = rewrite(module, epilogue.RULES)
    assert (len(first), len(rewrite(module, epilogue.RULES))) == (1, 0)


def of_sizes(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.view(x.shape[0] * x.shape[1], x.shape[2])
    y = F.linear(rows, w).view(x.shape[0], x.shape[1], w.shape[0])
    return y + 1, torch.bmm(x.view(x.shape), x.view(x.shape[0], x.shape[2], x.shape[1]))


@pytest.mark.usefixtures("fast")
def test_a_residual_of_symbolic_sizes_that_have_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view further on is for one size alone, which is no constant of the trace."""
    monkeypatch.setattr(epilogue, "linear_pointwise", stand_in)

    args = [torch.randn(shape, dtype=BF16) for shape in ((3, 3, 3), (3, 3), (3, 3, 3))]

    def function(x: Tensor, w: Tensor, other: Tensor) -> Tensor:
        y = F.linear(x.view(-1, x.shape[2]), w).view(x.shape[0], x.shape[1], w.shape[0])
        return torch.relu((y + other).view(3, 3, 1, 3))

    module = make_fx(function, tracing_mode="symbolic")(*args)
    report = rewrite(module, epilogue.RULES, choose=every)
    assert fired(report) == ["linear_residual"]
    assert_no_worse(function, args, module(*args), function(*args))


@pytest.mark.usefixtures("fast")
def test_a_size_that_no_input_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's rows are those of two dimensions, which what follows has apart."""
    monkeypatch.setattr(epilogue, "linear_pointwise", stand_in)

    def function(x: Tensor, w: Tensor) -> Tensor:
        rows = x.view(x.shape[0] * x.shape[1], x.shape[2])
        return F.silu(torch.mm(rows, w.t()).view(x.shape[0], 1, x.shape[1], w.shape[0]))

    args = [torch.randn(shape, dtype=BF16) for shape in ((3, 3, 4), (5, 4))]
    module = make_fx(function, tracing_mode="symbolic")(*args)
    report = rewrite(module, epilogue.linear_activation, choose=every)
    assert fired(report) == ["linear_activation"]
    assert_no_worse(function, args, module(*args), function(*args))


@pytest.mark.usefixtures("slow")
def test_regions_that_read_symbolic_sizes() -> None:
    args = [values()["x"], values()["w"]]
    module = make_fx(of_sizes, tracing_mode="symbolic")(*args)
    report = rewrite(module, epilogue.RULES)
    assert fired(report) == ["batched_product_in_float32", "product_in_float32"]
    for result, eager in zip(module(*args), of_sizes(*args), strict=True):
        torch.testing.assert_close(result, eager, atol=0.05, rtol=0.02)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("stage", ["pre_grad", "joint"])
def test_dynamic_sizes_at_a_hook(stage: str) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return of_sizes(x, w)[0]

    args = [values()["x"], values()["w"]]
    compiled, rewritten = compile_to_graphs(function, epilogue.RULES, stage, dynamic=True)
    assert_no_worse(function, args, compiled(*args), function(*args))
    assert fired(rewritten.reports[-1]) == ["product_in_float32"]


# --- a few rows ----------------------------------------------------------------------------------

FEW_ROWS: Final = epilogue.linear_of_few_rows
PRECISION: Final = {torch.float32: 2e-6, BF16: 2**-7}


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b)


LAYERS: Final[dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "linear": layer,
    "linear without bias": lambda x, w, b: F.linear(x, w),
    "of a batch": lambda x, w, b: F.linear(x[None], w, b),
    "mm": lambda x, w, b: torch.mm(x, w.t()),
    "addmm": lambda x, w, b: torch.addmm(b, x, w.t()),
    "addmm of a transpose": lambda x, w, b: torch.addmm(b, x, w.transpose(0, 1)),
    "with more behind it": lambda x, w, b: F.silu(F.linear(x, w, b)) * 2,
}


def few(dtype: torch.dtype, rows: int = 2) -> list[Tensor]:
    made = torch.Generator().manual_seed(rows)
    shapes = (rows, IN), (OUT, IN), (OUT,)
    return [torch.randn(n, generator=made, dtype=torch.float64).to(dtype) for n in shapes]


@pytest.fixture
def however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epilogue, "FEW", 0)


def refused(function: Callable[..., Any], args: list[Tensor], **options: Any) -> str:
    """The one reason for which the rule leaves a graph of whole operators."""
    module = make_fx(function, tracing_mode="fake", pre_dispatch=True, **options)(*args)
    report = rewrite(module, FEW_ROWS, choose=every)
    assert len(report) == 0, str(report)
    (refusal,) = report.refusals
    return refusal.reason


@pytest.mark.usefixtures("however_few")
@axes(name=LAYERS, dtype=PRECISION, way=WAYS, rows=[2, 1, 4])
def test_few_rows(name: str, dtype: torch.dtype, way: str, rows: int) -> None:
    function, args = LAYERS[name], few(dtype, rows)
    report, result = WAYS[way](function, args, FEW_ROWS, choose=every)
    assert fired(report) == ["linear_of_few_rows"], str(report)
    exact, tolerance = function(*(y.double() for y in args)), PRECISION[dtype]
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.usefixtures("however_few")
def test_gradients_of_few_rows() -> None:
    """A layer that is trained may be rewritten: the operator has the gradients of the layer."""
    args = [y.requires_grad_() for y in few(torch.float32)]
    compiled, rewritten = compile_to_graphs(layer, FEW_ROWS, "pre_grad", choose=every)
    ours = torch.autograd.grad(compiled(*args).square().sum(), args)
    assert fired(rewritten.reports[-1]) == ["linear_of_few_rows"]
    for found, expected in zip(
        ours, torch.autograd.grad(layer(*args).square().sum(), args), strict=True
    ):
        torch.testing.assert_close(found, expected)


NOT_FEW: Final[dict[str, tuple[Callable[..., Tensor], list[Tensor], str]]] = {
    "more rows": (F.linear, few(torch.float32, 5), "the rows are not known to be 1 to 4"),
    "no row": (F.linear, few(torch.float32, 0), "the rows are not known to be 1 to 4"),
    "rows of a batch": (
        lambda x, w: F.linear(x.expand(3, 2, IN), w),
        few(torch.float32)[:2],
        "the rows are not known to be 1 to 4",
    ),
    "float16": (F.linear, few(torch.float16), "the kernel in C++ is for float32 and bfloat16"),
    "float64": (F.linear, few(torch.float64), "the kernel in C++ is for float32 and bfloat16"),
    "a weight by columns": (
        lambda x, w: F.linear(x, w.t().contiguous().t()),
        few(torch.float32)[:2],
        "the elements of an output do not lie side by side",
    ),
    "a weight that is not transposed": (
        lambda x, w: torch.mm(x, w.view(IN, OUT)),
        few(torch.float32)[:2],
        "the elements of an output do not lie side by side",
    ),
    "a part of a weight": (
        lambda x, w: F.linear(x[:, 1:], w[:, 1:]),
        few(torch.float32)[:2],
        "the elements of an output do not lie side by side",
    ),
    "a bias for each row": (
        lambda x, w, b: torch.addmm(b.expand(2, OUT), x, w.t()),
        few(torch.float32),
        "the bias is not one number for each output",
    ),
    "one bias": (
        lambda x, w, b: torch.addmm(b[:1], x, w.t()),
        few(torch.float32),
        "the bias is not one number for each output",
    ),
}


@pytest.mark.usefixtures("however_few")
@pytest.mark.parametrize("name", NOT_FEW)
def test_what_is_no_layer_of_few_rows(name: str) -> None:
    function, args, reason = NOT_FEW[name]
    assert reason in refused(function, args)


def test_a_small_weight_does_not_pay() -> None:
    assert "a weight of fewer than 16,384 elements" in refused(F.linear, few(torch.float32))


@pytest.mark.usefixtures("however_few")
@pytest.mark.parametrize("scales", [{"alpha": 2.0}, {"beta": 0.5}])
def test_a_scaled_product_of_few_rows_is_left_alone(scales: dict[str, float]) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(b, x, w.t(), **scales)

    report, _ = WAYS["export"](function, few(torch.float32), FEW_ROWS, choose=every)
    assert len(report) == 0


@pytest.mark.usefixtures("however_few")
def test_autocast_of_few_rows_is_left_alone() -> None:
    """Operands of another type than the product are cast in eager torch, and not in the graph."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", BF16):
            return F.linear(x, w)

    args = few(torch.float32)[:2]
    compiled, rewritten = compile_to_graphs(function, FEW_ROWS, "pre_grad", choose=every)
    assert torch.equal(compiled(*args), function(*args))
    assert not any(map(fired, rewritten.reports))


@pytest.mark.usefixtures("however_few")
def test_rows_that_are_not_known() -> None:
    module = make_fx(layer, tracing_mode="symbolic")(*few(torch.float32))
    report = rewrite(module, FEW_ROWS, choose=every)
    assert len(report) == 0
    assert [r.reason for r in report.refusals] == ["the rows are not known to be 1 to 4"]
