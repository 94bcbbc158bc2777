"""The rewrites of a recording in graph order, as far as their effects commute."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from pypm.fx.recording import Recording

__all__ = ["in_graph_order"]


@dataclass(frozen=True, slots=True)
class _Effect:
    """Nodes that one rewrite changes, and nodes that it only reads."""

    writes: frozenset[str]
    reads: frozenset[str]


def in_graph_order(recording: Recording) -> list[int]:
    """Return the rewrites, by their index, in the order of their roots in the graph.

    The engine may rewrite the last layer first. Two rewrites keep the order in which they were
    made where one changes a node that the other changes or reads; all others commute, so that
    a replay in the new order ends at the same graph.
    """
    effects = _effects(recording)
    places = _places(recording)
    waits, later = _conflicts(effects)
    ready = [(places[i], i) for i, count in enumerate(waits) if not count]
    heapify(ready)
    order = []
    while ready:
        _, first = heappop(ready)
        order.append(first)
        for i in later[first]:
            waits[i] -= 1
            if not waits[i]:
                heappush(ready, (places[i], i))
    return order


def _effects(recording: Recording) -> list[_Effect]:
    inputs = {state.record.name: state.record.inputs for state in recording.start}
    effects = []
    for rewrite, change in zip(recording.report.rewrites, recording.changes, strict=True):
        region = [record.name for record in rewrite.before]
        made = {state.record.name: state.record.inputs for state in change.new}
        changed = {**made, **change.rewired}
        read = {name for node in region for name in (node, *inputs.get(node, ()))}
        read.update(name for names in changed.values() for name in names)
        writes = frozenset(changed) | change.gone
        effects.append(_Effect(writes, frozenset(read) - writes))
        inputs.update(changed)
    return effects


def _places(recording: Recording) -> list[int]:
    """Where each rewrite's root is in the graph; new nodes are where the replaced root was."""
    place = {state.record.name: at for at, state in enumerate(recording.start)}
    places = []
    for rewrite, change in zip(recording.report.rewrites, recording.changes, strict=True):
        at = place.get(rewrite.root, len(place))
        places.append(at)
        place.update((state.record.name, at) for state in change.new)
    return places


def _conflicts(effects: list[_Effect]) -> tuple[list[int], list[list[int]]]:
    """For each rewrite, how many earlier ones it has to follow, and which later ones follow it."""
    waits = [0] * len(effects)
    later: list[list[int]] = [[] for _ in effects]
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for i, effect in enumerate(effects):
        before = {writer[name] for name in effect.writes | effect.reads if name in writer}
        before.update(r for name in effect.writes for r in readers.get(name, ()))
        for name in effect.writes:
            writer[name] = i
            readers.pop(name, None)
        for name in effect.reads:
            readers.setdefault(name, []).append(i)
        waits[i] = len(before)
        for earlier in before:
            later[earlier].append(i)
    return waits, later
