"""Laws that are to be proved where a rule is defined, and what is said if they are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pypm import PyPMError, pattern, rule
from pypm.fx import aten


@pattern
def Silu(x):
    return x * aten.sigmoid(x)


@pattern
def Flattened(x):
    return aten.slice(x, ...)


def right(x):
    return F.silu(x)


def another_sign(x):
    return F.silu(-x)


def nearly(x):
    return F.silu(x) + x * 1e-10


def of_too_little(x):
    return F.silu(x) + x * 1e-13


def by_elements(x):
    return x if x.sum() > 0 else F.silu(x)


def by_numpy(x):
    return torch.from_numpy(x.numpy())


def by_writing(x):
    return x.mul_(torch.sigmoid(x))


def unknown(x):
    return torch.fft.fft(x).real


def raising(x):
    return {}["silu"](x)


MESSAGES = {
    another_sign: ("does not compute what its pattern matches", "x has the shape [2, 2]"),
    nearly: ("does not compute what its pattern matches", "0.31536651999289"),
    of_too_little: (
        "the normal forms part",
        "note: pattern:     exp(x[i,j]) (exp(x[i,j]) + 1)^-1 x[i,j]",
        "note: only replacement: 1/10000000000000 x[i,j]",
    ),
    by_elements: ("`torch.Tensor.__bool__` reads the elements", "help: decide by shapes"),
    by_numpy: ("`torch.Tensor.numpy` reads the elements", "help: decide by shapes"),
    by_writing: ("`aten.mul_` writes into a tensor", "help: compute a new tensor"),
    unknown: ("`aten.fft_fft` has no meaning here", "@pattern(means=...)", "pypm/laws/operators"),
    raising: (
        "the body raises KeyError: 'silu'",
        "help: the body runs on tensors that have",
    ),
}


def test_a_proved_law() -> None:
    assert rule(Silu, law="proved")(right).name == "right"


@pytest.mark.parametrize("body", MESSAGES)
def test_a_law_that_is_not_proved(body) -> None:
    with pytest.raises(PyPMError) as raised:
        rule(Silu, law="proved")(body)
    said = str(raised.value)
    assert all(part in said for part in MESSAGES[body]), said
    assert f"def {body.__name__}(x):" in said


def test_a_rule_with_effects() -> None:
    with pytest.raises(PyPMError, match="samples its own random numbers") as raised:
        rule(Silu, law="proved", redraws=True)(right)
    assert "help: only a rule that computes the same values can be proved" in str(raised.value)


def test_a_slice_of_anything_is_not_the_whole() -> None:
    def whole(x):
        return x

    with pytest.raises(PyPMError, match="a slice whose arguments may be anything"):
        rule(Flattened, law="proved")(whole)


def test_an_unknown_word() -> None:
    with pytest.raises(ValueError, match="`law` is 'stated' or 'proved', not 'true'"):
        rule(Silu, law="true")
