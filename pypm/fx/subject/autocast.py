"""Autocast as a graph switches it on and off."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

import torch
from torch import fx

from pypm.torch_internals import enter_autocast, exit_autocast

__all__ = ["autocast_at"]


def autocast_at(node: fx.Node) -> AbstractContextManager[object]:
    """Return the context in which a node of a graph runs: autocast as calls before entered it."""
    entered: list[fx.Node] = []
    left: set[object] = set()
    before = node.prev
    while before.op != "root":
        if before.target is exit_autocast:
            left.add(before.args[0])
        elif before.target is enter_autocast and before not in left:
            entered.append(before)
        before = before.prev
    stack = ExitStack()
    for call in reversed(entered):
        device, dtype, enabled, *_ = call.args
        stack.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))  # type: ignore[arg-type]
    return stack
