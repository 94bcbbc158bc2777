"""Canonical form of calls: the operator, children and attributes of an fx node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from pypm.core.operators import GETITEM, LITERAL, Operator, index_key
from pypm.core.terms import UNDEFINED, Value
from pypm.fx.operators import corrections
from pypm.fx.operators.arguments import (
    CHILD,
    Argument,
    attribute,
    bind,
    freeze,
    python_arguments,
)
from pypm.fx.operators.canonical_calls import direct_call
from pypm.fx.operators.effects import is_view
from pypm.fx.operators.schemas import Overload, Slot, formed, overload
from pypm.fx.operators.targets import Target, resolve
from pypm.fx.subject.literals import lifted_number, made_number, promotes_as_number
from pypm.fx.subject.memory import is_written
from pypm.fx.values.metadata import is_number, metadata, number
from pypm.fx.values.symbolic import Symbolic, sizes
from pypm.torch_internals import auto_functionalized, auto_functionalized_v2

__all__ = [
    "CanonicalCall",
    "counted_from_zero",
    "describe",
    "is_constant",
    "module_class",
    "rank_of_dims",
    "rearranges",
    "tags",
]


@dataclass(frozen=True, slots=True)
class CanonicalCall:
    """A node's call in canonical form, which all ways to write the call share."""

    operator: Operator
    arguments: tuple[Argument, ...] = ()
    attributes: dict[str, Value] = field(default_factory=dict)
    overload: Overload | None = None
    """The overload; None outside torch's schemas."""
    form: tuple[tuple[str, str], ...] = ()
    """Kinds of arguments outside torch's schemas that attributes do not show: which keywords hold
    tensors, and what is a list and no tuple.
    """

    @property
    def tags(self) -> frozenset[str]:
        return frozenset() if self.overload is None else self.overload.tags

    @property
    def nodes(self) -> Iterator[fx.Node]:
        """Yield the nodes among the arguments, in order."""
        for argument in self.arguments:
            yield from _nodes(argument)


def _nodes(argument: Argument) -> Iterator[fx.Node]:
    if isinstance(argument, fx.Node):
        yield argument
    elif isinstance(argument, tuple):
        for part in argument:
            yield from _nodes(part)


def describe(node: fx.Node) -> CanonicalCall:
    """Return the call of a node in canonical form.

    Its children are in schema order, and its attributes include defaults. A node that stands for a
    number (`full([], c)`, a lifted constant, a symbolic size) is a literal. Placeholders and
    `get_attr` nodes are operators with their target as an attribute. An operator or overload that
    torch does not know is described by its name and arguments; nothing is raised.
    """
    if is_number(node):
        return _literal(number(node))
    if node.target in _AUTO_FUNCTIONALIZED:
        return _functionalized(node)
    if node.op in {"call_function", "call_method"}:
        return _call(node)
    if node.op == "call_module":
        return _module_call(node)
    if node.op == "get_attr":
        value = lifted_number(node)
        if value is UNDEFINED or not promotes_as_number(node):
            return CanonicalCall(Operator("get_attr"), (), {"target": node.target})
        return _literal(value)
    if node.op == "placeholder":
        return CanonicalCall(Operator("placeholder"), (), {"target": node.target})
    return _generic(Operator(node.op), node)


def tags(node: fx.Node) -> frozenset[str]:
    """Return the classes of the node's operator: torch's tags of the overload, corrected."""
    return describe(node).tags


def is_constant(node: fx.Node) -> bool:
    """Return whether the value is known before the graph runs: a module's attribute, a literal."""
    if node.op == "get_attr":
        return True
    if direct_call(node.target) is not None:
        return False
    found = describe(node)
    return found.operator == LITERAL and not isinstance(found.attributes["value"], Symbolic)


def rearranges(node: fx.Node) -> bool:
    """Return whether the node does no more than view or copy."""
    plain = direct_call(node.target)
    name = describe(node).operator.name if plain is None else plain.overload.packet_name
    return is_view(node) or name in corrections.COPIES


_AUTO_FUNCTIONALIZED: Final = (auto_functionalized, auto_functionalized_v2)


def _literal(value: Value) -> CanonicalCall:
    return CanonicalCall(LITERAL, (), {"value": value})


def _call(node: fx.Node) -> CanonicalCall:
    target = resolve(node.op, node.target)
    bound = bind(target, node) if target.candidates else None
    if bound is None:
        return _python_call(target, node)
    found, values = bound
    if found.packet_name in corrections.LITERALS:
        value = made_number(found, values, node)
        if value is not UNDEFINED and not is_written(node) and promotes_as_number(node):
            return _literal(value)
    return _schema_call(*formed(found, values), node)


