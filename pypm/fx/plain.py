"""Calls in their one spelling as they are written: most of a graph of torch's overloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import fx
from torch._ops import OpOverload

from pypm.core.terms import UNDEFINED
from pypm.fx.calls import LITERALS, Argument
from pypm.fx.schemas import Overload
from pypm.fx.targets import resolve

__all__ = ["Plain", "children", "plain_overload"]


@dataclass(frozen=True, slots=True)
class Plain:
    """An overload whose calls say by their first arguments alone what their children are."""

    overload: Overload
    count: int
    """How many arguments are children."""


def plain_overload(target: object) -> Plain | None:
    """What a target is if it is an overload of torch's that gives tensors, and takes those it is
    given before everything else, none of them in a list.

    A call is in its one spelling as it is written, if its first argument is a node and no child
    is given by keyword or left out.
    """
    found = _PLAIN.get(id(target), UNDEFINED)
    if found is UNDEFINED:
        if not isinstance(target, OpOverload):
            return None
        found = _PLAIN[id(target)] = _plain(target)
    return found  # type: ignore[return-value]


_PLAIN: Final[dict[int, object]] = {}
"""By identity, which is quicker than the hash of an overload; torch keeps overloads for ever."""


def _plain(target: OpOverload) -> Plain | None:
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
        and bool(found.returns)
        and {"Tensor", "List[Tensor]"}.issuperset(found.returns)
    )
    return Plain(found, count) if is_plain else None


def children(node: fx.Node) -> tuple[Argument, ...] | None:
    """The children of a call where they can be told without describing all of it."""
    found = plain_overload(node.target)
    args = node.args
    if found is None or len(args) < found.count or not isinstance(args[0], fx.Node):
        return None
    return args[: found.count]  # type: ignore[return-value]
