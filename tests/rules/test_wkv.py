"""RWKV-4's time mixing, unrolled, becomes one operator; loops that differ are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from transformers.models.rwkv.modeling_rwkv import rwkv_linear_attention_cpu

from pypm.integrations import export
from pypm.rules import loops
from pypm.rules.loops import wkv
from tests.axes import axes
from tests.rules.capture import WAYS, WAYS_AND_HOOKS, fired, hooked
from tests.rules.gradients import assert_gradients_pass
from tests.rules.loops import L

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")

B, C = 2, 3
Function = Callable[..., Any]
OF_ALL, OF_RESULTS = "averages_and_states", "averages"


def values(steps: int = L, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Decay and boost [C], keys and values [B, steps, C], three states [B, C]."""
    made = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)

    keys, values = normal(B, steps, C), normal(B, C, steps).mT
    return [-normal(C).exp(), normal(C), keys, values, normal(B, C), normal(B, C).abs(),
            normal(B, C)]  # fmt: skip


def read(
    key: Tensor, value: Tensor, boost: Tensor, num: Tensor, den: Tensor, top: Tensor
) -> Tensor:
    boosted = boost + key
    most = torch.maximum(top, boosted)
    old, new = torch.exp(top - most), torch.exp(boosted - most)
    return (old * num + new * value) / (old * den + new)


