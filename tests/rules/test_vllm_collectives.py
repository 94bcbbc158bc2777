"""Fused all-reduces and sequence parallelism for vLLM: spellings, near misses, values on ranks."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from pypm.fx import POST_GRAD, Report, rewrite
from pypm.rules import vllm
from pypm.rules.vllm import collectives
from tests import vllm_groups
from tests.rules.vllm_spellings import (
    EPS,
    IR,
    NORMS,
    SUMS,
    TOKENS,
    C,
    Spelling,
    called_with_bases,
    functional,
    inputs,
    norm_ir,
    sum_ir,
    traced,
)
from tests.vllm_groups import RANKS, TENSOR_PARALLEL, on_all_ranks, standing_for_vllm

vllm_groups.register()
VLLM, C10D = torch.ops.vllm, torch.ops._c10d_functional
TP = TENSOR_PARALLEL.unique_name
KERNEL = "flashinfer_trtllm_fused_allreduce_norm"
LAYERS = 3
ROWS = 4
"""A number of tokens that the processes divide."""


@pytest.fixture(autouse=True)
def vllm_state(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    def patch(name: str, module: object) -> None:
        monkeypatch.setitem(sys.modules, name, module)

    with standing_for_vllm(patch, TOKENS, **getattr(request, "param", {})):
        collectives.declare_collectives()
        yield


def reduced(x: Tensor, group: str = TP) -> Tensor:
    return VLLM.all_reduce(x, group)


def reduced_by_torch(x: Tensor, how: str = "sum", group: str | None = None) -> Tensor:
    group = group or TENSOR_PARALLEL.device_group.group_name
    return C10D.wait_tensor(C10D.all_reduce(x, how, group))


def sum_with_bases(x, r, w):
    kernel, written = C.fused_add_rms_norm, {"input": x, "residual": r}
    return called_with_bases(kernel, written, weight=w, epsilon=EPS)[1:]


def rewritten(
    spelling: Spelling, kinds: str, rules: Any, tokens: int | None = None
) -> tuple[fx.GraphModule, Report]:
    """A graph for some number of tokens, or for any, and the report of its rewrite."""
    gm = traced(spelling, rows_of(kinds, tokens or TOKENS))
    gm.graph.eliminate_dead_code()
    report = rewrite(gm, rules, dialect=POST_GRAD)
    gm.graph.lint()
    return gm, report


def rows_of(kinds: str, tokens: int) -> tuple[Tensor, ...]:
    given = inputs(*kinds.split())
    return tuple(x[:tokens].clone() if x.shape[0] == TOKENS else x for x in given)


def issued(gm: fx.GraphModule) -> list[str]:
    """The operators that communicate, in order."""
    names = [n.args[0] if n in functional(gm) else n.target for n in gm.graph.nodes]
    found = [str(name).split(".")[1] for name in names if str(name).startswith("vllm.")]
    return [name for name in found if name != "sequence_parallel_chunk_impl"]


def check(gm: fx.GraphModule, spelling: Spelling, kinds: str, tokens: int = TOKENS) -> None:
    """Ranks with partial sums of their own compute what the spelling does."""
    given = [rows_of(kinds, tokens) for _ in range(RANKS)]
    for rank, (x, *_) in enumerate(given):
        x.mul_(rank + 1)
    expected = on_all_ranks(lambda rank: spelling(*(x.clone() for x in given[rank])))
    results = on_all_ranks(lambda rank: gm(*given[rank]))
    for found, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2**-7, atol=2**-5)


# --- one kernel ----------------------------------------------------------------------------------


@pytest.mark.parametrize("both", [*SUMS, sum_with_bases])
def test_all_reduce_residual_and_norm(both: Spelling) -> None:
    def spelled(x, r, w):
        return tuple(both(reduced(x), r, w))

    gm, report = rewritten(spelled, "x r w", vllm.ALL_REDUCE)
    assert issued(gm) == [KERNEL], report
    check(gm, spelled, "x r w")


@pytest.mark.parametrize("norm", NORMS)
def test_all_reduce_and_norm(norm: Spelling) -> None:
    def spelled(x, w):
        y = reduced(x)
        return norm(y, w), y

    gm, report = rewritten(spelled, "x w", vllm.ALL_REDUCE)
    assert issued(gm) == [KERNEL], report
    check(gm, spelled, "x w")


def test_a_last_layer_whose_sum_is_not_read() -> None:
    gm, report = rewritten(layers(sum_ir), "x r w", vllm.ALL_REDUCE)
    assert issued(gm) == [KERNEL] * LAYERS, report
    check(gm, layers(sum_ir), "x r w")


def test_other_strides() -> None:
    def spelled(x, r, w):
        return sum_ir(reduced(x.t().contiguous().t()), r.t().contiguous().t(), w)

    gm, _ = rewritten(spelled, "x r w", vllm.ALL_REDUCE)
    (call,) = functional(gm)
    assert all(
        call.kwargs[name].meta["val"].is_contiguous() for name in ("allreduce_in", "residual")
    )
    check(gm, spelled, "x r w")


def test_an_all_reduce_of_torch_in_the_same_group() -> None:
    gm, report = rewritten(lambda x, w: norm_ir(reduced_by_torch(x), w), "x w", vllm.ALL_REDUCE)
    assert issued(gm) == [KERNEL], report


def test_the_partial_sum_is_overwritten_unless_it_is_read_elsewhere() -> None:
    def read(x, r, w):
        return *sum_ir(reduced(x), r, w), x * 2

    clone = torch.ops.aten.clone.default
    for spelled, copies in ((lambda x, r, w: sum_ir(reduced(x), r, w), 0), (read, 1)):
        gm, _ = rewritten(spelled, "x r w", vllm.ALL_REDUCE)
        (call,) = functional(gm)
        own = call.kwargs["allreduce_in"]
        assert (own.target is clone, call.kwargs["residual"].op) == (bool(copies), "placeholder")


@pytest.mark.parametrize("vllm_state", [{"room": None}, {"room": 4}], indirect=True)
def test_without_room_for_the_tokens(vllm_state: None) -> None:
    _, report = rewritten(lambda x, w: norm_ir(reduced(x), w), "x w", vllm.ALL_REDUCE)
    assert "no workspace for the kernel" in report.refusals[0].reason


@pytest.mark.parametrize("tokens", [ROWS, None])
def test_more_rows_than_tokens(tokens: int | None) -> None:
    def spelled(x, w):
        return norm_ir(reduced(x.repeat(3, 1)), w)

    _, report = rewritten(spelled, "x w", vllm.ALL_REDUCE, tokens)
    assert "a smaller one than the rows take" in report.refusals[0].reason


# --- near misses ---------------------------------------------------------------------------------


def exchanged(x, r, w):
    first = C10D.all_reduce(x, "sum", TENSOR_PARALLEL.device_group.group_name)
    second = reduced(r)
    return norm_ir(C10D.wait_tensor(first), w), second


MISSES: dict[str, tuple[Spelling, str]] = {
    "another group": (lambda x, r, w: sum_ir(reduced(x, "dp:0"), r, w), "x r w"),
    "another group of torch": (
        lambda x, w: norm_ir(reduced_by_torch(x, group="0"), w), "x w"),
    "another reduction": (lambda x, w: norm_ir(reduced_by_torch(x, "max"), w), "x w"),
    "another user of the reduced value": (
        lambda x, r, w: (*sum_ir(y := reduced(x), r, w), y * 2), "x r w"),
    "another collective before the wait": (exchanged, "x r w"),
    "three dimensions": (
        lambda x, w: (y := reduced(x[None]), norm_ir(y, w)), "x w"),
    "three dimensions of a sum": (
        lambda x, r, w: sum_ir(reduced(x[None]), r[None], w), "x r w"),
    "three dimensions of a last sum": (
        lambda x, r, w: sum_ir(reduced(x[None]), r[None], w)[0], "x r w"),
    "values of 32 bits": (lambda x, w: norm_ir(reduced(x.float()), w.float()), "x w"),
    "a weight of another type": (lambda x, w: norm_ir(reduced(x), w.float()), "x w"),
    "a variance of a part of each row": (
        lambda x, w: IR.rms_norm(reduced(x), w, EPS, 32), "x w"),
    "a gathered value": (
        lambda x, w: norm_ir(VLLM.all_gather(x, 0, RANKS, TP), w), "x w"),
}  # fmt: skip


OTHER_TYPES = ("values of 32 bits", "a weight of another type")
"""Misses of the kernel alone: vLLM's own operator for norms takes these."""


