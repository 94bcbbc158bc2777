"""The rule checker: every planted bug is found, no right rule is called wrong."""

import inspect
import json
import re

import pytest
import torch
from rich.console import Console

from pypm import RuleSet, pattern, rule
from pypm.core.operators import Operator
from pypm.core.patterns import Alt, Call, Definition, Mu, Op, Var
from pypm.core.rules import Rule
from pypm.fx import aten
from pypm.rules.attention.rules import sdpa
from pypm.rules.recurrences import wkv
from pypm.rules.recurrences.loops import FEW
from pypm.tools import (
    Exact,
    FewSolved,
    NeverFired,
    Refused,
    StaticProblem,
    Unexercised,
    UpToRounding,
    verify,
)
from tests.rules import test_quantization
from tests.rules.shipped import SHIPPED
from tests.tools.right_rules import RIGHT, half, layer_norm, minus, rms_norm
from tests.tools.wrong_rules import WRONG, chain_cut_short, eps_of_another_norm

# --- the planted bugs ---------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_planted_bug_is_found(wrong: Rule) -> None:
    kind, operators = WRONG[wrong]
    verification = verify(wrong, gradients=kind == "gradient")
    assert not verification.ok
    found = verification.wrong[0]
    assert found.kind == kind
    assert found.counterexample.operators <= operators
    check_counterexample(found.counterexample.code, kind)


def check_counterexample(code: str, kind: str) -> None:
    """That a counterexample runs, and shows what it is said to show."""
    space: dict[str, object] = {}
    if kind == "crash":
        with pytest.raises(RuntimeError):
            exec(code, space)
        return
    exec(code, space)
    before, after = space["before"], space.get("after")
    assert callable(before)
    if after is None:
        return
    assert callable(after)
    inputs = [space[name] for name in inspect.signature(before).parameters]
    if kind in ("value", "nonfinite"):
        expected, actual = _outputs(before(*inputs)), _outputs(after(*inputs))
        assert not all(map(torch.equal, expected, actual))


def _outputs(value: object) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]


def test_there_are_enough_planted_bugs() -> None:
    assert len(WRONG) >= 30
    assert len({kind for kind, _ in WRONG.values()}) >= 7


# --- rules that are right -----------------------------------------------------------------------


@pytest.mark.parametrize("right", RIGHT, ids=str)
def test_no_false_alarm(right: Rule) -> None:
    verification = verify(right, samples=25)
    assert verification.ok, str(verification)
    assert isinstance(verification.findings[0], RIGHT[right])
    assert verification.trials[0].fired >= 6


def test_rounding_is_measured() -> None:
    (found,) = verify(rms_norm, samples=40).findings
    assert isinstance(found, UpToRounding)
    assert 0 < found.error <= found.tolerance < 1e-9


def test_gradients_of_a_right_rule() -> None:
    assert verify(layer_norm, samples=20, gradients=True).ok


def test_the_same_seed_gives_the_same_result() -> None:
    one, two = (verify(chain_cut_short, seed=7) for _ in range(2))
    assert one.wrong == two.wrong


# --- the rules of the library -------------------------------------------------------------------


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def both_turned(q: torch.Tensor, k: torch.Tensor, *angles: torch.Tensor) -> list[torch.Tensor]:
    return [turned(x, *angles) for x in (q, k)]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v


HEADS = [torch.randn(2, 3, 4, 8, dtype=torch.float64) for _ in range(3)]


def routed(x, w, ids):
    return torch.bmm(w[ids], x.unsqueeze(-1)).squeeze(-1)


def attend_by_difference(q, k, v):
    a, b = torch.softmax(q @ k.mT, -1).chunk(2, 1)
    return (a - b * 0.5) @ v


def attend_beside_sinks(q, k, v, sinks):
    column = sinks[:, None, None].expand(*q.shape[:-1], 1)
    joined = torch.cat([q @ k.transpose(-2, -1), column], -1)
    return torch.softmax(joined, -1)[..., :-1] @ v


def unrolled(a, b, h):
    states = []
    for t in range(len(a)):
        h = a[t] * h + b[t]
        states.append(h)
    return torch.stack(states)


def last_of_unrolled(a, b, h):
    for t in range(len(a)):
        h = a[t] * h + b[t]
    return h


def states_of_cells(x, w, u, h, c):
    states = []
    for step in x:
        i, f, g, o = (step @ w + h @ u).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return states


def cells(*args):
    return torch.stack(states_of_cells(*args))


def last_of_cells(*args):
    return states_of_cells(*args)[-1]


