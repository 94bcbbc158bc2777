"""Effects of calls besides their values: writes, shared memory, random numbers, changes of mode.

A call counts as pure, fresh or a view if a schema that torch checks, a table or a declaration says
so. An unknown callee may do anything to its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import torch
from torch import fx
from torch.fx.node import Argument

from pypm.fx.operators import known_effects as known
from pypm.fx.operators.arguments import SILENT, bind, python_arguments
from pypm.fx.operators.canonical_calls import direct_call
from pypm.fx.operators.declarations import DeclaredEffects, declaration_of
from pypm.fx.operators.known_modules import has_own_code
from pypm.fx.operators.schemas import Meaning, Overload, overload
from pypm.fx.operators.targets import Target, resolve
from pypm.torch_internals import (
    HigherOrderOperator,
    OpOverload,
    auto_functionalized,
    auto_functionalized_v2,
    triton_kernel_wrapper_functional,
)

__all__ = [
    "PURE",
    "Effects",
    "communicates",
    "effects",
    "has_effect",
    "is_border",
    "is_pure",
    "is_random",
    "is_sure_view",
    "is_view",
    "meaning_of",
    "mutates",
    "only_computes",
    "reads_old_memory",
]

PURE: Final = "pypm_pure"
"""Set in the metadata of a call of a module that only computes a value, whatever its class."""

_CALLS: Final = ("call_function", "call_method")


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of one call besides its value."""

    writes: tuple[fx.Node, ...] = ()
    """The arguments whose memory it writes, or may write."""
    shares: tuple[fx.Node, ...] = ()
    """The arguments whose memory its value shares, or may share."""
    draws: bool = False
    """True if it samples random numbers, or its value depends on more than its arguments."""
    acts: bool = False
    """True if it has an effect outside of its tensors: it must run exactly once, even if unused."""
    switches: bool = False
    """It changes how later calls compute, differentiate or draw."""
    unknown: str | None = None
    """The name of an unknown callee: one without a schema, a table entry or a declaration."""

    @property
    def is_pure(self) -> bool:
        return not (self.draws or self.acts or self.is_border)

    @property
    def is_border(self) -> bool:
        """Return whether no computation may move over the call, in either direction."""
        return bool(self.writes) or self.switches or self.unknown is not None


_NOTHING: Final = Effects()


def effects(node: fx.Node) -> Effects:
    """Return the effects of a node besides its value."""
    if node.op == "output":
        return Effects(acts=True)
    if not node.op.startswith("call_"):
        return _NOTHING
    declared = declaration_of(node)
    if declared is not None:
        return _of_declaration(declared, node)
    if node.op == "call_module":
        return _of_module(node)
    if isinstance(node.target, HigherOrderOperator):
        return _of_higher_order(node.target, node)
    target = resolve(node.op, node.target)
    bound = bind(target, node) if target.candidates else None
    found = _of_function(target, node) if bound is None else _of_overload(*bound)
    return _with_destination(found, target, node)


def is_pure(node: fx.Node) -> bool:
    """Return whether the node only computes a value, which is the same whenever it is computed."""
    return _only_computes(node) or effects(node).is_pure


def is_random(node: fx.Node) -> bool:
    """Return whether the value is sampled anew each time; dropout that drops nothing is not."""
    return not _only_computes(node) and effects(node).draws


def mutates(node: fx.Node) -> bool:
    """Return whether the node writes to the memory of a tensor it is given, or may."""
    if _only_computes(node):
        return False
    found = effects(node)
    return bool(found.writes) or found.unknown is not None


def is_border(node: fx.Node) -> bool:
    """Return whether no computation may move over the node: it writes, changes a mode, or is
    unknown.
    """
    return not _only_computes(node) and effects(node).is_border


def has_effect(node: fx.Node) -> bool:
    """Return whether the node must stay even if nothing uses its value."""
    if _only_computes(node):
        return False
    found = effects(node)
    return found.acts or found.is_border


def communicates(node: fx.Node) -> bool:
    """Return whether the node issues a functional collective, or waits for one, and does nothing
    else.
    """
    if node.op not in _CALLS or effects(node).is_border:
        return False
    name = resolve(node.op, node.target).operator.name
    return name in known.ISSUED or name in known.WAITS or meaning_of(node) is not None


def meaning_of(node: fx.Node) -> Meaning | None:
    """Return the function whose collectives the operator that a node calls is declared to issue."""
    target = node.target
    if target in (auto_functionalized, auto_functionalized_v2):
        target = node.args[0]  # type: ignore[assignment]
    return overload(target).meaning if isinstance(target, OpOverload) else None


def is_view(node: fx.Node) -> bool:
    """Return whether the value is a view of an argument, or may be: it costs nothing."""
    plain = direct_call(node.target)
    if plain is not None:
        return plain.overload.is_view
    if node.op not in _CALLS:
        return False
    target = resolve(node.op, node.target)
    if target.operator.name == "getitem" or _reads_view(target, node):
        return True
    if not any(candidate.is_view for candidate in target.candidates):
        return False
    bound = bind(target, node)
    return bound is not None and bound[0].is_view


