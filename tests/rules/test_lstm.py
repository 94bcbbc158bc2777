"""LSTMs written by hand and unrolled become one operator; cells that differ are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.integrations import export
from pypm.kernels.lstm import lstm as operator
from pypm.rules.loops import lstm
from tests.axes import axes
from tests.rules.capture import WAYS, fired, hooked
from tests.rules.gradients import assert_gradients_pass
from tests.rules.loops import L

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")

B, IN, H = 2, 3, 4
Cell = Callable[..., tuple[Tensor, Tensor]]


def values(steps: int = L, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x [B, steps, IN], w [IN, 4 H], u [H, 4 H], two biases, two states [B, H]."""
    made = torch.Generator().manual_seed(0)
    shapes = ((B, steps, IN), (IN, 4 * H), (H, 4 * H), (4 * H,), (4 * H,), (B, H), (B, H))
    return [torch.randn(s, generator=made, dtype=torch.float64).to(dtype) / 2 for s in shapes]


def activated(i: Tensor, f: Tensor, g: Tensor, o: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def chunks(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Any:
    i, f, g, o = (x @ w + h @ u + b).chunk(4, 1)
    return activated(i, f, g, o, c)


def layers(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Any:
    sums = F.linear(x, w.t(), b) + F.linear(h, u.t(), d)
    i, f, g, o = sums.split(H, -1)
    return activated(i, f, g, o, c)


def another_order(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, *_: Tensor) -> Any:
    sums = h @ u + x @ w
    f, i, o, g = sums[:, :H], sums[:, H : 2 * H], sums[:, 2 * H : 3 * H], sums[:, 3 * H :]
    c = i.sigmoid() * g.tanh() + c * f.sigmoid()
    return c.tanh() * torch.sigmoid(o), c


def one_gate_twice(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, *rest: Tensor) -> Any:
    i, f, g, _ = (x @ w + h @ u).chunk(4, 1)
    return activated(i, f, g, i, c)


CELLS: Final[dict[str, Cell]] = {
    f.__name__: f for f in (chunks, layers, another_order, one_gate_twice)
}


def unrolled(cell: Cell, results: str = "stack") -> Callable[..., Any]:
    def function(
        x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor, c: Tensor
    ) -> Any:
        states = []
        for t in range(x.shape[1]):
            h, c = cell(x[:, t], h, c, w, u, b, d)
            states.append(h)
        match results:
            case "stack":
                return torch.stack(states, 1), c
            case "cat":
                return torch.cat([s.unsqueeze(1) for s in states], 1), h
            case "last":
                return h
        raise ValueError(results)

    return function


@axes(name=CELLS, results=["stack", "cat", "last"], way=["decomposed", "export"])
def test_cells(name: str, results: str, way: str) -> None:
    function, args = unrolled(CELLS[name], results), values()
    report, result = WAYS[way](function, args, lstm.RULES)
    assert fired(report) == ["last_of_lstm" if results == "last" else "lstm_layer"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("way", ["pre_grad", "joint"])
def test_cells_at_the_hooks(way: str) -> None:
    function, args = unrolled(layers), values()
    with torch.no_grad():
        report, result = hooked(function, args, lstm.RULES, way)
    assert fired(report) == ["lstm_layer"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ["chunks", "another_order"])
def test_gradients_pass(name: str) -> None:
    function = unrolled(CELLS[name])
    args = [x.requires_grad_() for x in values()]
    report, result = hooked(function, args, lstm.RULES, "pre_grad")
    assert fired(report) == ["lstm_layer"], str(report)
    assert_gradients_pass(result, function(*args), args)


def test_few_steps_are_left_alone() -> None:
    report, _ = WAYS["export"](unrolled(chunks), values(lstm.FEW - 1), lstm.RULES)
    assert len(report) == 0
    assert report.refusals[0].reason == "so few steps are faster as they are"


@pytest.mark.parametrize("results", ["stack", "last"])
def test_states_without_elements_are_left_alone(results: str) -> None:
    x, *rest = values(dtype=torch.float32)
    args = [x, *(y[..., :0] for y in rest)]
    args[2] = args[2][:0]
    report, result = WAYS["decomposed"](unrolled(chunks, results), args, lstm.RULES)
    assert len(report) == 0
    torch.testing.assert_close(result, unrolled(chunks, results)(*args))


@pytest.mark.parametrize("results", ["stack", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_that_is_broadcast_over_the_gates(dtype: torch.dtype, results: str) -> None:
    def cell(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, *rest: Tensor) -> Any:
        return activated(*(x @ w[:, :1] + h @ u).chunk(4, 1), c)

    args = values(dtype=dtype)
    report, result = WAYS["export"](unrolled(cell, results), args, lstm.RULES)
    reason = "the inputs do not have as many rows of weights as the states"
    assert not len(report) and reason in {refusal.reason for refusal in report.refusals}
    torch.testing.assert_close(result, unrolled(cell, results)(*args))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_inputs_that_are_broadcast_over_the_states(dim: int) -> None:
    def function(x: Tensor, *rest: Tensor) -> Any:
        w, u, b, _, h, c = rest
        states = []
        for step in x.unbind(dim):
            h, c = chunks(step, h, c, w, u, b, b)
            states.append(h)
        return torch.stack(states, 1)

    x, *rest = values(dtype=torch.float32)
    args = [x[:1].movedim(1, dim), *rest]
    report, result = WAYS["export"](function, args, lstm.RULES)
    reasons = {refusal.reason for refusal in report.refusals}
    assert "the inputs have another batch than the states" in reasons
    torch.testing.assert_close(result, function(*args))


def test_symbolic_sizes() -> None:
    class Model(torch.nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return unrolled(chunks)(*args)

    batch = torch.export.Dim("batch", min=2)
    args = values()
    dynamic = (({0: batch}, None, None, None, None, {0: batch}, {0: batch}),)
    program = torch.export.export(Model(), tuple(args), dynamic_shapes=dynamic)
    assert fired(export.rewrite(program, lstm.RULES)) == ["lstm_layer"]
    other = [torch.cat([x, x, x]) if x.shape[0] == B else x for x in args]
    torch.testing.assert_close(program.module()(*other), Model()(*other))


def test_it_is_a_proper_operator() -> None:
    x, w, u, b, _, h, c = values(3)
    args = [y.requires_grad_() for y in (x.transpose(0, 1), w.t(), u.t(), b, h, c)]
    args = [y.detach().requires_grad_() for y in args]
    torch.library.opcheck(operator, tuple(args))
    assert torch.autograd.gradcheck(operator, args)


# --- near misses ---------------------------------------------------------------------------------


def with_peepholes(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, *rest: Tensor) -> Any:
    i, f, g, o = (x @ w + h @ u).chunk(4, 1)
    return activated(i + c, f, g, o, c)


def forget_coupled(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, *rest: Tensor) -> Any:
    i, f, g, o = (x @ w + h @ u).chunk(4, 1)
    c = f.sigmoid() * c + (1 - f.sigmoid()) * g.tanh()
    return o.sigmoid() * c.tanh() + 0 * i, c


def without_tanh(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, *rest: Tensor) -> Any:
    i, f, g, o = (x @ w + h @ u).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c, c


def once(other: Cell) -> Callable[..., Any]:
    """A loop with another cell in step 3."""

    def function(
        x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor, c: Tensor
    ) -> Any:
        states = []
        for t in range(x.shape[1]):
            h, c = (other if t == 3 else chunks)(x[:, t], h, c, w, u, b, d)
            states.append(h)
        return torch.stack(states, 1)

    return function


def in_order(order: Callable[[int, int], int]) -> Callable[..., Any]:
    def function(
        x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor, c: Tensor
    ) -> Any:
        states, steps = [], x.shape[1]
        for t in range(steps):
            h, c = chunks(x[:, order(t, steps)], h, c, w, u, b, d)
            states.append(h)
        return torch.stack(states, 1)

    return function


NEAR_MISSES: Final[dict[str, Callable[..., Any]]] = {
    **{f.__name__: unrolled(f) for f in (with_peepholes, forget_coupled, without_tanh)},
    "another weight once": once(lambda x, h, c, w, u, b, d: chunks(x, h, c, w, u.tanh(), b, d)),
    "another bias once": once(lambda x, h, c, w, u, b, d: chunks(x, h, c, w, u, d, b)),
    "another cell state once": once(lambda x, h, c, *rest: chunks(x, h, c.relu(), *rest)),
    "another order once": once(another_order),
    "the hidden state as the cell's": once(lambda x, h, c, *rest: chunks(x, c, h, *rest)),
    "backwards": in_order(lambda t, n: n - 1 - t),
    "steps out of order": in_order(lambda t, n: {2: 3, 3: 2}.get(t, t)),
    "a step twice": in_order(lambda t, n: max(t - 1, 0)),
    "begun late": in_order(lambda t, n: (t + 1) % n),
}


def other_rows(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, *rest: Tensor) -> Any:
    sums = x @ w + h @ u
    return activated(sums[:, 1 : H + 1], *(sums[:, n * H : (n + 1) * H] for n in (1, 2, 3)), c)


def test_gates_with_any_rows() -> None:
    report, result = WAYS["export"](unrolled(other_rows), values(), lstm.RULES)
    assert len(report) == 1, str(report)
    torch.testing.assert_close(result, unrolled(other_rows)(*values()))


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    report, _ = WAYS["decomposed"](NEAR_MISSES[name], values(), lstm.RULES)
    assert len(report) == 0, str(report)