def gru_states(x, w, u, h):
    states = []
    for step in x:
        i, k = (step @ w).chunk(3, 1), (h @ u).chunk(3, 1)
        z = (i[1] + k[1]).sigmoid()
        h = (1 - z) * (i[2] + (i[0] + k[0]).sigmoid() * k[2]).tanh() + z * h
        states.append(h)
    return states


def gru_cells(*args):
    return torch.stack(gru_states(*args))


def last_of_gru_cells(*args):
    return gru_states(*args)[-1]


GRU_CELLS = [torch.randn(n) for n in ((16, 2, 3), (3, 12), (4, 12), (2, 4))]
CELLS = [torch.randn(n) for n in ((16, 2, 3), (3, 16), (4, 16), (2, 4), (2, 4))]


def averages_and_states(decay, boost, keys, values, num, den, top):
    results = []
    for key, value in zip(keys, values, strict=True):
        most = torch.maximum(top, key + boost)
        old, new = (top - most).exp(), (key + boost - most).exp()
        results.append((old * num + new * value) / (old * den + new))
        most = torch.maximum(top + decay, key)
        old, new = (top + decay - most).exp(), (key - most).exp()
        num, den, top = old * num + new * value, old * den + new, most
    return torch.stack(results), num, den, top


def averages(*args):
    return averages_and_states(*args)[0]


AVERAGED = [torch.randn(n) for n in (3, 3, (wkv.FEW, 3), (wkv.FEW, 3), 3)]
AVERAGED += [torch.rand(3), torch.randn(3)]
STEPS = [torch.randn(n, 3) for n in (FEW, FEW)] + [torch.randn(3)]


EXAMPLES = {
    "loop": [(unrolled, STEPS)],
    "last_state": [(last_of_unrolled, STEPS)],
    "averages_and_states": [(averages_and_states, AVERAGED)],
    "averages": [(averages, AVERAGED)],
    "lstm_layer": [(cells, CELLS)],
    "last_of_lstm": [(last_of_cells, CELLS)],
    "gru_layer": [(gru_cells, GRU_CELLS)],
    "last_of_gru": [(last_of_gru_cells, GRU_CELLS)],
    "grouped_experts": [(routed, [torch.randn(5, 3), torch.randn(4, 6, 3), torch.arange(5) % 4])],
    "sdpa": [(attend, HEADS)],
    "stacked_differential_attention": [
        (attend_by_difference, [torch.randn(2, heads, 5, 8) for heads in (4, 4, 2)])
    ],
    "sdpa_with_sinks": [(attend_beside_sinks, [*HEADS, torch.randn(3)])],
    **test_quantization.EXAMPLES,
    "rotary_of_both": [(both_turned, [torch.randn(2, 3, 4, 8) for _ in range(4)])],
}
"""Of rules that ask for more than samples of their patterns have, such as halves of one value."""
SEEDS = {"attention": 2, "attention_of_fixed_queries": 7}
"""Of rules so large that few samples can be made: where one of 20 is rewritten."""


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_rules(name: str) -> None:
    examples = EXAMPLES.get(name, [])
    seed, samples = (SEEDS[name], 20) if name in SEEDS else (0, 12)
    verification = verify(
        SHIPPED[name], samples=samples, seed=seed, nonfinite=False, examples=examples
    )
    for finding in verification.findings:
        match finding:
            case NeverFired(_, reasons):  # its kernel is not on this machine, or in this dialect
                tried = [reason for reason in reasons if not reason.startswith("not made: ")]
                assert tried
                assert all(reason.startswith(("declined: ", "alone: ")) for reason in tried)
            case _:
                fine = (Exact, UpToRounding, FewSolved, Unexercised, Refused)
                assert isinstance(finding, fine), finding


def test_examples_of_the_user() -> None:
    verification = verify(sdpa, samples=0, nonfinite=False, examples=[(attend, HEADS)])
    assert verification.ok
    assert verification.trials[0].fired == 1


def test_attention_without_heads() -> None:
    inputs = [torch.randn(0, 3, 8) for _ in range(3)]
    verification = verify(sdpa, samples=0, examples=[(attend, inputs)])
    assert verification.findings == (
        NeverFired("sdpa", {"declined: the heads do not divide into groups": 1}),
    )


# --- what is seen without running ---------------------------------------------------------------


def static(*rules: Rule) -> list[str]:
    found = verify(RuleSet(rules), samples=1).findings
    return [f.diagnostic.message for f in found if isinstance(f, StaticProblem)]


RELU = Operator("aten.relu")


