"""Recursive patterns that can match something: an alternate of them ends without recursion."""

from __future__ import annotations

from typing import TypeAlias

from pypm.core.patterns import (
    Alt,
    Call,
    Mu,
    Pattern,
)
from pypm.core.traverse import children

__all__ = ["is_productive"]

_Calls: TypeAlias = tuple[bool, ...]


def is_productive(pattern: Pattern, calls: _Calls = ()) -> bool:
    """Whether a finite term may match, as far as recursion goes: what guards say is not asked.

    `calls` says this of the enclosing recursive patterns, innermost first. A body that matches
    nothing while its own calls match nothing never will: that is the least fixed point. What is
    closed has been checked before.
    """
    match pattern:
        case Alt(left, right):
            return is_productive(left, calls) or is_productive(right, calls)
        case Mu(definition):
            return definition.closed is not None or is_productive(definition.body, (False, *calls))
        case Call(index):
            return index >= len(calls) or calls[index]
        case _:
            return all(is_productive(part, calls) for part in children(pattern))
