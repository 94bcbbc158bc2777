"""Loops whose steps cast: what that leaves exact is rolled up, and what it rounds is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.rules import loops
from tests.axes import axes
from tests.rules.capture import WAYS, WAYS_AND_HOOKS, fired, hooked
from tests.rules.loops import L, normal

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")

Function = Callable[..., Any]
ROUNDED: Final = torch.bfloat16


def values(dtype: torch.dtype = ROUNDED) -> list[Tensor]:
    """Factors, keys and values [2, L, 3]."""
    a, k, v = (normal(2, L, n) for n in (3, 3, 3))
    return [x.to(dtype) for x in (a.sigmoid(), k, v.cos())]


def recurrent_gemma(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """`RecurrentGemmaRglru._rnn_scan` of transformers."""
    h, results = torch.zeros(b[:, 0].shape, dtype=torch.float32), torch.zeros_like(b)
    for t in range(b.shape[1]):
        h = a[:, t].type(torch.float32) * h.to(a.device)
        h = h + b[:, t].type(torch.float32)
        results[:, t] = h.type(b.dtype)
    return results, h


def in_the_memory_of_a_transposed(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return recurrent_gemma(a, b.mT.contiguous().mT, c)


def stacked(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    h, results = torch.zeros_like(b[:, 0], dtype=torch.float32), []
    for t in range(b.shape[1]):
        h = a[:, t].float() * h + b[:, t].float()
        results.append(h.to(b.dtype))
    return torch.stack(results, 1)


def of_one_kind(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Only the summands are narrower."""
    a, h, results = a.float().cos(), 0.0, []
    for t in range(b.shape[1]):
        h = a[:, t] * h + b[:, t].float()
        results.append(h)
    return torch.stack(results, 1)