def test_an_unbound_name() -> None:
    either = Rule("either", ("x", "y"), (Alt(Op(RELU, (Var("x"),)), Var("y")),), Var("x"))
    [first, second] = static(either)
    assert "`x`" in first
    assert "`y`" in second


def test_recursion_without_an_end() -> None:
    names = frozenset({"x"})
    body = Alt(Call(0, ("x",)), Op(RELU, (Var("x"),)))
    endless = Mu(Definition("Endless", ("x",), frozenset(), names, names, body), ("x",))
    assert static(Rule("endless", ("x",), (endless,), Var("x")))


@pattern
def General(x):
    return aten.relu(x)


@pattern
def General(x):
    return aten.relu(aten.neg(x))


@rule(General)
def general(x):
    return torch.clamp_min(x, 0)


def test_an_alternate_out_of_reach() -> None:
    [message] = static(general)
    assert message.startswith("an alternate of rule `general` is never reached")


@pattern
def Special(x):
    return aten.relu(aten.neg(x))


@rule(Special)
def special(x):
    return torch.clamp_min(-x, 0)


@pattern
def AnyRelu(x):
    return aten.relu(x)


@rule(AnyRelu)
def any_relu(x):
    return torch.clamp_min(x, 0)


def test_a_shadowed_rule() -> None:
    assert any("`special` never fires" in message for message in static(any_relu, special))
    assert static(special, any_relu) == []


@pattern
def ClampedBelow(x):
    return aten.clamp_min(x, 0)


@rule(ClampedBelow)
def back_again(x):
    return torch.relu(x)


def test_two_rules_that_undo_each_other() -> None:
    assert verify(back_again, samples=5).ok
    assert verify(any_relu, samples=5).ok
    together = verify([any_relu, back_again], samples=5)
    assert {wrong.kind for wrong in together.wrong} == {"loops"}


# --- what is not known --------------------------------------------------------------------------


@rule(AnyRelu)
def impossible(x):
    assert x.rank == 2 and x.rank == 3
    return torch.clamp_min(x, 0)


def test_a_rule_that_never_fires() -> None:
    verification = verify(impossible, samples=5)
    assert not verification.ok
    assert isinstance(verification.findings[0], NeverFired)


@pattern
def Either(x):
    return aten.sigmoid(x)


@pattern
def Either(x):
    assert x.rank == 2 and x.rank == 3
    return aten.tanh(x)


@rule(Either)
def either(x):
    assert x.dtype == torch.float64
    return torch.reciprocal(1 + torch.exp(-x))


def test_an_alternate_that_no_sample_has() -> None:
    verification = verify(either, samples=20, nonfinite=False)
    (missed,) = [f for f in verification.findings if isinstance(f, Unexercised)]
    (place,) = missed.alternates
    assert place.endswith(": aten.tanh(x)")
    assert missed.guards == ()


@rule(AnyRelu)
def wrong_shape(x):
    return torch.clamp_min(x, 0).sum()


def test_a_body_that_gives_another_shape() -> None:
    verification = verify(wrong_shape, samples=20)
    refused = [f for f in verification.findings if isinstance(f, (Refused, NeverFired))]
    assert "mismatch" in str(refused)


# --- reports ------------------------------------------------------------------------------------


@rule(AnyRelu)
def raising(x):
    raise ValueError("nothing like that")


def test_a_body_that_raises_rewrites_nothing() -> None:
    verification = verify(raising, samples=5)
    assert [found.kind for found in verification.wrong] == ["raises"]
    assert verification.trials[0].solved > 0
    assert verification.trials[0].fired == 0


@rule(AnyRelu)
def of_many_dimensions(x):
    assert x.rank == 40
    return x.clamp(min=0)


def test_tensors_stay_small_whatever_a_rule_asks_for() -> None:
    verification = verify(of_many_dimensions, samples=30)
    assert verification.ok
    assert verification.trials[0].solved < verification.trials[0].drawn


def test_as_text_and_as_json() -> None:
    verification = verify([eps_of_another_norm, half, minus], samples=10)
    assert not verification.ok
    assert verification.of("half").ok
    text = str(verification)
    assert "wrong: value:" in text
    assert re.search(r"instead of .* \(float\d\d\[[\d, ]*\]\) \(error ", text)
    assert "def before(" in text
    assert "half: 10 drawn, 10 solved, 10 rewritten" in text
    parsed = json.loads(verification.to_json())
    assert parsed["ok"] is False
    assert {f["rule"] for f in parsed["findings"]} == {"eps_of_another_norm", "half", "minus"}
    with (console := Console(width=120)).capture() as capture:
        console.print(verification)
    assert "eps_of_another_norm" in capture.get()