@pytest.mark.parametrize("rules", [vllm.ALL_REDUCE, vllm.SEQUENCE], ids=["kernel", "sequence"])
@pytest.mark.parametrize("name", MISSES)
def test_near_misses(name: str, rules: Any) -> None:
    _, report = rewritten(*MISSES[name], rules, ROWS)
    takes_other_types = rules is vllm.SEQUENCE and name in OTHER_TYPES
    assert len(report) == takes_other_types, str(report)


# --- each process for its own rows ---------------------------------------------------------------


def layers(both: Spelling, last: Spelling = lambda y, total: y) -> Spelling:
    """Layers whose products are parts, one of each process, and sums between them."""

    def spelled(x, r, w):
        for _ in range(LAYERS):
            x, r = both(reduced(x.sin()), r, w)
        return last(x, r)

    return spelled


@pytest.mark.parametrize("both", [*SUMS[:3], sum_with_bases])
def test_layers_become_sequence_parallel(both: Spelling) -> None:
    gm, report = rewritten(layers(both), "x r w", vllm.SEQUENCE, ROWS)
    assert issued(gm) == ["reduce_scatter", "all_gather"] * LAYERS, report
    assert len(report) == LAYERS + LAYERS - 1
    chunks = gm.graph.find_nodes(
        op="call_function", target=VLLM.sequence_parallel_chunk_impl.default
    )
    assert [n.args[0].op for n in chunks] == ["placeholder"]
    check(gm, layers(both), "x r w", ROWS)


