"""Transactions: graphs are restored if changing them ends in an exception."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Final, Self

from torch import fx

__all__ = ["Transaction"]


class Transaction:
    """A block that restores graphs and their modules if it raises.

    This includes `KeyboardInterrupt` at any point: a graph is restored from a copy of its
    structure, since an undone sequence of steps could have been interrupted within a step.
    """

    def __init__(self) -> None:
        self._kept: dict[fx.Graph, _Snapshot] = {}

    def keep(self, graph: fx.Graph) -> None:
        """Save a graph and its module as they are now, unless they are saved already."""
        if graph not in self._kept:
            self._kept[graph] = _Snapshot(graph)

    def restore(self) -> None:
        """Restore what was saved; idempotent."""
        for snapshot in self._kept.values():
            snapshot.restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        try:
            self.restore()
        except KeyboardInterrupt:  # pressed once more
            self.restore()
            raise


_FIELDS: Final = (
    *("name", "op", "target", "type", "_args", "_kwargs", "_input_nodes", "users", "meta"),
    *("_prev", "_next", "_sort_key", "_erased"),
)


class _Snapshot:
    """The fields of all nodes, and the contents of every container that a rewrite changes."""

    def __init__(self, graph: fx.Graph) -> None:
        fields, module = attrgetter(*_FIELDS), graph.owning_module
        self._graph = graph
        self._fields = [(node, fields(node)) for node in (graph._root, *graph.nodes)]
        self._contents = [(found, found.copy()) for found in _containers(graph)]
        self._class = type(module)
        self._code = {} if module is None else dict(vars(self._class))

    def restore(self) -> None:
        for node in [*self._graph.nodes]:
            node._erased = True
        for node, fields in self._fields:
            for name, value in zip(_FIELDS, fields, strict=True):
                if getattr(node, name) is not value:
                    setattr(node, name, value)
        for container, contents in self._contents:
            container.clear()
            container.update(contents)
        for name, value in self._code.items():
            if vars(self._class)[name] is not value:
                setattr(self._class, name, value)


def _containers(graph: fx.Graph) -> Iterator[Any]:
    for node in graph.nodes:
        yield from (node.users, node._input_nodes, node.meta)
    table = graph._find_nodes_lookup_table.table
    yield from (table, *table.values(), *vars(graph._graph_namespace).values(), vars(graph))
    module = graph.owning_module
    if module is not None:
        yield from (module._parameters, module._buffers, module._modules)
        yield from (module._non_persistent_buffers_set, vars(module))
