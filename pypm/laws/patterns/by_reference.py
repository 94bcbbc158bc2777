"""Kernels that others wrote, in patterns: each computes the reference that is stated for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

from pypm.core.operators import Operator
from pypm.fx.operators.body_trace import Reference
from pypm.laws.algebra import Given
from pypm.laws.formulas import ANYTHING, Formulas
from pypm.laws.patterns.ways import Argument, Tree
from pypm.laws.tracing import formulas_of, running, tensor_of

__all__ = ["by_reference"]


def by_reference(
    operator: Operator,
    reference: Reference,
    operands: Sequence[Tree],
    said: Mapping[str, Argument],
    formulas: Formulas,
    *,
    value: Callable[[Tree], Given],
    argument: Callable[[Argument], Given],
) -> Given:
    """Return what the reference of a kernel computes. What it does not read gets no value."""
    formulas.references.add(operator.name)
    left, given = list(operands), list[Given]()
    names = inspect.signature(reference).parameters
    for parameter, name in zip(operator.signatures[0].parameters, names, strict=True):
        tree = left.pop(0) if parameter.kind != "attribute" else None
        if name.startswith("_"):
            given.append(None)
        elif tree is not None:
            given.append(tensor_of(value(tree), formulas))
        else:
            is_said = parameter.name in said
            given.append(argument(said[parameter.name]) if is_said else ANYTHING)
    with running(formulas):
        return formulas_of(reference(*given), formulas)
