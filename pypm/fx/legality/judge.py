"""Legality of a match: its region, or the reason for which it is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from torch import fx

from pypm.core.rules import TOGETHER, Rule
from pypm.core.terms import Value
from pypm.fx.legality.region import Refusal, Region
from pypm.fx.operators.effects import (
    Effects,
    communicates,
    effects,
    is_pure,
    is_random,
    is_view,
)
from pypm.fx.subject.calls import is_constant, tags
from pypm.fx.subject.view import View, node_of
from pypm.fx.values.metadata import metadata, unusual
from pypm.match.search_state import Visit

__all__ = ["DECLARE", "depends_on", "judge", "judge_reading"]


def judge(
    view: View,
    roots: Sequence[fx.Node],
    visits: Iterable[Visit],
    variables: Sequence[fx.Node],
    rule: Rule,
) -> Region | Refusal:
    """Return the region of a match, or the reason for which it is refused.

    Arguments:
        view: the graph.
        roots: the nodes of the pattern's outputs.
        visits: the operators that the matcher visited.
        variables: the nodes to which the pattern's variables are bound, in order.
        rule: the rule; some of its options widen what is accepted.

    A region is accepted if one function of its inputs can replace it at its last root: pure (or
    random or communicating, if the rule says so), in one epoch, and without interior users outside.
    """
    walked: set[fx.Node] = set()
    kept: set[fx.Node] = set()
    for visit in visits:
        node = node_of(visit.subject)
        if node is not None:
            walked.add(node)
            if visit.keep:
                kept.add(node)
    # A variable alone matches any node, which is then computed elsewhere and not by the region.
    for root in roots:
        if root not in walked:
            return Refusal("uncovered", f"the pattern covers no operator at `{root}`", (root,))
    nodes = walked | _between(walked, rule.absorb) if rule.absorb is not None else walked
    ordered = sorted(nodes)
    verdict = _effects(view, ordered, roots, rule) or _parted(ordered)
    if verdict is not None:
        return verdict
    if rule.returns_kept:
        roots, kept = (*roots, *_seen(view, kept.difference(roots), nodes)), set()
    escape = _escapes(view, ordered, frozenset(roots), kept)
    if isinstance(escape, Refusal):
        return escape
    drawing = frozenset(filter(is_random, ordered)) if rule.redraws else frozenset()
    communicating = frozenset(filter(communicates, ordered)) if rule.communicates else frozenset()
    # What stays outside would be sampled, or issued, once more by the replacement: the samples that
    # both use would differ, and the other processes would wait for a collective too many.
    for node in sorted(drawing & escape):
        return Refusal("random", f"`{node}` is random and is also used outside", (node,))
    for node in sorted(communicating & escape):
        return Refusal("effect", f"`{node}` communicates and is also used outside", (node,))
    bound = dict.fromkeys(variables)
    outside = tuple([node for node in bound if node not in nodes])
    inner = tuple([node for node in bound if node in nodes])
    read = dict.fromkeys([source for node in ordered for source in node.all_input_nodes])
    sides = tuple([node for node in read if node not in nodes and node not in bound])
    refusal = _reshaped(view, (*outside, *sides, *ordered))
    refusal = refusal or _ill_described((*outside, *sides, *inner, *roots))
    if refusal is not None:
        return refusal
    found = (tuple(roots), tuple(ordered), outside, sides, escape, drawing, communicating, inner)
    return Region(*found, together=rule.communicates == TOGETHER)


def judge_reading(
    view: View, region: Region, nodes: Sequence[Value], through: Sequence[fx.Node]
) -> Region | Refusal:
    """Return a region that also reads `nodes`, or the reason for which it may not.

    `through` are nodes outside of it that a replacement computes anew: they must be pure, and in
    the epoch of the region, as the nodes inside.
    """
    read = [node for node in nodes if isinstance(node, fx.Node)]
    refusal = _reshaped(view, (*read, *through))
    if refusal is not None:
        return refusal
    last = max(region.roots)
    for node in through:
        if not node.op.startswith("call_"):
            continue
        # It is computed anew at the region's place: an effect would come twice, and behind a border
        # its operands may have been written.
        if not is_pure(node):
            return Refusal("effect", f"`{node}` does more than compute", (node,))
        if view.epoch(node) != view.epoch(last):
            return Refusal("effect", _parting(view, node, last), (node, last))
    known = {*region.operands}
    new = [node for node in dict.fromkeys(read) if node not in known]
    unknown = _ill_described((*new, *region.roots))
    if unknown is not None:
        return unknown
    inside = {*region.nodes}
    return replace(
        region,
        side_inputs=(*region.side_inputs, *(n for n in new if n not in inside)),
        inner=(*region.inner, *(n for n in new if n in inside)),
    )


def _reshaped(view: View, nodes: Sequence[fx.Node]) -> Refusal | None:
    """Return a refusal if a node, or a view of it, is given another shape in place.

    Metadata shows the last shape alone, which is not the one that the value has here.
    """
    reshaped = view.reshaped()
    for node in filter(reshaped.__contains__, nodes):
        reason = f"`{node}`, or a view of it, is given another shape in place"
        return Refusal("effect", reason, (node,))
    return None


def _ill_described(nodes: Sequence[fx.Node]) -> Refusal | None:
    """Return a refusal if some of the nodes have metadata and others have none, or if metadata is
    no dense tensor with strides: of others neither a body nor the judge knows the memory.
    """
    for node in nodes:
        kind = unusual(metadata(node))
        if kind is not None:
            reason = f"`{node}` is {kind}, and rules are for dense tensors with strides"
            return Refusal("metadata", reason, (node,))
    # Where all is unknown, the trace is unchecked as a whole; where some is, checks would see the
    # rest alone.
    unknown = [node for node in nodes if metadata(node) is None]
    if not 0 < len(unknown) < len(nodes):
        return None
    (node, *_) = unknown
    reason = f"`{node}` has no metadata, and other values of the match have: a pass left it out"
    return Refusal("metadata", reason, (node,))


_MARKS: Final = ("recompute", "ac_graph_id", "custom")
"""Metadata that a replacement, computed at one place, can only have one of: which values of which
checkpoint the backward pass computes anew, and annotations of the user's, as streams.
"""


def _parted(nodes: Sequence[fx.Node]) -> Refusal | None:
    """Return a refusal if calls of a region are annotated differently."""
    calls = [node for node in nodes if node.op.startswith("call_")]
    for key in _MARKS:
        for node in calls[1:]:
            one, other = calls[0].meta.get(key), node.meta.get(key)
            if one is not other and one != other:
                reason = f"`{calls[0]}` and `{node}` differ in the metadata `{key}`"
                return Refusal("metadata", f"{reason}: {one} and {other}", (calls[0], node))
    return None


def _between(walked: set[fx.Node], tag: str) -> set[fx.Node]:
    """Return the nodes of the class `tag` on paths of that class between walked nodes."""
    # Two sweeps: up from the walked nodes through the class, then in graph order the nodes of these
    # that are also below a walked one. Nodes before the first walked one cannot be.
    first = min(walked)
    before: set[fx.Node] = set()
    todo = [source for node in walked for source in node.all_input_nodes]
    while todo:
        node = todo.pop()
        if node in walked or node in before or node < first:
            continue
        if node.op.startswith("call_") and tag in tags(node) and is_pure(node):
            before.add(node)
            todo += node.all_input_nodes
    between: set[fx.Node] = set()
    for node in sorted(before):
        if any(source in walked or source in between for source in node.all_input_nodes):
            between.add(node)
    return between


def _effects(
    view: View, nodes: Sequence[fx.Node], roots: Sequence[fx.Node], rule: Rule
) -> Refusal | None:
    for node in nodes:
        if is_pure(node) or not node.op.startswith("call_"):
            continue
        found = effects(node)
        # Another number of samples shifts all that are drawn later from the same generator.
        if found.draws and not rule.redraws:
            reason = f"`{node}` is random: it can be neither dropped nor redone"
            return Refusal("random", reason, (node,))
        if communicates(node) and rule.communicates:
            continue
        # A region is dropped and computed at one place; an effect must come once, and in its order.
        if found.acts or found.is_border:
            return Refusal("effect", _deed(node, found), (node,))
    if not view.has_borders:
        return None
    last = max(roots)
    # A replacement is computed at one place, so no border may lie between a node and the last root.
    for node in nodes:
        if node.op.startswith("call_") and view.epoch(node) != view.epoch(last):
            return Refusal("effect", _parting(view, node, last), (node, last))
    return None


DECLARE: Final = "`pypm.fx.declare` can say what it does"


def _deed(node: fx.Node, found: Effects) -> str:
    if found.unknown is not None:
        return f"`{node}` calls `{found.unknown}`, whose effects are unknown; {DECLARE}"
    if communicates(node):
        return f"`{node}` issues a collective, which only rules with `communicates=True` replace"
    return f"`{node}` writes memory or has another effect"


def _parting(view: View, first: fx.Node, last: fx.Node) -> str:
    """Return why two nodes cannot be computed at one place."""
    border = view.border(first, last)
    found = effects(border)
    if found.unknown is not None:
        between = f"`{border}`, between `{first}` and `{last}`,"
        return f"{between} calls `{found.unknown}`, whose effects are unknown; {DECLARE}"
    if found.writes:
        return f"memory may be written between `{first}` and `{last}`"
    return f"`{border}`, between `{first}` and `{last}`, changes how calls compute"


def _seen(view: View, kept: set[fx.Node], region: set[fx.Node]) -> list[fx.Node]:
    """Return the kept nodes with users outside of the region, in order."""
    return sorted(node for node in kept if not region.issuperset(view.users(node)))


def _escapes(
    view: View, nodes: Sequence[fx.Node], roots: frozenset[fx.Node], kept: set[fx.Node]
) -> frozenset[fx.Node] | Refusal:
    """Return the nodes that stay for users outside, or the refusal for one that must not stay.

    Views and constants may stay if the nodes that they read may stay too. A node that the pattern
    marks `keep` may stay in any case, together with all that it is computed from.
    """
    # Invariant: in reverse graph order, every user of a node is decided before the node itself.
    going = set(nodes)
    free: set[fx.Node] = set()  # stays because it is, or is read by, a kept node
    for node in reversed(nodes):
        users = view.users(node)
        if node in roots or going.issuperset(users):
            continue
        strict = [user for user in users if user not in going and user not in free]
        if node in kept or not strict:
            free.add(node)
        elif not (is_view(node) or is_constant(node)):
            # It would be computed twice: for its users outside, and inside of the replacement.
            reason = f"`{node}` is also used by `{strict[0]}`, outside of the match"
            return Refusal("escape", reason, (node, strict[0]))
        going.discard(node)
    return frozenset(nodes) - going


def depends_on(node: fx.Node, roots: Sequence[fx.Node]) -> frozenset[fx.Node]:
    """Return the roots that `node` is computed from, by paths that pass no other root."""
    first = min(roots)
    found: set[fx.Node] = set()
    seen = {node}
    todo = [node]
    while todo:
        for source in todo.pop().all_input_nodes:
            if source in roots:
                found.add(source)
            # A node before the first root depends on none.
            elif source not in seen and first < source:
                seen.add(source)
                todo.append(source)
    return frozenset(found)
