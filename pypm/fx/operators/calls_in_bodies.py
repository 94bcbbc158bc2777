"""Calls of torch's operators in rules' bodies, which are only valid while one is traced."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

import torch

__all__ = ["IN_BODY", "NothingReturned", "call_packet"]

IN_BODY: Final[ContextVar[bool]] = ContextVar("in_body", default=False)


class NothingReturned(Exception):
    """A rule's body that ended without `return`."""


def call_packet(name: str, *arguments: Any, **keywords: Any) -> Any:
    """Call the overload packet of that name, such as `aten.relu`, in a rule's body.

    Raises TypeError elsewhere: there, an operator only stands for its calls in graphs.
    """
    namespace, _, bare = name.partition(".")
    if not IN_BODY.get():
        raise TypeError(
            f"operator `{name}` is read in patterns and called in rules' bodies alone: "
            f"call `torch.ops.{name}` here"
        )
    return getattr(getattr(torch.ops, namespace), bare)(*arguments, **keywords)
