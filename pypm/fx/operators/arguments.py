"""Arguments and schemas: the overload that a call means, and its arguments in canonical form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from pypm.core.operators import REQUIRED
from pypm.core.terms import Value
from pypm.fx.operators import corrections
from pypm.fx.operators.schemas import Overload, Slot
from pypm.fx.operators.targets import Target
from pypm.fx.values.metadata import is_number, metadata, number
from pypm.fx.values.symbolic import is_symbolic, size

__all__ = ["CHILD", "SILENT", "Argument", "attribute", "bind", "freeze", "python_arguments"]


class _Missing(Enum):
    MISSING = "missing"


_MISSING: Final = _Missing.MISSING


def bind(target: Target, node: fx.Node) -> tuple[Overload, list[Any]] | None:
    """Return the overload that a call means and the value for each of its slots, with defaults.

    Return None if no schema binds the arguments. Overloads whose types fit exactly are tried first;
    then numbers may stand for tensors (`2 - x`), and nodes without metadata for anything.
    """
    if target.is_exact:
        values = _arrange(target.candidates[0], node.args, node.kwargs, target)
        return None if values is None else (target.candidates[0], values)
    args, kwargs = node.args, node.kwargs
    if target.exchanged:
        args = (*args[1::-1], *args[2:])
    if target.signature is not None:
        named = python_arguments(target, node)
        if named is None:
            return None
        args, kwargs = (), named
    if target.operator.name == "torch.Tensor.to" and _is_device(args[1:]):
        args, kwargs = args[:1], {**kwargs, "device": args[1]}
    arranged = [(o, _arrange(o, args, kwargs, target)) for o in target.candidates]
    for lenient in (False, True):
        for candidate, values in arranged:
            if values is not None and _fits_all(candidate, values, lenient):
                return candidate, values
    return None


def _is_device(args: Sequence[Value]) -> bool:
    """Return whether `x.to(*args)` names a device alone, for which no schema has a place."""
    return len(args) == 1 and isinstance(args[0], (torch.device, str))


def python_arguments(target: Target, node: fx.Node) -> dict[str, fx.node.Argument] | None:
    """Return a Python function's arguments by name, with defaults."""
    assert target.signature is not None
    try:
        bound = target.signature.bind(*node.args, **node.kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    return bound.arguments


def _arrange(
    candidate: Overload, args: Sequence[Value], kwargs: Mapping[str, Value], target: Target
) -> list[Value] | None:
    """Return the arguments in the order of the slots, or None if one has no slot."""
    slots = candidate.slots
    count = candidate.positional
    if len(args) > count:
        if not count or slots[count - 1].type not in {"List[int]", "List[Tensor]"}:
            return None
        args = (*args[: count - 1], tuple(args[count - 1 :]))  # x.view(2, 3)
    values: list[Value] = [*args, *[_MISSING] * (len(slots) - len(args))]
    for name, value in kwargs.items():
        position = candidate.by_name.get(target.renamed.get(name, name))
        if position is None:
            if _says_nothing(name, value, target):
                continue
            return None
        if values[position] is not _MISSING:
            return None
        values[position] = value
    for position, slot in enumerate(slots):
        if values[position] is _MISSING:
            values[position] = target.default(slot)
        elif values[position] is None and not slot.optional:
            values[position] = slot.parameter.default
        if values[position] is REQUIRED:
            return None
    return values


def _says_nothing(name: str, value: Value, target: Target) -> bool:
    """Return whether an argument without a slot is a parameter that Python adds, at its default."""
    if target.signature is not None:
        default = target.signature.parameters[name].default
        return name in SILENT or (type(value) is type(default) and value == default)
    return name in corrections.IGNORED and (value is None or value is False)


SILENT: Final = frozenset({"_stacklevel", "norm_type"})
"""Python parameters that do not affect the result, or only with others that no schema has."""


def _fits_all(candidate: Overload, values: list[Value], lenient: bool) -> bool:
    return all(
        _fits(slot, value, lenient) for slot, value in zip(candidate.slots, values, strict=True)
    )


_PLAIN: Final[Mapping[str, tuple[type, ...]]] = {
    "number": (int, float, bool, complex),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "ScalarType": (torch.dtype,),
    "Device": (torch.device, str),
    "Layout": (torch.layout,),
    "MemoryFormat": (torch.memory_format,),
    "Generator": (torch.Generator,),
    "List[float]": (list, tuple),
    "List[bool]": (list, tuple),
}


def _fits(slot: Slot, value: Value, lenient: bool) -> bool:
    kind = slot.type
    if value is None:
        return slot.optional
    if value is slot.parameter.default:
        return True
    if isinstance(value, fx.Node):
        return lenient or _node_fits(kind, value)
    if kind == "Tensor":
        return lenient and isinstance(value, (int, float, bool, complex))
    if kind in {"List[Tensor]", "List[Optional[Tensor]]"}:
        return isinstance(value, (list, tuple)) and all(
            isinstance(v, fx.Node) or v is None for v in value
        )
    if kind == "int":
        is_reduction = slot.name == "reduction" and value in corrections.REDUCTIONS
        return is_reduction or (isinstance(value, int) and not isinstance(value, bool))
    if kind == "List[int]":
        elements = value if isinstance(value, (list, tuple)) else (value,)
        return all(isinstance(v, (int, fx.Node)) and not isinstance(v, bool) for v in elements)
    plain = _PLAIN.get(kind)
    return plain is None or isinstance(value, plain)


def _node_fits(kind: str, node: fx.Node) -> bool:
    if is_number(node):
        return kind in {"number", "int", "float", "bool"}
    value = metadata(node)
    if isinstance(value, (list, tuple)):
        return kind.startswith("List")
    return kind == "Tensor"


CHILD: Final = "<child>"
"""Placeholder, inside an attribute, for a tensor that is a child."""


def freeze(value: Value) -> Value:
    """Return an attribute's value as hashable: lists as tuples, nodes as the numbers they hold."""
    if value is None or type(value) in {int, float, bool, str, torch.dtype}:
        return value
    if isinstance(value, fx.Node):
        return number(value)
    if isinstance(value, (list, tuple)):
        return tuple([freeze(v) for v in value])
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, slice):
        return ("slice", freeze(value.start), freeze(value.stop), freeze(value.step))
    if isinstance(value, Mapping):
        return tuple((freeze(k), freeze(v)) for k, v in value.items())
    if is_symbolic(value):
        return size(value)
    try:
        hash(value)
    except TypeError:
        return Identity(value)
    return value


class Identity:
    """A value without a hash, as a constant that equals only itself."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__}>"


def attribute(slot: Slot, value: Value) -> Value:
    """Return an attribute's value in its schema's canonical form."""
    kind = slot.type
    if (kind == "List[int]" or slot.may_be_list) and value is not None:
        elements = value if isinstance(value, (list, tuple)) else (value,)
        if slot.length is not None and len(elements) == 1:
            elements = tuple(elements) * slot.length
        return freeze(tuple(elements))
    if kind == "float" and type(value) is int:
        return float(value)
    if kind == "int" and isinstance(value, str):
        return corrections.REDUCTIONS.get(value, value)
    if kind == "Device" and isinstance(value, str):
        return str(torch.device(value))
    return freeze(value)


Argument: TypeAlias = "fx.Node | int | float | complex | bool | str | tuple[Argument, ...] | None"
"""A child of a call: a node, a literal, or a tuple of those for a list of tensors."""
