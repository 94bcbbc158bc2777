"""Keys of traces: equal for matches that have the same replacement."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import fx

from pypm.core.operators import Operator
from pypm.core.records import Record, as_tuple
from pypm.core.rules import Rule
from pypm.fx.legality.region import Region
from pypm.fx.matching.match import Match
from pypm.fx.tracing.body import takes_match
from pypm.fx.values.metadata import metadata

__all__ = ["surroundings", "trace_key"]


def surroundings(match: Match) -> object:
    """Return the parts of the graph that a body can reach through `match`.

    The value is equal before and after the body's run unless the body changed the graph.
    """
    nodes = (*match.region.nodes, *match.region.inputs)
    seen = [(n.op, n.target, n.args, n.kwargs, tuple(n.users), n.next) for n in nodes]
    return len(match.root.graph.nodes), seen


def trace_key(rule: Rule, match: Match) -> Hashable:
    """Return a hashable key; matches with equal keys have equal traces.

    The key holds the bindings, the metadata of the operands, and the region if the body takes
    `match` or an operator. So equal layers of a model are traced once.
    """
    operands = match.region.operands
    names = {node: index for index, node in enumerate(operands)}
    bindings = tuple([_key(value, names) for value in match.bindings.values()])
    known = tuple([_metadata_key(metadata(node)) for node in operands])
    calls = takes_match(rule) or any(isinstance(v, Operator) for v in match.bindings.values())
    region = _region_key(match.region, names) if calls else None
    effectful = bool(match.region.drawing), bool(match.region.communicating)
    reading = None
    if match.reading is not None:
        value, nodes = match.reading.value, match.reading.nodes
        reading = value, _key(value, names), _key(nodes, names)
    return id(rule), bindings, known, effectful, region, reading


def _key(value: object, names: Mapping[fx.Node, int]) -> Hashable:
    if type(value) is int:
        return value
    if isinstance(value, fx.Node):
        return ("node", names.get(value, value.name))
    if isinstance(value, (tuple, list)):
        return (type(value), *(_key(part, names) for part in value))
    if isinstance(value, Record):
        return (Record, _key(as_tuple(value), names))
    if isinstance(value, dict):
        return tuple((name, _key(part, names)) for name, part in value.items())
    if isinstance(value, Operator):
        return value
    return (type(value), repr(value))


def _metadata_key(value: object) -> Hashable:
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        sizes = _sizes(value.shape), _sizes(value.stride())
        bits = value.requires_grad, value.is_conj(), value.is_neg()
        return (*sizes, value.dtype, value.device, value.layout, *bits)
    if isinstance(value, (tuple, list)):
        return tuple(map(_metadata_key, value))
    return (type(value), str(value))


def _sizes(numbers: Sequence[int | torch.SymInt]) -> tuple[int | str, ...]:
    return tuple([n if type(n) is int else str(n) for n in numbers])


def _region_key(region: Region, operands: Mapping[fx.Node, int]) -> Hashable:
    names = dict(operands)
    parts: list[Hashable] = []
    for node in region.nodes:
        call = (_key(node.args, names), _key(dict(node.kwargs), names))
        parts.append((node.op, node.target, call, _metadata_key(metadata(node))))
        names.setdefault(node, len(names))
    return tuple(parts), tuple(names[root] for root in region.roots)
