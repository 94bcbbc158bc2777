"""Loops over states that are matrices: outer products and products with vectors in each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.core.terms import UNDEFINED
from pypm.fx import Report
from pypm.integrations import export
from pypm.rules import loops
from pypm.rules.loops import items, recurrences
from tests.axes import axes
from tests.rules.capture import WAYS, WAYS_AND_HOOKS, fired, hooked
from tests.rules.gradients import assert_gradients_pass
from tests.rules.loops import FEW, L, normal

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")

Function = Callable[..., Any]
ESCAPE: Final = "outside of the match"


def values(count: int = L) -> list[Tensor]:
    """Decays, keys, values, queries and vectors of the width of values; a state [2, 4, 5]."""
    vectors = [normal(2, count, n) for n in (4, 4, 5, 4, 5)]
    return [vectors[0].sigmoid(), vectors[1], vectors[2], vectors[3].sin(), vectors[4].cos(),
            normal(2, 4, 5)]  # fmt: skip


STEPS: Final[dict[str, Function]] = {
    "index": lambda a, k, v, s, t: a[:, t, :, None] * s + k[:, t, :, None] * v[:, t, None, :],
    "unsqueeze": lambda a, k, v, s, t: (
        a[:, t].unsqueeze(-1) * s + v[:, t].unsqueeze(-2) * k[:, t].unsqueeze(-1)
    ),
    "product": lambda a, k, v, s, t: (
        s * a[:, t, :, None] + k[:, t].unsqueeze(-1) @ v[:, t].unsqueeze(-2)
    ),
    "einsum": lambda a, k, v, s, t: (
        s * a[:, t, :, None] + torch.einsum("bi,bj->bij", k[:, t], v[:, t])
    ),
    "summed": lambda a, k, v, s, t: s + torch.einsum("bj,bi->bij", v[:, t], k[:, t]),
    "logarithm": lambda a, k, v, s, t: (
        a[:, t].exp().unsqueeze(-1) * s + k[:, t, :, None] * v[:, t, None]
    ),
    "number": lambda a, k, v, s, t: 0.9 * s + v[:, t, None] * k[:, t, :, None],
}
"""The state after a step, from decays, keys, values, the state before it and its number."""
READS: Final[dict[str, Function]] = {
    "state": lambda s, q, p, t: s,
    "sum of rows": lambda s, q, p, t: (s * q[:, t, :, None]).sum(-2),
    "sum of columns": lambda s, q, p, t: (p[:, t].unsqueeze(1) * s).sum(dim=2),
    "transposed": lambda s, q, p, t: (s.transpose(1, 2) @ q[:, t].unsqueeze(-1))[..., 0],
    "mT": lambda s, q, p, t: (s.mT @ q[:, t, :, None]).squeeze(-1),
    "column": lambda s, q, p, t: (s @ p[:, t, :, None]).squeeze(-1),
    "row": lambda s, q, p, t: (q[:, t, None] @ s)[:, 0],
    "row by the transposed": lambda s, q, p, t: (p[:, t, None] @ s.transpose(-1, -2)).squeeze(1),
    "einsum": lambda s, q, p, t: torch.einsum("bi,bij->bj", q[:, t], s),
    "einsum of columns": lambda s, q, p, t: torch.einsum("bij,bj->bi", s, p[:, t]),
}
"""What a step adds to the results, from its state, queries, other vectors and its number."""


def loop(step: Function, read: Function, dim: int = 1) -> Function:
    """Steps over this dimension."""

    def function(a: Tensor, k: Tensor, v: Tensor, q: Tensor, p: Tensor, s: Tensor) -> Any:
        results = []
        for t in range(a.shape[dim]):
            s = step(a, k, v, s, t)
            results.append(read(s, q, p, t))
        return torch.stack(results, dim), s

    return function


LOOPS: Final = {
    **{f"{name}, sum of rows": loop(step, READS["sum of rows"]) for name, step in STEPS.items()},
    **{f"index, {name}": loop(STEPS["index"], read) for name, read in READS.items()},
}


def assert_rolled_up(
    function: Function, args: list[Tensor], way: str = "export", by: str = "loop"
) -> Report:
    """The rule that `by` names is applied once, and the results are those of the function."""
    with torch.no_grad():
        report, result = WAYS_AND_HOOKS[way](function, args, loops.RULES)
    assert fired(report) == [by], str(report)
    expected = function(*args)
    result = result if isinstance(expected, Tensor) else tuple(result)
    torch.testing.assert_close(result, expected, atol=1e-9, rtol=1e-9)
    return report


def assert_trains(function: Function) -> None:
    """The loop is rolled up before autograd, and its gradients are those of the function."""
    args = [x.detach().requires_grad_() for x in values()]
    report, result = hooked(function, args, loops.RULES, "pre_grad")
    assert fired(report) == ["loop"], str(report)
    assert_gradients_pass(result, function(*args), args)


@axes(name=LOOPS, way=["decomposed", "export", "pre_grad"])
def test_loops(name: str, way: str) -> None:
    assert_rolled_up(LOOPS[name], values(), way)


STEPS_WITHOUT_BATCH: Final[dict[str, Function]] = {
    "outer": lambda a, k, v, s, t: a[t][:, None] * s + torch.outer(k[t], v[t]),
    "indices, one by one": lambda a, k, v, s, t: a[t][:, None] * s + k[t][:, None] * v[t],
    "product": lambda a, k, v, s, t: 0.9 * s + k[t][:, None] @ v[t][None],
    "summed": lambda a, k, v, s, t: s + torch.outer(k[t], v[t]),
}
READS_WITHOUT_BATCH: Final[dict[str, Function]] = {
    "T": lambda s, q, p, t: s.T @ q[t],
    "t": lambda s, q, p, t: torch.mv(s.t(), q[t]),
    "transposed": lambda s, q, p, t: s.transpose(0, 1) @ q[t],
    "column": lambda s, q, p, t: s @ p[t],
    "row": lambda s, q, p, t: q[t] @ s,
    "row by the transposed": lambda s, q, p, t: p[t] @ s.transpose(0, 1),
    "sum of columns": lambda s, q, p, t: (s * p[t]).sum(-1),
    "einsum": lambda s, q, p, t: torch.einsum("i,ij->j", q[t], s),
}


@axes(
    names=[
        *((step, "row") for step in STEPS_WITHOUT_BATCH),
        *(("summed", read) for read in READS_WITHOUT_BATCH),
    ],
    way=["export", "joint", "pre_grad"],
)
def test_loops_without_batch(names: tuple[str, str], way: str) -> None:
    step, read = names
    function = loop(STEPS_WITHOUT_BATCH[step], READS_WITHOUT_BATCH[read], dim=0)
    assert_rolled_up(function, [x[0] for x in values()], way)


@pytest.mark.parametrize(
    "name",
    [
        "product, sum of rows",
        "einsum, sum of rows",
        "index, transposed",
        "index, mT",
        "index, einsum",
    ],
)
def test_gradients_pass(name: str) -> None:
    assert_trains(LOOPS[name])


def of_another_step(t: int) -> int:
    return t + (t == 2) - (t == 3)


def written(a: Tensor, k: Tensor, v: Tensor, q: Tensor, p: Tensor, s: Tensor) -> Any:
    results = v.new_zeros(v.shape)
    for t in range(a.shape[1]):
        s = STEPS["index"](a, k, v, s, t)
        results[:, t] = READS["einsum"](s, q, p, t)
    return results, s


@pytest.mark.parametrize("way", ["export", "decomposed", "pre_grad", "joint"])
def test_results_that_are_written_into_a_tensor(way: str) -> None:
    assert_rolled_up(written, values(), way)


def test_gradients_of_results_that_are_written_into_a_tensor() -> None:
    assert_trains(written)


def written_but_once(
    order: Callable[[int], int], extra: int = 0, more: tuple[int, ...] = (), **options: Any
) -> Function:
    """Results written at other places, or into a tensor with `extra` places or dimensions `more`,
    or of other `options`.
    """

    def function(a: Tensor, k: Tensor, v: Tensor, q: Tensor, p: Tensor, s: Tensor) -> Tensor:
        results = v.new_zeros(*more, 2, a.shape[1] + extra, 5, **options)
        for t in range(a.shape[1]):
            s = STEPS["index"](a, k, v, s, t)
            results[..., order(t), :].copy_(READS["einsum"](s, q, p, t))
        return results

    return function


WRITTEN: Final[dict[str, Function]] = {
    "in another order": written_but_once(of_another_step),
    "one place twice": written_but_once(lambda t: max(t, 1)),
    "a place that is left": written_but_once(lambda t: t, extra=1),
    "a place later": written_but_once(lambda t: t + 1, extra=1),
    "rounded": written_but_once(lambda t: t, dtype=torch.float32),
    "broadcast": written_but_once(lambda t: t, more=(3,)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_near_misses_of_results_that_are_written(name: str) -> None:
    report, result = WAYS["decomposed"](WRITTEN[name], values(), loops.RULES)
    assert not report.rewrites
    assert all(ESCAPE in refusal.reason for refusal in report.refusals)
    torch.testing.assert_close(result, WRITTEN[name](*values()), atol=1e-9, rtol=1e-9)


def test_a_tensor_that_is_read_between_writes() -> None:
    def function(a: Tensor, k: Tensor, v: Tensor, q: Tensor, p: Tensor, s: Tensor) -> Tensor:
        results, sums = v.new_zeros(v.shape), v.new_zeros(())
        for t in range(a.shape[1]):
            s = STEPS["index"](a, k, v, s, t)
            results[:, t] = READS["einsum"](s, q, p, t)
            sums = sums + results.sum()
        return results + sums

    report, result = WAYS["decomposed"](function, values(), loops.RULES)
    assert "loop" not in fired(report)
    torch.testing.assert_close(result, function(*values()), atol=1e-9, rtol=1e-9)


def test_heads() -> None:
    """With a dimension of heads, as in RetNet and Mamba2."""

    def function(a: Tensor, k: Tensor, v: Tensor, q: Tensor) -> Tensor:
        s, results = torch.zeros(2, 3, 4, 5, dtype=v.dtype), []
        for t in range(k.shape[1]):
            s = s * a[:, t, :, None, None] + k[:, t, :, :, None] * v[:, t, :, None, :]
            results.append(torch.einsum("bhk,bhkv->bhv", q[:, t], s))
        return torch.stack(results, 1)

    args = [normal(2, L, 3).sigmoid(), normal(2, L, 3, 4), normal(2, L, 3, 5), normal(2, L, 3, 4)]
    assert_rolled_up(function, args)


def test_queries_of_a_larger_batch() -> None:
    """They are read from all states, which the operator for one batch does not return."""
    function = loop(STEPS["index"], READS["sum of rows"])
    args = [x[:1] if i != 3 else x for i, x in enumerate(values())]
    assert "linear_recurrence" in str(assert_rolled_up(function, args))


def last(a: Tensor, k: Tensor, v: Tensor, q: Tensor, p: Tensor, s: Tensor) -> Tensor:
    for t in range(a.shape[1]):
        s = a[:, t, :, None] * s + k[:, t, :, None] * v[:, t, None]
    return s


def test_the_last_state_alone() -> None:
    assert_rolled_up(last, values(), by="last_state")


# --- what is declined -----------------------------------------------------------------------------


def reasons(function: Function, args: list[Tensor], way: str = "export") -> list[str]:
    report, _ = WAYS[way](function, args, loops.RULES)
    assert not report.rewrites, str(report)
    return [refusal.reason for refusal in report.refusals]


def test_outer_products_that_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "the outer products of all steps may take too much memory at once"
    function = loop(STEPS["index"], READS["state"])
    monkeypatch.setattr(recurrences, "LARGEST", L * 2 * 4 * 5 - 1)
    assert reason in reasons(function, values())
    monkeypatch.setattr(recurrences, "LARGEST", L * 2 * 4 * 5)
    assert fired(WAYS["export"](function, values(), loops.RULES)[0])


@pytest.mark.parametrize(("read", "rewrites"), [("state", 0), ("einsum", 1)])
def test_sizes_that_are_not_known(read: str, rewrites: int) -> None:
    function = loop(STEPS["index"], READS[read])

    class Model(torch.nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return function(*args)

    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(
        Model(), tuple(values()), dynamic_shapes={"args": 6 * ({0: batch},)}
    )
    report = export.rewrite(program, loops.RULES)
    assert len(report.rewrites) == rewrites
    if not rewrites:
        assert "too much memory" in str(report)
    args = [torch.cat([x, x.cos()]) for x in values()]
    torch.testing.assert_close(program.module()(*args), function(*args), atol=1e-9, rtol=1e-9)


def test_few_steps() -> None:
    function = LOOPS["index, einsum"]
    assert reasons(last, values(FEW - 1)) == ["so few steps are faster as they are"]
    assert "so few steps are faster as they are" in reasons(function, values(FEW - 1))


def test_under_a_compiler_matrices_need_fewer_steps_than_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recurrences, "under_torch_compile", lambda: True)
    monkeypatch.setattr(recurrences, "FEW_COMPILED", L + 1)
    report, _ = WAYS["export"](LOOPS["index, einsum"], values(), loops.RULES)
    assert len(report) == 1
    assert reasons(last, values(FEW - 1)) == ["so few steps are faster as they are"]


def test_types_that_differ() -> None:
    args = values()
    args[2] = args[2].float()
    assert reasons(last, args) == ["the operands are not of one floating-point type"]


# --- near misses ---------------------------------------------------------------------------------


NEAR_MISSES: Final[dict[str, tuple[Function, Function]]] = {
    "a key of another step": (
        lambda a, k, v, s, t: (
            a[:, t, :, None] * s + k[:, of_another_step(t), :, None] * v[:, t, None]
        ),
        READS["sum of rows"],
    ),
    "a value of another step": (
        lambda a, k, v, s, t: a[:, t, :, None] * s + k[:, t, :, None] * v[:, t - 1, None],
        READS["sum of rows"],
    ),
    "a decay of another step": (
        lambda a, k, v, s, t: a[:, t - 1, :, None] * s + k[:, t, :, None] * v[:, t, None],
        READS["sum of rows"],
    ),
    "a query of another step": (STEPS["index"], lambda s, q, p, t: READS["einsum"](s, q, p, t - 1)),
    "another query once": (
        STEPS["index"],
        lambda s, q, p, t: (s * (q.cos() if t == 3 else q)[:, t, :, None]).sum(-2),
    ),
    "rows and columns": (
        STEPS["index"],
        lambda s, q, p, t: (s * q[:, t, :, None]).sum(-1 if t == 3 else -2)[:, :4],
    ),
    "both summed": (STEPS["index"], lambda s, q, p, t: (s * q[:, t, :, None]).sum((-1, -2))),
    "another sum": (STEPS["index"], lambda s, q, p, t: (s * q[:, t, :, None]).sum(-1)),
    "another einsum": (
        STEPS["index"], lambda s, q, p, t: torch.einsum("bi,bij->b", q[:, t], s)
    ),
    "an einsum of all batches": (
        STEPS["index"], lambda s, q, p, t: torch.einsum("bi,bij->j", q[:, t], s)
    ),
    "a repeated vector": (
        STEPS["index"], lambda s, q, p, t: torch.einsum("bi,bij->bj", q[:1, t], s)
    ),
    "a changed state": (STEPS["index"], lambda s, q, p, t: (s.exp() * q[:, t, :, None]).sum(-2)),
    "a key that is permuted": (
        lambda a, k, v, s, t: a[:, t, :, None] * s + torch.einsum(
            "ib,bj->bij", k[:, t].mT.reshape(4, 2), v[:, t]
        ),
        READS["sum of rows"],
    ),
    "a product of states": (
        lambda a, k, v, s, t: a[:, t, :, None] * s * s + k[:, t, :, None] * v[:, t, None],
        READS["sum of rows"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    reasons(loop(*NEAR_MISSES[name]), values())


def of_one_size() -> list[Tensor]:
    """`values` with as many batches and elements as steps."""
    return [normal(L, L, L) for _ in range(6)]


NEAR_MISSES_WITHOUT_BATCH: Final[dict[str, Function]] = {
    "a column for all states": lambda s, q, p, t: s @ p[0, t],
    "a row for all states": lambda s, q, p, t: q[0, t] @ s,
    "a sum for all states": lambda s, q, p, t: (s * p[0, t]).sum(-1),
    "a product with itself": lambda s, q, p, t: s[0] @ s[1] + 0 * q[0, t, 0],
    "all turned": lambda s, q, p, t: torch.permute(s, (2, 1, 0)) @ p[0, t],
}


@pytest.mark.parametrize("name", NEAR_MISSES_WITHOUT_BATCH)
def test_near_misses_of_vectors_without_batch(name: str) -> None:
    """States with a batch, whose size is that of everything else."""
    found = reasons(loop(STEPS["index"], NEAR_MISSES_WITHOUT_BATCH[name]), of_one_size())
    assert all(ESCAPE in reason for reason in found), found


def test_outer_products_turned() -> None:
    """The state gets values by keys, though it is decayed by key."""

    def step(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
        return a[t][:, None] * s + torch.outer(v[t], k[t])

    args = [x[0] for x in of_one_size()]
    assert_rolled_up(loop(step, READS_WITHOUT_BATCH["T"], dim=0), args)


@dataclass(frozen=True)
class Vectors:
    """Queries and vectors of the width of values, those of the first batch, matrices, numbers."""

    q: Tensor
    p: Tensor
    first_q: Tensor
    first_p: Tensor
    m: Tensor
    n: Tensor


OTHER_VECTORS: Final[dict[str, Callable[[Tensor, Vectors, int], Tensor]]] = {
    "a column for all batches": lambda s, x, t: (s @ x.first_p[t].unsqueeze(-1)).squeeze(-1),
    "a row for all batches": lambda s, x, t: (x.first_q[t].unsqueeze(0) @ s).squeeze(-2),
    "a sum of rows for all batches": lambda s, x, t: (s * x.first_q[t].unsqueeze(-1)).sum(-2),
    "a sum of columns for all batches": lambda s, x, t: (s * x.first_p[t].unsqueeze(0)).sum(-1),
    "matrices, summed over rows": lambda s, x, t: (s * x.m[:, t]).sum(-2),
    "matrices, summed over columns": lambda s, x, t: (s * x.m[:, t]).sum(-1),
    "numbers, summed over rows": lambda s, x, t: (s * x.n[:, t]).sum(-2),
    "numbers, summed over columns": lambda s, x, t: (s * x.n[:, t]).sum(-1),
    "a column in four dimensions": lambda s, x, t: (s @ x.p[:, t, :, None]).view(2, 4, 1, 1),
    "a row in four dimensions": lambda s, x, t: (x.q[:, t, None] @ s).view(2, 1, 1, 5),
    "one element of a column": lambda s, x, t: (s @ x.p[:, t, :, None])[:, 0],
    "one element of a row": lambda s, x, t: (x.q[:, t, None] @ s)[..., 0],
}


@pytest.mark.parametrize("name", OTHER_VECTORS)
def test_vectors_that_do_not_fit_the_state(name: str) -> None:
    def function(q: Tensor, p: Tensor, m: Tensor, s: Tensor) -> Tensor:
        x, results = Vectors(q, p, q[0], p[0], m, m[:, :, :1, :1]), []
        for t in range(L):
            s = 0.5 * s + m[:, t]
            results.append(OTHER_VECTORS[name](s, x, t))
        return torch.stack(results, 1)

    _, _, _, q, p, s = values()
    found = reasons(function, [q, p, normal(2, L, 4, 5), s])
    assert all(ESCAPE in reason for reason in found), found


@pytest.mark.parametrize("read", ["sum of rows", "sum of columns"])
def test_vectors_of_a_narrower_type(read: str) -> None:
    a, k, v, q, p, s = values()
    found = reasons(loop(STEPS["index"], READS[read]), [a, k, v, q.float(), p.float(), s])
    assert all(ESCAPE in reason for reason in found)


def test_near_misses_with_an_older_state() -> None:
    def skip(a: Tensor, k: Tensor, v: Tensor, q: Tensor, p: Tensor, s: Tensor) -> Tensor:
        older, results = s, []
        for t in range(a.shape[1]):
            older, s = s, a[:, t, :, None] * older + k[:, t, :, None] * v[:, t, None]
            results.append(torch.einsum("bi,bij->bj", q[:, t], s))
        return torch.stack(results, 1)

    reasons(skip, values())


def test_a_result_that_is_read_otherwise_has_a_reason() -> None:
    found = reasons(loop(STEPS["index"], lambda s, q, p, t: s.exp().sum(-1)), values())
    assert len(found) == 1 and ESCAPE in found[0]


def test_equations() -> None:
    assert items.spread_out("bi,bj->bij", 0, (2, 4)) == (2, 4, 1)
    assert items.spread_out("bi, bj -> bij", 1, (2, 5)) == (2, 1, 5)
    for equation, shape in (
        ("ib,bj->bij", (4, 2)),
        ("bi,bj->bi", (2, 4)),
        ("bii,bj->bij", (2, 4, 4)),
        ("bi,bj", (2, 4)),
        ("...i,...j->...ij", (2, 4)),
        ("bi,bj->bijk", (2, 4)),
    ):
        assert items.spread_out(equation, 0, shape) is UNDEFINED
    assert items.is_turned("bi,bij->bj", 0, 1, (2, 4), (2, 4, 5)) is False
    assert items.is_turned("bij,bj->bi", 1, 0, (2, 5), (2, 4, 5)) is True
    for equation in (
        "bi,bij->jb",
        "bi,bij->b",
        "ib,bij->bj",
        "bi,bii->bi",
        "bi,bij",
        "b...,b...->b",
    ):
        assert items.is_turned(equation, 0, 1, (2, 4), (2, 4, 5)) is UNDEFINED
    assert items.is_turned("bi,bij->bj", 0, 1, (1, 4), (2, 4, 5)) is UNDEFINED
