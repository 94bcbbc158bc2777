"""Loops by the delta rule: what the state has of a key is subtracted before a value is added."""

from __future__ import annotations

from typing import Final

import pytest
import torch
from torch import Tensor

from pypm.rules import loops
from tests.axes import axes
from tests.rules.capture import WAYS, hooked
from tests.rules.loops import L, normal
from tests.rules.test_matrix_states import (
    ESCAPE,
    READS,
    Function,
    assert_rolled_up,
    assert_trains,
    loop,
    of_another_step,
    of_one_size,
    reasons,
    values,
)

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")


def by_sums(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
    change = (v[:, t] - (s * k[:, t, :, None]).sum(-2)) * a[..., 0][:, t, None]
    return s + k[:, t].unsqueeze(-1) * change.unsqueeze(-2)


def gated(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
    s = s * a[..., 0][:, t, None, None]
    change = v[:, t] - torch.einsum("bk,bkv->bv", k[:, t], s)
    return s + torch.einsum("bk,bv->bkv", k[:, t], change)


def of_each_key(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
    s = s * a[:, t, :, None]
    change = a[..., 0][:, t, None] * (v[:, t] - (s.transpose(1, 2) @ k[:, t, :, None])[..., 0])
    return s + k[:, t, :, None] * change[:, None, :]


def by_products(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
    change = a[..., 0][:, t, None, None] * (v[:, t, None] - k[:, t, None] @ s)
    return s + k[:, t].unsqueeze(-1) @ change


def by_another_key(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
    change = v[:, t] - torch.einsum("bk,bkv->bv", a[:, t], s)
    return s + change.unsqueeze(-2) * k[:, t].unsqueeze(-1)


def values_first(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
    """The state is [..., values, keys]."""
    s = 0.9 * s
    change = k[:, t] - torch.einsum("bij,bj->bi", s, v[:, t])
    return s + change.unsqueeze(-1) * v[:, t].unsqueeze(-2)


DELTAS: Final[dict[str, tuple[Function, str]]] = {
    "sums": (by_sums, "sum of rows"),
    "gated": (gated, "einsum"),
    "a factor of each key": (of_each_key, "row"),
    "products": (by_products, "transposed"),
    "another key": (by_another_key, "einsum"),
}
"""The state after a step, and a name of `READS`."""


@axes(name=DELTAS, way=["decomposed", "export", "pre_grad"])
def test_the_delta_rule(name: str, way: str) -> None:
    step, read = DELTAS[name]
    assert_rolled_up(loop(step, READS[read]), values(), way)


def outer(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
    return s + torch.outer(k[t], v[t] - s.T @ k[t])


def outer_with_rates(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
    s = 0.9 * s
    return s + torch.outer(k[t], a[..., 0][t] * (v[t] - k[t] @ s))


def outer_of_values_first(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
    return s + torch.outer(k[t] - s @ v[t], v[t])


@axes(
    functions=[
        (outer, lambda s, q, p, t: s.T @ q[t]),
        (outer_with_rates, lambda s, q, p, t: q[t] @ s),
        (outer_of_values_first, lambda s, q, p, t: s @ p[t]),
    ],
    way=["export", "joint"],
)
def test_the_delta_rule_without_batch(functions: tuple[Function, Function], way: str) -> None:
    step, read = functions
    assert_rolled_up(loop(step, read, dim=0), [x[0] for x in values()], way)


@pytest.mark.parametrize("step", [outer, outer_of_values_first])
def test_near_misses_without_batch(step: Function) -> None:
    """Where all sizes are equal: steps in another order, and a change that is turned."""
    args = [x[0] for x in of_one_size()]

    def in_another_order(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
        return step(a, k, v, s, of_another_step(t))

    def turned(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
        return s + (step(a, k, v, s, t) - s).T

    for near in (in_another_order, turned):
        reasons(loop(near, lambda s, q, p, t: s @ p[t], dim=0), args)


@pytest.mark.parametrize("name", ["sums", "a factor of each key"])
def test_gradients_of_the_delta_rule(name: str) -> None:
    step, read = DELTAS[name]
    assert_trains(loop(step, READS[read]))


def values_first_by_einsum(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
    change = k[:, t] - torch.einsum("bij,bj->bi", s, v[:, t])
    return s + torch.einsum("bi,bj->bij", change, v[:, t])


@pytest.mark.parametrize("step", [values_first, values_first_by_einsum])
def test_states_of_values_by_keys(step: Function) -> None:
    assert_rolled_up(loop(step, READS["column"]), values())


@pytest.mark.parametrize("way", ["export", "joint", "pre_grad"])
def test_products_of_heads(way: str) -> None:
    """Inductor flattens batches of heads to multiply by `bmm`."""

    def function(beta: Tensor, k: Tensor, v: Tensor, q: Tensor, s: Tensor) -> Tensor:
        results = []
        for t in range(k.shape[2]):
            change = v[:, :, t, None] - k[:, :, t, None] @ s
            s = s + k[:, :, t, :, None] @ (beta[:, :, t, None, None] * change)
            results.append((q[:, :, t, None] @ s).squeeze(2))
        return torch.stack(results, 2)

    args = [normal(2, 3, L).sigmoid(), normal(2, 3, L, 4), normal(2, 3, L, 5),
            normal(2, 3, L, 4), normal(2, 3, 4, 5)]  # fmt: skip
    assert_rolled_up(function, args, way)


def test_products_of_regrouped_heads() -> None:
    """Two batches of three states become three of two."""

    def function(k: Tensor, v: Tensor) -> Tensor:
        s, results = torch.zeros(3, 2, 4, 5, dtype=v.dtype), []
        for t in range(k.shape[2]):
            product = k[:, :, t, :, None].view(6, 4, 1) * v[:, :, t, None].view(6, 1, 5)
            s = 0.5 * s + product.view(3, 2, 4, 5)
            results.append(s)
        return torch.stack(results)

    assert not reasons(function, [normal(2, 3, L, 4), normal(2, 3, L, 5)])


def test_gated_delta_rule_of_heads() -> None:
    """As transformers writes it for Qwen3-Next, with the results in a list."""

    def function(g: Tensor, beta: Tensor, k: Tensor, v: Tensor, q: Tensor) -> Tensor:
        s, results = torch.zeros(2, 3, 4, 5, dtype=v.dtype), []
        for i in range(k.shape[2]):
            g_t = g[:, :, i].exp().unsqueeze(-1).unsqueeze(-1)
            s = s * g_t
            memory = (s * k[:, :, i].unsqueeze(-1)).sum(dim=-2)
            delta = (v[:, :, i] - memory) * beta[:, :, i].unsqueeze(-1)
            s = s + k[:, :, i].unsqueeze(-1) * delta.unsqueeze(-2)
            results.append((s * q[:, :, i].unsqueeze(-1)).sum(dim=-2))
        return torch.stack(results, 2)

    args = [-normal(2, 3, L).abs(), normal(2, 3, L).sigmoid(),
            normal(2, 3, L, 4), normal(2, 3, L, 5), normal(2, 3, L, 4)]  # fmt: skip
    assert_rolled_up(function, args)


def test_the_last_state_of_the_delta_rule() -> None:
    def function(a: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
        for t in range(a.shape[1]):
            s = gated(a, k, v, s, t)
        return s

    a, k, v, _, _, s = values()
    assert_rolled_up(function, [a, k, v, s], by="last_state")


def test_a_loop_over_some_of_the_items_ends_its_search() -> None:
    def function(k: Tensor, v: Tensor, s: Tensor) -> Tensor:
        for t in range(40):
            change = v[:, t] - torch.einsum("bk,bkv->bv", k[:, t], s)
            s = s + k[:, t, :, None] * change[:, None]
        return s

    args = [normal(2, 48, 4), normal(2, 48, 5), normal(2, 4, 5)]
    report, _ = WAYS["decomposed"](function, args, loops.RULES)
    assert not report.rewrites and not report.refusals, str(report)


def test_the_delta_rule_with_other_results() -> None:
    reason = (
        "the delta rule needs float32 or float64 on a CPU, and results that are products along"
        " the keys"
    )
    for read in ("state", "sum of columns"):
        assert reason in reasons(loop(by_sums, READS[read]), values())


def near_miss(change: Function, fading: float = 1.0) -> Function:
    """A step that adds the outer product of its key and a change of its value."""

    def step(a: Tensor, k: Tensor, v: Tensor, s: Tensor, t: int) -> Tensor:
        read = torch.einsum("bk,bkv->bv", k[:, of_another_step(t)], s)
        now = torch.einsum("bk,bkv->bv", k[:, t], s)
        return fading * s + k[:, t, :, None] * change(v[:, t], now, read)[:, None]

    return step


NEAR_MISSES: Final[dict[str, Function]] = {
    "a state without its factor": near_miss(lambda v, now, other: v - now, fading=0.9),
    "a key of another step": near_miss(lambda v, now, other: v - other),
    "a sum": near_miss(lambda v, now, other: v + now),
    "the other way round": near_miss(lambda v, now, other: now - v),
    "two rates": near_miss(lambda v, now, other: (v - now) * v.sin() * v.cos()),
    "a function of the difference": near_miss(lambda v, now, other: (v - now).sin()),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    reasons(loop(NEAR_MISSES[name], READS["einsum"]), values())


def two_rates(k: Tensor, v: Tensor, m: Tensor, s: Tensor, t: int) -> Tensor:
    change = (v[:, t] - (k[:, t, None] @ s)[:, 0]) * v[:, t] * k[:, t]
    return s + k[:, t, :, None] * change[:, None]


def rows_exchanged(k: Tensor, v: Tensor, m: Tensor, s: Tensor, t: int) -> Tensor:
    change = (v[:, t] - (k[:, t, None] @ s)[:, 0])[[1, 0]]
    return s + k[:, t, :, None] * change[:, None]


def by_matrices(k: Tensor, v: Tensor, m: Tensor, s: Tensor, t: int) -> Tensor:
    return s + k[:, t, :, None] * (v[:, t, None] - s @ m[:, t])


def by_matrices_from_the_left(k: Tensor, v: Tensor, m: Tensor, s: Tensor, t: int) -> Tensor:
    return s + k[:, t, :, None] * (v[:, t, None] - m[:, t] @ s)


@pytest.mark.parametrize(
    "step", [two_rates, rows_exchanged, by_matrices, by_matrices_from_the_left]
)
def test_other_changes(step: Function) -> None:
    def function(k: Tensor, v: Tensor, m: Tensor, s: Tensor) -> Tensor:
        results = []
        for t in range(L):
            s = step(k, v, m, s, t)
            results.append(torch.einsum("bi,bij->bj", k[:, t], s))
        return torch.stack(results, 1)

    args = [normal(2, L, 5), normal(2, L, 5), normal(2, L, 5, 5), normal(2, 5, 5)]
    report, _ = hooked(function, args, loops.RULES, "pre_grad")
    assert not report.rewrites
    assert all(ESCAPE in refusal.reason for refusal in report.refusals), str(report)
