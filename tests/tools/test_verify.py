"""The rule checker: every planted bug is found, no right rule is called wrong."""

import json
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from pypm import RuleSet, pattern, rule
from pypm.core.operators import Operator
from pypm.core.patterns import Alt, Call, Definition, Mu, Op, Var
from pypm.core.rules import Exactness, Rule
from pypm.fx import aten
from pypm.rules.attention.rules import sdpa
from pypm.tools import (
    Bitwise,
    NeverFired,
    Refused,
    StaticProblem,
    Unexercised,
    UpToRounding,
    verify,
)
from tests.tools.right_rules import RIGHT, gelu, half, layer_norm, minus, rms_norm, silu
from tests.tools.wrong_rules import chain_cut_short, eps_of_another_norm

# --- rules that are right -----------------------------------------------------------------------


@pytest.mark.parametrize("samples", [6, pytest.param(60, marks=pytest.mark.soak)])
@pytest.mark.parametrize("right", RIGHT, ids=str)
def test_no_false_alarm(right: Rule, samples: int) -> None:
    verification = verify(right, samples=samples)
    assert verification.ok, str(verification)
    # on some processors an `addmm` has the bits of a product and a sum
    assert isinstance(verification.findings[0], RIGHT[right] | Bitwise)
    assert verification.trials[0].fired >= samples // 4


@pytest.mark.parametrize("word", ["bitwise", "rounding"])
@pytest.mark.parametrize("right", [half, minus, silu, gelu], ids=str)
def test_rules_are_held_to_what_they_say(right: Rule, word: Exactness) -> None:
    verification = verify(replace(right, exactness=word), samples=12)
    is_kept = word == "rounding" or RIGHT[right] is Bitwise
    assert verification.ok is is_kept, str(verification)
    if not is_kept:
        assert verification.wrong[0].kind == "exactness"
        assert "the rule says `bitwise`: " in str(verification)


def test_rounding_is_measured() -> None:
    (found,) = verify(rms_norm, samples=12).findings
    assert isinstance(found, UpToRounding)
    assert 0 < found.error <= found.tolerance < 1e-9
    assert 0 < found.exactly <= found.samples


@pattern
def Steep(x):  # of which rounding takes three digits
    return aten.pow(x, 1000)


@rule(Steep)
def nearly_steep(x):
    y = torch.pow(x, 500)
    return y * y * (1 + 4e-12)


def test_rounding_hides_no_difference() -> None:
    (found,) = verify(nearly_steep, samples=12).wrong
    assert found.kind == "law", str(found)
    assert "def after(x)" in found.counterexample.code


def test_gradients_of_a_right_rule() -> None:
    assert verify(layer_norm, samples=10, gradients=True).ok


def test_the_same_seed_gives_the_same_result() -> None:
    one, two = (verify(chain_cut_short, seed=7) for _ in range(2))
    assert one.wrong == two.wrong


# --- examples of the user -----------------------------------------------------------------------


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v


HEADS = [torch.randn(2, 3, 4, 8, dtype=torch.float64) for _ in range(3)]


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