def _schema_call(found: Overload, values: list[Any], node: fx.Node) -> CanonicalCall:
    children: list[Argument] = []
    attributes = dict(found.stand_ins)
    dims: list[Slot] = []
    for slot, value in zip(found.slots, values, strict=True):
        kind = slot.parameter.kind
        if kind == "attribute":
            attributes[slot.name] = attribute(slot, value)
            if slot.parameter.dimension:
                dims.append(slot)
        elif kind == "list" and isinstance(value, (list, tuple)):
            children.append(tuple(value))
        else:
            children.append(value)
    if _puts_the_number_first(found, children, attributes):
        children = [children[1], children[0]]
    if dims:
        _count_from_zero(found, dims, attributes, children)
    _resolve_sizes(found, attributes, node)
    return CanonicalCall(found.operator, tuple(children), attributes, found)


def _puts_the_number_first(
    found: Overload, children: list[Argument], attributes: dict[str, Value]
) -> bool:
    """Return whether a call is mul(x, 2) written as `2 * x`; torch records the tensor first."""
    condition = corrections.COMMUTATIVE.get(found.packet_name)
    if condition is None or isinstance(children[0], fx.Node):
        return False
    is_tensor = isinstance(children[1], fx.Node) and not is_number(children[1])
    return is_tensor and all(attributes.get(name) == value for name, value in condition)


def _count_from_zero(
    found: Overload,
    dims: list[Slot],
    attributes: dict[str, Value],
    children: list[Argument],
) -> None:
    named = [slot.name for slot in dims if _has_negative(attributes[slot.name])]
    if not named:
        return
    rank = rank_of_dims(found.packet_name, children)
    if isinstance(rank, int):
        for name in named:
            attributes[name] = counted_from_zero(attributes[name], rank)


def _has_negative(value: Value) -> bool:
    if isinstance(value, tuple):
        return any(isinstance(v, int) and v < 0 for v in value)
    return isinstance(value, int) and value < 0


def counted_from_zero(value: Value, rank: int) -> Value:
    """Return a dimension, or a tuple of them, with negative ones counted from the end of `rank`."""
    if isinstance(value, tuple):
        return tuple(counted_from_zero(v, rank) for v in value)
    if isinstance(value, int) and not isinstance(value, bool) and value < 0:
        return value + max(rank, 1)
    return value


def rank_of_dims(name: str, arguments: Sequence[Value]) -> Value:
    """Return the rank from whose end an operator's negative dims count; UNDEFINED if unknown.

    The arguments are nodes, or tensors.
    """
    first = arguments[0] if arguments else None
    while isinstance(first, tuple):
        first = first[0] if first else None
    found = _rank(first)
    if name in corrections.OUTPUT_RANKED and isinstance(found, int):
        return found + 1
    return found


def _rank(value: Value) -> Value:
    """Return the number of dimensions of a tensor or of a node's output, or UNDEFINED."""
    if isinstance(value, torch.Tensor):
        return value.ndim
    if not isinstance(value, fx.Node):
        return UNDEFINED
    found = metadata(value)
    if isinstance(found, torch.Tensor):
        return found.ndim
    shape = getattr(value.meta.get("tensor_meta"), "shape", None)
    return UNDEFINED if shape is None or found is not None else len(shape)


def _resolve_sizes(found: Overload, attributes: dict[str, Value], node: fx.Node) -> None:
    name = corrections.RESIZERS.get(found.packet_name)
    if name is None or not isinstance(attributes.get(name), tuple):
        return
    value = metadata(node)
    if isinstance(value, torch.Tensor):
        attributes[name] = sizes(value.shape)


# --- outside torch's schemas --------------------------------------------------------------------


def _python_call(target: Target, node: fx.Node) -> CanonicalCall:
    if target.operator.name == "getitem":
        return _gather(node) or _item(node)
    if target.operator.name == "builtins.getattr":
        return _transposed(node) or _generic(target.operator, node)
    if target.signature is None:
        return _generic(target.operator, node)
    named = python_arguments(target, node)
    if named is None:
        return _generic(target.operator, node)
    children: list[Argument] = []
    attributes = {name: _split(value, children) for name, value in named.items()}
    return CanonicalCall(target.operator, tuple(children), _rest(attributes), form=(*_form(named),))


def _item(node: fx.Node) -> CanonicalCall:
    """Return a call of `getitem`."""
    children: list[Argument] = []
    x, index = node.args
    attributes = {"self": _split(x, children), "index": _split(index_key(index), children)}
    return CanonicalCall(GETITEM, tuple(children), _rest(attributes))


