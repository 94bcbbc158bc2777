"""Loops whose results read the state before each step, as RWKV's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.rules import loops
from tests.axes import axes
from tests.rules.capture import WAYS, exported, fired, hooked
from tests.rules.gradients import assert_gradients_pass
from tests.rules.loops import FEW, L, normal
from tests.rules.test_delta_rule import gated
from tests.rules.test_matrix_states import (
    ESCAPE,
    READS,
    STEPS,
    Function,
    assert_rolled_up,
    of_another_step,
    reasons,
    values,
)

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")

HEADS: Final = 2, 3
WAYS_OF_EXPORT: Final = ["export", "joint", "pre_grad"]


def heads() -> list[Tensor]:
    """Queries, keys as columns, values, logarithms of decays, boosts, a state [2, 3, 4, 5]."""
    r, w = (normal(*HEADS, L, 4) for _ in range(2))
    return [r, normal(*HEADS, 4, L), normal(*HEADS, L, 5), -w.abs(), normal(3, 4, 1),
            normal(*HEADS, 4, 5)]  # fmt: skip


def rwkv5(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s: Tensor) -> Any:
    """One decay for all steps, and results that are written into a tensor."""
    results = torch.zeros(*HEADS, L, 5, dtype=r.dtype)
    decay = w[0, :, 0, :, None].exp()
    for t in range(L):
        product = k[:, :, :, t : t + 1] @ v[:, :, t : t + 1]
        results[:, :, t] = (r[:, :, t : t + 1] @ (u * product + s)).squeeze(2)
        s = product + decay * s
    return results, s


def rwkv6(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s: Tensor) -> Any:
    """A decay for each step; the last state is not used."""
    results = []
    for t in range(L):
        product = k[:, :, :, t, None] * v[:, :, t, None, :]
        results.append(((s + u[None] * product) * r[:, :, t, :, None]).sum(-2))
        s = s * w[:, :, t].exp()[..., None] + product
    return torch.stack(results, 2)


def of_the_last_state(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s: Tensor) -> Any:
    """The product of the last step is used outside of the loop, by the last state."""
    results = []
    for t in range(L):
        product = k[:, :, :, t, None] * v[:, :, t, None, :]
        results.append((r[:, :, t].unsqueeze(-2) @ (s + product * u)).squeeze(-2))
        s = s * w[:, :, t].exp().unsqueeze(-1) + product
    return torch.stack(results, 2), s


def of_each_element(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s: Tensor) -> Any:
    """The boost is a matrix, which no product of keys takes in."""
    u = u * s[0].sin()
    results = []
    for t in range(L):
        product = k[:, :, :, t, None] * v[:, :, t, None, :]
        results.append(torch.einsum("bhi,bhij->bhj", r[:, :, t], s + u * product))
        s = s * w[:, :, t].exp().unsqueeze(-1) + product
    return torch.stack(results, 2)


def by_a_number(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s: Tensor) -> Any:
    results = []
    for t in range(L):
        product = k[:, :, :, t, None] * v[:, :, t, None, :]
        results.append((r[:, :, t, None] @ (s + 0.5 * product)).squeeze(2))
        s = s * w[:, :, t].exp().unsqueeze(-1) + product
    return torch.stack(results, 2)


@axes(function=[rwkv6, of_the_last_state, by_a_number, of_each_element], way=WAYS_OF_EXPORT)
def test_boosted(function: Function, way: str) -> None:
    report = assert_rolled_up(function, heads(), way)
    by = "linear_recurrence" if function is of_each_element else "linear_attention"
    assert by in str(report)


def test_results_that_are_written_into_a_tensor() -> None:
    assert_rolled_up(rwkv5, heads(), "joint")


def test_gradients_pass() -> None:
    args = [x.requires_grad_() for x in heads()]
    report, result = hooked(of_the_last_state, args, loops.RULES, "pre_grad")
    assert fired(report) == ["loop"]
    assert_gradients_pass(result, of_the_last_state(*args), args)


def test_other_types() -> None:
    """They are computed from all states, in the type of the graph."""
    args = [x.bfloat16() for x in heads()]
    with torch.no_grad():
        report, result = WAYS["export"](rwkv6, args, loops.RULES)
    assert fired(report) == ["loop"]
    expected = rwkv6(*(x.double() for x in args))
    torch.testing.assert_close(result.double(), expected, atol=0.1, rtol=0.1)


def before(step: Function, read: Function) -> Function:
    def function(a: Tensor, k: Tensor, v: Tensor, q: Tensor, p: Tensor, s: Tensor) -> Any:
        results = []
        for t in range(L):
            results.append(read(s, q, p, t))
            s = step(a, k, v, s, t)
        return torch.stack(results, 1), s

    return function


@axes(
    names=[
        ("index", "state"),
        ("index", "row"),
        ("index", "sum of columns"),
        ("summed", "einsum"),
        ("number", "transposed"),
    ],
    way=WAYS_OF_EXPORT,
)
def test_without_a_boost(names: tuple[str, str], way: str) -> None:
    step, read = names
    assert_rolled_up(before(STEPS[step], READS[read]), values(), way)


def test_before_a_step_of_the_delta_rule() -> None:
    assert_rolled_up(before(gated, READS["row"]), values())


def test_a_state_that_is_infinite_is_read_as_it_is() -> None:
    """No step is put before the first one: a key of zeros reads NaN from such a state."""
    *operands, state = values()
    state[:, 0] = torch.inf
    function = before(gated, READS["row"])
    report, result = exported(function, [*operands, state], loops.RULES)
    assert fired(report) == ["loop"]
    torch.testing.assert_close(
        tuple(result), function(*operands, state), atol=1e-9, rtol=1e-9, equal_nan=True
    )
    assert result[0][:, 0].isinf().all()


def from_the_first(join: Callable[[list[Tensor]], Tensor]) -> Function:
    """Results that begin with the state before the first step."""

    def function(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        results = [h]
        for t in range(len(a)):
            h = a[t] * h + b[t]
            results.append(h)
        return join(results)

    return function


@pytest.mark.parametrize("steps", [FEW - 1, FEW - 2])
def test_the_first_state_among_the_results(steps: int) -> None:
    """One result more than there are steps; there must be enough results."""
    function = from_the_first(torch.stack)
    args = [normal(steps, 3).sigmoid(), normal(steps, 3), normal(3)]
    if steps == FEW - 1:
        assert_rolled_up(function, args)
    else:
        assert "so few steps are faster as they are" in reasons(function, args)


# --- near misses ---------------------------------------------------------------------------------


def varied(
    boosted: Callable[..., Tensor] | None = None,
    product: Callable[..., Tensor] | None = None,
    query: Callable[[int], int] = lambda t: t,
    step: Callable[[int], int] = lambda t: t,
) -> Function:
    """`of_the_last_state`, with another way to boost the state or another product that is added,
    or items of other steps.
    """

    def function(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s: Tensor) -> Any:
        def outer(t: int) -> Tensor:
            return k[:, :, :, t, None] * v[:, :, t, None, :]

        results = []
        for t in range(L):
            x = s + u * outer(t) if boosted is None else boosted(s, u, outer, t)
            results.append((x * r[:, :, query(t), :, None]).sum(-2))
            n = step(t)
            added = outer(n) if product is None else product(outer(n))
            s = s * w[:, :, n].exp().unsqueeze(-1) + added
        return torch.stack(results, 2)

    return function


NEAR_MISSES: Final[dict[str, Function]] = {
    "a boost by another step": varied(lambda s, u, outer, t: s + u * outer(of_another_step(t))),
    "a boost by the step before": varied(lambda s, u, outer, t: s + u * outer(max(t - 1, 0))),
    "a boost once": varied(lambda s, u, outer, t: s + u * outer(t) if t == 3 else s),
    "no boost at first": varied(lambda s, u, outer, t: s + u * outer(t) if t else s),
    "another boost once": varied(
        lambda s, u, outer, t: s + (u.cos() if t == 3 else u) * outer(t)
    ),
    "another product": varied(product=lambda x: x.sin()),
    "the state boosted": varied(lambda s, u, outer, t: u * s + outer(t)),
    "a boost without products": varied(lambda s, u, outer, t: s + u),
    "queries in another order": varied(query=of_another_step),
    "queries of the step before": varied(query=lambda t: max(t - 1, 0)),
    "steps in another order": varied(step=of_another_step),
    "a step twice": varied(step=lambda t: max(t - 1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    found = reasons(NEAR_MISSES[name], heads())
    assert all(ESCAPE in reason for reason in found), found


def test_items_from_the_second_on() -> None:
    """Of queries, or of all other operands."""
    ahead = {"queries": lambda t: (t + 1, t), "others": lambda t: (t, t + 1)}
    for name, of in ahead.items():

        def function(*args: Tensor, of: Callable[[int], tuple[int, int]] = of) -> Tensor:
            a, k, v, q, _, s = args
            results = []
            for t in range(L - 1):
                i, j = of(t)
                results.append(READS["row"](s, q, q, i))
                s = STEPS["index"](a, k, v, s, j)
            return torch.stack(results, 1)

        found = reasons(function, values())
        assert all(ESCAPE in reason for reason in found), name


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize("read", [lambda h: h, lambda h: h[None]])
def test_a_step_that_is_left_out(left: int, read: Callable[[Tensor], Tensor]) -> None:
    """Nothing but the factors and summands shows the number of a step."""

    def function(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        results = []
        for t in range(L + 1):
            if t != left:
                results.append(read(h))
                h = a[t] * h + b[t]
        return torch.cat(results)

    found = reasons(function, [normal(L + 1, 3), normal(L + 1, 3), normal(3)])
    assert all(ESCAPE in reason for reason in found), found


def test_a_boost_by_other_keys() -> None:
    def function(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, s: Tensor) -> Tensor:
        results = []
        for t in range(L):
            boosted = s + u * (k[:, :, :, t, None] * v[:, :, t, None, :])
            results.append((r[:, :, t, None] @ boosted).squeeze(2))
            s = 0.9 * s + r[:, :, t, :, None] * v[:, :, t, None, :]
        return torch.stack(results, 2)

    found = reasons(function, heads())
    assert all(ESCAPE in reason for reason in found), found


def test_a_first_state_of_another_size() -> None:
    """It is one row of what is joined, and the others are two."""
    found = reasons(from_the_first(torch.cat), [normal(L, 2, 3), normal(L, 2, 3), normal(1, 3)])
    assert all(ESCAPE in reason for reason in found), found


def test_boosts_of_a_larger_batch() -> None:
    args = heads()
    args[4] = normal(2, 3, 4, 1)
    for i in (0, 1, 2, 3, 5):
        args[i] = args[i][:1]
    found = reasons(of_the_last_state, args)
    assert all(ESCAPE in reason for reason in found), found


def written_otherwise(
    place: Callable[[int], int], first: int = 0, extra: int = 0, left: int = -1
) -> Function:
    def function(a: Tensor, k: Tensor, v: Tensor, q: Tensor, p: Tensor, s: Tensor) -> Tensor:
        results = v.new_zeros(2, L + extra, 5)
        for t in range(L):
            if t != left:
                results[:, place(t)] = READS["einsum"](s, q, p, t + first)
                s = STEPS["index"](a, k, v, s, t + first)
        return results

    return function


@pytest.mark.parametrize(
    "function",
    [
        written_otherwise(of_another_step),
        written_otherwise(lambda t: max(t, 1)),
        written_otherwise(lambda t: t, extra=1),
        written_otherwise(lambda t: t + 1, extra=1),
        written_otherwise(lambda t: t, first=1),
        written_otherwise(lambda t: t + 1, first=1, extra=1),
        written_otherwise(lambda t: t, left=1),
        written_otherwise(lambda t: t, left=2),
    ],
)
def test_results_that_are_written_otherwise(function: Function) -> None:
    args = values(L + 1)
    report, result = WAYS["decomposed"](function, args, loops.RULES)
    assert "loop" not in fired(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)
