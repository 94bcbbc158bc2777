"""Functional collectives: a replacement issues those of its region in the same order.

Every process of a group must issue the same collectives in the same order, or all wait for ever.
Processes need not rewrite alike: a rule may decline on one of them. So a rewrite keeps the sequence
of collectives that the graph issues: kinds, arguments, shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import torch
from torch import fx
from torch.fx.node import Argument

from pypm.fx.legality.region import Refusal, Region
from pypm.fx.operators import known_effects as known
from pypm.fx.operators.effects import effects
from pypm.fx.subject.calls import describe
from pypm.fx.values.metadata import metadata
from pypm.fx.values.size_comparison import same_shape

__all__ = ["judge_collectives"]


def judge_collectives(
    region: Region,
    emitted: Iterable[fx.Node],
    values: Mapping[fx.Node, Argument],
    inputs: Mapping[fx.Node, fx.Node],
) -> Refusal | None:
    """Return a refusal if a replacement would change the sequence of collectives; else None.

    Arguments:
        region: the region with the collectives of the graph.
        emitted: the nodes of the replacement in the order in which they will be computed.
        values: their fake values, as far as they are known.
        inputs: nodes of the graph by the placeholders of the replacement.
    """
    if not region.communicating:
        return None
    old = [node for node in region.nodes if _issues(node)]
    new = [node for node in emitted if _issues(node)]
    names = [", ".join(str(describe(node).operator) for node in side) for side in (new, old)]
    # Other processes may keep the region: each has to meet the same calls in the same order.
    if names[0] != names[1]:
        reason = f"the replacement issues {names[0] or 'no collective'}, the region {names[1]}"
        return Refusal("effect", reason, region.roots[:1])
    operands = {node for each in old for node in describe(each).nodes}
    for before, after in zip(old, new, strict=True):
        difference = _difference(before, after, values) or _exchange(
            before, [inputs.get(node) for node in describe(after).nodes], operands
        )
        if difference is not None:
            return Refusal("effect", difference, (before,))
    return _in_between(region, old)


def _issues(node: fx.Node) -> bool:
    return node.op == "call_function" and describe(node).operator.name in known.ISSUED


def _difference(before: fx.Node, after: fx.Node, values: Mapping[fx.Node, Argument]) -> str | None:
    one, other = describe(before), describe(after)
    if one.attributes != other.attributes:
        return f"the replacement issues `{before}` with {other.attributes}, not {one.attributes}"
    sent = (_sent(before, metadata), _sent(after, values.get))
    if None not in (*sent[0], *sent[1]) and not _are_alike(*sent):
        return f"the replacement issues `{before}` on tensors of other shapes or dtypes"
    return None


def _exchange(
    before: fx.Node, sent: Sequence[fx.Node | None], operands: Set[fx.Node]
) -> str | None:
    """Return a reason if an operand of another collective of the region is sent; else None.

    Equal collectives may have their operands exchanged, but other processes may not rewrite.
    """
    for one, other in zip(describe(before).nodes, sent, strict=False):
        if one is not other and other in operands:
            return f"the replacement issues `{before}` on `{other}`, not on `{one}`"
    return None


def _sent(node: fx.Node, value_of: Callable[[fx.Node], Argument]) -> list[Argument]:
    """Return the inputs of a collective, None for unknown ones."""
    return [value_of(argument) for argument in describe(node).nodes]


def _are_alike(left: Sequence[Argument], right: Sequence[Argument]) -> bool:
    return len(left) == len(right) and all(
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.dtype == other.dtype
        and same_shape(one.shape, other.shape)
        for one, other in zip(left, right, strict=True)
    )


def _in_between(region: Region, issued: Sequence[fx.Node]) -> Refusal | None:
    """Return a refusal if a collective would move across another effect to its new place; else
    None.
    """
    first, last = min(*issued, *region.roots), max(region.roots)
    inside = frozenset(region.nodes)
    node = first.next
    while node is not last and node.op != "root":
        if node not in inside and _is_ordered(node):
            reason = f"`{node}` comes between `{first}` and `{last}`, and their order would change"
            return Refusal("effect", reason, (node, first, last))
        node = node.next
    return None


def _is_ordered(node: fx.Node) -> bool:
    """Return whether processes may have to make the call in a fixed order with collectives.

    Waiting for a collective issues none, and assertions concern this process only.
    """
    if not effects(node).acts:
        return False
    name = describe(node).operator.name
    return name not in known.EFFECTS and name not in known.WAITS
