"""Whether a match may be replaced: judged on nodes, apart from matching, with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pypm.core.rules import Rule
from pypm.fx.calls import is_constant, tags
from pypm.fx.effects import (
    Effects,
    communicates,
    effects,
    is_pure,
    is_random,
    is_view,
    reads_old_memory,
)
from pypm.fx.view import View
from pypm.match.matcher import Visit

__all__ = [
    "Refusal",
    "Region",
    "depends_on",
    "judge",
    "judge_outputs",
    "judge_trace",
    "same_sizes",
]

Kind: TypeAlias = Literal[
    "declined",  # the body said so
    "budget",  # the search was given up
    "alone",  # no other match to be taken together with
    "uncovered",  # a root is no part of what was matched
    "escape",  # an interior value is used outside
    "effect",  # a write or another effect inside or in between
    "random",  # randomness would be dropped or duplicated
    "cycle",  # the replacement would depend on itself
    "symbolic",  # not decided for every size
    "kernel",  # the replacement does not hold the kernel it is for
    "constant",  # the replacement holds a tensor, and the graph may not
    "mismatch",  # shape, dtype or device differ
    "layout",  # strides or aliasing cannot be kept
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a match is not replaced, as a sentence, and the nodes it is about."""

    kind: Kind
    reason: str
    nodes: tuple[fx.Node, ...] = ()

    @property
    def node(self) -> fx.Node | None:
        return self.nodes[0] if self.nodes else None


