"""Elementwise programs as text, evaluated by torch or written as statements of Triton.

A program is a line of steps, as `add(acc,s0);gelu(v0);where(m1,v1,-1.0)`. Step i defines v<i>, and
the last step is the result; the empty program returns `acc`. Steps also read numbers and s<i>, the
i-th side input, or m<i> if that holds bits. Every value is a float32, or wider, or a bit; only
rounding steps reduce precision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from pypm.kernels.support.activations import ACTIVATIONS

__all__ = [
    "OPERATIONS",
    "ROUNDINGS",
    "PointwiseOperation",
    "PointwiseStep",
    "evaluate",
    "parse",
    "printed",
    "statements",
]


INTEGERS: Final = (torch.int8, torch.int32, torch.int64)
"""Types of side inputs that are only compared, as documents' numbers."""


@dataclass(frozen=True, slots=True)
class PointwiseOperation:
    """An operation of a step."""

    takes: str
    """Kinds of the arguments, n for a number and b for a bit; others are converted."""
    gives: str
    triton: str
    """The expression in Triton, with the arguments as {0}, {1}, ..."""
    torch: Callable[..., Tensor]


ROUNDINGS: Final = ("float16", "bfloat16")
"""Rounding steps: to these types, and back."""


def _rounding(name: str) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(getattr(torch, name)).to(x.dtype)


def _table() -> dict[str, PointwiseOperation]:
    unary: dict[str, tuple[str, Callable[..., Tensor]]] = {
        **{name: (each.triton, each.torch) for name, each in ACTIVATIONS.items()},
        "abs": ("tl.abs({0})", torch.abs),
        "cos": ("tl.cos({0})", torch.cos),
        "erf": ("tl.erf({0})", torch.erf),
        "exp": ("tl.exp({0})", torch.exp),
        "exp2": ("tl.exp2({0})", torch.exp2),
        "log": ("tl.log({0})", torch.log),
        "neg": ("-{0}", torch.neg),
        "reciprocal": ("1.0 / {0}", torch.reciprocal),
        "rsqrt": ("tl.rsqrt({0})", torch.rsqrt),
        "sigmoid": ("tl.sigmoid({0})", torch.sigmoid),
        "sin": ("tl.sin({0})", torch.sin),
        "sqrt": ("tl.sqrt({0})", torch.sqrt),
        "tanh": ("tanh({0})", torch.tanh),
    }
    binary: dict[str, tuple[str, Callable[..., Tensor]]] = {
        "add": ("{0} + {1}", torch.add),
        "div": ("{0} / {1}", torch.div),
        # a NaN on either side is the result, as in torch
        "maximum": ("tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})", torch.maximum),
        "minimum": ("tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})", torch.minimum),
        "mul": ("{0} * {1}", torch.mul),
        "sub": ("{0} - {1}", torch.sub),
    }
    compared = {"eq": "==", "ge": ">=", "gt": ">", "le": "<=", "lt": "<", "ne": "!="}
    bitwise = {"and": "&", "or": "|", "xor": "^"}
    return {
        **{name: PointwiseOperation("n", "n", *both) for name, both in unary.items()},
        **{name: PointwiseOperation("nn", "n", *both) for name, both in binary.items()},
        **{
            name: PointwiseOperation("nn", "b", f"{{0}} {sign} {{1}}", getattr(torch, name))
            for name, sign in compared.items()
        },
        **{
            name: PointwiseOperation(
                "bb", "b", f"{{0}} {sign} {{1}}", getattr(torch, f"logical_{name}")
            )
            for name, sign in bitwise.items()
        },
        **{
            name: PointwiseOperation(
                "n", "n", f"{{0}}.to(tl.{name}).to(tl.float32)", _rounding(name)
            )
            for name in ROUNDINGS
        },
        "not": PointwiseOperation("b", "b", "{0} == 0", torch.logical_not),
        "number": PointwiseOperation("n", "n", "{0}", lambda x: x),
        "bit": PointwiseOperation("b", "b", "{0}", lambda x: x),
        "where": PointwiseOperation("bnn", "n", "tl.where({0}, {1}, {2})", torch.where),
    }


OPERATIONS: Final[Mapping[str, PointwiseOperation]] = _table()


