"""Calls of a graph as expressions of the pattern language."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import EllipsisType
from typing import Final, Protocol

import torch
from torch import fx

from pypm.core.operators import GETITEM, LITERAL, REQUIRED
from pypm.core.terms import Value
from pypm.fx.operators import corrections
from pypm.fx.operators.arguments import CHILD, Argument, attribute, bind
from pypm.fx.operators.schemas import Overload, Slot
from pypm.fx.operators.targets import resolve
from pypm.fx.subject.view import View
from pypm.fx.values.metadata import metadata
from pypm.fx.values.symbolic import Symbolic
from pypm.lang.overloads import COMPARISONS, INFIX, NEGATE

__all__ = ["Piece", "Values", "spell"]

_POWER: Final = re.compile(r"([\w.]+) \*\* (-?[\w.]+)")


@dataclass(frozen=True)
class Piece:
    """An expression and the nodes and literals inside it."""

    expression: ast.expr
    literals: tuple[str, ...] = ()
    """Numbers that may differ in another model."""
    inlined: tuple[fx.Node, ...] = ()
    """Nodes that it contains as nested expressions instead of names."""

    @cached_property
    def source(self) -> str:
        """Return the expression as formatted source text."""
        text = _POWER.sub(r"\1**\2", ast.unparse(self.expression))
        return text if '"' in text else text.replace("'", '"')


class Values(Protocol):
    """Names of the values around a call."""

    @property
    def view(self) -> View: ...
    def is_variable(self, node: fx.Node) -> bool: ...
    def mention(self, node: fx.Node) -> Piece:
        """Return the node's name if it has one, else the expression that it computes."""

    def name(self, node: fx.Node) -> str:
        """Return the node's name; give it one if it has none."""

    def declare(self, hint: str, text: str) -> str:
        """Return a name similar to `hint` for the value of `text`, which is computed once."""

    def not_a_number(self, node: fx.Node, place: int, is_child: bool) -> str:
        """Return the name of a variable that is bound to NaN: number `place` of a call."""


def spell(node: fx.Node, values: Values) -> Piece:
    """Return a node's call as an expression, without defaults, and infix where the language allows
    it.

    Sizes passed to views, devices and values that Python cannot write become placeholders. Dims,
    dtypes and numbers stay as they are, but NaN, which equals no number, becomes a variable with a
    guard. A slice that starts or ends in the middle of a dimension says so.
    """
    spelling = _Spelling(node, values)
    expression = spelling.expression()
    return Piece(expression, tuple(spelling.literals), tuple(spelling.inlined))


_INFIX: Final = {operator.name: symbol for symbol, operator in INFIX.items()}
_COMPARED: Final = {operator.name: symbol for symbol, operator in COMPARISONS.items()}
_OPEN: Final = ast.Name("_")
_PLACES: Final = frozenset({"cudnn_enable", "cudnn_enabled", "device", "layout", "pin_memory"})
"""Arguments that change where or how a value is computed, but not the value."""


