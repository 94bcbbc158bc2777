"""Verdicts on rules: what is proved, refuted or open, by contracts of patterns."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from pypm import decline, let, pattern, predicate, rule, var
from pypm.fx import aten
from pypm.laws.verdicts import Open, Proved, Refuted, extent
from pypm.rules import activation, attention, epilogue, norm
from pypm.rules.vocabulary.shapes import rows
from pypm.tools import prove


@pattern(means=lambda x: x * torch.sigmoid(x))
def Silu(x):
    return x * aten.sigmoid(x)


@pattern
def Silu(x):
    return x / (aten.exp(-x) + 1)


@pattern(means=lambda x: x * torch.sigmoid(x))
def Wrong(x):
    return x * aten.sigmoid(x) | x / (aten.exp(x) + 1)


@pattern(means=lambda x: x)
def Copies(x):  # recursion: any number of copies
    return aten.clone(Copies(x), ...) | x


@pattern
def Scaled(x, scale):
    c = var()
    let(scale=c.value)
    return aten.softmax(x * c, -1, None)


@rule(Silu)
def silu(x):
    return F.silu(x)


@pattern
def Twice(x):
    return Wrong(x) * 2


@rule(Twice)
def wrong_alternate(x):
    return F.silu(x) * 2


@rule(Silu)
def wrong_sign(x):
    return F.silu(-x)


@rule(Silu)
def in_halves(x):
    assert x.rank > 0
    half = x.shape[-1] // 2
    return torch.cat([F.silu(x[..., :half]), F.silu(x[..., half:])], -1)


@predicate
def middle(shape):
    return shape[-1] // 2


@pattern
def HalfARow(x):
    end = var()
    assert end == middle(x.shape)
    return aten.relu(aten.slice(x, -1, 0, end, 1))


@rule(HalfARow)
def half_of_relu(x):
    return F.relu(x)[..., : x.shape[-1] // 2]


@predicate
def of_few_or_many(shape):
    return shape[-1] <= 7 or shape[-1] >= 100


@predicate
def two_of_few(shape):
    return 1 if shape[-1] >= 100 else 2


@pattern
def FewOrMany(x):
    assert of_few_or_many(x.shape)
    return aten.relu(x)


@rule(FewOrMany)
def relu_of_few_or_many(x):
    return F.relu(x)


@pattern
def OneOrTwo(x):
    end = var()
    assert end == two_of_few(x.shape)
    return aten.relu(aten.slice(x, -1, 0, end, 1))


@rule(Silu)
def of_one_width(x):
    if x.dim() == 0 or x.shape[-1] != 256:
        return decline("another width")
    return F.silu(x)


@rule(OneOrTwo)
def one_of_relu(x):
    return F.relu(x)[..., :1]


@rule(Copies)
def no_copies(x):
    return x


@rule(Scaled)
def softmax(x, scale):
    e = torch.exp(x * scale)
    return e / e.sum(-1, True)


@rule(Scaled)
def scaled_after(x, scale):
    return torch.softmax(x, -1) * scale


@rule(Scaled)
def of_wide_rows(x, scale):
    assert x.rank > 0
    if x.shape[-1] < 100:
        return x
    return torch.softmax(x * scale, -1)


@rule(Scaled)
def of_a_sample(x, scale):
    return torch.softmax(x * (scale if scale > 1e9 else float(str(float(scale)))), -1)


@rule(Scaled)
def without_a_meaning(x, scale):
    return torch.fft.fft(x).real


# --- patterns that do not say what they mean ------------------------------------------------------


@pattern
def Doubled(x):  # three spellings of one value
    return x + x | x * 2 | x * 4 / 2


@pattern
def Signed(x, sign):  # two values, by a constant that is bound
    let(sign=1)
    return Doubled(x)


@pattern
def Signed(x, sign):
    let(sign=-1)
    return -Doubled(x)


@pattern
def Clones(x):  # recursion: an induction, without a depth
    return aten.clone(Clones(x), ...) | x


@pattern
def Sum(x, y):  # the second spelling takes fewer shapes than the first
    assert x.shape == y.shape
    return y + x


@pattern
def Sum(x, y):
    return x + y


@pattern
def Odd(x):  # the last spelling is another value
    return x + x | x * 2 | x * 3


@rule(Signed)
def by_sign(x, sign):
    return x * 2 * sign


@rule(Signed)
def of_one_sign(x, sign):
    return x * 2


@rule(Clones)
def no_clones(x):
    return x


@rule(Sum)
def summed(x, y):
    return y + x


@rule(Sum)
def summed_alike(x, y):
    return y + x if x.dim() == y.dim() else x


@rule(Odd)
def even(x):
    return x * 2


@pattern
def OfSmall(x, scale):  # twice the value, for some sizes
    c = var()
    let(scale=c.value)
    assert (not (x.shape[0] > 8 and x.shape[1] > 8) and c.value == 2.0) or c.value == 3.0
    return x * c


@rule(OfSmall)
def of_large(x, scale):
    return x * 3.0


@pattern
def Apart(x, y):
    assert x.rank == 4 and y.rank == 3 and y.shape[1] == 7
    return x * y


@pattern
def Apart(x, y):
    return x - y


@pattern
def Opposite(x, y):
    return -Apart(x, y)


@rule(Opposite)
def subtracted(x, y):
    return y - x


@pytest.mark.parametrize("true", [by_sign, no_clones, summed])
def test_spellings_stand_for_others(true) -> None:
    law = prove(true).of(true.name)
    assert isinstance(law, Proved), law
    assert not law.scope.is_bounded


@pytest.mark.parametrize("false", [of_one_sign, summed_alike, even])
def test_no_spelling_stands_for_another_value_or_for_more_shapes(false) -> None:
    assert isinstance(prove(false).of(false.name), Refuted)


def test_ways_do_not_multiply() -> None:
    law = prove(by_sign).of("by_sign")
    assert law.scope.cases == 2 * 5  # a sign, a rank


@pytest.mark.parametrize("true", [silu, no_copies, softmax])
def test_proved(true) -> None:
    law = prove(true).of(true.name)
    assert isinstance(law, Proved), law
    assert law.scope.cases >= 4 and law.scope.conditions == ()


@pytest.mark.parametrize("false", [wrong_sign, scaled_after])
def test_refuted(false) -> None:
    laws = prove(false)
    assert isinstance(laws.of(false.name), Refuted) and not laws.ok
    assert "REFUTED" in str(laws) and " is not " in str(laws)


def test_a_wrong_alternate_is_named() -> None:
    law = prove(wrong_alternate).of("wrong_alternate")
    assert isinstance(law, Refuted) and "`Wrong` (" in law.counterexample


@pytest.mark.parametrize("compared", [of_wide_rows, relu_of_few_or_many, one_of_relu])
def test_comparisons_of_sizes_are_conditions(compared) -> None:
    law = prove(compared).verdicts[0]
    assert isinstance(law, Proved)
    assert any(c.endswith(">= 100") for c in law.scope.conditions)


def test_a_sample_is_no_proof() -> None:
    law = prove(of_a_sample).of("of_a_sample")
    assert not isinstance(law, Proved)


@pytest.mark.parametrize("false", [of_large, subtracted])
def test_sizes_and_ranks_that_are_not_tried_are_no_proof(false) -> None:
    law = prove(false).of(false.name)
    assert isinstance(law, Open) and law.scope.cases


@pattern
def Repeated(x, n):  # n may hold a number of times for each row
    return aten.repeat_interleave(x, n, 1, ...)


@rule(Repeated)
def repeated(x, n):
    return torch.repeat_interleave(x, n, 1)


@pattern(means=lambda x, n: torch.repeat_interleave(x, n, 1))
def Repeats(x, n):
    return aten.repeat_interleave(x, n, 1, ...)


@pattern
def RepeatedByACall(x, n):
    return Repeats(x, n)


@rule(RepeatedByACall)
def repeated_by_a_call(x, n):
    return torch.repeat_interleave(x, n, 1)


def test_numbers_of_times_that_may_differ_are_no_proof() -> None:
    law = prove(repeated).verdicts[0]
    assert isinstance(law, Open) and "`n` may be several numbers of times" in law.reason
    assert isinstance(prove(repeated_by_a_call).verdicts[0], Open)


def test_operators_without_a_meaning_are_named() -> None:
    law = prove(without_a_meaning).of("without_a_meaning")
    assert isinstance(law, Open) and "fft" in law.reason


def test_shipped_rules_are_proved() -> None:
    few_rows = epilogue.linear_of_few_rows
    laws = prove([norm.rms_norm, norm.layer_norm, norm.scaled_unit, activation.whole, few_rows])
    assert laws.ok, str(laws)
    words = [each["verdict"] for each in json.loads(laws.to_json())]
    assert words == ["proved"] * 5


def test_sizes_that_a_body_takes_alone_are_conditions() -> None:
    law = prove(of_one_width).verdicts[0]
    assert isinstance(law, Proved)
    assert any(condition.endswith("= 256") for condition in law.scope.conditions)


def sums(x, shape=None):
    total = x.sum(-1, True)
    return total if shape is None else rows(total, shape)


@pattern(means=sums)
def Sums(x):
    return aten.sum(x, [-1], True)


@pattern
def Sums(x):
    return aten.sum(x, [-2], True)


@pattern
def Shares(x):
    return x / Sums(x)


@rule(Shares)
def shares(x):
    return x / x.sum(-1, keepdim=True)


def test_an_alternate_that_fits_sizes_of_1_alone_is_named() -> None:
    law = prove(shares).verdicts[0]
    assert isinstance(law, Proved) and law.scope.narrow == ("Sums",)
    assert "a size of 1, or equal sizes, alone of Sums" in extent(law.scope)


def spread(x, shape=None):
    y = x.sum().expand(x.shape)
    return y if shape is None else y.reshape(shape)


@pattern(means=spread)
def Spread(x):
    return aten.sum(x, [0, 1], True) + x * 0


@pattern
def Spread(x):
    return aten.transpose(aten.sum(x, [0, 1], True) + x * 0, 0, 1)


@pattern
def LessAll(x):
    assert x.rank == 2
    return x - Spread(x)


@rule(LessAll)
def less_all(x):
    return x - x.sum()


def test_an_alternate_that_fits_equal_sizes_alone_is_named() -> None:
    law = prove(less_all).verdicts[0]
    assert isinstance(law, Proved) and law.scope.narrow == ("Spread",)


@pytest.mark.parametrize("divided", [in_halves, half_of_relu])
def test_what_a_body_or_a_predicate_divides_is_a_condition(divided) -> None:
    verdict = prove(divided).verdicts[0]
    assert isinstance(verdict, Proved)
    assert any("2 divides" in condition for condition in verdict.scope.conditions)


@pytest.mark.parametrize("name", ["called_attention_by_products", "called_attention_by_blocks"])
def test_attention_with_masks_of_truth_values_and_numbers(name: str) -> None:
    assert prove(next(rule for rule in attention.RULES if rule.name == name)).ok