def test_the_first_layer_may_have_no_residual() -> None:
    def spelled(x, w):
        r = reduced(x)
        return sum_ir(reduced(norm_ir(r, w).sin()), r, w)[0]

    gm, report = rewritten(spelled, "x w", vllm.SEQUENCE, ROWS)
    assert issued(gm) == ["reduce_scatter", "all_gather"] * 2, report
    check(gm, spelled, "x w", ROWS)


@pytest.mark.parametrize(
    ("spelled", "tokens", "words"),
    [
        (layers(sum_ir, lambda y, total: (y, total)), ROWS, "none is made: the graph would"),
        (layers(sum_ir, lambda y, total: y + total), ROWS, "none is made: the graph would"),
        (layers(sum_ir), 5, "the rows cannot be divided among the processes"),
        (layers(sum_ir), None, "the rows cannot be divided among the processes"),
    ],
)
def test_all_or_nothing(spelled: Spelling, tokens: int | None, words: str) -> None:
    gm, report = rewritten(spelled, "x r w", vllm.SEQUENCE, tokens)
    assert (len(report), issued(gm)) == (0, ["all_reduce"] * LAYERS)
    assert any(words in refusal.reason for refusal in report.refusals), str(report)


# --- declarations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("all_reduce", {"group_name": TP}),
        ("reduce_scatter", {"dim": 1, "world_size": RANKS, "group_name": TP}),
        ("all_gather", {"dim": 1, "world_size": RANKS, "group_name": TP}),
    ],
)
def test_what_is_declared_gives_the_shapes_of_vllms_operators(name: str, given: Any) -> None:
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    graph = traced(lambda tensor: collectives.MEANINGS[name](tensor, **given), (x,)).graph
    own = on_all_ranks(lambda _: getattr(VLLM, name)(x, **given))[0]
    assert graph.output_node().args[0].meta["val"].shape == own.shape