def advance(key: Tensor, value: Tensor, decay: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
    num, den, top = states
    decayed = top + decay
    most = torch.maximum(decayed, key)
    old, new = torch.exp(decayed - most), torch.exp(key - most)
    return old * num + new * value, old * den + new, most


def loop(
    reading: Function = read,
    advancing: Function = advance,
    *,
    join: Callable[[list[Tensor]], Tensor] = lambda x: torch.stack(x, 1),
    order: Callable[[int], int] = lambda t: t,
    reads: Callable[[int], int] = lambda t: t,
    last: bool = True,
) -> Function:
    """All steps; `order` and `reads` give the items that a step adds, and those that it reads."""

    def function(decay: Tensor, boost: Tensor, k: Tensor, v: Tensor, *states: Tensor) -> Any:
        results = []
        for t in range(k.shape[1]):
            seen, added = reads(t), order(t)
            results.append(reading(k[:, seen], v[:, seen], boost, *states))
            states = advancing(k[:, added], v[:, added], decay, *states)
        return (join(results), *states) if last else join(results)

    return function


def of_transformers(*args: Tensor) -> Any:
    """Its keys become float32, which the states are."""
    decay, boost, keys, values, *states = args
    results, last = rwkv_linear_attention_cpu(decay, boost, keys, values, tuple(states))
    return results, *last


def from_nothing(decay: Tensor, boost: Tensor, keys: Tensor, values: Tensor, *_: Tensor) -> Tensor:
    return rwkv_linear_attention_cpu(decay, boost, keys, values)[0]


def without_common_subexpressions(*args: Tensor) -> Any:
    """The key is boosted, and the exponent decayed, once for each use."""

    def reading(key: Tensor, value: Tensor, boost: Tensor, *states: Tensor) -> Tensor:
        num, den, top = states
        most = torch.maximum(key + boost, top)
        old, new = torch.exp(top - most), torch.exp(key + boost - most)
        return (new * value + num * old) / (new + old * den)

    def advancing(key: Tensor, value: Tensor, decay: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        num, den, top = states
        most = torch.maximum(key, decay + top)
        old, new = torch.exp(top + decay - most), torch.exp(key - most)
        return new * value + old * num, new + old * den, most

    return loop(reading, advancing)(*args)


def unbound(decay: Tensor, boost: Tensor, k: Tensor, v: Tensor, *states: Tensor) -> Any:
    """Results along the first dimension, as items of one."""
    results = []
    for key, value in zip(k.unbind(1), v.unbind(1), strict=True):
        results.append(read(key, value, boost, *states).unsqueeze(0))
        states = advance(key, value, decay, *states)
    return torch.cat(results), *states


LOOPS: Final[dict[str, Function]] = {
    "stacked": loop(),
    "results alone": loop(last=False),
    "stacked at the end": loop(join=lambda x: torch.stack(x, -1)),
    "without common subexpressions": without_common_subexpressions,
    "unbound": unbound,
}


def close(found: Any, expected: Any, bound: float = 1e-9) -> None:
    found, expected = ([x] if isinstance(x, Tensor) else [*x] for x in (found, expected))
    torch.testing.assert_close(found, expected, atol=bound, rtol=bound)


def assert_rolled_up(
    function: Function, args: list[Tensor], way: str = "export", bound: float = 1e-9
) -> None:
    with torch.no_grad():
        report, result = WAYS_AND_HOOKS[way](function, args, loops.RULES)
        expected = function(*args)
    rule = OF_RESULTS if isinstance(expected, Tensor) else OF_ALL
    assert fired(report) == [rule], str(report)
    close(result, expected, bound)


@axes(name=LOOPS, way=["decomposed", "export", "joint", "pre_grad"])
def test_loops(name: str, way: str) -> None:
    assert_rolled_up(LOOPS[name], values(), way)


@axes(
    function=[of_transformers, from_nothing],
    way=["decomposed", "export", "joint", "pre_grad"],
    dtype=[torch.bfloat16, torch.float32],
)
def test_transformers(function: Function, way: str, dtype: torch.dtype) -> None:
    """Results are written into a tensor."""
    args = values(dtype=torch.float32)
    args[:4] = [x.to(dtype) for x in args[:4]]
    assert_rolled_up(function, args, way, 1e-5 if dtype == torch.float32 else 1e-2)


def test_results_that_are_written_by_hand() -> None:
    def function(decay: Tensor, boost: Tensor, k: Tensor, v: Tensor, *states: Tensor) -> Any:
        results = torch.empty_like(k)
        for t in range(k.shape[1]):
            results[:, t] = read(k[:, t], v[:, t], boost, *states)
            states = advance(k[:, t], v[:, t], decay, *states)
        return results

    assert_rolled_up(function, values(), "decomposed")


def widened(*args: Tensor) -> Any:
    """Keys and values of bfloat16 are averaged in float32."""

    def reading(key: Tensor, value: Tensor, *rest: Tensor) -> Tensor:
        return read(key.float(), value.float(), *rest).to(key.dtype)

    def advancing(key: Tensor, value: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        return advance(key.float(), value, *rest)

    return loop(reading, advancing)(*args)


@pytest.mark.parametrize("way", ["export", "decomposed", "pre_grad"])
def test_other_types(way: str) -> None:
    args = values(dtype=torch.float32)
    assert_rolled_up(widened, [x.bfloat16() if i < 4 else x for i, x in enumerate(args)], way, 1e-2)
    assert_rolled_up(loop(), values(dtype=torch.bfloat16), way, 0)


def test_gradients_pass() -> None:
    args = [x.requires_grad_() for x in values()]
    for function, rule in ((loop(), OF_ALL), (loop(last=False), OF_RESULTS)):
        report, result = hooked(function, args, loops.RULES, "pre_grad")
        assert fired(report) == [rule]
        leaves = args if rule == OF_ALL else args[:2]
        assert_gradients_pass(result, function(*args), leaves)


def test_shapes_without_a_batch_and_with_heads() -> None:
    decay, boost, k, v, *states = values()
    without = [decay, boost, k[0].unsqueeze(1), v[0].unsqueeze(1), *(x[0] for x in states)]

    def by_step(decay: Tensor, boost: Tensor, k: Tensor, v: Tensor, *states: Tensor) -> Any:
        return loop()(decay, boost, k.transpose(0, 1), v.transpose(0, 1), *states)

    assert_rolled_up(by_step, [decay, boost[:1], *without[2:4], *(x[None] for x in without[4:])])
    heads = [torch.stack([x, x.cos()], -2) for x in (k, v, *states)]
    assert_rolled_up(loop(), [decay, boost, *heads])


def test_states_that_are_broadcast() -> None:
    args = values()
    args[4:] = [torch.zeros(C), torch.zeros(1, C), torch.full((), -1e38)]
    args[4:] = [x.double() for x in args[4:]]
    assert_rolled_up(loop(), args)


def test_the_first_steps_alone() -> None:
    """The states after them are read by the step whose result is left out."""
    assert_rolled_up(loop(join=lambda x: torch.stack(x[:-1], 1)), values())


def test_symbolic_sizes() -> None:
    class Model(torch.nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return loop()(*args)

    batch = torch.export.Dim("batch", min=2)
    args, dynamic = values(), (None, None, *5 * ({0: batch},))
    program = torch.export.export(Model(), tuple(args), dynamic_shapes=(dynamic,))
    assert fired(export.rewrite(program, loops.RULES)) == [OF_ALL]
    other = [*args[:2], *(torch.cat([x, x.cos()]) for x in args[2:])]
    close(program.module()(*other), loop()(*other))


def test_infinities() -> None:
    args = values()
    args[2][0, 2], args[2][1, 3], args[3][0, 4] = torch.inf, -torch.inf, torch.nan
    args[6][1, 0] = -torch.inf
    report, result = WAYS["export"](loop(), args, loops.RULES)
    assert fired(report) == [OF_ALL]
    expected = [*loop()(*args)]
    torch.testing.assert_close([*result], expected, atol=1e-9, rtol=1e-9, equal_nan=True)


# --- what is declined -----------------------------------------------------------------------------


def reasons(function: Function, args: list[Tensor], way: str = "export") -> set[str]:
    """Why the loop stays; checks that it computes what it did."""
    report, result = WAYS[way](function, args, loops.RULES)
    assert not report.rewrites, str(report)
    close(result, function(*args))
    return {refusal.reason for refusal in report.refusals}


def test_few_steps() -> None:
    few = {"so few steps are faster as they are"}
    assert few <= reasons(loop(), values(wkv.FEW - 1))
    assert few <= reasons(loop(last=False), values(wkv.FEW - 1))
    assert_rolled_up(loop(), values(wkv.FEW))


def test_operands_that_the_operator_does_not_take() -> None:
    args = values()
    for i in (0, 1):  # the decay and the boost
        of_rows = [torch.stack([x, x.cos()]) if j == i else x for j, x in enumerate(args)]
        reasons(loop(), of_rows)
        reasons(loop(), [x[0] if j == i else x for j, x in enumerate(args)])
        assert_rolled_up(loop(), [x[None] if j == i else x for j, x in enumerate(args)])
    by_number = loop(lambda k, v, boost, *states: read(k, v, 0.5, *states))
    reasons(by_number, args)
    _, *others = args
    assert "holds all operands" in str(reasons(loop(), [torch.arange(-C, 0), *others]))


def test_keys_and_values_that_are_rounded() -> None:
    def rounded(function: Function) -> Function:
        return lambda key, value, *others: function(key.float(), value.float(), *others)

    reasons(loop(rounded(read), rounded(advance)), values())


# --- near misses ---------------------------------------------------------------------------------


def swapped(t: int) -> int:
    return t + (t == 2) - (t == 3)


def once(other: Function, usual: Function, at: int = 3) -> Function:
    """A function of a step that is another one at one step."""
    count = [0]

    def function(*args: Tensor) -> Any:
        count[0] += 1
        return (other if (count[0] - 1) % L == at else usual)(*args)

    return function


def read_with(
    weight: Function = lambda old, new: (old, new),
    exponent: Function = lambda key, boost, top: key + boost,
    most: Function = torch.maximum,
    value: Function = lambda x: x,
) -> Function:
    def function(key: Tensor, v: Tensor, boost: Tensor, *states: Tensor) -> Tensor:
        num, den, top = states
        boosted = exponent(key, boost, top)
        largest = most(top, boosted)
        old, new = weight(torch.exp(top - largest), torch.exp(boosted - largest))
        return (old * num + new * value(v)) / (old * den + new)

    return function


def advance_with(
    exponent: Function = lambda top, decay, key: top + decay,
    most: Function = torch.maximum,
    den: Function = lambda old, new, den: old * den + new,
    num: Function = lambda old, new, num, value: old * num + new * value,
    top: Function = lambda x: x,
) -> Function:
    def function(key: Tensor, v: Tensor, decay: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        n, d, t = states
        decayed = exponent(t, decay, key)
        largest = most(decayed, key)
        old, new = torch.exp(decayed - largest), torch.exp(key - largest)
        return num(old, new, n, v), den(old, new, d), top(largest)

    return function


def with_sums_swapped(*args: Tensor) -> tuple[Tensor, ...]:
    num, den, top = advance(*args)
    return den, num, top


NEAR_MISSES: Final[dict[str, Function]] = {
    "steps in another order": loop(order=swapped),
    "results in another order": loop(reads=swapped),
    "both in another order": loop(order=swapped, reads=swapped),
    "a step twice": loop(order=lambda t: max(t - 1, 0)),
    "the value of the step before": loop(reads=lambda t: max(t - 1, 0)),
    "begun late": loop(order=lambda t: (t + 1) % L, reads=lambda t: (t + 1) % L),
    "joined in another order": loop(join=lambda x: torch.stack([x[1], x[0], *x[2:]], 1)),
    "a result left out": loop(join=lambda x: torch.stack([*x[:2], *x[3:]], 1)),
    "no weight of what was": loop(read_with(lambda old, new: (old.sin(), new))),
    "weights swapped": loop(read_with(lambda old, new: (new, old))),
    "no boost": loop(read_with(exponent=lambda key, boost, top: key.exp() + boost)),
    "boosted by the state": loop(read_with(exponent=lambda key, boost, top: key + top)),
    "the smaller one": loop(read_with(most=torch.minimum)),
    "another value": loop(read_with(value=torch.sin)),
    "decayed by the key": loop(advancing=advance_with(lambda top, decay, key: top + key)),
    "decay not added": loop(advancing=advance_with(lambda top, decay, key: top - decay)),
    "the smaller state": loop(advancing=advance_with(most=torch.minimum)),
    "sums not weighted": loop(advancing=advance_with(den=lambda old, new, den: den + new)),
    "weights of the sum swapped": loop(
        advancing=advance_with(den=lambda old, new, den: new * den + old)
    ),
    "values not weighted": loop(
        advancing=advance_with(num=lambda old, new, num, value: old * num + value)
    ),
    "an exponent that is changed": loop(advancing=advance_with(top=lambda x: x.sin())),
    "sums swapped": loop(advancing=with_sums_swapped),
    "another boost once": loop(once(lambda k, v, u, *s: read(k, v, u.cos(), *s), read)),
    "another decay once": loop(
        advancing=once(lambda k, v, w, *s: advance(k, v, w.cos(), *s), advance)
    ),
    "another decay at first": loop(
        advancing=once(lambda k, v, w, *s: advance(k, v, w.cos(), *s), advance, 0)
    ),
    "another decay at last": loop(
        advancing=once(lambda k, v, w, *s: advance(k, v, w.cos(), *s), advance, L - 1)
    ),
    "another key once": loop(once(lambda k, *rest: read(k.cos(), *rest), read)),
    "a step that is skipped": loop(advancing=once(lambda k, v, w, *s: s, advance)),
    "a result rounded once": loop(once(lambda *x: read(*x).float().double(), read)),
}


@axes(name=NEAR_MISSES, way=["decomposed", "export"])
def test_near_misses(name: str, way: str) -> None:
    found = reasons(NEAR_MISSES[name], values(), way)
    assert all("outside of the match" in reason for reason in found), found


def test_other_keys_for_results_than_for_states() -> None:
    def function(decay: Tensor, boost: Tensor, k: Tensor, v: Tensor, *states: Tensor) -> Any:
        others, results = k.cos(), []
        for t in range(L):
            results.append(read(others[:, t], v[:, t], boost, *states))
            states = advance(k[:, t], v[:, t], decay, *states)
        return torch.stack(results, 1), *states

    assert "outside of the match" in str(reasons(function, values()))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_state_that_is_read_elsewhere(which: int) -> None:
    def function(decay: Tensor, boost: Tensor, k: Tensor, v: Tensor, *states: Tensor) -> Any:
        results, seen = [], k
        for t in range(L):
            results.append(read(k[:, t], v[:, t], boost, *states))
            states = advance(k[:, t], v[:, t], decay, *states)
            seen = states[which] if t == 2 else seen
        return torch.stack(results, 1), *states, seen.exp()

    assert "outside of the match" in str(reasons(function, values()))


def test_a_result_that_is_read_by_itself() -> None:
    function = loop(join=lambda x: torch.stack(x, 1) + x[2].unsqueeze(1))
    assert "outside of the match" in str(reasons(function, values()))


def test_sums_that_are_rounded_before_they_are_compared() -> None:
    """Keys and boosts of bfloat16 are added in bfloat16, though the states are float32."""
    args = values(dtype=torch.float32)
    args = [x.bfloat16() if i < 4 else x for i, x in enumerate(args)]
    assert not reasons(loop(), args)


@pytest.mark.parametrize("which", [4, 5, 6])
def test_a_first_state_of_another_type(which: int) -> None:
    args = values()
    args[which] = args[which].float()
    reasons(loop(), args)


WRITTEN: Final[dict[str, tuple[Callable[[int], int], int, torch.dtype]]] = {
    "in another order": (swapped, 0, torch.float64),
    "one place twice": (lambda t: max(t, 1), 0, torch.float64),
    "a place that is left": (lambda t: t, 1, torch.float64),
    "a place later": (lambda t: t + 1, 1, torch.float64),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_results_that_are_written_elsewhere(name: str) -> None:
    place, extra, dtype = WRITTEN[name]

    def function(decay: Tensor, boost: Tensor, k: Tensor, v: Tensor, *states: Tensor) -> Any:
        results = torch.zeros(B, L + extra, C, dtype=dtype)
        for t in range(L):
            results[:, place(t)] = read(k[:, t], v[:, t], boost, *states)
            states = advance(k[:, t], v[:, t], decay, *states)
        return results, *states

    reasons(function, values(), "decomposed")
