"""What kernels ask of the trace they are called in: operators to expect, and exact values."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["EXACT", "EXPECTED", "Expected", "exact", "expect"]


@dataclass(frozen=True, slots=True)
class Expected:
    targets: frozenset[str]
    name: str


EXPECTED: ContextVar[list[Expected] | None] = ContextVar("expected", default=None)
EXACT: ContextVar[bool] = ContextVar("exact", default=False)


def expect(targets: frozenset[str], name: str) -> None:
    """Said by a kernel as it is called: its trace must hold one of these operators.

    Where it does not, the kernel does not apply to these inputs and the rule is refused.
    Outside of a trace nothing happens.
    """
    expected = EXPECTED.get()
    if expected is not None:
        expected.append(Expected(targets, name))


def exact() -> bool:
    """Whether the rewrite under way wants every value kept, NaN included."""
    return EXACT.get()
