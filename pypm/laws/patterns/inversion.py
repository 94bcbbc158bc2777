"""Values of the parts of an expression, found from the value of the whole."""

from __future__ import annotations

from collections.abc import Iterator

from pypm.core.guards import Apply, Constant, Expression, Tuple
from pypm.core.record_expressions import MakeRecord
from pypm.core.records import Record, fields_of
from pypm.laws.algebra import Given
from pypm.laws.numbers import is_number
from pypm.laws.patterns.domains import summands
from pypm.laws.patterns.ways import Choices, Impossible

__all__ = ["parts_of_expression"]


def parts_of_expression(
    expression: Expression, value: Given, choices: Choices
) -> Iterator[tuple[Expression, Given]]:
    """Yield parts that are no tuple or record, each with its value if the whole has this one.

    Where tuples are put together, their lengths are chosen. Raises Impossible.
    """
    match expression:
        case Apply(MakeRecord(fields=names), arguments) if isinstance(value, Record):
            fields = fields_of(value)
            if {*names} != fields.keys():
                raise Impossible("records of different fields")
            for name, part in zip(names, arguments, strict=True):
                yield from parts_of_expression(part, fields[name], choices)
        case Tuple(elements) if isinstance(value, tuple):
            if len(elements) != len(value):
                raise Impossible("tuples of different lengths")
            for part, own in zip(elements, value, strict=True):
                yield from parts_of_expression(part, own, choices)
        case Constant(constant) if isinstance(constant, (str, tuple)) and constant != value:
            raise Impossible("another constant")
        case Apply(function, (part, Constant(int() as constant))) if is_number(value) and (
            function.name in ("add", "sub")
        ):
            own = value - constant if function.name == "add" else value + constant
            yield from parts_of_expression(part, own, choices)
        case Apply() if isinstance(value, tuple) and len(summands(expression)) > 1:
            yield from _put_together(summands(expression), value, choices)
        case _:
            yield expression, value


def _put_together(
    parts: list[Expression], value: tuple[Given, ...], choices: Choices
) -> Iterator[tuple[Expression, Given]]:
    """Yield the parts of tuples that are put together, each of a length that is chosen."""
    lengths = [len(part.elements) if isinstance(part, Tuple) else None for part in parts]
    left = len(value) - sum(length or 0 for length in lengths)
    if left < 0:
        raise Impossible("tuples of different lengths")
    open_parts = lengths.count(None)
    for part, length in zip(parts, lengths, strict=True):
        if length is None:
            open_parts -= 1
            length = choices.choose(left + 1, "length") if open_parts else left
            left -= length
        own, value = value[:length], value[length:]
        yield from parts_of_expression(part, own, choices)