def reshaped(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    h, results = torch.zeros(2, 1, 3), []
    for t in range(b.shape[1]):
        h = a[:, t, None].float() * h + b[:, t].float().unsqueeze(1)
        results.append(h)
    return torch.stack(results, 1)


def narrower(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Items are rounded, states have their type."""
    a, h = a.float().sin(), torch.zeros(2, 3, dtype=ROUNDED)
    for t in range(b.shape[1]):
        h = a[:, t].bfloat16() * h + b[:, t].bfloat16()
    return h


def outer_products(a: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s, results = torch.zeros(2, 3, 3), []
    for t in range(k.shape[1]):
        q, x, y = (z[:, t].float() for z in (a, k, v))
        s = 0.5 * s + x[:, :, None] * y[:, None]
        results.append((s * q[..., None]).sum(-2).to(k.dtype))
    return torch.stack(results, 1), s


def einsums(a: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s, results = torch.zeros(2, 3, 3), []
    for t in range(k.shape[1]):
        s = 0.5 * s + torch.einsum("bi,bj->bij", k[:, t].float(), v[:, t].float())
        results.append(torch.einsum("bi,bij->bj", a[:, t].float(), s).to(k.dtype))
    return torch.stack(results, 1), s


def delta_rule(a: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s, results = torch.zeros(2, 3, 3), []
    for t in range(k.shape[1]):
        q, x, y = (z[:, t].float() for z in (a, k * 0.1, v))
        change = y - (s * x[..., None]).sum(-2)
        s = s + x[:, :, None] * change[:, None]
        results.append((s * q[..., None]).sum(-2).to(k.dtype))
    return torch.stack(results, 1), s


LOOPS: Final = (
    recurrent_gemma, in_the_memory_of_a_transposed, stacked, of_one_kind, reshaped, narrower,
    outer_products, einsums, delta_rule,
)  # fmt: skip


@axes(function=LOOPS, way=["decomposed", "joint", "export", "pre_grad"])
def test_loops(function: Function, way: str) -> None:
    args = values()
    with torch.no_grad():
        report, result = WAYS_AND_HOOKS[way](function, args, loops.RULES)
    assert fired(report) == ["last_state" if function is narrower else "loop"], str(report)
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (result, function(*args)))
    torch.testing.assert_close([*found], [*expected])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    """Of float32, no cast changes anything; of float64, each item is rounded."""
    args = values(dtype)
    report, result = WAYS["export"](recurrent_gemma, args, loops.RULES)
    assert fired(report) == ["loop"], str(report)
    expected = recurrent_gemma(*args)
    assert [x.dtype for x in result] == [dtype, torch.float32]
    rounding = 4 * max(torch.finfo(x).eps for x in (dtype, torch.float32))
    torch.testing.assert_close(tuple(result), expected, atol=rounding, rtol=rounding)


def test_gradients_pass() -> None:
    args = [x.requires_grad_() for x in values(torch.float64)]
    report, result = hooked(recurrent_gemma, args, loops.RULES, "pre_grad")
    assert fired(report) == ["loop"], str(report)
    ours, theirs = (
        torch.autograd.grad(states.cos().sum() + last.sin().sum(), args[:2])
        for states, last in (result, recurrent_gemma(*args))
    )
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


# --- near misses ---------------------------------------------------------------------------------


def by_casts(
    item: Function = lambda x: x.float(),
    state: Function = lambda h: h,
    result: Function = lambda h: h,
    once: Function | None = None,
) -> Function:
    """A loop with casts of the items, of the state and of the results; `once` casts one state."""

    def function(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        h, results = torch.zeros(2, 3), []
        for t in range(b.shape[1]):
            h = item(a[:, t]) * h + item(b[:, t])
            h = once(h) if once is not None and t == 3 else state(h)
            results.append(result(h))
        return torch.stack(results, 1)

    return function


def read_in_two_casts(a: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The state is rounded, and read in its own type."""
    s, results, a, k, v = torch.zeros(2, 3, 3), [], a.float(), k.float(), v.float()
    for t in range(k.shape[1]):
        s = 0.5 * s + k[:, t, :, None] * v[:, t, None]
        results.append((s.bfloat16().float() * a[:, t, :, None]).sum(-2))
    return torch.stack(results, 1)


def read_in_a_narrower_type(a: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The product is computed in float32 of a state in bfloat16."""
    s, results, a, k, v = torch.zeros(2, 3, 3), [], a.float(), k.float(), v.float()
    for t in range(k.shape[1]):
        s = 0.5 * s + k[:, t, :, None] * v[:, t, None]
        results.append((s.bfloat16() * a[:, t, :, None]).sum(-2))
    return torch.stack(results, 1)


def products_that_are_rounded(a: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.zeros(2, 3, 3)
    for t in range(k.shape[1]):
        s = 0.5 * s + (k[:, t, :, None] * v[:, t, None]).float()
    return s


def sums_that_are_rounded(a: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The step sums in a narrower type, and the state before it is that of float32."""
    s = torch.zeros(2, 3, dtype=ROUNDED)
    for t in range(k.shape[1]):
        s = (a[:, t].float() * s.float()).bfloat16() + k[:, t]
    return s


def changes_that_are_rounded(a: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.zeros(2, 3, 3)
    for t in range(k.shape[1]):
        x, y = k[:, t].float(), v[:, t].float()
        change = (y - (s * x[..., None]).sum(-2)).bfloat16().float()
        s = s + x[:, :, None] * change[:, None]
    return s


def logarithms_that_are_rounded(a: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.zeros(2, 3)
    for t in range(k.shape[1]):
        s = a[:, t].exp().float() * s + k[:, t].float()
    return s


def another_type_once(a: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s, results = torch.zeros(2, 3), []
    for t in range(k.shape[1]):
        x = k[:, t].half().float() if t == 3 else k[:, t].float()
        s = a[:, t].float() * s + x
        results.append(s)
    return torch.stack(results, 1)


NEAR_MISSES: Final[dict[str, Function]] = {
    "states in a narrower type": by_casts(state=lambda h: h.bfloat16().float()),
    "states that a product widens": by_casts(state=lambda h: h.bfloat16()),
    "one state in a narrower type": by_casts(once=lambda h: h.bfloat16().float()),
    "items rounded twice": by_casts(item=lambda x: x.half().float()),
    "results rounded twice": by_casts(result=lambda h: h.bfloat16().float()),
    "integers": by_casts(item=lambda x: x.int().float()),
    **{
        f.__name__.replace("_", " "): f
        for f in (
            read_in_two_casts, read_in_a_narrower_type, products_that_are_rounded,
            sums_that_are_rounded, changes_that_are_rounded, logarithms_that_are_rounded,
            another_type_once,
        )
    },
}  # fmt: skip


@axes(name=NEAR_MISSES, way=["decomposed", "joint", "export", "pre_grad"])
def test_near_misses(name: str, way: str) -> None:
    function, args = NEAR_MISSES[name], values(ROUNDED)
    with torch.no_grad():
        report, _ = WAYS_AND_HOOKS[way](function, args, loops.RULES)
    assert not fired(report), str(report)
