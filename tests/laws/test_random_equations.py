"""Random equations: true ones are not refuted, damaged ones not proved, and none is both."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from pypm.laws.equations import Equation, compared
from pypm.laws.refutation.floats import Floats
from pypm.laws.refutation.refuting import difference
from tests.laws.sides import between

Tree: TypeAlias = tuple["str | float | Tree", ...]
LEAVES = ("x", "y", "w")
INPUTS = tuple(torch.zeros(n, dtype=torch.float64) for n in ((3, 5), (3, 5), (5,)))
UNARY = ("neg", "exp", "sigmoid", "softmax", "sum", "square")


def drawn(random: Random, depth: int) -> Tree:
    if depth == 0:
        return ("leaf", random.choice(LEAVES))
    kind = random.choice((*UNARY, "add", "mul", "add", "mul", "scale"))
    if kind == "scale":
        return (kind, random.choice((2.0, -3.0, 0.5)), drawn(random, depth - 1))
    if kind in UNARY:
        return (kind, drawn(random, depth - 1))
    return (kind, drawn(random, depth - 1), drawn(random, random.randrange(depth)))


def damaged(random: Random, tree: Tree) -> Tree:
    """The tree with another operator, number or leaf at one place, which its value depends on."""
    kind, *rest = tree
    below = [place for place, part in enumerate(rest) if isinstance(part, tuple)]
    if below and random.random() < 0.7:
        place = random.choice(below)
        inner = rest[place]
        assert isinstance(inner, tuple)
        rest[place] = damaged(random, inner)
        return (kind, *rest)
    return ("add", tree, ("sum", ("leaf", "w"))) if random.random() < 0.5 else ("scale", 2.0, tree)


def value(tree: Tree, given: dict[str, Tensor], random: Random) -> Tensor:
    """The value of a tree, in one of its spellings."""
    is_other = random.random() < 0.5
    kind, *rest = tree
    if kind == "leaf":
        return given[str(rest[0])]
    if kind == "scale":
        inner = value(rest[1], given, random)
        return inner * rest[0] if is_other else inner / (1 / rest[0])
    parts = [value(part, given, random) for part in rest if isinstance(part, tuple)]
    match kind:
        case "add":
            return parts[0] + parts[1] if is_other else parts[1] - -parts[0]
        case "mul":
            first = rest[0]
            if is_other and isinstance(first, tuple) and first[0] == "add":
                a, b = (value(part, given, random) for part in first[1:])
                return a * parts[1] + b * parts[1]
            return parts[1] * parts[0]
        case "neg":
            return -parts[0] if is_other else parts[0] * -1
        case "exp":
            return parts[0].exp() if is_other else 1 / (-parts[0]).exp()
        case "sigmoid":
            e = parts[0].exp()
            return torch.sigmoid(parts[0]) if is_other else e / (1 + e)
        case "softmax":
            e = (parts[0] - parts[0].amax(-1, True)).exp()
            return torch.softmax(parts[0], -1) if is_other else e / e.sum(-1, True)
        case "sum":
            mean = parts[0].mean(-1, True) * parts[0].shape[-1]
            return parts[0].sum(-1, True) if is_other else mean
    return parts[0] * parts[0] if is_other else parts[0].pow(2)


def equation(left: Tree, right: Tree, seed: int) -> Equation:
    def side(tree: Tree, number: int):
        return lambda *tensors: value(
            tree, dict(zip(LEAVES, tensors, strict=True)), Random(f"{seed} {number}")
        )

    return between(side(left, 0), side(right, 1), INPUTS)


def check(seed: int) -> None:
    random = Random(seed)
    tree = drawn(random, random.randrange(1, 4))
    true = equation(tree, tree, seed)
    assert compared(true) is None
    assert difference(true) is None
    wrong = equation(tree, damaged(random, tree), seed)
    if compared(wrong) is None:  # as softmax of a row's sum, whatever that is
        assert difference(wrong) is None


@pytest.mark.parametrize("seed", range(12))
def test_random_equations(seed: int) -> None:
    check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 500))
def test_more_random_equations(seed: int) -> None:
    check(seed)


def test_values_that_no_float_holds_are_compared_with_nothing() -> None:
    algebra = Floats()
    assert math.isnan(algebra.power(1e-200, -2)) and math.isnan(algebra.power(0.0, -1))
    assert math.isnan(algebra.power(-1.0, Fraction(1, 2))) and math.isnan(algebra.log(-1.0))
    assert math.isnan(algebra.function("sin", math.inf))
    assert math.isnan(algebra.function("round", math.inf))
    assert algebra.power(2.0, -1) == 0.5
