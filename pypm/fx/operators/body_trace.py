"""The trace of a rule's body that is under way, and calls of torch's operators in that body."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType
from typing import Final

import torch

from pypm.diagnostics import Span

__all__ = [
    "BODY_TRACE",
    "BodyTrace",
    "DeclineDropped",
    "Expected",
    "NothingReturned",
    "call_packet",
]


@dataclass(frozen=True, slots=True)
class Expected:
    """Operators of which the trace must hold one, for the kernel of that name."""

    targets: frozenset[str]
    name: str


@dataclass(frozen=True, slots=True)
class BodyTrace:
    """Facts that a body may read while it is traced, and requests of the kernels in it."""

    trained: bool
    expected: list[Expected] = field(default_factory=list)
    references: set[str] | None = None
    """In a proof, the kernels whose references were computed in their place; elsewhere None."""


# A context variable: the body and its kernels call `expect(...)`, `trained()` and operators without
# an argument that could carry the trace, and each thread may be in a trace of its own.
BODY_TRACE: Final[ContextVar[BodyTrace | None]] = ContextVar("body_trace", default=None)
"""The innermost trace under way; None outside of rules' bodies."""


class NothingReturned(Exception):
    """A rule's body that ended without `return`."""


class DeclineDropped(Exception):
    """A rule's body that called `decline`, and returned something else."""

    def __init__(self, code: CodeType, index: int) -> None:
        super().__init__()
        positions = next(islice(code.co_positions(), index // 2, None))
        self.span = _span(code.co_filename, *positions)


def _span(
    file: str, line: int | None, last: int | None, column: int | None, end: int | None
) -> Span | None:
    """Return the place of an instruction, from what Python keeps of it."""
    if line is None or column is None:
        return None
    return Span(file, line, column, last or line, end or column + 1)


def call_packet(name: str, *arguments: object, **keywords: object) -> object:
    """Call the overload packet of that name, such as `aten.relu`, in a rule's body.

    Raises TypeError elsewhere: there, an operator only stands for its calls in graphs.
    """
    namespace, _, bare = name.partition(".")
    if BODY_TRACE.get() is None:
        raise TypeError(
            f"operator `{name}` is read in patterns and called in rules' bodies alone: "
            f"call `torch.ops.{name}` here"
        )
    return getattr(getattr(torch.ops, namespace), bare)(*arguments, **keywords)
