"""Writes that nothing else can see, read as operators that return new values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from pypm.fx.legality.strides import same_strides
from pypm.fx.operators.effects import effects
from pypm.fx.operators.targets import torch_operator
from pypm.fx.subject.memory import shared
from pypm.fx.subject.transaction import Transaction
from pypm.fx.values.fake_tensors import faked, guardless
from pypm.fx.values.metadata import metadata
from pypm.fx.values.size_comparison import same_shape
from pypm.torch_internals import FakeTensor, OpOverload

__all__ = ["WritesAsValues"]


class WritesAsValues:
    """Calls such as `add_(x, y)`, changed in place into `add(x, y)`, until they are closed.

    A call is read so if x is a new tensor that nothing else reads: then no one sees that its memory
    is written. The node stays the node that it is.
    """

    def __init__(self, graph: fx.Graph, named: frozenset[str], transaction: Transaction) -> None:
        """`named` are the operators that rules name; calls that are named themselves stay."""
        self._whole = Transaction()
        self._written: dict[fx.Node, tuple[OpOverload, tuple[fx.node.Argument, ...]]] = {}
        calls = {node: twin for node, twin in _candidates(graph) if _is_named(node, twin, named)}
        if not calls or any(effects(node).switches for node in graph.nodes):  # modes may cast
            return
        transaction.keep(graph)
        self._whole.keep(graph)
        for node, twin in calls.items():
            if _is_unseen(node) and _is_same(node, twin):
                assert isinstance(node.target, OpOverload)
                self._written[node] = node.target, node.args
                node.target = twin

    def close(self, *, has_changed: bool) -> None:
        """Turn the calls that are left back into writes.

        `has_changed` says whether the graph was changed since; if not, it is restored exactly.
        """
        if not has_changed:
            self._whole.restore()
            return
        for node, (target, args) in reversed(self._written.items()):
            if not node._erased and node.args == args and _is_unseen(node):
                node.target = target


def _candidates(graph: fx.Graph) -> Iterator[tuple[fx.Node, OpOverload]]:
    """Yield the calls that write their first argument element by element, with the overload that
    returns a new value instead.
    """
    for node in graph.nodes:
        target = node.target
        if not isinstance(target, OpOverload) or target.namespace != "aten":
            continue
        name = target._schema.name.removeprefix("aten::")
        if not name.endswith("_") or name.endswith("__"):
            continue
        packet = getattr(torch.ops.aten, name[:-1], None)
        twin = getattr(packet, target._schema.overload_name or "default", None)
        if isinstance(twin, OpOverload) and torch.Tag.pointwise in twin.tags:
            yield node, twin


def _is_named(node: fx.Node, twin: OpOverload, named: frozenset[str]) -> bool:
    names = [torch_operator(target).name for target in (node.target, twin)]
    return names[0] not in named and names[1] in named


def _is_unseen(node: fx.Node) -> bool:
    """Return whether the first argument of a call is a new tensor that nothing else reads."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or [*source.users] != [node]:
        return False
    return isinstance(source.target, OpOverload) and not shared(source)


def _is_same(node: fx.Node, twin: OpOverload) -> bool:
    """Return whether the new value has the type, the shape and the strides of the written one."""
    like = metadata(node)
    if not isinstance(like, FakeTensor) or None in map(metadata, node.all_input_nodes):
        return False
    mode = like.fake_mode

    def given(argument: fx.Node) -> fx.node.Argument:
        return faked(metadata(argument), mode)

    try:
        with guardless(mode):
            found = twin(*fx.map_arg(node.args, given), **fx.map_arg(node.kwargs, given))
    except Exception:  # whatever the reason, it is not certain
        return False
    is_alike = (found.dtype, found.device) == (like.dtype, like.device)
    return is_alike and same_shape(found.shape, like.shape) and same_strides(found, like)