def is_sure_view(node: fx.Node) -> bool:
    """Return whether the value shares the memory of the first argument in any case."""
    if node.op not in _CALLS:
        return False
    target = resolve(node.op, node.target)
    if target.candidates:
        return target.candidates[0].packet_name in known.SURE_VIEWS
    return target.operator.name == "getitem" and _picks(node)


def reads_old_memory(node: fx.Node) -> bool:
    """Return whether the value is uninitialized memory."""
    if node.op not in _CALLS:
        return False
    candidates = resolve(node.op, node.target).candidates
    return bool(candidates) and candidates[0].packet_name in known.UNINITIALISED


def _picks(node: fx.Node) -> bool:
    """Return whether `x[...]` is a basic index, or an item of a list; advanced indices copy."""
    index = node.args[1] if len(node.args) > 1 else None
    parts = index if isinstance(index, tuple) else (index,)
    return all(type(part) in (int, slice, type(None), type(...)) for part in parts)


def only_computes(target: fx.node.Target) -> bool:
    """Return whether calls of an overload only compute, whatever their arguments are (a fast
    check).
    """
    plain = direct_call(target)
    return plain is not None and plain.overload.only_computes


def _only_computes(node: fx.Node) -> bool:
    """Return whether the node is pure whatever its arguments are."""
    plain = direct_call(node.target)
    if plain is not None:
        return plain.overload.only_computes
    return (
        node.op in _CALLS
        and _is_described(node.op, node.target)
        and all(each.only_computes for each in resolve(node.op, node.target).candidates)
        and node.kwargs.get("out") is None
    )


@lru_cache(maxsize=8192)
def _is_described(op: str, target: fx.node.Target) -> bool:
    """Return whether the overloads that calls of the target may mean tell all of their effects."""
    found = resolve(op, target)
    if found.signature is not None and "out" in found.signature.parameters:
        return False
    return _is_covered(found)


def _is_covered(target: Target) -> bool:
    """Return whether the overloads that a call may mean account for all of its effects."""
    if target.signature is None:  # `F.fractional_max_pool2d` makes its own samples
        return bool(target.candidates) and target.operator.name not in known.DRAWING
    taken = {name for each in target.candidates for name in each.by_name}
    return bool(target.candidates) and all(
        name in taken or target.renamed.get(name) in taken or name in SILENT
        for name in target.signature.parameters
    )


# --- torch's operators --------------------------------------------------------------------------


def _of_overload(found: Overload, values: Sequence[Argument]) -> Effects:
    writes = _nodes(values[position] for position in found.written)
    flag = known.STATEFUL_NORMS.get(found.packet_name)
    if flag is not None:
        named = {slot.name: value for slot, value in zip(found.slots, values, strict=True)}
        if not flag or named[flag] is not False:
            writes += _nodes((named["running_mean"], named["running_var"]))
    draws = found.packet_name in known.UNINITIALISED
    if found.is_random:
        named = {slot.name: value for slot, value in zip(found.slots, values, strict=True)}
        draws = _draws(found.packet_name, named)
    return Effects(
        writes,
        _nodes(values[position] for position in found.shared),
        draws,
        found.has_effect,
        found.namespace in known.MODE_NAMESPACES,
    )


def _of_any(target: Target, node: fx.Node) -> Effects:
    """Return the union of the effects of all overloads that a call may mean."""
    inputs = tuple(node.all_input_nodes)
    each = [_of_overload(o, [None] * len(o.slots)) for o in target.candidates]
    return Effects(
        inputs if any(o.mutates for o in target.candidates) else (),
        inputs,
        any(found.draws for found in each)
        and _draws(target.operator.name, _python_arguments(target, node)),
        any(found.acts for found in each),
        any(found.switches for found in each),
    )


def _nodes(values: Iterable[Argument]) -> tuple[fx.Node, ...]:
    """The nodes in some arguments."""
    found: list[fx.Node] = []
    fx.node.map_arg(tuple(values), found.append)
    return tuple(found)


def _draws(name: str, arguments: Mapping[str, fx.node.Argument]) -> bool:
    """Return whether a call of an operator that may sample does: dropout of nothing does not."""
    if arguments.get("train") is False or arguments.get("training") is False:
        return False
    chances = [arguments.get("dropout_p"), arguments.get("dropout")]
    if "dropout" in name and name not in known.DRAWING_AT_ZERO:
        chances.append(arguments.get("p"))
    return not any(isinstance(p, (int, float)) and p == 0 for p in chances)


