"""Results written one after the other into one new tensor, read as their stack."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import fx
from torch.fx.node import Argument

from pypm.fx.operators.corrections import named
from pypm.fx.operators.effects import is_border
from pypm.fx.subject.calls import describe
from pypm.fx.subject.memory import shared
from pypm.fx.subject.transaction import Transaction
from pypm.fx.values.fake_tensors import faked, guardless
from pypm.fx.values.metadata import metadata, needs_gradient, tracked
from pypm.fx.values.size_comparison import same_shape
from pypm.fx.values.symbolic import sizes
from pypm.torch_internals import FakeTensor

__all__ = ["WritesAsStack"]

FEWEST: Final = 4
"""Results below which writes stay as they are."""

_MADE: Final = named(
    "aten",
    "zeros zeros_like new_zeros empty empty_like new_empty ones ones_like new_ones full full_like",
    "new_full",
)
"""Operators that make a tensor of which nothing is left when all of it is written."""

_WHOLE: Final = slice(None)
_SELECT: Final = torch.ops.aten.select.int
_STACK: Final = torch.ops.aten.stack.default
_MOVE: Final = torch.ops.aten.movedim.int


@dataclass(frozen=True)
class _Write:
    """One write: item `t` of dimension `dim` becomes a value."""

    nodes: tuple[fx.Node, ...]
    """A view of the tensor, if one is written, and the write."""
    dim: int
    t: int

    @property
    def value(self) -> fx.Node:
        found = self.nodes[-1].args[-1]
        assert isinstance(found, fx.Node)
        return found


@dataclass(frozen=True)
class _Filled:
    """A new tensor, all of which is written before anything reads it."""

    base: fx.Node
    writes: tuple[_Write, ...]
    """In the order of their items."""
    at: int
    """The dimension of their stack, from which `movedim` makes that of the tensor."""
    values: tuple[torch.Tensor, torch.Tensor]
    """The fake values of their stack, and of this in the order of the tensor's dimensions."""
    last: fx.Node
    """The last write."""


class WritesAsStack:
    """Writes of results into new tensors, changed in place into a stack of the results.

    A tensor is read so if nothing reads it before all of it is written, each item once, and nothing
    else is written and no mode is changed meanwhile: then the stack has the same values, memory of
    its own, and the same gradients. In a graph that rules changed, stacks that are left stay.
    """

    def __init__(self, graph: fx.Graph, named: frozenset[str], transaction: Transaction) -> None:
        """`named` are the operators that rules name: nothing is read so unless `aten.stack` is."""
        self._graph = graph
        self._whole = Transaction()
        found = _undisturbed(graph, [*_filled(graph)]) if "aten.stack" in named else []
        if found:
            transaction.keep(graph)
            self._whole.keep(graph)
        for filled in found:
            self._join(filled)

    def _join(self, filled: _Filled) -> None:
        base, writes = filled.base, filled.writes
        at, dim = filled.at, writes[0].dim
        items = [write.value for write in writes]
        with self._graph.inserting_after(filled.last):
            made = [self._graph.call_function(_STACK, (items, at))]
        if at != dim:
            with self._graph.inserting_after(made[0]):
                made.append(self._graph.call_function(_MOVE, (made[0], at, dim)))
        for node, value in zip(made, filled.values, strict=False):
            node.meta = {key: old for key, old in base.meta.items() if key != "tensor_meta"}
            node.meta["val" if "val" in base.meta else "example_value"] = value
        for write in writes:
            for node in reversed(write.nodes):
                self._graph.erase_node(node)
        base.replace_all_uses_with(made[-1])
        self._graph.erase_node(base)

    def close(self, *, has_changed: bool) -> None:
        """Restore the graph exactly if `has_changed`, whether it was changed since, is false."""
        if not has_changed:
            self._whole.restore()


def _nodes(writes: Iterable[_Write]) -> set[fx.Node]:
    return {node for write in writes for node in write.nodes}


def _filled(graph: fx.Graph) -> Iterator[_Filled]:
    """Yield the new tensors that are written item by item before anything reads them."""
    written = dict.fromkeys(_base(node) for node in graph.nodes if _destination(node) is not None)
    for base in written:
        like = None if base is None or not _is_made(base) else metadata(base)
        if base is None or not isinstance(like, torch.Tensor) or not like.dim():
            continue
        writes = _writes(base, like)
        if len(writes) < FEWEST or not _is_complete(base, like, writes):
            continue
        last = max(write.nodes[-1] for write in writes)
        others = base.users.keys() - _nodes(writes)
        found = _stacked(like, writes) if all(last < other for other in others) else None
        if found is not None:
            yield _Filled(base, writes, *found, last)


def _destination(node: fx.Node) -> fx.Node | None:
    """Return the tensor that a node writes as a whole or by an index; None for other nodes."""
    is_write = node.target is operator.setitem and len(node.args) == 3
    is_copy = node.target is torch.ops.aten.copy_.default and len(node.args) == 2
    if node.op != "call_function" or node.kwargs or node.users or not (is_write or is_copy):
        return None
    found = node.args[0]
    return found if isinstance(found, fx.Node) else None


