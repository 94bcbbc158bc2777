"""Autocast as a graph switches it on and off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import fx

from pypm.torch_internals import enter_autocast, exit_autocast

__all__ = ["autocast_at"]


@contextmanager
def autocast_at(node: fx.Node) -> Iterator[None]:
    """Enter what a node of a graph runs under: autocast, as calls before it entered it."""
    entered: list[fx.Node] = []
    left: set[object] = set()
    before = node.prev
    while before.op != "root":
        if before.target is exit_autocast:
            left.add(before.args[0])
        elif before.target is enter_autocast and before not in left:
            entered.append(before)
        before = before.prev
    with ExitStack() as stack:
        for call in reversed(entered):
            device, dtype, enabled, *_ = call.args
            stack.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))  # type: ignore[arg-type]
        yield
