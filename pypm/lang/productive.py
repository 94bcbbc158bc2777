"""Recursive patterns that can match something: an alternate of them ends without recursion."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)

__all__ = ["is_productive"]

_Calls: TypeAlias = tuple[bool, ...]


def is_productive(pattern: Pattern, calls: _Calls = ()) -> bool:
    """Whether a finite term may match, as far as recursion goes: what guards say is not asked.

    `calls` says this of the enclosing recursive patterns, innermost first. A body that matches
    nothing while its own calls match nothing never will: that is the least fixed point. What is
    closed has been checked before.
    """
    match pattern:
        case Var():
            return True
        case Op(_, parts) | Fun(_, parts):
            return all(is_productive(part, calls) for part in parts)
        case Alt(left, right):
            return is_productive(left, calls) or is_productive(right, calls)
        case Exists(_, body) | Guarded(body) | Let(body):
            return is_productive(body, calls)
        case Constrained(body, constraint):
            return is_productive(body, calls) and is_productive(constraint, calls)
        case Mu(definition):
            return definition.closed is not None or is_productive(definition.body, (False, *calls))
        case Call(index):
            return index >= len(calls) or calls[index]
        case _:
            assert_never(pattern)