class _Spelling:
    def __init__(self, node: fx.Node, values: Values) -> None:
        self.node = node
        self.values = values
        self.call = values.view.call(node)
        self.literals: list[str] = []
        self.inlined: list[fx.Node] = []
        self.unequal = 0
        """The number of NaNs so far."""

    def expression(self) -> ast.expr:
        if self.call.overload is not None:
            return self.schema_call(self.call.overload)
        children = [self.child(argument) for argument in self.call.arguments]
        if self.call.operator.name == GETITEM.name and len(children) == 1:
            index = self.call.attributes["index"]
            return ast.Subscript(children[0], _OPEN if CHILD in repr(index) else self.index(index))
        said = self.said()
        parameters = [f'"x{i}"' for i in range(len(children))]
        parameters += [f'Parameter("{name}", "attribute")' for name in said]
        name = self.call.operator.name
        declared = f'operator("{name}", [{", ".join(parameters)}])'
        head = ast.Name(self.values.declare(name.rpartition(".")[2], declared))
        return ast.Call(head, children, [ast.keyword(n, value) for n, value in said.items()])

    def schema_call(self, overload: Overload) -> ast.expr:
        given = self.given(overload)
        if corrections.RESIZERS.get(overload.packet_name) in {slot.name for slot, _ in given}:
            rest = _OPEN if len(given) == 2 else ast.Constant(...)
            return ast.Call(self.head(overload), [given[0][1], rest], [])
        infix = self.infix([value for _, value in given])
        if infix is not None:
            return infix
        count = _positional(overload, [slot for slot, _ in given])
        arguments = [value for _, value in given[:count]]
        keywords = [ast.keyword(slot.name, value) for slot, value in given[count:]]
        return ast.Call(self.head(overload), arguments, keywords)

    def head(self, overload: Overload) -> ast.expr:
        """Return the operator as an expression: `aten.relu`."""
        namespace, _, name = overload.packet_name.rpartition(".")
        if namespace not in ("aten", "prims"):
            namespace = self.values.declare(namespace, f'Namespace("{namespace}")')
        return ast.Attribute(ast.Name(namespace), name)

    def infix(self, operands: list[ast.expr]) -> ast.expr | None:
        """Return `x + y` and the like for a call with children only, else None."""
        name = self.call.operator.name
        if name == "aten.div" and self.call.attributes["rounding_mode"] == "floor":
            name, operands = "aten.floor_divide", operands[:2]
        if len(self.call.arguments) != len(operands) or all(map(_is_python, operands)):
            return None
        match operands:
            case [left, right] if name in _INFIX:
                return ast.BinOp(left, _INFIX[name](), right)
            case [left, right] if name in _COMPARED:
                return ast.Compare(left, [_COMPARED[name]()], [right])
            case [operand] if name == NEGATE.name:
                return ast.UnaryOp(ast.USub(), operand)
        return None

    # --- arguments ------------------------------------------------------------------------------

    def given(self, overload: Overload) -> list[tuple[Slot, ast.expr]]:
        """Return the arguments that differ from their defaults."""
        written = self.written(overload)
        if any(self.is_middle(slot, written.get(slot.name)) for slot in overload.slots):
            self.values.name(self.node.all_input_nodes[0])  # before it is mentioned
        children = iter(self.call.arguments)
        given: list[tuple[Slot, ast.expr]] = []
        for slot in overload.slots:
            is_child = slot.parameter.kind != "attribute"
            value = next(children) if is_child else written[slot.name]
            if not _is_same(value, slot.parameter.default):
                said = self.child(value) if is_child else self.attribute(slot, value)  # type: ignore[arg-type]
                given.append((slot, said))
        return given

    def written(self, overload: Overload) -> Mapping[str, Value]:
        """Return the attributes; dimensions keep the sign that the graph has."""
        bound = bind(resolve(self.node.op, self.node.target), self.node)
        if bound is None or bound[0] is not overload:
            return self.call.attributes
        pairs = zip(overload.slots, bound[1], strict=True)
        dims = {s.name: attribute(s, value) for s, value in pairs if s.parameter.dimension}
        return {**self.call.attributes, **dims}

    def attribute(self, slot: Slot, value: Value) -> ast.expr:
        if slot.name in _PLACES:
            return _OPEN
        if self.is_middle(slot, value):
            size = ast.Attribute(ast.Name(self.values.name(self.node.all_input_nodes[0])), "shape")
            dim = _constant(self.call.attributes["dim"]) or _OPEN
            return ast.BinOp(ast.Subscript(size, dim), ast.FloorDiv(), ast.Constant(2))
        is_open = corrections.RESIZERS.get(self.call.operator.name) == slot.name
        if not slot.parameter.dimension and not is_open:
            self.note_sizes(slot, value)
        self.note(value, f"{slot.name}=")
        return self.constant(value) or _OPEN

    def is_middle(self, slot: Slot, value: Value) -> bool:
        """Return whether a bound of a slice lies in the middle of the dimension."""
        if self.call.operator.name != "aten.slice" or slot.name not in ("start", "end"):
            return False
        source, dim = self.call.arguments[0], self.call.attributes["dim"]
        shape = getattr(metadata(source), "shape", ()) if isinstance(source, fx.Node) else ()
        if not isinstance(dim, int) or not 0 <= dim < len(shape):
            return False
        size = shape[dim]
        return type(size) is int and type(value) is int and size == 2 * value

    def child(self, value: Argument) -> ast.expr:
        if isinstance(value, tuple):
            return ast.List([self.child(part) for part in value])
        if not isinstance(value, fx.Node):
            return self.literal(value)
        call = self.values.view.call(value)
        if call.operator == LITERAL and not self.values.is_variable(value):
            return self.literal(call.attributes["value"])
        piece = self.values.mention(value)
        self.literals += piece.literals
        self.inlined += piece.inlined
        return piece.expression

    def literal(self, value: Value) -> ast.expr:
        self.note(value)
        return self.constant(value, is_child=True) or _OPEN

    def said(self) -> dict[str, ast.expr]:
        """Return the attributes of a call that has no torch schema, as far as Python can write
        them.
        """
        said = {}
        for name, value in self.call.attributes.items():
            is_place = name == "target" and self.call.overload is None
            if is_place or CHILD in repr(value):
                continue
            constant = self.constant(value)
            if constant is not None:
                said[name] = constant
        return said

    def index(self, key: Value) -> ast.expr:
        """Return the index of a call of `getitem`, which terms hold as `index_key` makes it."""
        match key:
            case "slice", *ends:
                return ast.Slice(*(None if end is None else self.index(end) for end in ends))
            case "list", *items:
                return ast.List([*map(self.index, items)])
            case tuple():
                return ast.Tuple([*map(self.index, key)])
            case EllipsisType():
                return ast.Constant(...)
        return self.constant(key) or _OPEN

    def constant(self, value: Value, is_child: bool = False) -> ast.expr | None:
        """Return a constant as an expression of the pattern; None if Python cannot write it."""
        if isinstance(value, float | complex) and value != value:
            self.unequal += 1
            return ast.Name(self.values.not_a_number(self.node, self.unequal, is_child))
        if isinstance(value, tuple):
            return ast.List([self.constant(part) or _OPEN for part in value])
        return _constant(value)

    def note_sizes(self, slot: Slot, value: Value) -> None:
        """Record sizes such as those of a norm's dimensions; 0, 1 and -1 count as structure."""
        numbers = value if isinstance(value, tuple) else (value,)
        if all(type(n) is int for n in numbers) and not {*numbers} <= {-1, 0, 1, 2**63 - 1}:
            self.literals.append(f"{slot.name}={_text(value)}")

    def note(self, value: Value, label: str = "") -> None:
        """Record a number such as an epsilon or a scale."""
        if isinstance(value, float) and not value.is_integer() and math.isfinite(value):
            self.literals.append(f"{label}{value!r}")


