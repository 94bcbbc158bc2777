"""What a node does besides computing its value: randomness, writes, effects, views, layout."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from pypm.core.operators import LITERAL
from pypm.fx import tables
from pypm.fx.calls import describe
from pypm.fx.plain import plain_overload
from pypm.fx.symbols import Symbolic
from pypm.fx.targets import resolve

__all__ = [
    "PURE",
    "has_effect",
    "is_constant",
    "is_pure",
    "is_random",
    "is_view",
    "mutates",
    "never_writes",
    "reads_layout",
    "tags",
]

PURE: Final = "pypm_pure"
"""Set in the metadata of a call of a module that only computes a value, whatever its class."""

_CALLS: Final = ("call_function", "call_method")


def tags(node: fx.Node) -> frozenset[str]:
    """The classes of the node's operator: torch's tags of the overload, corrected."""
    return describe(node).tags


def is_pure(node: fx.Node) -> bool:
    """Whether the node only computes a value, the same whenever it is computed."""
    if _is_plain(node):
        return True
    return not (is_random(node) or mutates(node) or has_effect(node))


def _is_plain(node: fx.Node) -> bool:
    """Whether the node is pure whatever its arguments are."""
    plain = plain_overload(node.target)
    if plain is not None:
        return plain.overload.only_computes
    return (
        node.op in _CALLS
        and _is_plain_target(node.op, node.target)
        and node.kwargs.get("out") is None
    )


@lru_cache(maxsize=8192)
def _is_plain_target(op: str, target: Any) -> bool:
    """Whether calls of the target are pure whatever their arguments are."""
    found = resolve(op, target)
    candidates = found.candidates
    if found.signature is not None and "inplace" in found.signature.parameters:
        return False
    return bool(candidates) and all(candidate.only_computes for candidate in candidates)


def is_constant(node: fx.Node) -> bool:
    """Whether the value is known before the graph runs: an attribute of the module, a literal."""
    if node.op == "get_attr":
        return True
    if plain_overload(node.target) is not None:
        return False
    found = describe(node)
    value = found.attributes.get("value")
    return found.operator == LITERAL and not isinstance(value, Symbolic)


def is_random(node: fx.Node) -> bool:
    """Whether the value is drawn anew each time; dropout that drops nothing is not random."""
    if _is_plain(node):
        return False
    if node.op == "call_module":
        return _module_is_stateful(node)
    if node.op not in _CALLS:
        return False
    target = resolve(node.op, node.target)
    if not target.candidates:
        name = target.operator.name
        return name in tables.RANDOM or ("dropout" in name and _draws(_python_arguments(node)))
    if not any(candidate.is_random for candidate in target.candidates):
        return False
    found = describe(node)
    if found.overload is None:
        return _draws(found.attributes)
    return found.overload.is_random and _draws(found.attributes)


def _draws(attributes: dict[str, Any]) -> bool:
    if attributes.get("train") is False or attributes.get("training") is False:
        return False
    given = [attributes[name] for name in ("p", "dropout_p", "dropout") if name in attributes]
    return not any(isinstance(p, (int, float)) and p == 0 for p in given)


def never_writes(target: object) -> bool:
    """Whether no call of a target writes to memory, whatever its arguments are."""
    plain = plain_overload(target)
    return plain is not None and plain.overload.only_computes


def mutates(node: fx.Node) -> bool:
    """Whether the node writes to the memory of a tensor it is given, or may."""
    if _is_plain(node):
        return False
    if node.op == "call_module":
        return _module_is_stateful(node)
    if node.op not in _CALLS:
        return False
    if isinstance(node.target, HigherOrderOperator):
        return node.target._name not in tables.PURE_HIGHER_ORDER
    target = resolve(node.op, node.target)
    if any(candidate.mutates for candidate in target.candidates):
        found = describe(node).overload
        return True if found is None else found.mutates
    if target.candidates and target.candidates[0].packet_name in tables.STATEFUL_NORMS:
        return _writes_statistics(node)
    if _name_writes(target.operator.name) or node.kwargs.get("out") is not None:
        return True
    return target.signature is not None and _python_arguments(node).get("inplace") is True


def _writes_statistics(node: fx.Node) -> bool:
    call = describe(node)
    if call.overload is None:
        return True
    flag = call.attributes[tables.STATEFUL_NORMS[call.operator.name]]
    slots = [slot.name for slot in call.overload.slots if slot.parameter.kind == "term"]
    given = dict(zip(slots, call.arguments, strict=True))
    return flag is not False and given.get("running_mean") is not None


def _name_writes(name: str) -> bool:
    module, _, bare = name.rpartition(".")
    if module == "operator":
        return bare in tables.INPLACE
    return bare.endswith("_") and not bare.endswith("__")


def has_effect(node: fx.Node) -> bool:
    """Whether the node must stay even if nothing uses its value."""
    if node.op == "output" or mutates(node):
        return True
    if node.op not in _CALLS:
        return False
    target = resolve(node.op, node.target)
    if target.candidates:
        return target.candidates[0].has_effect
    return target.operator.name in tables.EFFECTS or _is_known_to_fx(node)


def _is_known_to_fx(node: fx.Node) -> bool:
    return node.target in torch.fx.node._side_effectful_functions


def is_view(node: fx.Node) -> bool:
    """Whether the value shares, or may share, the memory of an argument."""
    plain = plain_overload(node.target)
    if plain is not None:
        return plain.overload.is_view
    if node.op not in _CALLS:
        return False
    target = resolve(node.op, node.target)
    if target.operator.name == "getitem":
        return True
    if not any(candidate.is_view for candidate in target.candidates):
        return False
    found = describe(node).overload
    return found is not None and found.is_view


def reads_layout(node: fx.Node) -> bool:
    """Whether the strides of the node's arguments can be told from outside.

    Views that need them, operators tagged to need exact strides, and whatever is not torch's own.
    """
    if node.op in {"output", "call_module"}:
        return True
    if node.op not in _CALLS or describe(node).operator == LITERAL:
        return False
    target = resolve(node.op, node.target)
    if not target.candidates:
        return target.operator.name not in _LAYOUT_BLIND
    found = describe(node).overload or target.candidates[0]
    if found.packet_name in tables.LAYOUT_READERS or found.tags & _STRIDE_TAGS:
        return True
    return found.namespace not in {"aten", "prims"} and "flexible_layout" not in found.tags


_STRIDE_TAGS: Final = frozenset(
    {"needs_contiguous_strides", "needs_exact_strides", "needs_fixed_stride_order"}
)

_LAYOUT_BLIND: Final = frozenset({"getitem", "operator.setitem"})


# --- functions and modules written in Python ----------------------------------------------------


def _python_arguments(node: fx.Node) -> dict[str, Any]:
    target = resolve(node.op, node.target)
    if target.signature is None:
        return dict(node.kwargs)
    try:
        bound = target.signature.bind(*node.args, **node.kwargs)
    except TypeError:
        return dict(node.kwargs)
    bound.apply_defaults()
    return bound.arguments


_STATEFUL: Final = ("BatchNorm", "InstanceNorm", "SyncBatchNorm", "Dropout", "RReLU", "Fractional")


def _module_is_stateful(node: fx.Node) -> bool:
    """Whether calling the module may draw random numbers, write buffers or do unknown things."""
    owner = node.graph.owning_module
    if node.meta.get(PURE):
        return False
    if owner is None:
        return True
    called = owner.get_submodule(str(node.target))
    return any(_is_stateful(module) for module in called.modules())


def _is_stateful(module: torch.nn.Module) -> bool:
    if not type(module).__module__.startswith("torch.nn.modules"):
        return True
    if getattr(module, "inplace", False):
        return True
    name = type(module).__name__
    has_dropout = bool(getattr(module, "dropout", 0))
    return module.training and (any(word in name for word in _STATEFUL) or has_dropout)
