"""Attention by blocks: the scores of every variant are read as a program that computes them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm.fx import INDUCTOR, Candidate, Report, every, rewrite
from pypm.integrations import export
from pypm.kernels.attention.programs import ScoreProgram, reference
from pypm.rules.attention import block_sparse, sdpa
from pypm.rules.attention.block_sparse import attention_by_blocks, called_attention_by_blocks
from tests.axes import axes

torch.set_num_threads(1)

B, H, S, D = 2, 2, 200, 8
LOW = torch.finfo(torch.float32).min
Steps = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sparse, "FEW_SCORES", 0)


def rows(n: int = S) -> Tensor:
    return torch.arange(n)[:, None]


def columns(n: int = S) -> Tensor:
    return torch.arange(n)[None]


def window(width: int = 40) -> Tensor:
    return (columns() <= rows()) & (rows() - columns() < width)


def slopes() -> Tensor:
    return torch.pow(2.0, -4.0 * torch.arange(1, H + 1))[:, None, None]


VARIANTS: Final[dict[str, tuple[Steps, str]]] = {
    "window, filled": (
        lambda x: x.masked_fill(~window(), -1e9),
        "score = s; visible = (k <= q) & ((q - k) < 40); hidden rows = none",
    ),
    "window, kept": (
        lambda x: torch.where(window(), x, -math.inf),
        "score = s; visible = (k <= q) & ((q - k) < 40); hidden rows = none",
    ),
    "window, added": (
        lambda x: x + torch.where(window(), 0.0, LOW)[None, None],
        "score = s; visible = (k <= q) & ((q - k) < 40); hidden rows = none",
    ),
    "window, added after a scale": (
        lambda x: x * 0.5 + torch.zeros(S, S).masked_fill(~window(), -math.inf),
        "score = s; visible = (k <= q) & ((q - k) < 40); hidden rows = none",
    ),
    "window, two triangles": (
        lambda x: x.masked_fill(~torch.ones(S, S).tril().triu(-39).bool(), LOW),
        "",
    ),
    "window, two masks": (
        lambda x: x.masked_fill(columns() > rows(), -1e9).masked_fill(
            rows() - columns() >= 40, -1e9
        ),
        "score = s; visible = (k <= q) & ((q - k) < 40); hidden rows = none",
    ),
    "window on both sides": (
        lambda x: x.masked_fill((rows() - columns()).abs() > 16, -1e9),
        "score = s; visible = abs(q - k) <= 16; hidden rows = none",
    ),
    "ALiBi by keys": (
        lambda x: (x + slopes() * columns()).masked_fill(columns() > rows(), LOW),
        "",
    ),
    "ALiBi, added with its mask": (
        lambda x: x + (slopes() * columns() + torch.where(columns() > rows(), LOW, 0.0)),
        "",
    ),
    "soft cap": (
        lambda x: torch.tanh(x / 5.0) * 5.0,
        "score = tanh(s) * 5.0; visible = True; hidden rows = none",
    ),
    "soft cap, causal": (
        lambda x: (5.0 * torch.tanh(x / 5.0)).masked_fill(columns() > rows(), -1e9),
        "score = tanh(s) * 5.0; visible = k <= q; hidden rows = none",
    ),
    "soft cap, window, added": (
        lambda x: torch.tanh(x * 0.2) * 5.0 + torch.where(window(), 0.0, LOW),
        "",
    ),
}


def test_a_bias_that_may_hide_is_not_beside_scores_that_are_filled_in() -> None:
    """Where it hides all keys of a row that the other mask leaves, those filled in are seen."""

    def attention(low: float, q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1) + t).masked_fill(~window(), low)
        return torch.softmax(scores, -1) @ v

    for bias, low, count in ((LOW, LOW, 0), (LOW, -math.inf, 1), (-1e9, -1e9, 0)):
        function = partial(attention, low)
        args = [*operands(), torch.zeros(B, 1, 1, S).index_fill(3, torch.arange(150), bias)]
        gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*args)
        assert len(rewrite(gm, attention_by_blocks, choose=every)) == count


BIASES: Final[dict[str, tuple[Steps, int]]] = {
    "queries": (lambda t: t[:, None, :, None].expand(B, 1, S, 1), S),
    "heads": (lambda t: t[:, 0, None, None], 1),
    "batches": (lambda t: t[:, :1, None, None], 1),
    "heads, times a number": (lambda t: t[:, 0, None, None] * 0.5, 1),
    "heads, times a query": (lambda t: t[:, 0, None, None] * rows(), 1),
    "slopes": (lambda t: t[:, 0, None, None] * (columns() - rows()), 1),
}


@axes(name=BIASES, low=[LOW, -1e9, -math.inf])
def test_a_bias_that_may_hide_whole_rows(name: str, low: float) -> None:
    bias, size = BIASES[name]
    value = 0.25 if name == "slopes" else max(low, LOW) / (S if "query" in name else 1)
    t = torch.zeros(B, size).index_fill(0, torch.tensor([1]), value)
    args = [*operands(), t]

    def attention(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1) + bias(t)).masked_fill(~window(), low)
        return torch.softmax(scores, -1) @ v

    gm = make_fx(attention, tracing_mode="fake", pre_dispatch=True)(*args)
    is_read = name == "slopes" or low == -math.inf
    assert len(rewrite(gm, attention_by_blocks, choose=every)) == is_read
    torch.testing.assert_close(AsReference(gm).run(*args), attention(*args), atol=1e-4, rtol=1e-4)


READ: Final[dict[str, tuple[Steps, tuple[int, ...]]]] = {
    "joined by another size": (lambda t: t.view(-1)[rows() * 4 + columns()], (S + 50, 4)),
    "joined by its size": (lambda t: t.view(-1)[rows() * S + columns()], (S, S)),
    "of three dimensions": (lambda t: t.view(-1)[rows() + columns() * 5], (60, 4, 5)),
    "distances": (lambda t: t[rows() - columns()], (2 * S,)),
    "distances in a part": (lambda t: t[: 2 * S - 1][rows() - columns()], (3 * S,)),
    "distances in a view": (lambda t: t.view(2, -1)[1][rows() - columns()], (4 * S,)),
    "distances in a count": (
        lambda t: t[0] * torch.arange(2 * S)[rows() - columns()] * 0.01,
        (1,),
    ),
    "distances from the start": (lambda t: t[: 2 * S][rows() - columns() + S], (3 * S,)),
}
"""Tables that are read at indices, and their shapes."""


@pytest.mark.parametrize("name", READ)
def test_a_table_is_read_where_the_graph_reads_it(name: str) -> None:
    read, shape = READ[name]
    made = torch.Generator().manual_seed(0)

    def steps(x: Tensor, t: Tensor) -> Tensor:
        return (x + read(t)).masked_fill((rows() - columns()).abs() > 40, -math.inf)

    (program,), _ = check(attend(steps), [*operands(), torch.randn(shape, generator=made)])
    assert "t0[" in program


RESHAPED: Final[dict[str, Steps]] = {
    "flatten and unflatten": lambda seen: seen.flatten().unflatten(0, (S, S)),
    "view_as": lambda seen: seen.flatten().view_as(seen),
    "reshape_as": lambda seen: seen.flatten().reshape_as(seen),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_masks_are_read_through_reshapes_of_any_name(name: str) -> None:
    def steps(x: Tensor) -> Tensor:
        return x.masked_fill(~RESHAPED[name](window()), -1e9)

    (program,), _ = check(attend(steps), operands(), "export")
    assert program == VARIANTS["window, filled"][1]


@pytest.mark.parametrize("value", [0, 1, 0.0, False])
def test_truth_values_that_a_number_replaces(value: float) -> None:
    padding = torch.arange(B * S).reshape(B, S) % 7 != 0

    def steps(x: Tensor, p: Tensor) -> Tensor:
        seen = p[:, None, None].expand(B, 1, S, S).masked_fill(columns() > rows(), value)
        return x.masked_fill(~seen, -1e9)

    for way in ("decomposed", "export"):
        (program,), _ = check(attend(steps), [*operands(), padding], way)
        assert "t0[" in program


@pytest.mark.parametrize("other", [True, 1])
def test_a_truth_value_among_integers(other: int) -> None:
    documents = torch.arange(B * S).reshape(B, 1, 1, S) // 50

    def steps(x: Tensor, d: Tensor) -> Tensor:
        return x.masked_fill(torch.where(columns() > rows(), other, d) == 1, -1e9)

    for way in ("decomposed", "export"):
        (program,), _ = check(attend(steps), [*operands(), documents], way)
        assert "t0[" in program


CUT: Final[dict[str, Steps]] = {
    "cast": lambda k: (k * 2**31).int(),
    "cast to zero": lambda k: (k * 2**32).int(),
    "multiplied": lambda k: k.int() * 2**30 * 4,
    "held": lambda k: (k * 3).int() - 5,
}
"""Indices of 32 bits."""


@axes(name=CUT, way=["decomposed", "export"])
def test_indices_that_their_type_does_not_hold(name: str, way: str) -> None:
    (program,), _ = check(
        attend(lambda x: x.masked_fill(CUT[name](columns()) > rows(), -1e9)), operands(), way
    )
    assert ScoreProgram.parse(program).sees_by_index == (name == "held")


def data() -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    """Variants that data decide: steps on the scores, and the tensors that they read."""
    documents = torch.arange(S)[None].repeat(B, 1) // torch.tensor([[70], [43]])
    padding = torch.ones(B, S)
    padding[0, 190:] = padding[1, :4] = 0
    return {
        "documents": (
            lambda x, d: x.masked_fill(
                ~((d[:, None, :, None] == d[:, None, None]) & (columns() <= rows())), -1e9
            ),
            (documents,),
        ),
        "documents, added": (
            lambda x, d: (
                x
                + torch.where((d.unsqueeze(1) == d.unsqueeze(2)) & (columns() <= rows()), 0.0, LOW)[
                    :, None
                ]
            ),
            (documents,),
        ),
        "padding, filled": (
            lambda x, p: x.masked_fill((p[:, None, None] == 0) | (columns() > rows()), -1e9),
            (padding,),
        ),
        "padding, of truth values, added": (
            lambda x, p: x + torch.where(p[:, None, None, :] & window(), 0.0, LOW),
            (padding.bool(),),
        ),
        "a table of biases, window": (
            lambda x, t: (x + t).masked_fill(~window(), -math.inf),
            (torch.randn(1, H, S, S),),
        ),
    }


class AsReference(fx.Interpreter):
    """Runs a graph with the operator's reference in its place: compiling it takes long."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if "block_sparse_attention" in str(target):
            return reference(*args, **kwargs)
        return super().call_function(target, args, kwargs)


