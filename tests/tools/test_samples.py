"""Samples that the rule checker makes: sizes it must find, types and values that show a bug."""

import pytest
import torch

from pypm import decline, pattern, rule
from pypm.core.rules import Rule
from pypm.fx import aten
from pypm.fx.operators.schemas import overloads
from pypm.tools import FewSolved, NeverFired, UpToRounding, verify
from pypm.tools.verification.sampling.operator_choice import result_of

# --- sizes that a pattern fixes -------------------------------------------------------------------


@pattern
def NormOfSixteen(x, g, b, eps):
    return aten.layer_norm(x, [16], g, b, eps, _)


@rule(NormOfSixteen)
def scaled_norm(x, g, b, eps):
    assert x.dtype in (torch.float32, torch.float64) and x.dtype == g.dtype == b.dtype
    y = x - x.mean(-1, keepdim=True)
    return y * torch.rsqrt((y * y).mean(-1, keepdim=True) + eps) * g + b


def test_the_size_that_a_norm_asks_for() -> None:
    verification = verify(scaled_norm, samples=8, nonfinite=False)
    assert verification.ok, str(verification)
    assert verification.trials[0].fired >= 4


@pattern
def Tail(x, g, b, w, c, gamma, r):
    y = aten.layer_norm(aten.permute(x, [0, 2, 3, 1]), [96], g, b, 1e-6, _)
    return r + aten.permute(aten.gelu(aten.linear(y, w, c)) * gamma, [0, 3, 1, 2])


@rule(Tail)
def tail(x, g, b, w, c, gamma, r):
    assert x.dtype == torch.float64
    y = torch.layer_norm(x.movedim(1, -1), (96,), g, b, 1e-6)
    return r + (torch.nn.functional.gelu(torch.matmul(y, w.mT) + c) * gamma).movedim(-1, 1)


def test_sizes_that_are_too_large_for_all_dimensions() -> None:
    (trials,) = verify(tail, samples=3, nonfinite=False).trials
    assert trials.solved >= 1


# --- what could not be made -----------------------------------------------------------------------


@pattern
def Fixed(x, y):
    return aten.einsum("abcdefgh,hgfedcba->abcdefgh", [x, y])


@rule(Fixed)
def fixed(x, y):
    return x * y.permute(7, 6, 5, 4, 3, 2, 1, 0)


def test_a_rule_of_which_no_sample_can_be_made_says_why() -> None:
    verification = verify(fixed, samples=2)
    (never,) = verification.findings
    assert isinstance(never, NeverFired)
    assert never.reasons
    assert all(reason.startswith("not made: ") for reason in never.reasons)
    assert "`aten.einsum`" in str(verification)
    assert "give `examples=`" in str(verification)


@pattern
def Tanhs(x):
    return aten.tanh(Tanhs(x))


@pattern
def Tanhs(x):
    return aten.tanh(x)


def from_levels(fewest: int) -> Rule:
    @rule(Tanhs)
    def tanhs(x, match):
        count = len(match.region.nodes)
        if count < fewest:
            return decline(f"fewer than {fewest} levels")
        return x.clamp(-1, 1)

    return tanhs


def test_recursion_deepens_where_nothing_was_rewritten() -> None:
    assert verify(from_levels(6), samples=2).wrong


def test_a_rule_of_many_levels_says_how_many_were_tried() -> None:
    verification = verify(from_levels(100), samples=2)
    (never,) = verification.findings
    assert isinstance(never, NeverFired)
    assert never.depth == 12
    assert str(verification).splitlines()[1:3] == [
        "  never fired in samples of up to 12 levels of recursion; give `examples=`",
        f"    {sum(never.reasons.values())} × declined: fewer than 100 levels",
    ]


@pattern
def Rare(x, y):
    assert x.numel == 6 and x.rank == 3 and x.shape != y.shape
    return aten.neg(x) + aten.neg(y)


@rule(Rare)
def rare(x, y):
    return -(x + y)


def test_few_samples_are_a_warning() -> None:
    verification = verify(rare, samples=12, nonfinite=False)
    assert not verification.wrong
    found = [f for f in verification.findings if isinstance(f, (FewSolved, NeverFired))]
    assert found
    assert "x.numel == 6" in str(verification)
    assert "examples=" in str(verification)


# --- types and values -----------------------------------------------------------------------------


@pattern
def TwiceNegated(x):
    return aten.neg(aten.neg(x))


@rule(TwiceNegated)
def itself_as_the_larger(x):
    return torch.maximum(x, x)


def test_complex_numbers() -> None:
    wrong = verify(itself_as_the_larger, samples=60).wrong
    assert {found.kind for found in wrong} <= {"raises", "crash", "value"}
    assert any("complex" in found.counterexample.code for found in wrong)


@pattern
def PlusNothing(x):
    return aten.mul(x, 1.0)


@rule(PlusNothing)
def plus_nothing(x):
    assert x.dtype == torch.float64
    return x + 0.0


def test_zeros_of_the_other_sign_are_told() -> None:
    verification = verify(plus_nothing, samples=20)
    found = verification.findings[0]
    assert isinstance(found, UpToRounding)
    assert (found.error, found.zeros) == (0.0, True)
    assert "the sign of zeros" in str(verification)


@pattern
def Sigmoid(x):
    return aten.sigmoid(x)


@rule(Sigmoid)
def detached(x):
    assert x.dtype == torch.float64
    return 1 / (1 + torch.exp(-x.detach()))


def test_an_output_that_requires_no_gradient_where_one_did() -> None:
    assert verify(detached, samples=6, nonfinite=False).ok
    (wrong,) = verify(detached, samples=6, nonfinite=False, gradients=True).wrong
    assert wrong.kind == "gradient"
    assert wrong.detail == "output 0 does not require a gradient where input 0 does"


# --- reports --------------------------------------------------------------------------------------


@pattern
def Choice(x):
    return aten.amax(aten.relu(x), [0, 1], True)


@pattern
def Choice(x):
    return aten.neg(aten.neg(x))


@rule(Choice)
def choice(x):
    assert x.dtype == torch.float64
    return -torch.neg(x) if x.rank == 0 else decline("only to be seen")


def test_names_of_the_machinery_do_not_show() -> None:
    assert "#" not in str(verify(choice, samples=6))


def test_no_operator_ends_the_process() -> None:
    """Torch divides by zero in this kernel for some arguments, as where there is no query."""
    kernel = "_scaled_dot_product_flash_attention_for_cpu"
    (overload,) = overloads(f"aten.{kernel}")
    tensors = {name: torch.ones(1, 1, 0, 4) for name in ("query", "key", "value")}
    with pytest.raises(ValueError, match="ends the process"):
        result_of(overload, tensors)
