"""Calls of torch's own modules, opened: each is read as the call of the function that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import fx

from pypm.fx.operators.known_modules import ModuleCall, call_of
from pypm.fx.subject.calls import module_class
from pypm.fx.subject.transaction import Transaction
from pypm.fx.values.fake_tensors import fake_mode
from pypm.fx.values.metadata import metadata
from pypm.torch_internals import FakeTensor, extract_tensor_metadata

__all__ = ["OpenedModules"]


class OpenedModules:
    """Calls of modules, changed in place into calls of functions, until they are closed.

    The node of such a call stays the node that it is. The module's parameters become `get_attr`
    nodes before it. Modules that a rule names by their class stay whole.
    """

    def __init__(self, graph: fx.Graph, named: frozenset[str], transaction: Transaction) -> None:
        """`named` are the operators that rules name."""
        self._graph = graph
        self._whole = Transaction()
        self._paths: dict[fx.Node, str] = {}
        self._as_opened: dict[fx.Node, tuple[fx.node.Target, dict[str, fx.node.Argument]]] = {}
        calls = [*_openable(graph, named)]
        if calls:
            transaction.keep(graph)
            self._whole.keep(graph)
        for node, module, call in calls:
            self._open(node, module, call)

    def _open(self, node: fx.Node, module: torch.nn.Module, call: ModuleCall) -> None:
        path = self._paths[node] = str(node.target)
        kwargs: dict[str, fx.node.Argument] = {}
        for name in call.names:
            value = getattr(module, name)
            is_tensor = isinstance(value, torch.Tensor)
            kwargs[name] = self._read(node, f"{path}.{name}", value) if is_tensor else value
        node.op, node.target, node.kwargs = "call_function", call.function, kwargs
        self._as_opened[node] = node.target, dict(node.kwargs)

    def _read(self, node: fx.Node, path: str, value: torch.Tensor) -> fx.Node:
        with self._graph.inserting_before(node):
            made = self._graph.create_node("get_attr", path)
        key = next((key for key in _VALUES if isinstance(node.meta.get(key), FakeTensor)), None)
        mode = fake_mode([node])
        if key is not None and mode is not None:
            made.meta[key] = mode.from_tensor(value, static_shapes=True)
        elif "tensor_meta" in node.meta and metadata(node) is None:
            made.meta["tensor_meta"] = extract_tensor_metadata(value)
        return made

    def close(self, *, has_changed: bool) -> None:
        """Turn the opened calls back into calls of modules, except those that were changed.

        `has_changed` says whether the graph was changed since; if not, it is restored exactly.
        """
        if not has_changed:
            self._whole.restore()
            return
        for node, path in self._paths.items():
            opened = self._as_opened[node]
            kwargs = opened[1]
            if not node._erased and (node.target, node.kwargs) == opened:
                node.kwargs = {}
                node.op, node.target = "call_module", path
            for source in _nodes(kwargs):
                if not source.users:
                    self._graph.erase_node(source)


_VALUES: Final = ("val", "example_value")


def _nodes(kwargs: dict[str, fx.node.Argument]) -> list[fx.Node]:
    return [value for value in kwargs.values() if isinstance(value, fx.Node)]


def _openable(
    graph: fx.Graph, named: frozenset[str]
) -> Iterator[tuple[fx.Node, torch.nn.Module, ModuleCall]]:
    """Yield the calls of modules that can be opened: the node, the module and its call."""
    owner = graph.owning_module
    nodes = graph.find_nodes(op="call_module")
    if owner is None or not nodes:
        return
    for node in nodes:
        is_plain = len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs
        module = owner.get_submodule(str(node.target))
        call = call_of(module) if is_plain and module_class(module) not in named else None
        if call is not None:
            yield node, module, call
