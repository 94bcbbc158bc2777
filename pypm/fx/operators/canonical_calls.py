"""Fast path: calls of ATen overloads whose arguments are already in canonical form.

Most nodes of an ATen graph are such calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from torch import fx

from pypm.core.operators import REQUIRED
from pypm.core.terms import UNDEFINED, Value
from pypm.fx.operators.arguments import attribute
from pypm.fx.operators.corrections import LITERALS, RESIZERS
from pypm.fx.operators.schemas import Overload
from pypm.fx.operators.targets import Target, resolve
from pypm.torch_internals import OpOverload

if TYPE_CHECKING:
    from pypm.fx.operators.arguments import Argument

__all__ = ["DirectCall", "bare_attributes", "children", "direct_call"]


@dataclass(frozen=True, slots=True)
class DirectCall:
    """An overload whose calls give their children as their first arguments."""

    overload: Overload
    count: int
    """The number of arguments that are children."""
    defaults: Mapping[str, Value] | None
    """The attributes of calls that give only children; None if they depend on the children."""


def direct_call(target: fx.node.Target) -> DirectCall | None:
    """Return the `DirectCall` of a target, or None.

    The target must be a torch overload that returns tensors, and takes its tensors before
    everything else, none of them in a list. A call is in canonical form as written if its first
    argument is a node and no child is passed by keyword or left out.
    """
    found = _PLAIN.get(id(target), UNDEFINED)
    if found is UNDEFINED:
        if not isinstance(target, OpOverload):
            return None
        found = _PLAIN[id(target)] = _plain(target)
    return found  # type: ignore[return-value]


_PLAIN: Final[dict[int, object]] = {}
"""By identity, which is faster than an overload's hash; torch never frees overloads."""


def _plain(target: OpOverload) -> DirectCall | None:
    resolved = resolve("call_function", target)
    if not resolved.is_exact:
        return None
    (found,) = resolved.candidates
    kinds = [slot.parameter.kind for slot in found.slots]
    count = kinds.count("term")
    is_plain = (
        0 < count <= found.positional
        and kinds[:count] == ["term"] * count
        and "list" not in kinds
        and found.packet_name not in LITERALS
        and found.operator.form is None
        and bool(found.returns)
        and {"Tensor", "List[Tensor]"}.issuperset(found.returns)
    )
    return DirectCall(found, count, _defaults(resolved, count)) if is_plain else None


def _defaults(target: Target, count: int) -> Mapping[str, Value] | None:
    (found,) = target.candidates
    slots = found.slots[count:]
    if found.packet_name in RESIZERS or any(
        slot.parameter.dimension or target.default(slot) is REQUIRED for slot in slots
    ):
        return None
    named = {slot.name: attribute(slot, target.default(slot)) for slot in slots}
    return {**found.stand_ins, **named}


def bare_attributes(node: fx.Node) -> Mapping[str, Value] | None:
    """Return the attributes of a call if they are known without describing it, else None."""
    found = direct_call(node.target)
    is_bare = found is not None and len(node._args) == found.count and not node._kwargs
    return found.defaults if found is not None and is_bare else None


def children(node: fx.Node) -> tuple[Argument, ...] | None:
    """Return the children of a call if they are known without describing all of it, else None."""
    found = direct_call(node.target)
    args = node.args
    if found is None or len(args) < found.count or not isinstance(args[0], fx.Node):
        return None
    return args[: found.count]  # type: ignore[return-value]
