"""The trace of a rule's body that is under way: calls of torch's operators in it, and references of
kernels that others wrote, as proofs take them for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from pypm.core.terms import Value
from pypm.diagnostics import Span

__all__ = [
    "BODY_TRACE",
    "BodyTrace",
    "DeclineDropped",
    "Expected",
    "NothingReturned",
    "Reference",
    "call_packet",
    "opaque",
    "reference_in_proof",
    "state_references",
    "stated_reference",
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


# --- references ---------------------------------------------------------------------------------


Reference: TypeAlias = Callable[..., Value]


def state_references(references: Mapping[str, Reference]) -> None:
    """State what operators compute, by their names: `pypm prove` takes it for granted.

    A reference is a function of all arguments, in their order, in torch's operators and `opaque`. A
    parameter whose name begins with an underscore is not read. It returns what a functional call
    does: for an operator that writes, None and then each argument that is written.
    """
    _STATED.update(references)


_STATED: Final[dict[str, Reference]] = {}


def stated_reference(name: str) -> Reference | None:
    """Return the reference of the operator of this name, or None."""
    return _STATED.get(name)


def reference_in_proof(name: str) -> Reference | None:
    """Return the reference of an operator where a rule's body runs for a proof; elsewhere None."""
    trace = BODY_TRACE.get()
    if trace is None or trace.references is None or name not in _STATED:
        return None
    trace.references.add(name)
    return _STATED[name]


def opaque(name: str, like: Tensor, *operands: Tensor | float | None) -> Tensor:
    """Return a tensor of the shape of `like`, of which is known only that operands determine it.

    It is for references: the same name and the same operands are the same tensor. Raises TypeError
    outside of proofs.
    """
    given = (like, *operands)
    if not has_torch_function(given):
        raise TypeError(f"`{name}` is known to proofs alone")
    found: Tensor = handle_torch_function(opaque, given, name, like, *operands)
    return found
