"""Equations between functions, and values of functions by the meanings of their operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pypm.laws.algebra import Indexed
from pypm.laws.equations import Equation, settled
from pypm.laws.formulas import Formula, Formulas, FormulaValues
from pypm.laws.operators.parts import kind_of
from pypm.laws.patterns.ways import Choices
from pypm.laws.refutation.floats import Floats
from pypm.laws.sizes import World
from pypm.laws.tracing import formulas_of, running, tensor_of


def between(
    left: Callable[..., object], right: Callable[..., object], like: Sequence[Tensor]
) -> Equation:
    """The equation of two functions; equal sizes of the tensors from 3 on are one symbol."""

    def build(world: World) -> Equation:
        formulas = Formulas(world)
        symbols: dict[int, Any] = {}
        for n in dict.fromkeys(n for x in like for n in x.shape):
            symbols[n] = n if n < 3 else world.size()
        reads = [formulas.read([symbols[n] for n in x.shape], kind_of(x.dtype)) for x in like]
        given = [tensor_of(read, formulas, x.dtype) for read, x in zip(reads, like, strict=True)]
        with running(formulas):
            sides = [formulas_of(side(*given), formulas) for side in (left, right)]
        return Equation(formulas, (sides[0],), (sides[1],))

    return settled(0, Choices(), build)


def computed(function: Callable[..., object], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results of a function by the meanings of its operators."""
    formulas = Formulas(World())
    reads = [formulas.read(x.shape, kind_of(x.dtype)) for x in inputs]
    with running(formulas):
        given = [tensor_of(r, formulas, x.dtype) for r, x in zip(reads, inputs, strict=True)]
        found = formulas_of(function(*given), formulas)
    values = {read.attributes["name"]: x for read, x in zip(reads, inputs, strict=True)}

    def read(formula: Formula, shape: tuple[Any, ...]) -> Indexed:
        x = values[formula.attributes["name"]]
        return Indexed(
            shape, lambda place: x[tuple(map(int, place))].item(), kind=formula.attributes["kind"]
        )

    evaluation = FormulaValues(Floats(), constant, lambda form: float(constant(form)), read)
    return [dense(x) for x in flat(evaluation.of(found))]


def constant(form: Any) -> Any:
    value = form.constant
    assert value is not None
    return int(value) if value.denominator == 1 else float(value)


def flat(found: Any) -> list[Indexed]:
    return [x for part in found for x in flat(part)] if isinstance(found, tuple) else [found]


def dense(x: Indexed) -> Tensor:
    places = product(*(range(n) for n in x.shape))
    values = [float(x.value(*place)) for place in places]
    return torch.tensor(values, dtype=torch.float64).reshape(x.shape)
