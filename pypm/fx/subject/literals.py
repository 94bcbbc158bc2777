"""Nodes whose value is a known number, and that number."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import torch
from torch import fx

from pypm.core.terms import UNDEFINED, Value
from pypm.fx.operators.schemas import Overload
from pypm.fx.subject.memory import is_written
from pypm.fx.values.metadata import is_number, metadata, number
from pypm.torch_internals import FakeTensor, unset_fake_temporarily

__all__ = ["lifted_number", "made_number", "promotes_as_number"]

_LIFTS: Final = frozenset({"aten.lift", "aten.lift_fresh", "aten.lift_fresh_copy"})


def made_number(found: Overload, values: list[Value], node: fx.Node) -> Value:
    """Return the number in the 0-d tensor that one of `LITERALS` makes, or UNDEFINED."""
    made = metadata(node)
    if getattr(made, "requires_grad", False):
        return UNDEFINED
    if found.packet_name in _LIFTS:
        return _held(values[0]) if isinstance(values[0], fx.Node) else UNDEFINED
    given = {slot.name: value for slot, value in zip(found.slots, values, strict=True)}
    is_full = found.packet_name.endswith("full")
    if is_full and values[0] not in ([], ()):
        return UNDEFINED
    value = values[1] if is_full else values[0]
    if isinstance(value, fx.Node):
        value = number(value) if is_number(value) else UNDEFINED
    dtype = getattr(made, "dtype", given.get("dtype"))
    if not isinstance(value, (int, float, complex)):
        return value if dtype in _WIDE else UNDEFINED
    make: Callable[..., torch.Tensor] = (
        torch.scalar_tensor if found.packet_name == "aten.scalar_tensor" else _full
    )
    with unset_fake_temporarily():  # compilers call their passes in the mode of the graph
        try:
            return make(value, dtype=dtype).item()
        except (RuntimeError, TypeError, ValueError):  # no number of that type
            return UNDEFINED


_WIDE: Final = (None, torch.int64, torch.float32, torch.float64)
"""Types that represent any size; its value is unknown here."""


def _full(value: complex, dtype: torch.dtype | None) -> torch.Tensor:
    return torch.full((), value, dtype=dtype)


def promotes_as_number(node: fx.Node) -> bool:
    """Return whether every call that reads a 0-d tensor computes in the type in which it would
    compute with the number.
    """
    value = metadata(node)
    if not isinstance(value, torch.Tensor):
        return True
    calls = (user for user in node.users if user.op != "output")
    return all(_decide(value.dtype, call, node) for call in calls)


def _decide(dtype: torch.dtype, call: fx.Node, node: fx.Node) -> bool:
    """Return whether other tensors that a call reads decide its type beside a 0-d one."""
    values = [metadata(other) for other in call.all_input_nodes if other is not node]
    others = [value for value in values if isinstance(value, torch.Tensor)]
    if not others or any(x.ndim and _kind(x.dtype) >= _kind(dtype) for x in others):
        return True
    scalars = [x.dtype for x in others if not x.ndim and _kind(x.dtype) >= _kind(dtype)]
    if not scalars:
        default = torch.get_default_dtype()
        return dtype in (torch.bool, torch.int64, default, default.to_complex())
    return all(torch.promote_types(dtype, other) == other for other in scalars)


def _kind(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else int(dtype != torch.bool)


def lifted_number(node: fx.Node) -> Value:
    """Return the number that a `get_attr` node reads if tracing lifted it, or UNDEFINED.

    A lifted tensor is recognized by its users (`lift_fresh_copy`), or because
    `torch.export` keeps it beside the parameters and buffers. Tensors that a model
    registers may be loaded anew, so they do not count.
    """
    is_lifted = all(str(user.target).startswith(tuple(_LIFTS)) for user in node.users)
    return _held(node) if is_lifted or _is_exported(node) else UNDEFINED


def _is_exported(node: fx.Node) -> bool:
    owner, name = node.graph.owning_module, str(node.target)
    return owner is not None and _EXPORTED.fullmatch(name) is not None and name in vars(owner)


_EXPORTED: Final = re.compile(r"lifted_tensor_\d+")
"""Names that `torch.export` gives to lifted tensors."""


def _held(node: fx.Node) -> Value:
    """Return the number in the 0-d tensor that a `get_attr` node reads, or UNDEFINED."""
    found: object = node.graph.owning_module if node.op == "get_attr" else None
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    if not isinstance(found, torch.Tensor) or isinstance(found, FakeTensor):
        return UNDEFINED
    if found.requires_grad or found.ndim or found.device.type == "meta" or is_written(node):
        return UNDEFINED
    with unset_fake_temporarily():
        return found.item()
