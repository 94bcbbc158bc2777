"""Loops that tracing unrolled are rolled up; loops that look like them are left alone."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import rewrite
from pypm.integrations import export
from pypm.rules import loops
from pypm.rules.loops import recurrences
from pypm.rules.vocabulary import indexing
from tests.axes import axes
from tests.rules.capture import WAYS, WAYS_AND_HOOKS, fired, hooked
from tests.rules.gradients import assert_gradients_pass
from tests.rules.loops import L, normal

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")

Function = Callable[..., Any]


def values(steps: int = L, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Factors and summands [2, steps, 3], a state [2, 3], in two layouts."""
    a, b = normal(2, steps, 3, dtype=dtype).sigmoid(), normal(2, 3, steps, dtype=dtype).mT
    return [a, b, normal(2, 3, dtype=dtype)]


# --- loops ---------------------------------------------------------------------------------------


def selected(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


def in_another_order(a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    states = []
    for t in range(a.shape[1]):
        h = b.select(1, t) + h * a.select(-2, t)
        states.append(h)
    return torch.stack(states), h


def from_the_end_of_the_index(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(-a.shape[1], 0):
        h = a[:, t, :] * h + b[..., t, :]
        states.append(h)
    return torch.stack(states, -1)


def unbound(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for x, y in zip(a.unbind(1), b.unbind(1), strict=True):
        h = x * h + y
        states.append(h)
    return torch.stack(states, dim=1)


def sliced(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    h, states = h[:, None], []
    for t in range(a.shape[1]):
        h = a[:, t : t + 1] * h + b[:, t : t + 1]
        states.append(h)
    return torch.cat(states, 1)


def pieces(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    h, states = h[:, None], []
    for x, y in zip(a.split(1, 1), b.split(1, 1), strict=True):
        h = x * h + y
        states.append(h)
    return torch.cat(states, -1)


def unsqueezed(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h.unsqueeze(1))
    return torch.cat(states, 1)


def from_zero(a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h, states = torch.zeros_like(h), []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1), h.exp()


def of_one_factor(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(b.shape[1]):
        h = a[:, 0] * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


def of_a_number(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(b.shape[1]):
        h = 0.9 * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


def of_broadcast_factors(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    a, h, states = a[0, :, :1], h[0], []
    for t in range(a.shape[0]):
        h = a[t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


def of_the_first_steps(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    return selected(a, torch.cat([b, b], 1), h)


def scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """Mamba's selective scan as transformers writes it, with states [2, 3, 4]."""
    factors = torch.exp(-a.mT[:, :, :, None] * torch.arange(1, 5).to(a.dtype))
    summands, c = b.mT[:, :, :, None] * factors.cos(), factors[:, 0].sin()
    h, results = torch.zeros_like(h)[:, :, None].expand(2, 3, 4), []
    for t in range(a.shape[1]):
        h = factors[:, :, t, :] * h + summands[:, :, t, :]
        y = torch.matmul(h.to(a.dtype), c[:, t, :].unsqueeze(-1))
        results.append(y[:, :, 0])
    return torch.stack(results, dim=-1)


def summed(a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    states = []
    for t in range(b.shape[1]):
        h = h + b[:, t]
        states.append(h)
    return torch.stack(states, 1), h


def linear_attention(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """A row times each state, whose summands are outer products of all steps."""
    products, s = a.unsqueeze(-1) * b.unsqueeze(-2), h.new_zeros(2, 3, 3)
    results = []
    for t in range(a.shape[1]):
        s = s + products[:, t]
        results.append((b[:, t].unsqueeze(-2) @ s).squeeze(-2))
    return torch.stack(results, 1)


def retention(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """The same with two heads and a factor for each."""
    decay = h.sigmoid()[:, :2, None, None]
    a, b = (torch.stack([x, x.cos()], 1) for x in (a, b))
    products, s = a.unsqueeze(-1) * b.unsqueeze(-2), 0 * h[:, None, :, None]
    results = []
    for t in range(a.shape[2]):
        s = decay * s + products[:, :, t]
        results.append(torch.matmul(a[:, :, t].unsqueeze(-2), s).squeeze(-2))
    return torch.stack(results, 2)


def last(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
    return h


LOOPS: Final[dict[str, Function]] = {
    f.__name__: f
    for f in (
        selected,
        in_another_order,
        from_the_end_of_the_index,
        unbound,
        sliced,
        pieces,
        unsqueezed,
        from_zero,
        of_one_factor,
        of_a_number,
        of_broadcast_factors,
        of_the_first_steps,
        scan,
        summed,
        linear_attention,
        retention,
        last,
    )
}


def names(function: Function) -> list[str]:
    return ["last_state" if function is last else "loop"]


@axes(name=LOOPS, way=["decomposed", "export"])
def test_loops(name: str, way: str) -> None:
    function, args = LOOPS[name], values()
    report, result = WAYS[way](function, args, loops.RULES)
    assert fired(report) == names(function), str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


@axes(function=[scan, unbound, sliced, last], way=["joint", "pre_grad"])
def test_loops_at_the_hooks(function: Function, way: str) -> None:
    args = values()
    with torch.no_grad():
        report, result = hooked(function, args, loops.RULES, way)
    assert fired(report) == names(function), str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("function", [scan, selected, of_one_factor, last])
def test_gradients_pass(function: Function) -> None:
    args = [x.detach().requires_grad_() for x in values()]
    report, result = hooked(function, args, loops.RULES, "pre_grad")
    assert fired(report) == names(function), str(report)
    assert_gradients_pass(result, function(*args), args)


READS: Final[dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]]] = {
    "column": (lambda h, c: torch.matmul(h, c.unsqueeze(-1))[:, :, 0], "scan"),
    "row": (lambda h, c: (c[:, None] @ h.mT)[:, 0], "scan"),
    "sum": (lambda h, c: (h * c[:, None]).sum(-1), "scan"),
    "einsum": (lambda h, c: torch.einsum("bmn,bn->bm", h, c), "scan"),
    "along the rows": (lambda h, c: (h * c[:, :, None]).sum(-2), "linear_recurrence"),
    "narrower": (lambda h, c: (h.to(c.dtype) @ c[..., None])[..., 0], "linear_recurrence"),
}
"""Products of states [2, 4, 4] with a vector, and the operator that computes them."""


@pytest.mark.parametrize("read", READS)
def test_states_that_vectors_read(read: str) -> None:
    by_vector, operator = READS[read]
    a, b, h = normal(2, L, 4, 4).sigmoid(), normal(2, 4, L, 4), normal(2, 4, 4)
    c = normal(2, L, 4)
    c = c.float() if read == "narrower" else c

    def function(a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        results = []
        for t in range(L):
            h = a[:, t] * h + b[:, :, t]
            results.append(by_vector(h, c[:, t]))
        return torch.stack(results, 1), h

    report, result = WAYS["export"](function, [a, b, c, h], loops.RULES)
    assert fired(report) == ["loop"] and f" {operator}," in str(report), str(report)
    expected = function(a, b, c, h)
    torch.testing.assert_close(tuple(result), expected)
    torch.testing.assert_close(result[1], expected[1], atol=1e-9, rtol=1e-9)


def test_symbolic_sizes() -> None:
    class Model(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor, h: Tensor) -> Any:
            return scan(a[:2], b[:2], h[:2]), selected(a, b, h)

    batch = torch.export.Dim("batch", min=3)
    args = [torch.cat([x, x, x]) for x in values()]
    program = torch.export.export(Model(), tuple(args), dynamic_shapes=3 * ({0: batch},))
    assert fired(export.rewrite(program, loops.RULES)) == ["loop", "loop"]
    other = [torch.cat([x, x]) for x in args]
    torch.testing.assert_close(program.module()(*other), Model()(*other))


def test_narrow_types() -> None:
    """No further from float64 than eager is."""
    for dtype in (torch.float32, torch.bfloat16):
        args = values(32, dtype)
        report, result = WAYS["export"](selected, args, loops.RULES)
        assert fired(report) == ["loop"]
        exact = selected(*(x.double() for x in args))
        errors = [(x - exact).abs().max() for x in (result, selected(*args))]
        assert result.dtype == dtype and errors[0] <= 1.05 * errors[1]


def test_work_grows_with_the_steps() -> None:
    """The search is linear: a loop of 256 steps takes four times the calls that one of 64 takes."""

    def calls(steps: int) -> int:
        gm = make_fx(selected, tracing_mode="fake")(*values(steps))
        counted = Counter[str]()
        sys.setprofile(lambda frame, event, of: counted.update([event]))
        try:
            assert fired(rewrite(gm, loops.RULES)) == ["loop"]
        finally:
            sys.setprofile(None)
        return counted["call"]

    calls(16)  # prepares the rules
    assert calls(256) < 5 * calls(64)


# --- near misses ---------------------------------------------------------------------------------


def with_a_skip(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    earlier, states = h, []
    for t in range(a.shape[1]):
        h, earlier = a[:, t] * h + b[:, t] + earlier, h
        states.append(h)
    return torch.stack(states, 1)


def from_two_steps_before(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    earlier, states = h, []
    for t in range(a.shape[1]):
        h, earlier = a[:, t] * earlier + b[:, t], h
        states.append(h)
    return torch.stack(states, 1)


def by_order(order: Callable[[int, int], int], of: int = 1) -> Function:
    """A loop in which step t reads the items of another step: `of` 0 for factors, 1 for both."""

    def function(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        states, steps = [], a.shape[1]
        for t in range(steps):
            u = order(t, steps)
            h = a[:, u] * h + b[:, u if of else t]
            states.append(h)
        return torch.stack(states, 1)

    return function


def another_weight_once(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states, other = [], a.tanh()
    for t in range(a.shape[1]):
        h = (other if t == 3 else a)[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


def another_number_once(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(a.shape[1]):
        h = (0.8 if t == 3 else 0.9) * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


def results_out_of_order(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states[::-1], 1)


def without_one_result(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states[:3] + states[4:], 1)


def changed_once(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(a.shape[1]):
        h = a[:, t] * (h.relu() if t == 3 else h) + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


def subtracted_once(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(a.shape[1]):
        h = a[:, t] * h - b[:, t] if t == 3 else a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


def read_alone(a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    states = []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1), states[3].exp()


def factors_of_the_state(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(a.shape[1]):
        h = a[:, t] * h.sigmoid() * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


def two_of_a_slice(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    h, states = h[:, None].expand(2, 2, 3), []
    for t in range(a.shape[1] - 1):
        h = a[:, t : t + 2] * h + b[:, t : t + 2]
        states.append(h)
    return torch.cat(states, 1)


def a_product_of_other_batches(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    h, results = h[:, :, None].expand(2, 3, 2), []
    for t in range(a.shape[1]):
        h = a[:, t, :, None] * h + b[:, t, :, None]
        results.append(torch.matmul(h, a[:, t, None, :2].unsqueeze(-1))[..., 0])
    return torch.stack(results, -1)


def another_row_of_the_product(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    c, results = a.expand(2, *a.shape).transpose(0, 1).transpose(2, 3), []
    h = h[:, :, None].expand(2, 3, 2)
    for t in range(a.shape[1]):
        h = a[:, t, :, None] * h + b[:, t, :, None]
        results.append(torch.matmul(h, c[:, :, 0, t].unsqueeze(-1).expand(2, 2, 2))[:, :, 1])
    return torch.stack(results, -1)


def another_row_of_a_larger_product(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    products, s, results = a.unsqueeze(-1) * b.unsqueeze(-2), h.new_zeros(2, 3, 3), []
    for t in range(a.shape[1]):
        s = s + products[:, t]
        results.append((b[:, t].unsqueeze(-2).expand(2, 2, 3) @ s)[:, 1])
    return torch.stack(results, 1)


def a_row_of_other_batches(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    products, s, results = a.unsqueeze(-1) * b.unsqueeze(-2), h.new_zeros(2, 3, 3), []
    for t in range(a.shape[1]):
        s = s + products[:, t]
        results.append((b[0, t].unsqueeze(-2) @ s).squeeze(-2))
    return torch.stack(results, 1)


def a_row_of_another_step(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    products, s, results = a.unsqueeze(-1) * b.unsqueeze(-2), h.new_zeros(2, 3, 3), []
    for t in range(a.shape[1]):
        s = s + products[:, t]
        results.append((b[:, t - 1].unsqueeze(-2) @ s).squeeze(-2))
    return torch.stack(results, 1)


def a_sum_once(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(a.shape[1]):
        h = h + b[:, t] if t == 3 else a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


NEAR_MISSES: Final[dict[str, Function]] = {
    "steps out of order": by_order(lambda t, n: {2: 3, 3: 2}.get(t, t)),
    "factors out of order": by_order(lambda t, n: {2: 3, 3: 2}.get(t, t), of=0),
    "a step read from the end": by_order(lambda t, n: n - 1 - t if t == 3 else t),
    "backwards": by_order(lambda t, n: n - 1 - t),
    "a step read twice": by_order(lambda t, n: t - (t > 3)),
    "every other step": by_order(lambda t, n: 2 * t % n),
    "begun late": by_order(lambda t, n: (t + 1) % n),
    **{
        f.__name__.replace("_", " "): f
        for f in (
            with_a_skip,
            from_two_steps_before,
            another_weight_once,
            another_number_once,
            results_out_of_order,
            without_one_result,
            changed_once,
            subtracted_once,
            read_alone,
            factors_of_the_state,
            two_of_a_slice,
            a_product_of_other_batches,
            another_row_of_the_product,
            another_row_of_a_larger_product,
            a_row_of_other_batches,
            a_row_of_another_step,
            a_sum_once,
        )
    },
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    report, _ = WAYS["decomposed"](NEAR_MISSES[name], values(), loops.RULES)
    assert len(report) == 0, str(report)


def test_near_misses_of_the_last_state() -> None:
    for order in (lambda t: L - 1 - t, lambda t: t - (t == 3), lambda t: (t + 1) % L):

        def function(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
            for t in range(L):
                h = a[:, order(t)] * h + b[:, order(t)]  # noqa: B023
            return h

        assert not WAYS["decomposed"](function, values(), loops.RULES)[0].rewrites


def test_a_loop_that_begins_later_is_none() -> None:
    def function(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        states = []
        for t in range(1, a.shape[1]):
            h = a[:, t] * h + b[:, t]
            states.append(h)
        return torch.stack(states, 1)

    report, _ = WAYS["decomposed"](function, values(L + 1), recurrences.loop)
    assert not report.rewrites and not report.refusals, str(report)


@pytest.mark.parametrize("first", [True, False])
def test_items_of_fewer_dimensions_than_the_state(first: bool) -> None:
    """As many rows as steps: what is lined up along the wrong dimension has a shape that fits."""

    def function(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        states = []
        for t in range(L):
            h = 0.9 * h + (a[t] * b[:, t] if first else b[:, t] * a[t])
            states.append(h)
        return torch.stack(states, 1)

    args = [normal(L, 5), normal(L, L, 5), normal(L, 5)]
    report, result = WAYS["export"](function, args, loops.RULES)
    assert fired(report) == ["loop"]
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


PRODUCTS: Final = {
    "of matrices": ((L, 5, 5), (L, 5, 5), (5, 5)),
    "of a column and a number": ((L, 4, 1), (L, 1), (4,)),
    "of two numbers": ((L, 1), (L, 1), ()),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_that_are_no_outer_ones(name: str) -> None:
    def function(x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        for t in range(L):
            h = 0.5 * h + x[t] @ y[t]
        return h

    report, _ = WAYS["export"](function, [normal(*n) for n in PRODUCTS[name]], loops.RULES)
    assert not report.rewrites and not report.refusals, str(report)


def test_states_that_are_rounded() -> None:
    def function(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        for t in range(L):
            h = (a[:, t] * h + b[:, t]).float().double()
        return h

    report, _ = WAYS["export"](function, values(), loops.RULES)
    assert not report.rewrites and not report.refusals, str(report)


def test_few_steps_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # thresholds as shipped
    for way, steps in (("export", recurrences.FEW - 1), ("pre_grad", recurrences.FEW)):
        args = values(steps)
        report, _ = WAYS_AND_HOOKS[way](selected, args, loops.RULES)
        assert len(report) == 0
        assert report.refusals[0].reason == "so few steps are faster as they are"


def test_an_index_that_is_no_integer() -> None:
    for bounds in ((1.0, 2, None), (1, 2.0, None), (1, 3, None)):
        with pytest.raises(ValueError, match=r"no integer|too many values"):
            indexing.only(4, *bounds)
    assert indexing.only(4, -1, None, None) == 3


def test_types_that_differ() -> None:
    a, b, h = values()
    report, _ = WAYS["export"](selected, [a, b.float(), h], loops.RULES)
    assert len(report) == 0
    assert "not of one floating-point type" in str(report)


def test_a_write_in_between() -> None:
    def function(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        states = []
        for t in range(a.shape[1]):
            h = a[:, t] * h + b[:, t]
            states.append(h)
            if t == 3:
                a.mul_(2)
        return torch.stack(states, 1)

    args = values()
    gm = make_fx(function, tracing_mode="fake")(*(x.clone() for x in args))
    assert not rewrite(gm, loops.RULES).rewrites


def summed_up(factor: complex | None, first: complex | None = None) -> Function:
    def function(a: Tensor, b: Tensor, h: Any) -> Tensor:
        h, states = h if first is None else first, []
        for t in range(L):
            h = (a[:, t] if factor is None else factor) * h + b[:, t]
            states.append(h)
        return torch.stack(states)

    return function


HELD: Final = {
    "0.5": (summed_up(0.5), True),
    "0.99": (summed_up(0.99), False),
    "1e-8": (summed_up(1e-8), False),
    "from 3": (summed_up(None, 3.0), True),
    "from 1e5": (summed_up(None, 1e5), False),
    "from 1/3": (summed_up(None, 1 / 3), False),
}


@axes(name=HELD, dtype=[torch.float16, torch.bfloat16, torch.float32])
def test_numbers_that_a_narrow_type_would_round(name: str, dtype: torch.dtype) -> None:
    """Eager multiplies by them in float32."""
    function, is_held = HELD[name]
    args = values(L, dtype)
    report, result = WAYS["export"](function, args, loops.RULES)
    assert len(report) == (is_held or dtype == torch.float32), str(report)
    rounding = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(result, function(*args), atol=rounding, rtol=rounding)


@pytest.mark.parametrize("function", [summed_up(1j), summed_up(None, 1j)], ids=["factor", "first"])
def test_a_complex_number(function: Function) -> None:
    report, _ = WAYS["export"](function, values(), loops.RULES)
    assert not len(report)


@pytest.mark.parametrize("shapes", [((1, 6), (6, 1)), ((6, 1), (1, 6))], ids=str)
def test_products_whose_batches_are_merged_apart(shapes: tuple[tuple[int, ...], ...]) -> None:
    one, other = shapes

    def function(k: Tensor, v: Tensor, h: Tensor) -> Tensor:
        for t in range(L):
            product = torch.bmm(k[t].reshape(6, 3, 1), v[t].reshape(6, 1, 4))
            h = h + product.reshape(1, 6, 3, 4)
        return h

    args = [normal(L, *one, 3, 1), normal(L, *other, 1, 4), normal(1, 6, 3, 4)]
    report, _ = WAYS["export"](function, args, loops.RULES)
    assert len(report) == 0