@dataclass(frozen=True)
class Region:
    """The nodes one match covers. Node order is that of the graph."""

    roots: tuple[fx.Node, ...]
    """The outputs that the graph has."""
    nodes: tuple[fx.Node, ...]
    variables: tuple[fx.Node, ...]
    """Nodes outside that the pattern's variables are bound to, in order."""
    side_inputs: tuple[fx.Node, ...]
    """Other nodes outside that nodes of the region read."""
    alive: frozenset[fx.Node] = field(default=frozenset(), repr=False)
    """Nodes inside that stay for other users."""
    drawing: frozenset[fx.Node] = field(default=frozenset(), repr=False)
    """Nodes inside that draw random numbers, as those of a rule that redraws may."""
    communicating: frozenset[fx.Node] = field(default=frozenset(), repr=False)
    """Nodes inside that issue collectives or wait for them, as those of a rule that may."""
    inner: tuple[fx.Node, ...] = field(default=(), repr=False)
    """Nodes inside that variables are bound to: the replacement may read what it replaces."""

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        return self.variables + self.side_inputs

    @property
    def effectful(self) -> frozenset[fx.Node]:
        """Nodes inside that have an effect, which the replacement has in their place."""
        return self.drawing | self.communicating

    @property
    def operands(self) -> tuple[fx.Node, ...]:
        """Every node that a replacement may compute with."""
        return self.variables + self.side_inputs + self.inner

    @cached_property
    def module(self) -> fx.GraphModule:
        """The region by itself: from the values of `inputs` to those of `roots`."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self.inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in self.nodes:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
        results = tuple(copies[root] for root in self.roots)
        graph.output(results[0] if len(results) == 1 else results)
        owner = self.roots[0].graph.owning_module
        return fx.GraphModule(torch.nn.Module() if owner is None else owner, graph)


def judge(
    view: View,
    roots: Sequence[fx.Node],
    visits: Iterable[Visit],
    variables: Sequence[fx.Node],
    rule: Rule,
) -> Region | Refusal:
    """The nodes that `visits` walked, if one function of their inputs can replace them.

    That function may draw random numbers and communicate where they do, if the rule says so.
    """
    walked: set[fx.Node] = set()
    kept: set[fx.Node] = set()
    for visit in visits:
        node = getattr(visit.subject, "node", None)
        if node is not None:
            walked.add(node)
            if visit.keep:
                kept.add(node)
    for root in roots:
        if root not in walked:
            return Refusal("uncovered", f"the pattern covers no operator at `{root}`", (root,))
    nodes = walked | _between(walked, rule.absorb) if rule.absorb is not None else walked
    ordered = sorted(nodes)
    verdict = _effects(view, ordered, roots, rule)
    if verdict is not None:
        return verdict
    escape = _escapes(view, ordered, frozenset(roots), kept)
    if isinstance(escape, Refusal):
        return escape
    drawing = frozenset(filter(is_random, ordered)) if rule.redraws else frozenset()
    communicating = frozenset(filter(communicates, ordered)) if rule.communicates else frozenset()
    for node in sorted(drawing & escape):
        return Refusal("random", f"`{node}` is random and is also used outside", (node,))
    for node in sorted(communicating & escape):
        return Refusal("effect", f"`{node}` communicates and is also used outside", (node,))
    bound = dict.fromkeys(variables)
    outside = tuple([node for node in bound if node not in nodes])
    inner = tuple([node for node in bound if node in nodes])
    read = dict.fromkeys([source for node in ordered for source in node.all_input_nodes])
    sides = tuple([node for node in read if node not in nodes and node not in bound])
    return Region(
        tuple(roots), tuple(ordered), outside, sides, escape, drawing, communicating, inner
    )


def _between(walked: set[fx.Node], tag: str) -> set[fx.Node]:
    """The nodes of the class `tag` on paths, through that class alone, between walked nodes."""
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
        if found.draws and not rule.redraws:
            reason = f"`{node}` is random: it can be neither dropped nor redone"
            return Refusal("random", reason, (node,))
        if communicates(node) and rule.communicates:
            continue
        if found.acts or found.is_border:
            return Refusal("effect", _deed(node, found), (node,))
    if not view.has_borders:
        return None
    last = max(roots)
    for node in nodes:
        if node.op.startswith("call_") and view.epoch(node) != view.epoch(last):
            return Refusal("effect", _parting(view, node, last), (node, last))
    return None


_DECLARE: Final = "`pypm.fx.declare` can say what it does"


def _deed(node: fx.Node, found: Effects) -> str:
    if found.unknown is not None:
        return f"nothing is known of `{found.unknown}`, which `{node}` calls; {_DECLARE}"
    if communicates(node):
        return f"`{node}` communicates, and the rule does not say `communicates`"
    return f"`{node}` writes memory or has another effect"


def _parting(view: View, first: fx.Node, last: fx.Node) -> str:
    """Why two nodes are not computed at one place."""
    border = view.border(first, last)
    found = effects(border)
    if found.unknown is not None:
        return f"stopped by `{found.unknown}`, of which nothing is known; {_DECLARE}"
    if found.writes:
        return f"memory may be written between `{first}` and `{last}`"
    return f"`{border}`, between `{first}` and `{last}`, changes how calls compute"


def _escapes(
    view: View, nodes: Sequence[fx.Node], roots: frozenset[fx.Node], kept: set[fx.Node]
) -> frozenset[fx.Node] | Refusal:
    """The nodes that stay for users outside; or the interior one that must not, and its user.

    Views and constants may stay as long as what they read may stay too; what a pattern marks
    `keep` may stay in any case, and with it all that it is computed from.
    """
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
            reason = f"`{node}` is also used by `{strict[0]}`, outside of the match"
            return Refusal("escape", reason, (node, strict[0]))
        going.discard(node)
    return frozenset(nodes) - going


def depends_on(node: fx.Node, roots: Sequence[fx.Node]) -> frozenset[fx.Node]:
    """The roots that `node` is computed from, through paths that pass no other root."""
    first = min(roots)
    found: set[fx.Node] = set()
    seen = {node}
    todo = [node]
    while todo:
        for source in todo.pop().all_input_nodes:
            if source in roots:
                found.add(source)
            elif source not in seen and first < source:
                seen.add(source)
                todo.append(source)
    return frozenset(found)


# --- the replacement ----------------------------------------------------------------------------


def judge_trace(graph: fx.Graph, region: Region) -> Refusal | None:
    """A replacement is a pure function, but draws and communicates where the region does.

    Of the region, only whether it does counts.
    """
    root = region.roots[:1]
    calls = [node for node in graph.nodes if node.op.startswith("call_")]
    drawing = next((n for n in calls if is_random(n) and not reads_old_memory(n)), None)
    if drawing is None and region.drawing:
        return Refusal("random", "the region is random, and the replacement is not", root)
    if drawing is not None and not region.drawing:
        return Refusal("random", f"the replacement is random: `{drawing.target}`", root)
    for node in calls:
        found = effects(node)
        if reads_old_memory(node):
            reason = f"the replacement reads memory as it was: `{node.target}`"
            return Refusal("effect", reason, root)
        if found.unknown is not None:
            reason = f"nothing is known of `{found.unknown}`, which the replacement calls"
            return Refusal("effect", f"{reason}; {_DECLARE}", root)
        if region.communicating and communicates(node):
            continue
        if found.acts or found.is_border:
            return Refusal("effect", f"the replacement has an effect: `{node.target}`", root)
    return None


def judge_outputs(
    roots: Sequence[fx.Node], old: Sequence[Any], new: Sequence[Any]
) -> Refusal | None:
    """Shape, dtype and device are kept, for every size; None stands for what is not known."""
    for root, before, after in zip(roots, old, new, strict=True):
        reason = None if before is None or after is None else _difference(before, after)
        if reason is not None:
            return Refusal("mismatch", reason, (root,))
    return None


def _difference(before: Any, after: Any) -> str | None:
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return _other_difference(before, after)
    if before.dtype != after.dtype:
        return f"the replacement has dtype {after.dtype}, the graph has {before.dtype}"
    if before.device != after.device:
        return f"the replacement is on {after.device}, the graph on {before.device}"
    if before.layout != after.layout:
        return f"the replacement has layout {after.layout}, the graph has {before.layout}"
    if not same_sizes(before.shape, after.shape):
        sizes = (_show(after.shape), _show(before.shape))
        return f"the replacement has shape {sizes[0]}, the graph has {sizes[1]}"
    return None


def _other_difference(before: Any, after: Any) -> str | None:
    if isinstance(before, (tuple, list)) and isinstance(after, (tuple, list)):
        if len(before) != len(after):
            return f"the replacement has {len(after)} values, the graph has {len(before)}"
        return next(filter(None, map(_difference, before, after)), None)
    if isinstance(before, torch.Tensor) or isinstance(after, torch.Tensor):
        return f"the replacement is {_kind(after)}, the graph has {_kind(before)}"
    if isinstance(before, (int, float, torch.SymInt, torch.SymFloat)):
        same = isinstance(after, (int, float, torch.SymInt, torch.SymFloat))
        if not same or not statically_known_true(before == after):
            return f"the replacement is {after}, the graph has {before}"
    return None


def _kind(value: object) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _show(sizes: Sequence[object]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def same_sizes(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether sizes or strides are equal, whatever the symbolic ones are."""
    return len(left) == len(right) and all(
        statically_known_true(one == other) for one, other in zip(left, right, strict=True)
    )
