"""Score programs as steps of the pointwise language, and the range of keys that they may see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias, assert_never

from pypm.kernels.attention.expressions import (
    SCORE,
    Applied,
    Element,
    Expression,
    Name,
    Number,
)
from pypm.kernels.support.pointwise import PointwiseStep, printed
from pypm.tiles.program import LoopRange

__all__ = ["NoScores", "ScoreSteps", "key_range"]

Value: TypeAlias = "str | float"


class NoScores(Exception):
    """The reason for which the pointwise language lacks a score program."""


OPERATIONS: Final = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "&": "and", "|": "or", "==": "eq", "!=": "ne",
    "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "min": "minimum", "max": "maximum",
    "abs": "abs", "not": "not", "where": "where", "exp": "exp", "log": "log", "sqrt": "sqrt",
    "tanh": "tanh", "sigmoid": "sigmoid", "float": "number", "bool": "bit",
}  # fmt: skip
"""Operations of the pointwise language by operators of score programs."""


class ScoreSteps:
    """Steps of one pointwise program, made from expressions.

    Arguments:
        acc: the tile that the program reads first.
        named: returns the tile of an index or an element, and whether it holds bits.
    """

    def __init__(self, acc: str, named: Callable[[Name | Element], tuple[str, bool]]) -> None:
        self.arguments = [acc]
        self.named = named
        self.steps: list[PointwiseStep] = []
        self.known: dict[Expression, Value] = {}

    def map(self) -> tuple[str, tuple[str, ...]]:
        """Return the program and the tiles that it reads."""
        return printed(self.steps), tuple(self.arguments)

    def add(self, operation: str, *arguments: Value) -> str:
        self.steps.append(PointwiseStep(operation, arguments))
        return f"v{len(self.steps) - 1}"

    def scaled(self, value: Value, factor: float) -> Value:
        return value if factor == 1 else self.add("mul", value, factor)

    def side(self, tile: str, has_bits: bool = False) -> str:
        """Return the name of a tile in the program."""
        if tile not in self.arguments:
            self.arguments.append(tile)
        return f"{'m' if has_bits else 's'}{self.arguments.index(tile) - 1}"

    def value(self, x: Expression, score: Value) -> Value:
        """Return the value of an expression in the score. Raises NoScores if there is no step."""
        if x not in self.known:
            self.known[x] = self.made(x, score)
        return self.known[x]

    def made(self, x: Expression, score: Value) -> Value:
        match x:
            case Name() if x == SCORE:
                return score
            case Name() | Element():
                return self.side(*self.named(x))
            case Number(value):
                return float(value)
            case Applied(name, operands):
                if name not in OPERATIONS:
                    raise NoScores(f"the scores apply `{name}`")
                return self.add(OPERATIONS[name], *(self.value(o, score) for o in operands))
            case _:
                assert_never(x)


# --- the range of keys ---------------------------------------------------------------------------


class _Linear(NamedTuple):
    """The number `key` * k + `query` * q + `offset`."""

    key: int
    query: int
    offset: int


def key_range(visible: Expression, axis: str, rows: int) -> LoopRange | None:
    """Return the range of keys outside of which nothing is visible to a tile of queries.

    Arguments:
        visible: the condition of a score program.
        axis: the axis of queries.
        rows: queries of a tile.

    None stands for all keys. The range follows from conditions on k - q that hold together.
    """
    first: int | None = None
    end: int | None = None
    for low, high in map(_bounds, _conditions(visible)):
        if low is not None:
            first = low if first is None else max(first, low)
        if high is not None:
            end = high + rows if end is None else min(end, high + rows)
    return None if first is None and end is None else LoopRange(axis, first, end)


def _conditions(x: Expression) -> Iterator[Expression]:
    match x:
        case Applied("&", operands):
            for operand in operands:
                yield from _conditions(operand)
        case _:
            yield x


def _bounds(x: Expression) -> tuple[int | None, int | None]:
    """Return the least and the largest k - q for which a condition may hold, if there are such."""
    match x:
        case Applied("<" | "<=" | ">" | ">=" | "==" as sign, (a, b)):
            left, right = _linear(a), _linear(b)
        case _:
            return None, None
    if left is None or right is None:
        return None, None
    key, query = left.key - right.key, left.query - right.query
    if key not in (1, -1) or query != -key:
        return None, None
    at = (right.offset - left.offset) * key  # where both sides are equal
    if sign == "==":
        return at, at
    strict = 0 if "=" in sign else 1
    is_upper = (sign[0] == "<") == (key == 1)
    return (None, at - strict) if is_upper else (at + strict, None)


def _linear(x: Expression) -> _Linear | None:
    match x:
        case Name("k"):
            return _Linear(1, 0, 0)
        case Name("q"):
            return _Linear(0, 1, 0)
        case Number(value) if isinstance(value, int) and not isinstance(value, bool):
            return _Linear(0, 0, value)
        case Applied("+" | "-" as sign, (a, b)):
            left, right = _linear(a), _linear(b)
            if left is None or right is None:
                return None
            factor = 1 if sign == "+" else -1
            return _Linear(*(m + factor * n for m, n in zip(left, right, strict=True)))
    return None
