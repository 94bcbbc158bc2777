"""Messages of kernels to a trace: operators that it must hold, and types that they do not take."""

from __future__ import annotations

import re
from typing import Final

from pypm.fx.operators.body_trace import BODY_TRACE, Expected

__all__ = ["UnsupportedType", "expect", "refused_type", "trained"]


class UnsupportedType(TypeError):
    """A kernel does not take an operand of some dtype: a match whose body raises this is declined.

    The checks of operands of PyPM's operators raise it.
    """


_REFUSED: Final = re.compile(r"not implemented for '\w+'|^Promotion for \w+ Types is not supported")
"""Messages of torch's operators for a dtype that they do not take."""


def refused_type(error: Exception) -> str | None:
    """Return the message of an operator that does not take a dtype; None for any other error."""
    text = str(error).partition("\n")[0]
    return text if isinstance(error, UnsupportedType) or _REFUSED.search(text) else None


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


def trained() -> bool:
    """Return whether a gradient may be sent back through the match whose body is being traced.

    Metadata says so of the roots, or, in a program that was exported before autograd, of parameters
    that they are computed from. False outside of a trace.
    """
    trace = BODY_TRACE.get()
    return trace is not None and trace.trained
