"""Targets of fx nodes: torch's overloads, or a Python function, method or module."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from threading import Lock
from types import BuiltinFunctionType
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import fx

from pypm.core.operators import GETITEM, Operator
from pypm.fx.operators import corrections
from pypm.fx.operators.schemas import (
    Overload,
    Slot,
    canonical_packet,
    overload,
    overloads,
    packet,
    packet_name,
)
from pypm.torch_internals import HigherOrderOperator, OpOverload, OpOverloadPacket, TensorBase

__all__ = ["Target", "resolve", "torch_operator"]


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A call target, looked up once: the overloads it may mean, in the order to try them."""

    operator: Operator
    """The operator of calls whose arguments no overload binds."""
    candidates: tuple[Overload, ...] = ()
    is_exact: bool = False
    """True if the only candidate is the target itself, so that its arguments fit."""
    signature: inspect.Signature | None = None
    """The signature of a Python function, by which arguments get their Python names first."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    filled: Mapping[str, object] = field(default_factory=dict)
    """Arguments that the target passes by itself."""
    exchanged: bool = False
    """True if it passes its first two arguments in the reverse order."""

    def default(self, slot: Slot) -> object:
        """Return the argument for a slot that a call leaves out; REQUIRED if it has no default."""
        return self.filled.get(slot.name, slot.parameter.default)


def resolve(op: str, target: fx.node.Target) -> Target:
    """Return the target of a `call_function` or `call_method` node."""
    home = getattr(target, "__module__", None) or "torch"
    if isinstance(target, _TORCHS) or home.partition(".")[0] == "torch":
        return _resolve(op, target)
    return _callable_target(target)


_TORCHS: Final = (str, OpOverload, OpOverloadPacket, HigherOrderOperator, BuiltinFunctionType)
"""Types of targets that have a name of their own."""


@lru_cache(maxsize=8192)
def _resolve(op: str, target: fx.node.Target) -> Target:
    if op == "call_method":
        return _named_target(f"torch.Tensor.{target}", None)
    if isinstance(target, OpOverload):
        return _overload_target(target)
    if isinstance(target, OpOverloadPacket):
        name = canonical_packet(packet_name(target))
        return Target(packet(name), _ordered(name))
    if isinstance(target, HigherOrderOperator):
        return Target(Operator(f"higher_order.{target._name}"))
    return _named_target(_qualified_name(target), target)


def _callable_target(function: fx.node.Target) -> Target:
    """Return the target of a callable that is not torch's. It is kept no longer than the callable,
    so that one that is defined anew has the name of the one before.
    """
    found = _CALLABLES.get(function)
    if found is None:
        with _ONE_AT_A_TIME:
            qualified = _qualified_name(function)
            alike = _NAMED.setdefault(qualified, WeakValueDictionary())
            number = next(n for n in count(1) if alike.setdefault(n, function) is function)
            name = qualified if number == 1 else f"{qualified}#{number}"
            found = _CALLABLES.setdefault(function, _named_target(name, function))
    return found


_CALLABLES: Final[WeakKeyDictionary[object, Target]] = WeakKeyDictionary()
_NAMED: Final[dict[str, WeakValueDictionary[int, object]]] = {}
"""Those of each name: lambdas, what a function makes or defines anew, objects of a class."""
_ONE_AT_A_TIME: Final = Lock()


def _overload_target(target: OpOverload) -> Target:
    name = packet_name(target)
    canonical = canonical_packet(name)
    if canonical != name:
        return Target(packet(canonical), _ordered(canonical))
    return Target(packet(name), (overload(target),), is_exact=True)


def _ordered(name: str) -> tuple[Overload, ...]:
    return tuple(sorted(overloads(name), key=lambda o: o.name != ""))


_PUBLIC: Final[Mapping[str, str]] = {
    "_operator": "operator",
    "torch": "torch",
    "torch._C": "torch",
    "torch._C._VariableFunctions": "torch",
    "torch._C._fft": "torch.fft",
    "torch._C._linalg": "torch.linalg",
    "torch._C._nn": "torch.nn.functional",
    "torch._C._special": "torch.special",
    "torch._tensor": "torch.Tensor",
    "torch.functional": "torch",
    "torch.nn.functional": "torch.nn.functional",
}
"""Modules whose functions are torch's operators of the same name, and their public names."""

_TORCH_MODULES: Final = frozenset({*_PUBLIC.values(), "torch.Tensor"})


def _named_target(qualified: str, function: fx.node.Target | None) -> Target:
    module, _, name = qualified.rpartition(".")
    if qualified == "operator.getitem":
        return Target(GETITEM)
    signature = _python_signature(function)
    filled: dict[str, object] = {}
    wanted = f"aten.{name}"
    if module == "torch.Tensor" and name in corrections.CAST_METHODS:
        wanted = "aten.to"
        filled["dtype"] = getattr(torch, corrections.CAST_METHODS[name])
    exchanged = corrections.EXCHANGED.get(qualified)
    wanted = exchanged or canonical_packet(corrections.FUNCTIONS.get(qualified, wanted))
    is_torchs = module in _TORCH_MODULES or qualified in corrections.FUNCTIONS
    is_alike = is_torchs and qualified not in corrections.OF_SEVERAL
    candidates = _ordered(wanted) if is_alike else ()
    filled.update(corrections.FILLED.get(wanted, {}))
    return Target(
        Operator(qualified),
        candidates,
        signature=signature,
        renamed=corrections.RENAMED.get(qualified, {}),
        filled=filled,
        exchanged=exchanged is not None,
    )


def _qualified_name(function: fx.node.Target) -> str:
    name = getattr(function, "__name__", None) or type(function).__qualname__
    owner = getattr(function, "__objclass__", None)
    if owner is TensorBase or getattr(torch.Tensor, name, None) is function:
        return f"torch.Tensor.{name}"
    module = getattr(function, "__module__", None) or "torch"
    if module in _PUBLIC:
        return f"{_PUBLIC[module]}.{name}"  # a private home of a public function
    is_builtin = inspect.isbuiltin(function)  # pybind11 qualifies names by its own records
    return f"{module}.{name if is_builtin else getattr(function, '__qualname__', name)}"


def _python_signature(function: fx.node.Target | None) -> inspect.Signature | None:
    """Return the signature of a Python function that names its parameters, else None."""
    if not inspect.isfunction(function):
        return None
    signature = inspect.signature(function)
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    if any(p.kind in variadic for p in signature.parameters.values()):
        return None
    return signature


def torch_operator(target: fx.node.Target) -> Operator:
    """Return the operator of an overload, a packet, a function, a method's name or a module class.

    >>> torch_operator(torch.ops.aten.relu.default), torch_operator(torch.relu)
    (Operator(name='aten.relu'), Operator(name='aten.relu'))
    """
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        return Operator(f"{target.__module__}.{target.__qualname__}")
    found = resolve("call_method" if isinstance(target, str) else "call_function", target)
    operator = found.candidates[0].operator if found.candidates else found.operator
    return operator.canonical
