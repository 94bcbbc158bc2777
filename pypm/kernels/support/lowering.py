"""Lowering of the nodes after a matrix product to a program of `pypm.kernels.support.pointwise`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import torch
from torch import fx

from pypm.core import terms
from pypm.fx import LITERAL, describe, metadata, same_shape
from pypm.fx.operators.arguments import Argument
from pypm.fx.operators.corrections import CASTS
from pypm.fx.subject.calls import CanonicalCall
from pypm.kernels.support.pointwise import OPERATIONS, ROUNDINGS, PointwiseStep, printed
from pypm.kernels.support.triton import computes_in

__all__ = ["PRODUCTS", "SAME", "Lowered", "lowered"]

Value = str | float
"""The name of a value in the program, or a number."""

Attributes: TypeAlias = Mapping[str, terms.Value]
"""The attributes of a call by name."""

PRODUCTS: Final[Mapping[str, int | None]] = {
    "aten.mm": None,
    "aten.matmul": None,
    "aten.addmm": 0,
    "aten.linear": 2,
}
"""Matrix products, with the index of the argument that is added to them."""

SAME: Final = frozenset(
    {
        "aten._unsafe_view",
        "aten.alias",
        "aten.clone",
        "aten.contiguous",
        "aten.detach",
        "aten.dropout",
        "aten.expand",
        "aten.reshape",
        "aten.slice",
        "aten.view",
    }
)
"""Operators that keep every value and the order of rows, if the rule has them in a region."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program, and the tensors that it reads besides the product."""

    program: str
    sides: tuple[tuple[fx.Node, bool], ...]
    """Nodes, with whether they have the rows of the product; otherwise they have one row."""
    follows: bool
    """True if there is a step after the product and its own bias."""


class _Unfit(Exception):
    """The reason for which a region has no program."""


def lowered(nodes: Sequence[fx.Node]) -> Lowered | str:
    """Return the program of a region (one product and its epilogue), or why there is none.

    `nodes` are the region in graph order. Numbers are computed in float32. The implicit rounding of
    operators to a narrower type is left out; an explicit cast to another one is kept.
    """
    lowering = _Lowering()
    try:
        for node in nodes:
            lowering.add(node)
        lowering.end(nodes[-1])
    except _Unfit as unfit:
        return str(unfit)
    follows = len(lowering.steps) > lowering.biases
    return Lowered(printed(lowering.steps), tuple(lowering.sides), follows)


@dataclass
class _Lowering:
    steps: list[PointwiseStep] = field(default_factory=list)
    values: dict[fx.Node, Value] = field(default_factory=dict)
    sides: list[tuple[fx.Node, bool]] = field(default_factory=list)
    biases: int = 0
    wide: torch.dtype = torch.float32
    """The type in which the product is accumulated and the epilogue computed."""

    def takes(self, dtype: torch.dtype) -> bool:
        """Return whether kernels take values of this type, and `wide` holds all of them."""
        return computes_in(dtype) and torch.promote_types(dtype, self.wide) == self.wide

    def emit(self, operation: str, *arguments: Value) -> Value:
        self.steps.append(PointwiseStep(operation, arguments))
        return f"v{len(self.steps) - 1}"

    def add(self, node: fx.Node) -> None:
        call = describe(node)
        if call.operator == LITERAL:
            return
        _known(node)
        if call.operator.name in PRODUCTS:
            self.values[node] = self.product(call, node)
        elif call.operator.name in SAME:
            self.values[node] = self.values[next(call.nodes)]
        else:
            self.values[node] = self.operator(call, node)

    def end(self, root: fx.Node) -> None:
        if not self.takes(_known(root).dtype):
            raise _Unfit(f"the result is {_known(root).dtype}")
        last = f"v{len(self.steps) - 1}" if self.steps else "acc"
        if self.values[root] != last:  # `x.to(y)` does not read y
            self.emit("number", self.values[root])

    def product(self, call: CanonicalCall, node: fx.Node) -> Value:
        dtype = _known(node).dtype
        if not computes_in(dtype):
            raise _Unfit(f"the product is {dtype}")
        self.wide = torch.promote_types(dtype, torch.float32)
        place = PRODUCTS[call.operator.name]
        added = None if place is None else call.arguments[place]
        if added is None:
            return "acc"
        self.biases += 1
        return self.emit("add", "acc", self.value(added, node))

    def operator(self, call: CanonicalCall, node: fx.Node) -> Value:
        found, name = _known(node), call.operator.name
        if found.dtype != torch.bool and not self.takes(found.dtype):
            raise _Unfit(f"`{name}` gives {found.dtype}")
        if any(_known(n).device != found.device for n in call.nodes if n in self.values):
            raise _Unfit(f"`{name}` gives a value on another device")
        if name in CASTS:
            return self.cast(call, node)
        lower = _OPERATORS.get(name)
        if lower is None:
            raise _Unfit(f"`{name}` has no expression in Triton")
        arguments = [a if a is None else self.value(a, node) for a in call.arguments]
        value = lower(self, call.attributes, *arguments)
        is_bit = found.dtype == torch.bool
        if value is None or is_bit != (OPERATIONS[self.steps[-1].operation].gives == "b"):
            raise _Unfit(f"`{name}` has no expression in Triton for these arguments")
        return value

    def cast(self, call: CanonicalCall, node: fx.Node) -> Value:
        source, dtype = call.arguments[0], _known(node).dtype
        value = self.value(source, node)
        given = _known(source).dtype if isinstance(source, fx.Node) else None
        rounding = str(dtype).removeprefix("torch.")
        if given not in (None, torch.bool, dtype) and rounding in ROUNDINGS:
            return self.emit(rounding, value)
        if given == torch.float64 and dtype == torch.float32:
            raise _Unfit("a float64 is rounded to float32")
        if given is not None and (given == torch.bool) == (dtype == torch.bool):
            return value
        return self.emit("bit" if dtype == torch.bool else "number", value)

    def value(self, argument: Argument, user: fx.Node) -> Value:
        """Return the program's name of an argument of `user`, in whose shape all is computed."""
        if not isinstance(argument, fx.Node):
            return _number(argument)
        shape = _known(user).shape
        if argument in self.values:
            if not same_shape(_known(argument).shape, shape):
                raise _Unfit("what follows is larger than the product")
            return self.values[argument]
        call = describe(argument)
        if call.operator == LITERAL:
            return _number(call.attributes["value"])
        return self.side(argument, shape)

    def side(self, node: fx.Node, shape: Sequence[int]) -> Value:
        found = _known(node)
        if found.dtype != torch.bool and not self.takes(found.dtype):
            raise _Unfit(f"a side input is {found.dtype}")
        sizes = (*(1 for _ in range(len(shape) - found.dim())), *found.shape)
        has_rows = same_shape(sizes[:-1], shape[:-1])
        if not has_rows and not same_shape(sizes[:-1], [1] * (len(shape) - 1)):
            raise _Unfit("a side input is repeated for some of the rows")
        if (node, has_rows) not in self.sides:
            self.sides.append((node, has_rows))
        index = self.sides.index((node, has_rows))
        return f"{'m' if found.dtype == torch.bool else 's'}{index}"


