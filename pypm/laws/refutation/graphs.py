"""Graphs of torch compared exactly, for the sizes that they have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from pypm.laws.algebra import NoMeaning
from pypm.laws.equations import Equation, settled
from pypm.laws.formulas import Formulas
from pypm.laws.operators.parts import kind_of
from pypm.laws.patterns.ways import Choices
from pypm.laws.refutation.refuting import LawBroken, difference
from pypm.laws.sizes import World
from pypm.laws.tracing import formulas_of, running, tensor_of

__all__ = ["graph_difference"]


def graph_difference(
    before: fx.GraphModule, after: fx.GraphModule, likes: Sequence[torch.Tensor]
) -> LawBroken | None:
    """Return where two graphs compute different real numbers, for inputs with the shapes and types
    of `likes`; None if nowhere. Raises NoMeaning if a graph does what has no meaning here.
    """

    def build(world: World) -> Equation:
        formulas = Formulas(world)
        given = [
            tensor_of(formulas.read(x.shape, kind_of(x.dtype)), formulas, x.dtype) for x in likes
        ]
        with running(formulas):
            sides = [fx.Interpreter(graph).run(*given) for graph in (before, after)]
        left, right = (formulas_of(side, formulas) for side in sides)
        return Equation(formulas, (left,), (right,))

    try:
        return difference(settled(0, Choices(), build))
    except NoMeaning:
        raise
    except Exception as error:  # whatever an operator says of a tensor without elements
        raise NoMeaning(f"the graph raises {type(error).__name__}: {error}") from error
