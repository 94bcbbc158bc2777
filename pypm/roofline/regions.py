"""Regions of graphs: the calls that a result needs, what they read from outside, and results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import getitem
from typing import Final, TypeAlias

import torch
from torch import fx
from torch.export import ExportedProgram

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx.operators.arguments import bind
from pypm.fx.operators.corrections import named
from pypm.fx.operators.effects import has_effect, is_random, is_sure_view
from pypm.fx.operators.effects import is_view as may_be_view
from pypm.fx.operators.targets import resolve
from pypm.fx.values.metadata import tensor
from pypm.roofline.sizes import Amount, Value, amounts, product
from pypm.torch_internals import FakeTensor

__all__ = [
    "FLEX",
    "BoundedRegion",
    "Operation",
    "Subject",
    "dtype_of",
    "is_view",
    "numel",
    "operation",
    "region_of",
    "tensors",
]

Subject: TypeAlias = "fx.GraphModule | fx.Graph | ExportedProgram | Collection[fx.Node]"
"""A graph with metadata, as a module, a graph or an exported program; or nodes of one graph."""


FLEX: Final = "higher_order.flex_attention"


@dataclass(frozen=True, slots=True)
class Operation:
    """A call by the name of its operator and its arguments by the names of their slots."""

    name: str
    """`aten.mm`; the name of the target for a call that no schema binds."""
    arguments: Mapping[str, Value] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    is_bound: bool = False
    """True if a schema binds the arguments."""


def operation(node: fx.Node) -> Operation:
    """Return the operation of a node that calls something."""
    if node.op not in ("call_function", "call_method"):
        return Operation(f"{node.op} {node.target}")
    if node.target is torch.ops.higher_order.flex_attention:
        q, k, v, _, blocks, *rest = node.args
        given = {"query": q, "key": k, "value": v, "mask_mod": blocks[-1], "captured": rest[-1]}  # type: ignore[index]
        return Operation(FLEX, given, is_bound=True)
    target = resolve(node.op, node.target)
    bound = bind(target, node) if target.candidates else None
    if bound is None:
        return Operation("getitem" if node.target is getitem else target.operator.name)
    found, values = bound
    names = [slot.name for slot in found.slots]
    arguments = dict(zip(names, values, strict=True))
    return Operation(found.packet_name, arguments, found.tags, is_bound=True)


def tensors(node: fx.Node) -> list[Value]:
    """Return the tensors that a node computes, or their metadata; empty if it computes none."""
    value = tensor(node)
    parts = value if type(value) is tuple or type(value) is list else (value,)
    return [part for part in parts if hasattr(part, "shape") and hasattr(part, "dtype")]


def is_view(node: fx.Node) -> bool:
    """Return whether a value is in the memory of the first operand: always, or for its layout."""
    if is_sure_view(node):
        return node.target is not getitem or _is_part(node)
    return (may_be_view(node) or _is_idle_dropout(node)) and _is_same_memory(node)


_DROPOUTS: Final = named("aten", "dropout alpha_dropout feature_dropout feature_alpha_dropout")
_RESHAPES: Final = named("aten", "reshape reshape_as flatten unflatten ravel")


def _packet(node: fx.Node) -> str:
    """Return the name of the operator that a node calls, without overload; "" if it has none."""
    target = resolve(node.op, node.target) if node.op == "call_function" else None
    return target.candidates[0].packet_name if target and target.candidates else ""


def _is_idle_dropout(node: fx.Node) -> bool:
    """Return whether a node is dropout outside of training, which returns its operand."""
    return _packet(node) in _DROPOUTS and not is_random(node)


def _is_same_memory(node: fx.Node) -> bool:
    """Return whether all elements of the first operand are in place already.

    `reshape`, `contiguous` and `to` copy only what is not.
    """
    found = [tensors(each) for each in (*node.all_input_nodes[:1], node)]
    if [len(each) for each in found] != [1, 1]:
        return False
    ((given,), (made,)) = found
    if (given.dtype, given.device) != (made.dtype, made.device):
        return False
    shapes = [amounts(value.shape) for value in (given, made)]
    strides = [amounts(value.stride()) for value in (given, made)]
    if shapes[0] == shapes[1] and strides[0] == strides[1]:
        return True
    if _packet(node) in _RESHAPES and not _is_dense(shapes[1], strides[1]):
        return True  # a copy would be dense
    return product(shapes[0]) == product(shapes[1]) and all(map(_is_dense, shapes, strides))


def _is_dense(shape: Sequence[Amount], strides: Sequence[Amount]) -> bool:
    """Return whether elements follow each other in the order of their indices."""
    expected: Amount = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected = expected * size
    return True


def _is_part(node: fx.Node) -> bool:
    """Return whether an item is a view: of a tensor, or one of several views."""
    source = node.all_input_nodes[0]
    return isinstance(tensor(source), torch.Tensor) or is_view(source)


def numel(node: fx.Node) -> Amount:
    """Return the number of elements that a node computes."""
    counts = [product(amounts(each.shape)) for each in tensors(node)]
    return sum(counts[1:], counts[0]) if counts else 0


def dtype_of(node: fx.Node) -> torch.dtype | None:
    """Return the type of the first tensor that a node computes."""
    found = tensors(node)
    return found[0].dtype if found else None


@dataclass(frozen=True)
class BoundedRegion:
    """Calls of one graph, in order, of which each contributes to a result or writes memory."""

    nodes: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    """Nodes inside or outside that are results."""
    constants: frozenset[fx.Node]
    """Nodes outside whose values are known before the region runs: weights."""
    owner: torch.nn.Module | None
    """The module whose attributes `get_attr` nodes read."""
    values: Mapping[fx.Node, torch.Tensor] = field(default_factory=dict)
    """Values of constants that are no parameters, where they are known: stored masks."""

    @cached_property
    def inside(self) -> frozenset[fx.Node]:
        """Return the nodes as a set."""
        return frozenset(self.nodes)

    @cached_property
    def operations(self) -> Mapping[fx.Node, Operation]:
        """Return the operation of each node: binding arguments to a schema is done once."""
        return {node: operation(node) for node in self.nodes}

    @cached_property
    def fixed(self) -> frozenset[fx.Node]:
        """Return the nodes inside that depend on weights alone: a compiler may compute them
        once.
        """
        found: set[fx.Node] = set()
        for node in self.nodes:
            sources = node.all_input_nodes
            if (
                sources
                and not has_effect(node)
                and all(source in self.constants or source in found for source in sources)
            ):
                found.add(node)
        return frozenset(found)


_CALLS: Final = ("call_function", "call_method", "call_module")


def region_of(subject: Subject) -> BoundedRegion:
    """Return the region that a graph, program or some nodes are.

    Raises PyPMError for anything else, for nodes of several graphs, and for a graph without
    metadata.
    """
    if isinstance(subject, ExportedProgram):
        found = _whole(subject.graph, subject.graph_module, _weights(subject))
        return replace(found, values=_stored(subject))
    if isinstance(subject, fx.GraphModule):
        return _whole(subject.graph, subject, frozenset())
    if isinstance(subject, fx.Graph):
        return _whole(subject, subject.owning_module, frozenset())
    given: object = subject
    is_several = isinstance(given, Collection) and not isinstance(given, torch.nn.Module)
    parts = list(given) if isinstance(given, Collection) and is_several else [given]
    nodes = [part for part in parts if isinstance(part, fx.Node)]
    if len(nodes) != len(parts) or not is_several:
        name = type(given).__name__
        message = f"a region is a graph, a program or nodes of a graph, not `{name}`"
        raise PyPMError(Diagnostic(message, help="pass `torch.export.export(model, inputs)`"))
    if len({node.graph for node in nodes}) > 1:
        raise PyPMError(Diagnostic("the nodes of a region are of several graphs"))
    inside = {node for node in nodes if node.op in _CALLS}
    outputs = [node for node in inside if any(user not in inside for user in node.users)]
    unused = [node for node in inside if not node.users]
    graph = nodes[0].graph if nodes else fx.Graph()
    return _region(inside, sorted([*outputs, *unused]), frozenset(), graph.owning_module)


def _whole(
    graph: fx.Graph, owner: torch.nn.Module | None, constants: frozenset[fx.Node]
) -> BoundedRegion:
    inside = {node for node in graph.nodes if node.op in _CALLS}
    outputs = graph.output_node().all_input_nodes
    return _region(inside, outputs, constants, owner)


def _weights(program: ExportedProgram) -> frozenset[fx.Node]:
    signature = program.graph_signature
    written = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    held = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    names = {name for name, target in held.items() if target not in written}
    return frozenset(n for n in program.graph.find_nodes(op="placeholder") if n.name in names)


def _stored(program: ExportedProgram) -> dict[fx.Node, torch.Tensor]:
    """Return the values of the buffers and constants that a program does not write."""
    signature = program.graph_signature
    targets = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    known = {**program.state_dict, **program.constants}
    found = {}
    for node in _weights(program):
        value = known.get(targets.get(node.name, ""))
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            found[node] = value
    return found


def _region(
    inside: set[fx.Node],
    outputs: Sequence[fx.Node],
    constants: frozenset[fx.Node],
    owner: torch.nn.Module | None,
) -> BoundedRegion:
    todo = [*outputs, *(node for node in inside if has_effect(node))]
    live: set[fx.Node] = set()
    while todo:
        node = todo.pop()
        if node in inside and node not in live:
            live.add(node)
            todo += node.all_input_nodes
    if live and all(tensor(node) is None for node in live):
        message = "no node of the region has metadata"
        help = "trace with `torch.export.export` or `make_fx(..., tracing_mode='fake')`"
        raise PyPMError(Diagnostic(message, help=help))
    read = {source for node in live for source in node.all_input_nodes}
    attributes = {node for node in read if node.op == "get_attr"}
    nodes = tuple(sorted(live))
    return BoundedRegion(nodes, tuple(dict.fromkeys(outputs)), constants | attributes, owner)