def operands(keys: int = S) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randn(B, H, n, D, generator=made) for n in (S, keys, keys)]


def attend(steps: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> Tensor:
        scores = steps(q @ k.transpose(-2, -1) * 0.35, *given)
        return torch.softmax(scores.to(q.dtype), -1) @ v

    return attention


def rewritten(
    function: Callable[..., Tensor],
    args: list[Tensor],
    way: str,
    rules: Any,
    tolerance: float = 3e-6,
) -> tuple[Any, Report]:
    """Rewrite a graph that was captured in some way; compare it with eager in float64."""
    if way == "export":
        program = torch.export.export(_Module(function).eval(), tuple(args))
        report = export.rewrite(program, rules, choose=every)
        module: Any = program.module()
    else:
        module = make_fx(functionalize(function), select_decomp_table(), tracing_mode="fake")(*args)
        report = rewrite(module, rules, dialect=INDUCTOR, choose=every)
    wide = [x.double() if x.is_floating_point() else x for x in args]
    result = AsReference(module).run(*args)
    torch.testing.assert_close(result.double(), function(*wide), atol=tolerance, rtol=tolerance)
    return module, report


def check(
    function: Callable[..., Tensor],
    args: list[Tensor],
    way: str = "decomposed",
    rules: Any = None,
    tolerance: float = 3e-6,
) -> tuple[list[str], list[str]]:
    """Rewrite a graph as `rewritten` does; return its programs and the reasons of refusals."""
    rules = attention_by_blocks if rules is None else rules
    module, report = rewritten(function, args, way, rules, tolerance)
    calls = [n for n in module.graph.nodes if "block_sparse_attention" in str(n.target)]
    return [str(n.args[4]) for n in calls], [refusal.reason for refusal in report.refusals]


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


@axes(name=VARIANTS, way=["decomposed", "export"])
def test_every_variant_is_a_program(name: str, way: str) -> None:
    steps, wanted = VARIANTS[name]
    (program,), _ = check(attend(steps), operands(), way)
    assert program == wanted or not wanted
    assert ScoreProgram.parse(program).sees_by_index


@axes(name=data(), way=["decomposed", "export"])
def test_every_variant_of_data_is_a_program(name: str, way: str) -> None:
    steps, given = data()[name]
    (program,), _ = check(attend(steps), [*operands(), *given], way)
    assert "t0[" in program


INTEGERS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "subtracted": lambda x, d: x - d,
    "beside a constant of a wider type": lambda x, d: x + 0.01 * (d + torch.full((1,), 200)),
    "times an index": lambda x, d: x + 1e-11 * (d * (columns().int() << 25)).float(),
    "cut": lambda x, d: x + 0.1 * (d.long() * 2**31 + d).int() / 2**31,
    "compared with a number that the type does not hold": lambda x, d: x + 0.1 * (d == 300),
    "negated": lambda x, d: x + 0.1 * (-d),
    "a sum that cancels": lambda x, d: x + (d.float() * 1e8 + (x.new_zeros(S) - d * 1e8)),
}
"""Steps on the scores in which types and the order of operators matter."""


