"""Calls of kernels about the trace under way: operators that it must hold, and exact values."""

from __future__ import annotations

from pypm.fx.operators.calls_in_bodies import BODY_TRACE, Expected

__all__ = ["exact", "expect"]


def expect(targets: frozenset[str], name: str) -> None:
    """Refuse the rule whose body is being traced unless the trace holds one of some operators.

    A kernel calls this where torch chooses between operators by the inputs.

    Arguments:
        targets: dotted names of operators, such as `aten.mm`; the trace must call one of them.
        name: the name of the kernel, for the reason of the refusal.

    Outside of a trace, the call has no effect.
    """
    trace = BODY_TRACE.get()
    if trace is not None:
        trace.expected.append(Expected(targets, name))


def exact() -> bool:
    """Return whether the rewrite under way keeps every value, NaN included.

    It is the option `exact` of `pypm.fx.rewrite`; False outside of a trace.
    """
    trace = BODY_TRACE.get()
    return trace is not None and trace.exact
