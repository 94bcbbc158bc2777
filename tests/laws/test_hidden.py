"""Tensors that patterns hide: of any rank, and grouped alike."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch

from pypm import decline, pattern, rule
from pypm.fx import aten, hiding, observer, same_shape
from pypm.rules.vocabulary.shapes import Rows, rows
from pypm.tools import prove


@observer((3,), (4,))
def scaled(x: Any) -> Any:
    return x * 2


def regrouped(x: Any, shape: Any = None) -> Any:
    return scaled(x) if shape is None else rows(scaled(x), shape)


@pattern(means=hiding(scaled, regrouped))
def Doubled(x: Any) -> Any:
    return Rows(x + x)


@pattern
def Sum(x: Any, y: Any) -> Any:
    return aten.tanh(Doubled(x) + Doubled(y))


@rule(Sum)
def right(x: Any, y: Any) -> Any:
    a, b = scaled(x), scaled(y)
    return torch.tanh(a + b) if same_shape(a.shape, b.shape) else decline("other dimensions")


@rule(Sum)
def wrong(x: Any, y: Any) -> Any:
    a, b = scaled(x), scaled(y)
    return torch.tanh(a - b) if same_shape(a.shape, b.shape) else decline("other dimensions")


@rule(Sum)
def unseen(x: Any, y: Any) -> Any:
    return torch.tanh((x + y) * 2)


CASES: Final = ((right, True), (wrong, False), (unseen, False))


@pytest.mark.parametrize(("law", "is_proved"), CASES)
def test_a_hidden_tensor_is_any_tensor(law: Any, is_proved: bool) -> None:
    assert prove(law).ok is is_proved
