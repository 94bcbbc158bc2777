"""What kernels ask of the trace they are called in: operators to expect, and exact values."""

from __future__ import annotations

from pypm.fx.operators.calls_in_bodies import BODY_TRACE, Expected

__all__ = ["exact", "expect"]


def expect(targets: frozenset[str], name: str) -> None:
    """Said by a kernel as it is called: its trace must hold one of these operators.

    Where it does not, the kernel does not apply to these inputs and the rule is refused.
    Outside of a trace nothing happens.
    """
    trace = BODY_TRACE.get()
    if trace is not None:
        trace.expected.append(Expected(targets, name))


def exact() -> bool:
    """Whether the rewrite under way wants every value kept, NaN included."""
    trace = BODY_TRACE.get()
    return trace is not None and trace.exact
