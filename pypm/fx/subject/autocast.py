"""Autocast as a graph switches it on and off, and what it casts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import torch
from torch import Tensor, fx

from pypm.torch_internals import DisableAutocast, TorchDispatchMode, enter_autocast, exit_autocast

__all__ = ["autocast_at", "cast_by_autocast", "entered_at", "narrowed"]


def entered_at(node: fx.Node) -> list[fx.Node]:
    """Return the calls that entered the autocast under which a node runs, the outermost first."""
    entered: list[fx.Node] = []
    left: set[object] = set()
    before = node.prev
    while before.op != "root":
        if before.target is exit_autocast:
            left.add(before.args[0])
        elif before.target is enter_autocast and before not in left:
            entered.append(before)
        before = before.prev
    return entered[::-1]


@contextmanager
def autocast_at(node: fx.Node) -> Iterator[None]:
    """Enter what a node of a graph runs under: autocast, as calls before it entered it."""
    with ExitStack() as stack:
        for call in entered_at(node):
            device, dtype, enabled, *_ = call.args
            stack.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))  # type: ignore[arg-type]
        yield


class _Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the tensors that are cast to a type of fewer bits."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Tensor] = []

    def __torch_dispatch__(  # type: ignore[no-untyped-def]
        self, func, types, args=(), kwargs=None
    ):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            given, dtype = args[0].dtype, kwargs.get("dtype") or args[0].dtype
            if given.is_floating_point and dtype.itemsize < given.itemsize:
                self.found.append(args[0])
        return func(*args, **kwargs)


def narrowed(run: Callable[[], object]) -> list[Tensor]:
    """Return the tensors that a run casts to fewer bits, as far as it comes."""
    casts = _Casts()
    with casts, suppress(Exception):
        run()
    return casts.found


def cast_by_autocast(run: Callable[[], object]) -> list[Tensor]:
    """Return the tensors that autocast casts to fewer bits in a run."""
    found = narrowed(run)
    if not found:
        return []
    with DisableAutocast():
        of_itself = {id(x) for x in narrowed(run)}
    return [x for x in found if id(x) not in of_itself]