def _gather(node: fx.Node) -> CanonicalCall | None:
    """Return `x[places]` as a call of `aten.index`, if `places` is a tensor of one dimension or
    more that holds integers; else None.
    """
    x, places = node.args
    if not isinstance(x, fx.Node) or not isinstance(places, fx.Node):
        return None
    found = metadata(places)
    if not isinstance(found, torch.Tensor) or not isinstance(metadata(x), torch.Tensor):
        return None
    if found.ndim == 0 or found.dtype not in (torch.int64, torch.int32):
        return None
    return _schema_call(overload(torch.ops.aten.index.Tensor), [x, [places]], node)


def _transposed(node: fx.Node) -> CanonicalCall | None:
    """Return the attribute `mT` or `T` of a tensor as a call of its operator; else None."""
    x, name, *_ = node.args
    if name not in ("mT", "T") or not isinstance(x, fx.Node):
        return None
    if not isinstance(metadata(x), torch.Tensor):
        return None
    operator = torch.ops.aten.mT if name == "mT" else torch.ops.aten.numpy_T
    return _schema_call(overload(operator.default), [x], node)


def _module_call(node: fx.Node) -> CanonicalCall:
    owner = node.graph.owning_module
    name = str(node.target)
    kind = "call_module" if owner is None else module_class(owner.get_submodule(name))
    call = _generic(Operator(kind), node)
    call.attributes["target"] = name
    return call


def module_class(module: torch.nn.Module) -> str:
    """Return the name of a module's class, which is the operator of calls of the module."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _generic(found: Operator, node: fx.Node) -> CanonicalCall:
    """Return a call with the tensors, in the order met, as children, and the rest as attributes."""
    children: list[Argument] = []
    given: dict[str, Value] = {f"argument{i}": value for i, value in enumerate(node.args)}
    given |= {name: node.kwargs[name] for name in sorted(node.kwargs)}
    attributes = {name: _split(value, children) for name, value in given.items()}
    keywords = [(name, "tensor") for name in sorted(node.kwargs) if attributes[name] is CHILD]
    return CanonicalCall(found, tuple(children), _rest(attributes), form=(*keywords, *_form(given)))


def _form(named: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """Yield where arguments are not what attributes show: a list where these show a tuple."""
    for name, value in named.items():
        kind = next((kind for kind in _SHOWN_OTHERWISE if isinstance(value, kind)), None)
        if kind is not None:
            yield name, kind.__name__
        if isinstance(value, Mapping):
            yield from _form({f"{name}.{key}": part for key, part in value.items()})
        elif isinstance(value, (list, tuple)):
            yield from _form({f"{name}.{i}": part for i, part in enumerate(value)})


_SHOWN_OTHERWISE: Final = (list, Mapping, slice, torch.device)


def _rest(attributes: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not CHILD}


def _split(value: Value, children: list[Argument]) -> Value:
    if isinstance(value, fx.Node):
        if is_number(value):
            return number(value)
        children.append(value)
        return CHILD
    if isinstance(value, (list, tuple)):
        return tuple([_split(v, children) for v in value])
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return ("slice", *[_split(part, children) for part in parts])
    if isinstance(value, dict):
        return tuple((k, _split(v, children)) for k, v in value.items())
    return freeze(value)


def _functionalized(node: fx.Node) -> CanonicalCall:
    """Return `auto_functionalized(op, ...)` as a call of op if it writes each of its bases as a
    whole.

    A call that writes views of its bases, or the same base twice, is not a call of op on them.
    """
    found = overload(node.args[0])  # type: ignore[arg-type]
    kwargs = dict(node.kwargs)
    bases = kwargs.pop("_all_bases", ())
    if not isinstance(bases, Sequence):
        return _generic(Operator(f"higher_order.{node.target}"), node)
    order = [v for k, v in kwargs.items() if k.endswith("_base_index") and v is not None]
    for slot in found.slots:
        _take_base(slot.name, kwargs, bases)
    values = [kwargs.pop(s.name, s.parameter.default) for s in found.slots]
    has_views = bool(kwargs)
    if has_views or order != [*range(len(bases))]:
        return _generic(Operator(f"higher_order.{node.target}"), node)
    return _schema_call(found, values, node)


def _take_base(
    name: str, kwargs: dict[str, fx.node.Argument], bases: Sequence[fx.node.Argument]
) -> None:
    length = kwargs.pop(f"_{name}_length", None)
    if isinstance(length, int):
        for i in range(length):
            _take_base(f"{name}_{i}", kwargs, bases)
        kwargs[name] = tuple(kwargs.pop(f"{name}_{i}") for i in range(length))
    elif f"_{name}_base_index" in kwargs:
        index = kwargs.pop(f"_{name}_base_index")
        kwargs.pop(f"_{name}_alias", None)
        kwargs[name] = bases[index] if isinstance(index, int) else None