def _known(node: fx.Node) -> torch.Tensor:
    found = metadata(node)
    if not isinstance(found, torch.Tensor):
        raise _Unfit(f"the shape of `{node}` is not known")
    return found


def _number(value: terms.Value) -> float:
    if isinstance(value, (bool, int, float)):
        return float(value)
    raise _Unfit(f"the value of `{value}` is not a known number")


# --- the table -----------------------------------------------------------------------------------

Lower = Callable[..., Value | None]
"""A function that emits the steps of a call: from a lowering, the call's attributes and arguments
to the result; None if it does not take these.
"""


def _plain(operation: str) -> Lower:
    return lambda to, attributes, *given: None if attributes else to.emit(operation, *given)


def _scaled(operation: str) -> Lower:
    """Return the lowering of x + alpha y and x - alpha y."""

    def lower(to: _Lowering, attributes: Attributes, x: Value, y: Value) -> Value:
        alpha = _number(attributes["alpha"])
        return to.emit(operation, x, y if alpha == 1 else to.emit("mul", y, alpha))

    return lower


def _div(to: _Lowering, attributes: Attributes, x: Value, y: Value) -> Value | None:
    return None if attributes["rounding_mode"] else to.emit("div", x, y)


def _gelu(to: _Lowering, attributes: Attributes, x: Value) -> Value:
    return to.emit("gelu" if attributes["approximate"] == "none" else "gelu_tanh", x)


def _clamp(to: _Lowering, _: Attributes, x: Value, low: Value | None, high: Value | None) -> Value:
    x = x if low is None else to.emit("maximum", x, low)
    return x if high is None else to.emit("minimum", x, high)


def _hardtanh(to: _Lowering, attributes: Attributes, x: Value) -> Value:
    return _clamp(to, attributes, x, _number(attributes["min_val"]), _number(attributes["max_val"]))


def _leaky_relu(to: _Lowering, attributes: Attributes, x: Value) -> Value:
    slope = to.emit("mul", x, _number(attributes["negative_slope"]))
    return to.emit("where", to.emit("gt", x, 0.0), x, slope)


def _masked_fill(to: _Lowering, _: Attributes, x: Value, mask: Value, value: Value) -> Value:
    return to.emit("where", mask, value, x)


def _pow(to: _Lowering, _: Attributes, x: Value, exponent: Value) -> Value | None:
    roots: dict[Value, str] = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    if exponent in roots:
        return to.emit(roots[exponent], x)
    if exponent not in (2.0, 3.0, 4.0):
        return None
    y = to.emit("mul", x, x)
    return y if exponent == 2.0 else to.emit("mul", y, x if exponent == 3.0 else y)


_OPERATORS: Final[Mapping[str, Lower]] = {
    **{f"aten.{name}": _plain(name) for name in OPERATIONS},
    **{
        f"aten.{prefix}_{name}": _plain(name)
        for prefix in ("bitwise", "logical")
        for name in ("and", "or", "xor", "not")
    },
    "aten.add": _scaled("add"),
    "aten.clamp": _clamp,
    "aten.div": _div,
    "aten.gelu": _gelu,
    "aten.hardtanh": _hardtanh,
    "aten.leaky_relu": _leaky_relu,
    "aten.masked_fill": _masked_fill,
    "aten.pow": _pow,
    "aten.relu6": lambda to, given, x: _clamp(to, given, x, 0.0, 6.0),
    "aten.sub": _scaled("sub"),
}
"""Lowerings by aten operator: those with attributes or another name, then the table's own."""
