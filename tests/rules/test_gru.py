"""GRUs written by hand and unrolled become one operator; cells that differ are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.integrations import export
from pypm.kernels.gru import gru as operator
from pypm.rules.loops import gru
from tests.axes import axes
from tests.rules.capture import WAYS, fired, hooked
from tests.rules.gradients import assert_gradients_pass
from tests.rules.loops import L

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")

B, IN, H = 2, 3, 4
Cell = Callable[..., Tensor]


def values(steps: int = L, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x [B, steps, IN], w [IN, 3 H], u [H, 3 H], two biases [3 H], a state [B, H]."""
    made = torch.Generator().manual_seed(0)
    shapes = ((B, steps, IN), (IN, 3 * H), (H, 3 * H), (3 * H,), (3 * H,), (B, H))
    return [torch.randn(s, generator=made, dtype=torch.float64).to(dtype) / 2 for s in shapes]


def chunks(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """As in torch's own documentation."""
    i, k = F.linear(x, w.t(), b).chunk(3, 1), F.linear(h, u.t(), d).chunk(3, 1)
    r, z = (i[0] + k[0]).sigmoid(), (i[1] + k[1]).sigmoid()
    n = (i[2] + r * k[2]).tanh()
    return (1 - z) * n + z * h


def differences(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    i, k = x @ w + b, h @ u + d
    r = torch.sigmoid(k[:, :H] + i[:, :H])
    z = torch.sigmoid(i[:, H : 2 * H] + k[:, H : 2 * H])
    n = torch.tanh(k[:, 2 * H :] * r + i[:, 2 * H :])
    return n + z * (h - n)


def without_biases(x: Tensor, h: Tensor, w: Tensor, u: Tensor, *_: Tensor) -> Tensor:
    i, k = (x @ w).split(H, -1), (h @ u).split(H, -1)
    r, z = (i[0] + k[0]).sigmoid(), (i[1] + k[1]).sigmoid()
    return z * h + (i[2] + r * k[2]).tanh() * (1 - z)


def another_order(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """The update gate first, one bias for two gates, an order of their own for the states."""
    i, k = x @ w, h @ u
    z = (i[:, :H] + k[:, H : 2 * H] + b[:H]).sigmoid()
    r = (i[:, H : 2 * H] + k[:, :H] + b[H : 2 * H]).sigmoid()
    n = (i[:, 2 * H :] + r * k[:, 2 * H :] + d[:H]).tanh()
    return (1 - z) * n + z * h


def apart(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """A weight and a bias for each gate, transposed by itself."""
    (v, w, y), (p, q, s) = w.chunk(3, 1), u.chunk(3, 1)
    (e, f, g), c = b.chunk(3), d[:H]
    r = (F.linear(x, v.t(), e) + F.linear(h, p.t())).sigmoid()
    z = (F.linear(x, w.t(), f) + h @ q).sigmoid()
    n = (F.linear(x, y.t(), g) + r * F.linear(h, s.t(), c)).tanh()
    return (1 - z) * n + z * h


def interleaved(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    i, k = F.linear(x, w.t(), b), F.linear(h, u.t(), d)
    r, z = (i[:, ::3] + k[:, ::3]).sigmoid(), (i[:, 1::3] + k[:, 1::3]).sigmoid()
    n = (i[:, 2::3] + r * k[:, 2::3]).tanh()
    return (1 - z) * n + z * h


def one_gate_twice(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    i, k = F.linear(x, w.t(), b).chunk(3, 1), F.linear(h, u.t(), d).chunk(3, 1)
    z = (i[1] + k[1]).sigmoid()
    n = (i[2] + z * k[2]).tanh()
    return (1 - z) * n + z * h


CELLS: Final[dict[str, Cell]] = {
    f.__name__: f
    for f in (
        chunks,
        differences,
        without_biases,
        another_order,
        apart,
        interleaved,
        one_gate_twice,
    )
}


def unrolled(cell: Cell, results: str = "stack") -> Callable[..., Any]:
    def function(x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor) -> Any:
        states = []
        for t in range(x.shape[1]):
            h = cell(x[:, t], h, w, u, b, d)
            states.append(h)
        match results:
            case "stack":
                return torch.stack(states, 1)
            case "time first":
                return torch.stack(states), h.exp()
            case "cat":
                return torch.cat([s.unsqueeze(1) for s in states], 1), h
            case "last":
                return h
        raise ValueError(results)

    return function


@axes(name=CELLS, results=["stack", "time first", "cat", "last"], way=["decomposed", "export"])
def test_cells(name: str, results: str, way: str) -> None:
    function, args = unrolled(CELLS[name], results), values()
    report, result = WAYS[way](function, args, gru.RULES)
    assert fired(report) == ["last_of_gru" if results == "last" else "gru_layer"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


@axes(results=["stack", "last"], way=["pre_grad", "joint"])
def test_cells_at_the_hooks(results: str, way: str) -> None:
    function, args = unrolled(chunks, results), values()
    with torch.no_grad():
        report, result = hooked(function, args, gru.RULES, way)
    assert fired(report) == ["last_of_gru" if results == "last" else "gru_layer"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


@axes(name=["chunks", "another_order", "apart"], results=["stack", "last"])
def test_gradients_pass(name: str, results: str) -> None:
    function = unrolled(CELLS[name], results)
    args = [x.requires_grad_() for x in values()]
    report, result = hooked(function, args, gru.RULES, "pre_grad")
    assert fired(report) == ["last_of_gru" if results == "last" else "gru_layer"], str(report)
    assert_gradients_pass(result, function(*args), args)


def test_lerp() -> None:
    def cell(*args: Tensor) -> Tensor:
        x, h, w, u, b, d = args
        i, k = F.linear(x, w.t(), b).chunk(3, 1), F.linear(h, u.t(), d).chunk(3, 1)
        r, z = (i[0] + k[0]).sigmoid(), (i[1] + k[1]).sigmoid()
        return torch.lerp((i[2] + r * k[2]).tanh(), h, z)

    report, result = WAYS["export"](unrolled(cell), values(), gru.RULES)
    assert fired(report) == ["gru_layer"], str(report)
    torch.testing.assert_close(result, unrolled(chunks)(*values()), atol=1e-9, rtol=1e-9)


def test_narrow_types() -> None:
    """At most 1.5 times as far from float64 as eager is, or two roundings."""
    function = unrolled(chunks)
    for dtype in (torch.float32, torch.bfloat16):
        args = values(32, dtype)
        report, result = WAYS["export"](function, args, gru.RULES)
        assert fired(report) == ["gru_layer"]
        exact = function(*(x.double() for x in args))
        errors = [(x - exact).abs().max() for x in (result, function(*args))]
        assert result.dtype == dtype and errors[0] <= max(
            1.5 * errors[1], 2 * torch.finfo(dtype).eps
        )


def test_few_steps_are_left_alone() -> None:
    report, _ = WAYS["export"](unrolled(chunks), values(gru.FEW - 1), gru.RULES)
    assert len(report) == 0
    assert report.refusals[0].reason == "so few steps are faster as they are"


def test_symbolic_sizes() -> None:
    class Model(torch.nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return unrolled(chunks)(*args)

    batch = torch.export.Dim("batch", min=2)
    args = values()
    dynamic = (({0: batch}, None, None, None, None, {0: batch}),)
    program = torch.export.export(Model(), tuple(args), dynamic_shapes=dynamic)
    assert fired(export.rewrite(program, gru.RULES)) == ["gru_layer"]
    other = [torch.cat([x, x, x]) if x.shape[0] == B else x for x in args]
    torch.testing.assert_close(program.module()(*other), Model()(*other))


def test_it_is_a_proper_operator() -> None:
    x, w, u, b, d, h = values(3)
    args = [y.detach().requires_grad_() for y in (x.transpose(0, 1), w.t(), u.t(), b, d, h)]
    torch.library.opcheck(operator, tuple(args))
    assert torch.autograd.gradcheck(operator, args)


# --- loops that are declined ---------------------------------------------------------------------


@axes(which=["wu", "w", "u"], more=[1, 2, 3])
def test_weights_with_more_rows_than_gates(more: int, which: str) -> None:
    """What no gate takes is left out."""

    def cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
        i, k = x @ w + b, h @ u + d
        r, z = (i[:, :H] + k[:, :H]).sigmoid(), (i[:, H : 2 * H] + k[:, H : 2 * H]).sigmoid()
        n = (i[:, 2 * H : 3 * H] + r * k[:, 2 * H : 3 * H]).tanh()
        return (1 - z) * n + z * h

    def longer(y: Tensor, name: str) -> Tensor:
        return torch.cat([y, y[..., :more]], -1) if name in which else y

    x, w, u, b, d, h = values()
    args = [x, longer(w, "w"), longer(u, "u"), longer(b, "w"), longer(d, "u"), h]
    report, result = WAYS["export"](unrolled(cell), args, gru.RULES)
    assert fired(report) == ["gru_layer"], str(report)
    torch.testing.assert_close(result, unrolled(cell)(*args))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_inputs_that_are_broadcast_over_the_states(dim: int) -> None:
    def function(x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor) -> Any:
        states = []
        for step in x.unbind(dim):
            h = chunks(step, h, w, u, b, d)
            states.append(h)
        return torch.stack(states, 1)

    x, *rest = values(dtype=torch.float32)
    report, result = WAYS["export"](function, [x[:1].movedim(1, dim), *rest], gru.RULES)
    assert "the inputs have another batch than the states" in {r.reason for r in report.refusals}
    torch.testing.assert_close(result, function(x[:1].movedim(1, dim), *rest))
    report, result = WAYS["export"](function, [x.movedim(1, dim), *rest], gru.RULES)
    assert fired(report) == ["gru_layer"]
    torch.testing.assert_close(result, function(x.movedim(1, dim), *rest))


def narrow_gate(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """One number of the update gate for a whole state."""
    i, k = x @ w, h @ u
    r, z = (i[:, :H] + k[:, :H]).sigmoid(), (i[:, H : H + 1] + k[:, H : H + 1]).sigmoid()
    return (1 - z) * (i[:, 2 * H :] + r * k[:, 2 * H :]).tanh() + z * h


def bias_of_one(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    i, k = torch.addmm(b[:1], x, w).chunk(3, 1), (h @ u).chunk(3, 1)
    r, z = (i[0] + k[0]).sigmoid(), (i[1] + k[1]).sigmoid()
    return (1 - z) * (i[2] + r * k[2]).tanh() + z * h


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (narrow_gate, "a gate has not one row of weights for each element of a state"),
        (bias_of_one, "a bias is not one number for each row"),
    ],
)
def test_gates_of_other_shapes(cell: Cell, reason: str) -> None:
    report, _ = WAYS["export"](unrolled(cell), values(), gru.RULES)
    assert len(report) == 0 and reason in {r.reason for r in report.refusals}, str(report)


# --- near misses ---------------------------------------------------------------------------------


def of(
    last: Callable[..., Tensor] = lambda n, z, h, x: (1 - z) * n + z * h,
    gate: Callable[[Tensor], Tensor] = torch.sigmoid,
    new: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda i, r, k: (i + r * k).tanh(),
) -> Cell:
    def cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
        i, k = F.linear(x, w.t(), b).chunk(3, 1), F.linear(h, u.t(), d).chunk(3, 1)
        r, z = gate(i[0] + k[0]), gate(i[1] + k[1])
        return last(new(i[2], r, k[2]), z, h, x)

    return cell


def reset_before_the_product(x: Tensor, h: Tensor, w: Tensor, u: Tensor, *_: Tensor) -> Tensor:
    i, k = (x @ w).chunk(3, 1), (h @ u).chunk(3, 1)
    r, z = (i[0] + k[0]).sigmoid(), (i[1] + k[1]).sigmoid()
    n = (i[2] + (r * h) @ u[:, 2 * H :]).tanh()
    return (1 - z) * n + z * h


def other_rows(x: Tensor, h: Tensor, w: Tensor, u: Tensor, *_: Tensor) -> Tensor:
    """The update gate's rows, one column off, for the part of the states alone."""
    i, k = x @ w, h @ u
    r = (i[:, :H] + k[:, :H]).sigmoid()
    z = (i[:, H : 2 * H].sigmoid() + k[:, H - 1 : 2 * H - 1].sigmoid()) / 2
    return (1 - z) * (i[:, 2 * H :] + r * k[:, 2 * H :]).tanh() + z * h


def another_state(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """The gates read another value than the state that is mixed."""
    i, k = F.linear(x, w.t(), b).chunk(3, 1), F.linear(h.relu(), u.t(), d).chunk(3, 1)
    r, z = (i[0] + k[0]).sigmoid(), (i[1] + k[1]).sigmoid()
    return (1 - z) * (i[2] + r * k[2]).tanh() + z * h


def two_gates(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    """z is another gate than that of 1 - z."""
    i, k = F.linear(x, w.t(), b).chunk(3, 1), F.linear(h, u.t(), d).chunk(3, 1)
    r, z = (i[0] + k[0]).sigmoid(), (i[1] + k[1]).sigmoid()
    return (1 - z) * (i[2] + r * k[2]).tanh() + r * h


def with_biases(
    of_product: Callable[[Tensor, Tensor], Tensor], of_gate: Callable[[Tensor, Tensor], Tensor]
) -> Cell:
    """What is added to a product, and to the sum of two, from a weight and a bias."""

    def cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
        i, k, e = (x @ w + of_product(w, b)).chunk(3, 1), (h @ u).chunk(3, 1), of_gate(u, d)
        r, z = (i[0] + k[0] + e).sigmoid(), (i[1] + k[1] + e).sigmoid()
        return (1 - z) * (i[2] + r * k[2] + e).tanh() + z * h

    return cell


def once(other: Cell) -> Callable[..., Any]:
    """A loop with another cell in step 3."""

    def function(x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor) -> Any:
        states = []
        for t in range(x.shape[1]):
            h = (other if t == 3 else chunks)(x[:, t], h, w, u, b, d)
            states.append(h)
        return torch.stack(states, 1)

    return function


def in_order(order: Callable[[int, int], int]) -> Callable[..., Any]:
    def function(x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor) -> Any:
        states, steps = [], x.shape[1]
        for t in range(steps):
            h = chunks(x[:, order(t, steps)], h, w, u, b, d)
            states.append(h)
        return torch.stack(states, 1)

    return function


def a_state_read_alone(*args: Tensor) -> Any:
    x, w, u, b, d, h = args
    states = []
    for t in range(x.shape[1]):
        h = chunks(x[:, t], h, w, u, b, d)
        states.append(h)
    return torch.stack(states, 1), states[4].exp()


NEAR_MISSES: Final[dict[str, Callable[..., Any]]] = {
    "update gate swapped": unrolled(of(lambda n, z, h, x: z * n + (1 - z) * h)),
    "difference swapped": unrolled(of(lambda n, z, h, x: h + z * (n - h))),
    "difference the other way": unrolled(of(lambda n, z, h, x: n + z * (n - h))),
    "two minus": unrolled(of(lambda n, z, h, x: (2 - z) * n + z * h)),
    "a skip connection": unrolled(of(lambda n, z, h, x: (1 - z) * n + z * h + h)),
    "the input as the state": unrolled(of(lambda n, z, h, x: (1 - z) * n + z * x.sum())),
    "relu for tanh": unrolled(of(new=lambda i, r, k: (i + r * k).relu())),
    "sigmoid for tanh": unrolled(of(new=lambda i, r, k: (i + r * k).sigmoid())),
    "hard gates": unrolled(of(gate=F.hardsigmoid)),
    "reset of the input": unrolled(of(new=lambda i, r, k: (r * i + k).tanh())),
    "reset of both": unrolled(of(new=lambda i, r, k: (r * (i + k)).tanh())),
    "no reset": unrolled(of(new=lambda i, r, k: (i + k).tanh())),
    **{
        f.__name__.replace("_", " "): unrolled(f)
        for f in (
            reset_before_the_product,
            other_rows,
            another_state,
            two_gates,
        )
    },
    "a matrix as bias": unrolled(with_biases(lambda w, b: w[:B], lambda u, d: d[:H])),
    "one number as bias": unrolled(with_biases(lambda w, b: b[:1], lambda u, d: d[:H])),
    "a matrix added to gates": unrolled(with_biases(lambda w, b: b, lambda u, d: u[:B, :H])),
    "one number added to gates": unrolled(with_biases(lambda w, b: b, lambda u, d: d[:1])),
    "another weight once": once(lambda x, h, w, u, b, d: chunks(x, h, w, u.tanh(), b, d)),
    "another bias once": once(lambda x, h, w, u, b, d: chunks(x, h, w, u, d, b)),
    "another state once": once(lambda x, h, *rest: chunks(x, h.relu(), *rest)),
    "another order once": once(another_order),
    "backwards": in_order(lambda t, n: n - 1 - t),
    "steps out of order": in_order(lambda t, n: {2: 3, 3: 2}.get(t, t)),
    "begun late": in_order(lambda t, n: (t + 1) % n),
    "a step twice": in_order(lambda t, n: max(t - 1, 0)),
    "a state read alone": a_state_read_alone,
}


SLOW: Final = (
    "steps out of order", "another weight once", "another bias once", "another state once",
    "another order once", "a state read alone",
)  # fmt: skip
"""Decomposed, each is searched for a second or two."""


@axes(name=[name for name in NEAR_MISSES if name not in SLOW], way=["decomposed", "export"])
def test_near_misses(name: str, way: str) -> None:
    report, _ = WAYS[way](NEAR_MISSES[name], values(), gru.RULES)
    assert len(report) == 0, str(report)


@axes(name=SLOW, way=["export", "decomposed"])
def test_near_misses_that_are_searched_for_long(name: str, way: str) -> None:
    report, _ = WAYS[way](NEAR_MISSES[name], values(), gru.RULES)
    assert len(report) == 0, str(report)
