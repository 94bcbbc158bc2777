"""Plain recurrent layers, unrolled, become one operator; cells that differ are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.fx import INDUCTOR, rewrite
from pypm.integrations import export
from pypm.kernels.rnn import rnn as operator
from pypm.rules.loops import rnn
from tests.axes import axes
from tests.rules.capture import WAYS, fired, hooked, whole_operators
from tests.rules.gradients import assert_gradients_pass
from tests.rules.loops import L

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")

B, IN, H, OUT = 2, 3, 4, 5
Cell = Callable[..., Tensor]
Loop = Callable[..., Any]


def values(steps: int = L, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x [B, steps, IN], weights [H, IN] and [H, H], two biases, [OUT, H], a state [B, H]."""
    made = torch.Generator().manual_seed(0)
    shapes = ((B, steps, IN), (H, IN), (H, H), (H,), (H,), (OUT, H), (B, H))
    return [torch.randn(s, generator=made, dtype=torch.float64).to(dtype) / 2 for s in shapes]


def layers(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return torch.tanh(F.linear(x, w, b) + F.linear(h, u, d))


def states_first(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return torch.relu(h @ u + d + x @ w.t())


def one_bias(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return torch.tanh(F.linear(x, w) + F.linear(h, u) + b)


def joined(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return torch.tanh(F.linear(torch.cat([x, h], 1), torch.cat([w, u], 1), b))


def joined_states_first(x: Tensor, h: Tensor, w: Tensor, u: Tensor, *rest: Tensor) -> Tensor:
    return torch.relu(torch.cat([h, x], -1) @ torch.cat([u, w], 1).t())


CELLS: Final[dict[str, Cell]] = {
    f.__name__: f for f in (layers, states_first, one_bias, joined, joined_states_first)
}


def looped(
    cell: Cell,
    results: str = "stack",
    step: Callable[[int, int], int] = lambda t, n: t,
    batch_first: bool = True,
) -> Loop:
    """A loop over the steps, of which number t of n takes item `step(t, n)`."""

    def function(
        x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, v: Tensor, h: Tensor
    ) -> Any:
        states, n = [], x.shape[batch_first]
        for t in range(n):
            h = cell(x[:, step(t, n)] if batch_first else x[step(t, n)], h, w, u, b, d)
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
            case "last first":
                return torch.stack(states[::-1]), h
            case "layers of states":
                return torch.stack([F.linear(state, v) for state in states]), h
        raise ValueError(results)

    return function


def backwards(t: int, n: int) -> int:
    return n - 1 - t


def assert_rolled_up(function: Loop, args: list[Tensor], way: str, results: str = "stack") -> None:
    report, result = WAYS[way](function, args, rnn.RULES)
    assert fired(report) == ["last_of_rnn" if results == "last" else "rnn_layer"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


RESULTS: Final = ("stack", "time first", "cat", "last", "last first", "layers of states")


@axes(name=CELLS, results=RESULTS, way=["decomposed", "export"])
def test_cells(name: str, results: str, way: str) -> None:
    assert_rolled_up(looped(CELLS[name], results), values(), way, results)


@axes(results=RESULTS, way=["decomposed", "export"], name=["layers", "joined"])
def test_steps_that_run_backwards(results: str, way: str, name: str) -> None:
    assert_rolled_up(looped(CELLS[name], results, backwards), values(), way, results)


@axes(way=["export", "decomposed"], results=["stack", "last"])
def test_inputs_with_the_steps_first(way: str, results: str) -> None:
    x, *rest = values()
    args = [x.transpose(0, 1).contiguous(), *rest]
    assert_rolled_up(looped(layers, results, batch_first=False), args, way, results)


@axes(results=["stack", "layers of states", "last"], way=["pre_grad", "joint"])
def test_cells_at_the_hooks(results: str, way: str) -> None:
    function, args = looped(joined, results), values()
    with torch.no_grad():
        report, result = hooked(function, args, rnn.RULES, way)
    assert fired(report) == ["last_of_rnn" if results == "last" else "rnn_layer"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


@axes(name=["layers", "states_first"], results=["layers of states", "last"])
def test_gradients_pass(name: str, results: str) -> None:
    function = looped(CELLS[name], results)
    args = [x.requires_grad_() for x in values()]
    report, result = hooked(function, args, rnn.RULES, "pre_grad")
    assert fired(report) == ["last_of_rnn" if results == "last" else "rnn_layer"], str(report)
    assert_gradients_pass(result, function(*args), args)


@pytest.mark.parametrize("options", [{"nonlinearity": "relu"}, {"bias": False}])
def test_torch_s_layer(options: dict[str, Any]) -> None:
    """Two layers, each in both directions, as Inductor sees them."""
    x = values()[0]
    layer = torch.nn.RNN(IN, H, 2, batch_first=True, bidirectional=True, **options).double()
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        report, result = hooked(layer, [x], rnn.RULES)
        torch.testing.assert_close(result, layer(x), atol=1e-9, rtol=1e-9)
    assert fired(report) == 4 * ["rnn_layer"], str(report)


def test_narrow_types() -> None:
    """At most 1.5 times as far from float64 as eager is, or two roundings."""
    function = looped(layers)
    for dtype in (torch.float32, torch.bfloat16):
        args = values(32, dtype)
        report, result = WAYS["export"](function, args, rnn.RULES)
        assert fired(report) == ["rnn_layer"]
        exact = function(*(x.double() for x in args))
        errors = [(x - exact).abs().max() for x in (result, function(*args))]
        assert result.dtype == dtype and errors[0] <= max(
            1.5 * errors[1], 2 * torch.finfo(dtype).eps
        )


def test_few_steps_are_left_alone() -> None:
    report, _ = WAYS["export"](looped(layers), values(rnn.FEW - 1), rnn.RULES)
    assert len(report) == 0
    assert report.refusals[0].reason == "so few steps are faster as they are"


def test_symbolic_sizes() -> None:
    class Model(torch.nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return looped(layers)(*args)

    batch = torch.export.Dim("batch", min=2)
    args = values()
    dynamic = (({0: batch}, *5 * (None,), {0: batch}),)
    program = torch.export.export(Model(), tuple(args), dynamic_shapes=dynamic)
    assert fired(export.rewrite(program, rnn.RULES)) == ["rnn_layer"]
    other = [torch.cat([x, x, x]) if x.shape[0] == B else x for x in args]
    torch.testing.assert_close(program.module()(*other), Model()(*other))


@pytest.mark.parametrize("relu", [False, True])
def test_it_is_a_proper_operator(relu: bool) -> None:
    x, _, u, _, _, _, h = values(3)
    made = torch.linspace(-1, 1, x.shape[1] * B * H, dtype=torch.float64).view(-1, B, H)
    args = [y.detach().requires_grad_() for y in (made, u.t(), h)]
    torch.library.opcheck(operator, (*args, relu))
    assert torch.autograd.gradcheck(operator, (*args, relu))


# --- loops that are declined ---------------------------------------------------------------------

ROWS: Final = "the inputs, or the state before the first step, have other rows than the states"
COLUMNS: Final = "a weight has not one row for each element of a state"
BIAS: Final = "a bias is not one number for each element of a state"


@pytest.mark.parametrize(
    ("exchanged", "reason"),
    [
        ({0: (1, L, IN)}, ROWS),
        ({6: (1, H)}, ROWS),
        ({1: (1, IN)}, COLUMNS),
        ({2: (1, H)}, COLUMNS),
    ],
    ids=["inputs", "a first state", "a weight of the inputs", "a weight of the states"],
)
def test_operands_that_are_broadcast(exchanged: dict[int, tuple[int, ...]], reason: str) -> None:
    args = values()
    for place, shape in exchanged.items():
        args[place] = args[place][tuple(slice(n) for n in shape)].contiguous()
    function = looped(of())
    report, result = WAYS["export"](function, args, rnn.RULES)
    reasons = {refusal.reason for refusal in report.refusals}
    assert not len(report) and reason in reasons, str(report)
    torch.testing.assert_close(result, function(*args))


def test_sums_of_the_inputs_that_are_broadcast() -> None:
    """One number, or one row, is added to all of a state."""

    def function(x: Tensor, u: Tensor, h: Tensor) -> Tensor:
        states = []
        for step in x.unbind(1):
            h = torch.tanh(step + h @ u)
            states.append(h)
        return torch.stack(states, 1)

    x, _, u, *_, h = values()
    for sums in (x[..., :1], x[0, :, :1].t()):
        report, result = WAYS["export"](function, [sums, u, h], rnn.RULES)
        assert len(report) == 0 and report.refusals, str(report)
        torch.testing.assert_close(result, function(sums, u, h))


def test_a_bias_of_one_number() -> None:
    def cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
        return torch.tanh(torch.addmm(b[:1], x, w.t()) + h @ u)

    report, _ = WAYS["export"](looped(cell), values(), rnn.RULES)
    assert not len(report) and BIAS in {each.reason for each in report.refusals}, str(report)


def test_autocast_regions() -> None:
    """Products in bfloat16, states in float32: another computation than the operator's."""

    def function(*args: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return looped(layers)(*args)

    args = values(dtype=torch.float32)
    module = whole_operators(function, args)
    rewrite(module, rnn.RULES, dialect=INDUCTOR)
    torch.testing.assert_close(module(*args), function(*args), atol=0.02, rtol=0.02)


# --- near misses ---------------------------------------------------------------------------------


def of(product: Callable[[Tensor, Tensor], Tensor] = F.linear, **others: Any) -> Cell:
    """`tanh(x w + h u)`, of which a part is another one."""
    act, merged, state = (
        others.get(name, default)
        for name, default in (
            ("act", torch.tanh), ("merged", torch.add), ("state", lambda h: h),
        )
    )  # fmt: skip

    def cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
        return act(merged(product(x, w), F.linear(state(h), u)))

    return cell


def once(other: Cell) -> Loop:
    """A loop with another cell in step 3."""

    def function(*args: Tensor) -> Any:
        x, w, u, b, d, _, h = args
        states = []
        for t in range(x.shape[1]):
            h = (other if t == 3 else layers)(x[:, t], h, w, u, b, d)
            states.append(h)
        return torch.stack(states, 1)

    return function


def joining(order: Callable[[Tensor, Tensor], list[Tensor]]) -> Cell:
    def cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
        both = torch.cat(order(x, h), 1)
        return torch.tanh(both @ torch.ones(both.shape[1], H, dtype=x.dtype))

    return cell


def a_state_read_alone(*args: Tensor) -> Any:
    x, w, u, b, d, _, h = args
    states = []
    for t in range(x.shape[1]):
        h = layers(x[:, t], h, w, u, b, d)
        states.append(h)
    return torch.stack(states, 1), states[4].exp()


def all_but_the_first(*args: Tensor) -> Any:
    x, w, u, b, d, _, h = args
    states = []
    for t in range(x.shape[1]):
        h = layers(x[:, t], h, w, u, b, d)
        states.append(h)
    return torch.stack(states[:0:-1])


def another_layer_once(*args: Tensor) -> Any:
    x, w, u, b, d, v, h = args
    results = []
    for t in range(x.shape[1]):
        h = layers(x[:, t], h, w, u, b, d)
        results.append(F.linear(h, v.exp() if t == 3 else v))
    return torch.stack(results)


NEAR_MISSES: Final[dict[str, Loop]] = {
    "sigmoid": looped(of(act=torch.sigmoid)),
    "a leaky activation": looped(of(act=F.leaky_relu)),
    "a skip connection": looped(lambda x, h, *rest: of()(x, h, *rest) + h),
    "a difference": looped(of(merged=torch.sub)),
    "twice the state's product": looped(of(merged=lambda i, k: torch.add(i, k, alpha=2))),
    "a product of products": looped(of(merged=torch.mul)),
    "an activated state": looped(of(state=torch.relu)),
    "an activated input": looped(of(product=lambda x, w: F.linear(x, w).relu())),
    "a matrix as bias": looped(lambda x, h, w, u, b, d: torch.tanh(x @ w.t() + h @ u + u[:B])),
    "one number as bias": looped(lambda x, h, w, u, b, d: torch.tanh(x @ w.t() + h @ u + b[:1])),
    "two states joined": looped(joining(lambda x, h: [h, h])),
    "three joined": looped(joining(lambda x, h: [x, h, x])),
    "another weight once": once(lambda x, h, w, u, b, d: layers(x, h, w, u.tanh(), b, d)),
    "another bias once": once(lambda x, h, w, u, b, d: layers(x, h, w, u, d, b)),
    "another state once": once(lambda x, h, *rest: layers(x, h.relu(), *rest)),
    "relu once": once(lambda x, h, w, u, b, d: (F.linear(x, w, b) + F.linear(h, u, d)).relu()),
    "steps out of order": looped(layers, step=lambda t, n: {2: 3, 3: 2}.get(t, t)),
    "backwards from the last but one": looped(layers, step=lambda t, n: (n - 2 - t) % n),
    "to and fro": looped(layers, step=lambda t, n: min(t, n - 1 - t)),
    "begun late": looped(layers, step=lambda t, n: (t + 1) % n),
    "a step twice": looped(layers, step=lambda t, n: max(t - 1, 0)),
    "the last of steps out of order": looped(layers, "last", lambda t, n: {2: 3, 3: 2}.get(t, t)),
    "the last of fewer steps": looped(layers, "last", lambda t, n: min(t, n - 2)),
    "the last first, steps out of order": looped(
        layers, "last first", lambda t, n: {2: 3, 3: 2}.get(t, t)
    ),
    "the last first, without the first": all_but_the_first,
    "a state read alone": a_state_read_alone,
    "another layer of a state once": another_layer_once,
}


@axes(name=NEAR_MISSES, way=["decomposed", "export"])
def test_near_misses(name: str, way: str) -> None:
    report, _ = WAYS[way](NEAR_MISSES[name], values(), rnn.RULES)
    assert len(report) == 0, str(report)