def _of_higher_order(target: HigherOrderOperator, node: fx.Node) -> Effects:
    if target in (auto_functionalized, auto_functionalized_v2):
        inner = overload(node.args[0])  # type: ignore[arg-type]
        acts = inner.namespace in known.EFFECT_NAMESPACES or inner.meaning is not None
        return Effects(draws=inner.is_random, acts=acts)
    if target is triton_kernel_wrapper_functional or target._name in known.PURE_HIGHER_ORDER:
        return _NOTHING
    return _unknown(f"torch.ops.higher_order.{target._name}", node)


def _with_destination(found: Effects, target: Target, node: fx.Node) -> Effects:
    """Return the effects of a call that also writes to its argument `out`, or `inplace` to its
    first one.
    """
    places = _nodes((_python_arguments(target, node).get("out"),))
    if _is_in_place(target, node):
        places += tuple(node.all_input_nodes[:1])
    if not places:
        return found
    return replace(found, writes=(*found.writes, *places), shares=(*found.shares, *places))


def _is_in_place(target: Target, node: fx.Node) -> bool:
    if target.signature is None or "inplace" not in target.signature.parameters:
        return False
    return _python_arguments(target, node).get("inplace") is True


# --- functions and modules written in Python ----------------------------------------------------


def _of_function(target: Target, node: fx.Node) -> Effects:
    """Return the effects of a Python function that no schema describes."""
    name = target.operator.name
    module, _, bare = name.rpartition(".")
    inputs = tuple(node.all_input_nodes)
    if name == "getitem":
        return Effects(shares=_nodes(node.args[:1]))
    if target.candidates and (_is_covered(target) or _is_in_place(target, node)):
        return _of_any(target, node)
    if name == "builtins.getattr" and len(node.args) > 1:
        if node.args[1] in known.READ_ATTRIBUTES:
            return _NOTHING
        if node.args[1] in known.VIEW_ATTRIBUTES:
            return Effects(shares=inputs)
    if module == "operator" and bare in known.INPLACE:
        first = _nodes(node.args[:1])
        return Effects(writes=first, shares=first)
    if name in known.DRAWING:
        return Effects(shares=inputs, draws=_draws(name, _python_arguments(target, node)))
    if name in known.MODES:
        return Effects(acts=True, switches=True)
    if name in known.EFFECTS:
        return Effects(shares=inputs, acts=True)
    if name in known.PURE:
        return Effects(shares=inputs)
    return _unknown(name, node)


def _reads_view(target: Target, node: fx.Node) -> bool:
    is_getattr = target.operator.name == "builtins.getattr" and len(node.args) > 1
    return is_getattr and node.args[1] in known.VIEW_ATTRIBUTES


def _unknown(name: str, node: fx.Node) -> Effects:
    inputs = tuple(node.all_input_nodes)
    return Effects(writes=inputs, shares=inputs, acts=True, unknown=name)


def _python_arguments(target: Target, node: fx.Node) -> Mapping[str, fx.node.Argument]:
    found = None if target.signature is None else python_arguments(target, node)
    return node.kwargs if found is None else found


def _of_declaration(declared: DeclaredEffects, node: fx.Node) -> Effects:
    return Effects(
        _nodes(declared.chosen(declared.writes, node)),
        _nodes(declared.chosen(declared.shares, node)),
        declared.draws,
        declared.acts,
    )


def _of_module(node: fx.Node) -> Effects:
    inputs = tuple(node.all_input_nodes)
    if node.meta.get(PURE):
        return Effects(shares=inputs)
    owner = node.graph.owning_module
    if owner is None:
        return _unknown(str(node.target), node)
    parts = [_of_part(part) for part in owner.get_submodule(str(node.target)).modules()]
    unknown = next((part.unknown for part in parts if part.unknown is not None), None)
    if unknown is not None:
        return _unknown(unknown, node)
    draws = any(part.draws for part in parts)
    writes = inputs if any(part.acts for part in parts) else ()
    return Effects(writes, inputs, draws, acts=bool(writes))


def _of_part(module: torch.nn.Module) -> Effects:
    """Return the effects of calling one module without its children; one that writes anything
    `acts`.
    """
    kind = type(module)
    if not _is_torchs(module):
        return Effects(unknown=f"{kind.__module__}.{kind.__qualname__}")
    is_stateful = any(word in kind.__name__ for word in known.STATEFUL_MODULES)
    changes = module.training and (is_stateful or bool(getattr(module, "dropout", 0)))
    writes = getattr(module, "inplace", False) or getattr(module, "max_norm", None) is not None
    return Effects(draws=changes, acts=changes or writes)


def _is_torchs(module: torch.nn.Module) -> bool:
    """Return whether calling the module runs the code of its torch class and nothing else."""
    kind = type(module)
    return (
        kind.__module__.startswith("torch.nn.modules")
        and not kind.__name__.startswith("Lazy")
        and kind.__name__ not in known.CALLING_MODULES
        and not has_own_code(module)
    )
