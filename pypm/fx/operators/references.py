"""References of kernels that others wrote: what each computes, as proofs take it for granted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from pypm.fx.operators.body_trace import BODY_TRACE

__all__ = ["opaque", "reference_in_proof", "state_references", "stated_reference"]

Reference: TypeAlias = Callable[..., Any]


def state_references(references: Mapping[str, Reference]) -> None:
    """State what operators compute: `pypm prove` takes it for granted.

    `references` has a reference by the name of each operator. It is a function of all arguments, in their order, in torch's operators and `opaque`. A
    parameter whose name begins with an underscore is not read. It returns what a functional call
    does: for an operator that writes, None and then each argument that is written.
    """
    _STATED.update(references)


_STATED: Final[dict[str, Reference]] = {}


def stated_reference(name: str) -> Reference | None:
    """Return the reference of the operator of this name, or None."""
    return _STATED.get(name)


def reference_in_proof(name: str) -> Reference | None:
    """Return the reference of the operator `name` where a rule's body runs for a proof.

    Elsewhere, and where none is stated, it returns None.
    """
    trace = BODY_TRACE.get()
    if trace is None or trace.references is None or name not in _STATED:
        return None
    trace.references.add(name)
    return _STATED[name]


def opaque(name: str, like: Tensor, *operands: object) -> Tensor:
    """Return a tensor of the shape of `like`, of which is known only that operands determine it.

    It is for references: the same name and the same operands are the same tensor. Raises TypeError
    outside of proofs.
    """
    given = (like, *operands)
    if not has_torch_function(given):
        raise TypeError(f"`{name}` is known to proofs alone")
    found: Tensor = handle_torch_function(opaque, given, name, like, *operands)
    return found
