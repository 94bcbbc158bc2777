"""Recordings of a call of `rewrite`: the graph before it, and the change that each rewrite made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from pypm.core.rules import RuleSet
from pypm.fx.reporting.node_records import NodeRecord, modules_of, records_of, source_of
from pypm.fx.reporting.report import Report
from pypm.fx.values.metadata import metadata
from pypm.torch_internals import dtype_abbrs

__all__ = ["Change", "NodeState", "Recording"]


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node, its value's type and shape as text, and its origin in the model."""

    record: NodeRecord
    value: str
    modules: tuple[tuple[str, str], ...]
    """The modules around it from the outermost in: (path, class) pairs."""
    source: str


@dataclass(frozen=True, slots=True)
class Change:
    """The change that one rewrite made to the graph."""

    new: tuple[NodeState, ...]
    gone: frozenset[str]
    rewired: Mapping[str, tuple[str, ...]]
    """Nodes that stay and read other nodes from now on, each with the names of these."""


@dataclass(eq=False, repr=False)
class Recording:
    """A recording of one call of `rewrite`: pass it as `record`; `pypm.tools.show` draws it.

    It holds no node, so it keeps neither the graph nor the model alive.
    """

    rules: RuleSet = field(default_factory=lambda: RuleSet(()))
    start: tuple[NodeState, ...] = ()
    changes: list[Change] = field(default_factory=list)
    report: Report = field(default_factory=Report)

    def begin(self, graph: fx.Graph, rules: RuleSet) -> None:
        """Record a graph before it is rewritten."""
        self.rules, self.start = rules, states_of(graph.nodes)
        self.changes.clear()

    def add(
        self, new: Iterable[fx.Node], readers: Iterable[fx.Node], buried: Iterable[fx.Node]
    ) -> None:
        """Record a rewrite."""
        gone = frozenset(node.name for node in buried)
        rewired = {node.name: _inputs(node) for node in readers if node.name not in gone}
        self.changes.append(Change(states_of(new), gone, rewired))

    def end(self, report: Report, order: Sequence[int]) -> None:
        """Record the final report, and put the changes in the order of its rewrites."""
        self.changes = [self.changes[i] for i in order]
        self.report = report.detached()

    def at(self, count: int) -> dict[str, tuple[str, ...]]:
        """Return the nodes after the first `count` changes, each with the names of the nodes it
        reads.
        """
        inputs = {state.record.name: state.record.inputs for state in self.start}
        for change in self.changes[:count]:
            inputs.update({state.record.name: state.record.inputs for state in change.new})
            inputs.update(change.rewired)
            for name in change.gone:
                inputs.pop(name, None)
        return inputs


def states_of(nodes: Iterable[fx.Node]) -> tuple[NodeState, ...]:
    """Return the states of the nodes as they are now."""
    nodes = [*nodes]
    return tuple(
        NodeState(
            record.detached(),
            _value(metadata(node)),
            modules_of(node),
            str(source_of(node) or ""),
        )
        for node, record in zip(nodes, records_of(nodes), strict=True)
    )


def _inputs(node: fx.Node) -> tuple[str, ...]:
    """Return the names of the nodes that a node reads.

    The arguments of an output are only written at the end of a run, so its users are looked up.
    """
    if node.op != "output":
        return tuple(source.name for source in node.all_input_nodes)
    return tuple(source.name for source in node.graph.nodes if node in source.users)


def _value(value: object) -> str:
    match value:
        case torch.Tensor():
            return f"{dtype_abbrs[value.dtype]}[{', '.join(map(str, value.shape))}]"
        case tuple() | list():
            return f"({', '.join(map(_value, value))})"
        case None:
            return ""
        case _:
            return str(value)
