"""Dimensions in the arguments of operators, counted from zero."""

from __future__ import annotations

from pypm.core.operators import Operator
from pypm.fx.operators import corrections
from pypm.laws.algebra import Given, SizesDiffer
from pypm.laws.formulas import Formula

__all__ = ["count_dims"]


def count_dims(operator: Operator, operands: list[Given], attributes: dict[str, Given]) -> None:
    """Count negative dimensions in arguments from zero, by the rank of the first operand.

    Raises SizesDiffer for a dimension that the operand lacks, or that is there twice.
    """
    first = operands[0] if operands else None
    while isinstance(first, tuple):
        first = first[0] if first else None
    if not isinstance(first, Formula) or isinstance(first.value, tuple):
        return
    rank = first.tensor.rank + (operator.name in corrections.OUTPUT_RANKED)
    names = {p.name for s in operator.signatures for p in s.attributes if p.dimension}
    for name in names & attributes.keys():
        value = attributes[name]
        if isinstance(value, tuple):
            attributes[name] = tuple(_from_zero(d, rank) for d in value)
            if len({*attributes[name]}) != len(value):
                raise SizesDiffer(0, 1)
        elif isinstance(value, int):
            attributes[name] = _from_zero(value, rank)


def _from_zero(dim: int, rank: int) -> int:
    count = max(rank, 1)
    if not -count <= dim < count:
        raise SizesDiffer(0, 1)
    return dim % count