# --- text ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PointwiseStep:
    operation: str
    arguments: tuple[str | float, ...]
    """Numbers, and names of values."""


_STEP: Final = re.compile(r"(\w+)\(([^()]*)\)")
_NAME: Final = re.compile(r"acc|[vsm](0|[1-9]\d*)")


def printed(steps: Sequence[PointwiseStep]) -> str:
    """Return the program as text; equal programs have equal texts.

    >>> printed([PointwiseStep("mul", ("acc", 2.0)), PointwiseStep("maximum", ("v0", "s0"))])
    'mul(acc,2.0);maximum(v0,s0)'
    """
    return ";".join(f"{s.operation}({','.join(map(str, s.arguments))})" for s in steps)


@lru_cache(maxsize=1024)
def parse(program: str) -> tuple[PointwiseStep, ...]:
    """Return the steps of a program. Raises ValueError if the text is not a program."""
    steps: list[PointwiseStep] = []
    for text in program.split(";") if program else []:
        found = _STEP.fullmatch(text)
        if found is None or found[1] not in OPERATIONS:
            raise ValueError(f"no step of a program: {text}")
        arguments = tuple(_argument(part, len(steps)) for part in found[2].split(","))
        if len(arguments) != len(OPERATIONS[found[1]].takes):
            raise ValueError(f"another number of arguments: {text}")
        steps.append(PointwiseStep(found[1], arguments))
    return tuple(steps)


def _argument(text: str, count: int) -> str | float:
    """Return a number, or the name of a value that is defined after `count` steps.

    Raises ValueError for a value that is defined later.
    """
    if _NAME.fullmatch(text) is None:
        return float(text)
    if text[0] == "v" and int(text[1:]) >= count:
        raise ValueError(f"{text} is not computed yet")
    return text


def _kind(argument: str | float, steps: Sequence[PointwiseStep]) -> str:
    """Return the kind of an argument: n for a number, b for a bit."""
    if not isinstance(argument, str) or argument[0] in "as":
        return "n"
    return "b" if argument[0] == "m" else OPERATIONS[steps[int(argument[1:])].operation].gives


# --- by torch ------------------------------------------------------------------------------------


def evaluate(program: str, acc: Tensor, sides: Sequence[Tensor]) -> Tensor:
    """Return the result, of the shape and width of `acc`, to which the side inputs broadcast.

    Raises ValueError if `program` does not parse.
    """
    steps = parse(program)
    values: list[Tensor] = []

    dtype = torch.float64 if acc.dtype in INTEGERS else acc.dtype

    def value(argument: str | float) -> Tensor:
        if not isinstance(argument, str):
            return acc.new_full((), argument, dtype=dtype)
        if argument == "acc":
            return acc
        return (values if argument[0] == "v" else sides)[int(argument[1:])]

    for step in steps:
        operation = OPERATIONS[step.operation]
        given = [value(a) for a in step.arguments]
        if not all(x.dtype in INTEGERS for x in given):  # those are only compared, exactly
            given = [
                x.to(dtype) if kind == "n" else x != 0
                for x, kind in zip(given, operation.takes, strict=True)
            ]
        values.append(operation.torch(*given))
    result = values[-1] if values else acc
    return result.to(dtype).expand(acc.shape)


# --- in Triton -----------------------------------------------------------------------------------


def statements(program: str, number: str) -> list[str]:
    """Return Triton statements that compute the steps from `acc`, s<i> and m<i>, and return.

    `number` formats a number. Raises ValueError if `program` does not parse.
    """
    steps = parse(program)
    lines = []
    for i, step in enumerate(steps):
        operation = OPERATIONS[step.operation]
        arguments = [
            _written(a, _kind(a, steps), kind, number)
            for a, kind in zip(step.arguments, operation.takes, strict=True)
        ]
        lines.append(f"v{i} = {operation.triton.format(*arguments)}")
    return [*lines, f"return {f'v{len(steps) - 1}' if steps else 'acc'}"]


def _written(argument: str | float, given: str, wanted: str, number: str) -> str:
    text = argument if isinstance(argument, str) else number.format(argument)
    if given == wanted:
        return text
    return f"{text}.to(tl.float32)" if wanted == "n" else f"({text} != 0)"
