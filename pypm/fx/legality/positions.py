"""Positions: which part of its memory a view is, beside another view of the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Argument

from pypm.fx.legality.aliasing import sure_base
from pypm.fx.legality.strides import same_strides
from pypm.fx.operators.corrections import named
from pypm.fx.subject.calls import describe
from pypm.fx.subject.memory import shared
from pypm.fx.values.metadata import storage

__all__ = ["SAME", "UNDOING", "Placed", "same_positions"]

Pair: TypeAlias = tuple[fx.Node, fx.Node]
_Step: TypeAlias = tuple[str, tuple[Argument, ...], dict[str, object]]
"""The name, the further arguments and the attributes of a call that returns a view."""


@dataclass(frozen=True)
class Placed:
    """Two nodes that certainly are views of one memory, and their values as far as known."""

    nodes: Pair
    values: tuple[fx.node.Argument, fx.node.Argument]
    inputs: Mapping[fx.Node, fx.Node]
    """The nodes of the graph by the placeholders among what the two nodes are computed from."""


def same_positions(before: Placed, after: Placed) -> bool:
    """Return whether two views certainly share the same elements before and after a rewrite.

    By their metadata, if it shows the shared memory: strides are equal, and so is the distance of
    the first elements. Otherwise the views must be made by the same calls.
    """
    known, found = _distance(before.values), _distance(after.values)
    if known is not None and found is not None:
        pairs = zip(before.values, after.values, strict=True)
        return statically_known_true(known == found) and all(
            isinstance(one, torch.Tensor)
            and isinstance(two, torch.Tensor)
            and same_strides(one, two)
            for one, two in pairs
        )
    return _is_certain(way := _way(before)) and way == _way(after)


def _distance(values: tuple[fx.node.Argument, fx.node.Argument]) -> int | torch.SymInt | None:
    """Return by how many elements the second tensor begins later; None if no memory shows it."""
    one, two = values
    if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
        return None
    place = storage(one)
    if place is None or place != storage(two):
        return None
    return two.storage_offset() - one.storage_offset()


_Way: TypeAlias = tuple[list[_Step], list[_Step]]
"""The calls from the last common source to each of two views."""


def _way(placed: Placed) -> _Way:
    one, two = (_steps(node, placed.inputs) for node in placed.nodes)
    while one and two and one[0] == two[0]:
        one, two = one[1:], two[1:]
    # A view whose calls undo themselves is a source of the other one.
    if all(name in UNDOING for name, *_ in one):
        return [], _reduced([*reversed(one), *two])
    if all(name in UNDOING for name, *_ in two):
        return _reduced([*reversed(two), *one]), []
    return one, two


def _reduced(steps: list[_Step]) -> list[_Step]:
    """Return the steps without neighbors that undo each other."""
    kept: list[_Step] = []
    for step in steps:
        if kept and kept[-1] == step and step[0] in UNDOING:
            kept.pop()
        else:
            kept.append(step)
    return kept


def _steps(node: fx.Node, inputs: Mapping[fx.Node, fx.Node]) -> list[_Step]:
    """Return the calls by which a node views its base, from the base on."""
    base, steps = sure_base(node), list[_Step]()
    while node is not base:
        call = describe(node)
        if call.operator.name not in SAME:
            further: tuple[Argument, ...] = fx.node.map_arg(
                call.arguments[1:], lambda read: inputs.get(read, read)
            )
            steps.insert(0, (call.operator.name, further, call.attributes))
        node = shared(node)[0]
    if base in inputs:
        return _steps(inputs[base], {}) + steps
    return steps


def _is_certain(way: _Way) -> bool:
    """Return whether equal calls make views of the same elements, whatever they view."""
    if not all(way):  # one is the source of the other, whose shape the rule keeps
        return all("as_strided" not in name for steps in way for name, *_ in steps)
    return all(map(_is_fixed, (step for steps in way for step in steps)))


def _is_fixed(step: _Step) -> bool:
    """Return whether the call picks the same elements of longer tensors."""
    name, _, attributes = step
    start = attributes.get({"aten.slice": "start", "aten.select": "index"}.get(name, ""), 0)
    return name in _FIXED and (start is None or (isinstance(start, int) and start >= 0))


SAME: Final = named("aten", "alias detach")
"""Packets whose result is all of their operand, as it is."""
UNDOING: Final = named("aten", "t transpose numpy_T mT")
"""Packets that return their operand if they are called twice with the same arguments."""
_FIXED: Final = UNDOING | named("aten", "slice select unsqueeze permute")