def _positional(overload: Overload, given: list[Slot]) -> int:
    """Return how many arguments can be positional without selecting another overload."""
    ours = [slot.parameter for slot in overload.slots if not slot.parameter.keyword_only]
    theirs = [
        [p for p in signature.parameters if not p.keyword_only]
        for signature in overload.operator.signatures
    ]
    count = 0
    for parameter, slot in zip(ours, given, strict=False):
        others = [parameters[count] for parameters in theirs if len(parameters) > count]
        alike = all((p.name, p.kind) == (parameter.name, parameter.kind) for p in others)
        if slot.parameter is not parameter or not alike:
            break
        count += 1
    return count


def _is_same(value: Value, default: Value) -> bool:
    return default is not REQUIRED and type(value) is type(default) and value == default


def _is_python(expression: ast.expr) -> bool:
    """Return whether an expression is plain Python, which patterns evaluate."""
    return not any(isinstance(part, ast.Name) for part in ast.walk(expression))


def _constant(value: Value) -> ast.expr | None:
    """Return a constant as a Python expression; None if Python cannot write it."""
    text = _text(value)
    return None if text is None else ast.parse(text, mode="eval").body


def _text(value: Value) -> str | None:
    match value:
        case Symbolic():
            return None
        case float() if math.isinf(value):
            return f'float("{value}")'
        case None | bool() | str() | float() | complex():
            return repr(value)
        case int():
            return "2**63 - 1" if value == 2**63 - 1 else repr(value)
        case tuple():
            return f"[{', '.join(_text(part) or '_' for part in value)}]"
        case torch.dtype() | torch.memory_format() | torch.layout():
            return str(value)
    return None
