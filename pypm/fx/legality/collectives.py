"""Functional collectives: a replacement issues those of its region in the same order.

Every process of a group must issue the same collectives in the same order, or all wait for ever.
Processes need not rewrite alike: a rule may decline on one of them. So a rewrite keeps the sequence
of collectives that the graph issues: kinds, arguments, shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Final

from torch import fx
from torch.fx.node import Argument

from pypm.core.rules import TOGETHER
from pypm.fx.legality.issued_collectives import PARTS, are_alike, is_ordered
from pypm.fx.legality.region import Refusal, Region
from pypm.fx.operators import known_effects as known
from pypm.fx.operators.effects import meaning_of
from pypm.fx.subject.calls import describe
from pypm.fx.values.metadata import metadata

__all__ = ["judge_collectives"]


def judge_collectives(
    region: Region,
    emitted: Iterable[fx.Node],
    values: Mapping[fx.Node, Argument],
    inputs: Mapping[fx.Node, fx.Node],
) -> Refusal | None:
    """Return a refusal if a replacement would change the sequence of collectives; else None.

    Arguments:
        region: the region with the collectives of the graph. One of a rule that is applied together
            with others is not judged by itself.
        emitted: the nodes of the replacement in the order in which they will be computed.
        values: their fake values, as far as they are known.
        inputs: nodes of the graph by the placeholders of the replacement.
    """
    if not region.communicating or region.together:
        return None
    old = [node for node in region.nodes if _issues(node)]
    new = [node for node in emitted if _issues(node)]
    names = [", ".join(str(describe(node).operator) for node in side) for side in (new, old)]
    # Other processes may keep the region: each has to meet the same calls in the same order.
    if names[0] != names[1]:
        reason = f"the replacement issues {names[0] or 'no collective'}, the region {names[1]}"
        help = f"; `communicates={TOGETHER!r}` allows {_ALLOWED}" if _may_be_meant(new) else ""
        return Refusal("effect", reason + help, region.roots[:1])
    operands = {node for each in old for node in describe(each).nodes}
    for before, after in zip(old, new, strict=True):
        difference = _difference(before, after, values) or _exchange(
            before, [inputs.get(node) for node in describe(after).nodes], operands
        )
        if difference is not None:
            return Refusal("effect", difference, (before,))
    return _in_between(region, old)


_ALLOWED: Final = "declared operators, and an all-reduce in two parts"


def _may_be_meant(new: Sequence[fx.Node]) -> bool:
    """Return whether the collectives may be those of the region in another form."""
    names = {describe(node).operator.name for node in new}
    return any(meaning_of(node) is not None for node in new) or names >= PARTS


def _issues(node: fx.Node) -> bool:
    is_known = node.op == "call_function" and describe(node).operator.name in known.ISSUED
    return is_known or meaning_of(node) is not None


def _difference(before: fx.Node, after: fx.Node, values: Mapping[fx.Node, Argument]) -> str | None:
    one, other = describe(before), describe(after)
    if one.attributes != other.attributes:
        return f"the replacement issues `{before}` with {other.attributes}, not {one.attributes}"
    sent = (_sent(before, metadata), _sent(after, values.get))
    if None not in (*sent[0], *sent[1]) and not are_alike(*sent):
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


def _in_between(region: Region, issued: Sequence[fx.Node]) -> Refusal | None:
    """Return a refusal if a collective would move across another effect to its new place; else
    None.
    """
    first, last = min(*issued, *region.roots), max(region.roots)
    inside = frozenset(region.nodes)
    node = first.next
    while node is not last and node.op != "root":
        if node not in inside and is_ordered(node):
            reason = f"`{node}` comes between `{first}` and `{last}`, and their order would change"
            return Refusal("effect", reason, (node, first, last))
        node = node.next
    return None
