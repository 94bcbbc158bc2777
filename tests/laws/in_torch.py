"""Both sides of an equation computed by torch, for the inputs of a counterexample."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from pypm.core.patterns import Var
from pypm.core.rules import Build
from pypm.fx.operators.schemas import packet
from pypm.fx.tracing.templates import build
from pypm.laws.equations import Equation
from pypm.laws.formulas import ANYTHING, Formula
from pypm.laws.numbers import form_of, is_number
from pypm.laws.refutation.floats import Floats
from pypm.laws.refutation.refuting import LawBroken, Sampled, drawn_bit, drawn_float, sizes_of


class InTorch:
    """Formulas computed by torch's operators, in float64."""

    def __init__(self, equation: Equation, found: LawBroken) -> None:
        self.seed = found.seed
        sizes = sizes_of(equation, found.seed)
        assert sizes is not None
        self.sampled = Sampled(
            Floats(), sizes, lambda *what: drawn_float(found.seed, what), drawn_bit(found.seed)
        )
        self.known: dict[int, Any] = {}

    def of(self, side: Any) -> Any:
        if isinstance(side, tuple):
            return [self.of(part) for part in side]
        if not isinstance(side, Formula):
            return self.plain(side)
        if id(side) not in self.known:
            self.known[id(side)] = self.computed(side)
        return self.known[id(side)]

    def plain(self, value: Any) -> Any:
        """Sizes and numbers as numbers of Python, also inside of tuples."""
        if isinstance(value, tuple):
            return [self.plain(part) for part in value]
        if is_number(value) and (hasattr(value, "form") or not isinstance(value, (int, float))):
            found = float(self.sampled.scalar(form_of(value)))
            return int(found) if found == int(found) and not isinstance(value, float) else found
        return value

    def computed(self, formula: Formula) -> Any:
        shape = [self.sampled.index(n) for n in formula.shape]
        if formula.name == "read":
            return self.input(formula, shape)
        if formula.name == "number":
            return self.plain(formula.attributes["form"])
        operands = [self.of(operand) for operand in formula.operands]
        given = {k: v for k, v in formula.attributes.items() if v is not ANYTHING}
        if formula.name == "getitem":
            return self.item(operands[0], given["index"])
        if formula.name in ("aten.view", "aten.expand") and not given:
            return getattr(operands[0], formula.name[5:].replace("view", "reshape"))(shape)
        operator = packet(formula.name)
        names = tuple(Var(f"x{i}") for i in range(len(operands)))
        known = {n for n in operator.attribute_defaults if given.get(n) is not None}
        call = Build(operator, names, tuple((name, self.plain(given[name])) for name in known))
        values = {name.name: x for name, x in zip(names, operands, strict=True)}
        try:
            return build(call, values)
        except RuntimeError:  # a number where the operator takes tensors alone
            return build(call, {name: as_tensor(x) for name, x in values.items()})

    def item(self, of: Any, index: Any) -> Any:
        if not isinstance(of, Tensor):
            return of[index]
        parts = index if isinstance(index, tuple) and index[:1] != ("slice",) else (index,)
        return of[
            tuple(
                slice(*self.plain(part[1:])) if isinstance(part, tuple) else self.plain(part)
                for part in parts
            )
        ]

    def input(self, formula: Formula, shape: list[int]) -> Tensor:
        name, kind = formula.attributes["name"], formula.attributes["kind"]
        draw = drawn_bit(self.seed) if kind != "real" else None
        places = product(*(range(n) for n in shape))
        values = [
            drawn_float(self.seed, (name, place)) if draw is None else draw(name, place)
            for place in places
        ]
        dtype = {"real": torch.float64, "truth": torch.bool}.get(kind, torch.int64)
        return torch.tensor(values, dtype=torch.float64).reshape(shape).to(dtype)


def as_tensor(value: Any) -> Any:
    number = isinstance(value, (int, float))
    return torch.tensor(value, dtype=torch.float64) if number else value


def differs(equation: Equation, found: LawBroken) -> bool:
    """Whether both sides differ in torch, for the inputs of a counterexample."""
    both = InTorch(equation, found)
    left, right = (flat(both.of(side)) for side in (equation.left, equation.right))
    return any(
        one.shape != two.shape or not torch.allclose(one, two, rtol=1e-11, atol=1e-13)
        for one, two in zip(left, right, strict=True)
    )


def flat(side: Any) -> list[Tensor]:
    if isinstance(side, (list, tuple)):
        return [x for part in side for x in flat(part)]
    return [torch.as_tensor(side, dtype=torch.float64)]