@axes(name=INTEGERS, dtype=[torch.uint8, torch.int8, torch.int32, torch.int64])
def test_integers_are_those_of_the_graph(name: str, dtype: torch.dtype) -> None:
    low, high = max(torch.iinfo(dtype).min, -128), min(torch.iinfo(dtype).max, 200)
    d = torch.arange(low, low + B * S).clamp(max=high).reshape(B, 1, 1, S)
    args = [*operands(), d.to(dtype)]
    found, refusals = check(attend(INTEGERS[name]), args, tolerance=2e-5)
    assert found or refusals


def test_what_a_program_computes_anew_is_part_of_what_it_is_compared_with() -> None:
    """The square of biases is not computed any more."""

    def choose(candidate: Candidate) -> float:
        seen.append(candidate)
        return 1.0

    def attention(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) + slopes[:, None, None] * (columns() - rows())
        return torch.softmax(scores.masked_fill(columns() > rows(), LOW), -1) @ v

    seen: list[Candidate] = []
    args = [*operands(), torch.rand(H)]
    module = make_fx(functionalize(attention), select_decomp_table(), tracing_mode="fake")(*args)
    assert len(rewrite(module, attention_by_blocks, dialect=INDUCTOR, choose=choose)) == 1
    assert seen
    for candidate in seen:
        sizes = [value.numel() for value in candidate.values if isinstance(value, Tensor)]
        assert max(sizes) < S * S, candidate.inputs