def _base(node: fx.Node) -> fx.Node | None:
    """Return the tensor whose item a write writes."""
    found = _destination(node)
    if found is None or node.target is operator.setitem:
        return found
    source = found.args[0] if found.target is _SELECT else None
    return source if isinstance(source, fx.Node) else None


def _is_made(node: fx.Node) -> bool:
    """Return whether a node makes a tensor, of whose values nothing is needed."""
    if node.op not in ("call_function", "call_method") or shared(node):
        return False
    given = node.kwargs
    return describe(node).operator.name in _MADE and not (
        given.get("requires_grad") or given.get("out") is not None
    )


def _writes(base: fx.Node, like: torch.Tensor) -> tuple[_Write, ...]:
    """Return the writes of items of a tensor like this, in the order of the items."""
    found = []
    for user in base.users:
        is_view = user.target is _SELECT and len(user.users) == 1
        nodes = (user, *user.users) if is_view else (user,)
        if _base(nodes[-1]) is not base or not isinstance(nodes[-1].args[-1], fx.Node):
            continue
        place = _selected(user.args[1:]) if is_view else _indexed(user.args[1], like.dim())
        if place is not None:
            dim, t = place
            size = sizes(like.shape)[dim]
            t = t + size if isinstance(size, int) and t < 0 else t
            found.append(_Write(nodes, dim % like.dim(), t))
    return tuple(sorted(found, key=lambda write: write.t))


def _selected(args: tuple[Argument, ...]) -> tuple[int, int] | None:
    """Return the dimension and the number of the item that arguments of `select` take."""
    match args:
        case (int() as dim, int() as t):
            return dim, t
    return None


def _indexed(index: Argument, rank: int) -> tuple[int, int] | None:
    """Return the dimension and the number of the item that an index takes of a tensor; None if it
    takes something else.
    """
    parts = [*index] if isinstance(index, tuple) else [index]
    if parts.count(...) == 1:
        at = parts.index(...)
        parts[at : at + 1] = [_WHOLE] * (rank - len(parts) + 1)
    taken = [(dim, part) for dim, part in enumerate(parts) if part != _WHOLE]
    if len(taken) != 1 or len(parts) > rank:
        return None
    dim, t = taken[0]
    return (dim, t) if isinstance(t, int) and not isinstance(t, bool) else None


def _is_complete(base: fx.Node, like: torch.Tensor, writes: Sequence[_Write]) -> bool:
    """Return whether each item of one dimension is written once."""
    dim = writes[0].dim
    if any(write.dim != dim or write.value is base for write in writes):
        return False
    size = sizes(like.shape)[dim]
    return isinstance(size, int) and [write.t for write in writes] == [*range(size)]


def _stacked(
    like: torch.Tensor, writes: Sequence[_Write]
) -> tuple[int, tuple[torch.Tensor, torch.Tensor]] | None:
    """Return the dimension of a stack of what is written, and the fake values of it and of what
    `movedim` makes of it; None if the tensor has another type, shape or strides than that for each
    dimension, or something is not known.
    """
    dim = writes[0].dim
    values = [metadata(write.value) for write in writes]
    if not isinstance(like, FakeTensor) or not all(_is_item(value, like) for value in values):
        return None
    mode = like.fake_mode
    is_tracked = any(needs_gradient(write.value) for write in writes)
    for at in (dim, *(i for i in range(like.dim()) if i != dim)):
        try:
            with guardless(mode):
                stack = torch.stack(faked(values, mode), at)  # type: ignore[arg-type]
                moved = stack.movedim(at, dim)
        except Exception:  # whatever the reason, it is not certain
            return None
        if same_shape(moved.shape, like.shape) and same_shape(moved.stride(), like.stride()):
            found = tracked((stack, moved)) if is_tracked else (stack, moved)
            return at, found  # type: ignore[return-value]
    return None


def _is_item(value: Argument, like: torch.Tensor) -> bool:
    """Return whether a value is a tensor that is written as it is into a tensor like this."""
    return isinstance(value, torch.Tensor) and (value.dtype, value.device, value.layout) == (
        like.dtype, like.device, like.layout
    )  # fmt: skip


def _undisturbed(graph: fx.Graph, found: list[_Filled]) -> list[_Filled]:
    """Return the tensors between whose making and last write nothing else is written, and no mode
    is changed, but items of each other.
    """
    borders = [node for node in graph.nodes if is_border(node)] if found else []
    while True:
        own = {write.nodes[-1] for filled in found for write in filled.writes}
        foreign = [node for node in borders if node not in own]
        kept = [f for f in found if not any(f.base < node < f.last for node in foreign)]
        if len(kept) == len(found):
            return kept
        found = kept