def test_a_past_moves_the_diagonal() -> None:
    def steps(x: Tensor) -> Tensor:
        seen = (columns(S + 90) <= rows() + 90) & (columns(S + 90) > rows() + 50)
        return x.masked_fill(~seen, -1e9)

    (program,), _ = check(attend(steps), operands(S + 90))
    assert program.startswith("score = s; visible = (k <= (q + 90)) & (k > (q + 50));")


def test_calls_of_the_fused_kernel() -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, window())

    def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.where(window(), 0.0, -math.inf).to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, mask, scale=0.3)

    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    for function in (masked, added):
        (program,), _ = check(function, operands(), "export", called_attention_by_blocks)
        assert program.startswith("score = s; visible = (k <= q) & ((q - k) < 40);")
    programs, reasons = check(causal, operands(), "export", called_attention_by_blocks)
    assert (programs, reasons) == ([], ["the kernel leaves out what it need not compute"])


LOWEST_32: Final = torch.finfo(torch.float32).min
MISSES: Final[dict[str, tuple[Steps, str]]] = {
    "no mask": (lambda x: x, "more than 75% of the scores"),
    "causal alone": (lambda x: x.masked_fill(columns() > rows(), -1e9), "as causal"),
    "not low enough": (lambda x: x.masked_fill(~window(), -1e5), ""),
    "rows that see nothing, by two numbers": (
        lambda x: x.masked_fill(columns() > rows() - 3, -1e9).masked_fill(columns() < 9, -2e9),
        "a row may be masked everywhere",
    ),
    "capped after filling": (
        lambda x: torch.tanh(x.masked_fill(~window(), -1e9)),
        "capped after some were filled in",
    ),
    "turned around after filling": (
        lambda x: x.masked_fill(~window(), -1e9) * -1.0,
        "no positive number",
    ),
    "a bias after filling": (
        lambda x: x.masked_fill(~window(), -1e9) + slopes() * columns(),
        "seen again",
    ),
    "what was filled in is added away": (
        lambda x: x.masked_fill(~window(), LOWEST_32)
        + torch.zeros(S, S).masked_fill(columns() > rows(), -LOWEST_32),
        "as large as what is filled in",
    ),
    "scores that are large": (lambda x: (x * 4.0).masked_fill(~window(), -1e6), "not low enough"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_are_declined(name: str) -> None:
    steps, reason = MISSES[name]
    programs, reasons = check(attend(steps), operands())
    assert programs == []
    assert not reason or any(reason in found for found in reasons), reasons


@pytest.mark.parametrize("name", ["triu", "select", "getitem", "unsqueeze", "transpose", "slice"])
def test_a_mask_made_by_a_number_in_a_tensor(name: str) -> None:
    """The mask is an operand then, and what the kernel computes stays right."""

    def steps(x: Tensor) -> Tensor:
        hidden = torch.ones(3, 2, S, S + 1).bool().triu(1).select(0, 2).unbind()[1]
        return x.masked_fill(hidden.unsqueeze(0).transpose(0, 1)[:, 0, 1:], -1e9)

    q, k, v = operands()
    function = attend(steps)
    gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(q, k, v)
    *_, node = [node for node in gm.graph.nodes if name in str(node.target)]
    with gm.graph.inserting_before(node):
        number = gm.graph.call_function(torch.tensor, (node.args[1],))
    node.update_arg(1, number)
    rewrite(gm, attention_by_blocks, choose=every)
    (program,) = [n.args[4] for n in gm.graph.nodes if "block_sparse_attention" in str(n.target)]
    assert not ScoreProgram.parse(program).sees_by_index
    torch.testing.assert_close(AsReference(gm).run(q, k, v), function(q, k, v))


def test_infinity_has_no_integer() -> None:
    """Torch makes some number of it; it is read from a tensor."""

    def steps(x: Tensor) -> Tensor:
        least = torch.full((S,), -math.inf).to(torch.int64)
        return x.masked_fill(columns() * (least < 0) > rows(), -1e9)

    check(attend(steps), operands())


def test_a_mask_of_no_rows_is_a_refusal() -> None:
    """Beside one row of scores, it leaves none."""
    q, k, v = operands()

    def mask(n: int) -> Tensor:
        return torch.zeros(n, S).masked_fill(columns() > 40, LOW)

    function = attend(lambda x: x + mask(0) + mask(1))
    gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(q[:, :, :1], k, v)
    assert not len(rewrite(gm, attention_by_blocks, choose=every))


@pytest.mark.parametrize("is_capped", [False, True])
def test_a_mask_of_few_scores_is_declined(is_capped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def windowed(x: Tensor) -> Tensor:
        return (torch.tanh(x) if is_capped else x).masked_fill(~window(), -1e9)

    gm = make_fx(attend(windowed), tracing_mode="fake", pre_dispatch=True)(*operands())
    for least, count in ((B * H * S * S, 1), (B * H * S * S + 1, int(is_capped))):
        monkeypatch.setattr(block_sparse, "FEW_SCORES", least)
        report = rewrite(copy.deepcopy(gm), attention_by_blocks, choose=every)
        assert len(report) == count
        assert count or "a mask alone, of fewer than" in report.refusals[0].reason


def test_rows_that_see_nothing_keep_their_value() -> None:
    def filled(x: Tensor) -> Tensor:
        return x.masked_fill(columns() > rows() - 3, -1e9)

    (program,), _ = check(attend(filled), operands())
    assert program.endswith("hidden rows = mean")


def test_layers_with_other_masks_are_other_programs() -> None:
    """The masks are made outside of the matches, whose nodes are otherwise equal."""

    def two(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        masks = [torch.where(window(width), 0.0, LOW) for width in (20, 60)]
        for mask in masks:
            q = torch.softmax(q @ k.transpose(-2, -1) + mask, -1) @ v
        return q

    for way in ("decomposed", "export"):
        programs, _ = check(two, operands(), way)
        assert sorted(programs) == [
            f"score = s; visible = (k <= q) & ((q - k) < {n}); hidden rows = none" for n in (20, 60)
        ]


def test_what_is_written_in_between_is_not_read_again() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Tensor:
        mask = torch.where(p[:, None, None] & window(), 0.0, LOW)
        p.logical_not_()
        return torch.softmax(q @ k.transpose(-2, -1) + mask, -1) @ v

    args = [*operands(), torch.ones(B, S).bool()]
    module = make_fx(function, tracing_mode="fake")(*[x.clone() for x in args])
    report = rewrite(module, attention_by_blocks, choose=every)
    assert len(report) == 0
    assert any("written between" in refusal.reason for refusal in report.refusals)


def test_what_is_reshaped_in_place_is_not_read() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Tensor:
        p = p.logical_not()
        before = p.unsqueeze(1).unsqueeze(3)
        mask = window() & (before == p.unsqueeze_(1).unsqueeze(2))
        return F.scaled_dot_product_attention(q, k, v, mask)

    args = [*operands(), torch.zeros(B, S).bool()]
    module = make_fx(function, tracing_mode="fake")(*args)
    (changed,) = module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.logical_not.default
    )
    changed.meta["val"] = changed.meta["val"].unsqueeze(1)  # as Dynamo tells it
    report = rewrite(module, called_attention_by_blocks, choose=every)
    assert len(report) == 0
    assert report.refusals


def test_training_is_declined() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)).masked_fill(~window(), -1e9)
        return torch.softmax(scores, -1) @ v

    module = fx.symbolic_trace(function)
    FakeTensorProp(module, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*operands())
    product = next(n for n in module.graph.nodes if n.name == "matmul_1")
    product.meta["val"].requires_grad_()
    report = rewrite(module, attention_by_blocks, choose=every)
    assert [r.reason for r in report.refusals] == ["the block-sparse kernel has no gradients"]


@axes(
    kind_and_low=[
        (kind, low)
        for kind in ("add", "where", "upcast")
        for low in (-1e9, -1e30, torch.finfo(torch.float32).min)
    ],
    dtype=[torch.float16, torch.bfloat16, torch.float32],
    rule=[attention_by_blocks, sdpa],
)
def test_a_number_that_its_type_does_not_hold(
    rule: Any, dtype: torch.dtype, kind_and_low: tuple[str, float]
) -> None:
    """It hides rows as infinity does, which leaves no mean."""
    kind, low = kind_and_low

    def steps(x: Tensor) -> Tensor:
        seen = window() & (columns() != 0) & (rows() > 3)
        if kind == "add":
            return x + torch.where(seen, 0.0, low).to(x.dtype)
        return torch.where(seen, x.float() if kind == "upcast" else x, low)

    args = [x.to(dtype) for x in operands()]

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(steps(q @ k.transpose(-2, -1) * 0.35), -1).to(v.dtype) @ v

    module = make_fx(attention, tracing_mode="fake", pre_dispatch=True)(*args)
    seen = (kind, low) == ("add", -1e9) and dtype != torch.float16 and rule is attention_by_blocks
    assert len(rewrite(module, rule, choose=every)) == (0 if seen else 1)
    expected, found = attention(*args), AsReference(module).run(*args)
    hidden = expected.isnan()
    assert hidden.any() == (kind != "upcast" and not math.isfinite(torch.tensor(low).to(dtype)))
    assert (found[hidden] == 0).all()
    torch.testing.assert_close(found[~hidden], expected[~hidden], atol=2e-2, rtol=2e-2)
