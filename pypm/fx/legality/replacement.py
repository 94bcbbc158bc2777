"""Legality of a replacement: effects and metadata of its trace."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Argument, Target
from torch.types import IntLikeType

from pypm.fx.legality.judge import DECLARE
from pypm.fx.legality.region import Refusal, Region
from pypm.fx.operators import known_effects as known
from pypm.fx.operators.declarations import filled_by
from pypm.fx.operators.effects import (
    communicates,
    effects,
    is_random,
    mutates,
    reads_old_memory,
)
from pypm.fx.operators.targets import resolve
from pypm.fx.subject.memory import allocations
from pypm.fx.values.size_comparison import same_shape
from pypm.torch_internals import (
    OpOverload,
    auto_functionalized,
    auto_functionalized_v2,
    can_auto_functionalize,
)

__all__ = ["judge_outputs", "judge_trace", "writes_own_memory"]


def judge_trace(graph: fx.Graph, region: Region) -> Refusal | None:
    """Return a refusal unless a replacement is pure, apart from what its region does; else None.

    It may sample random numbers, or communicate, if the region does, however often. Uninitialized
    memory may only be given to calls that overwrite all of it.
    """
    root = region.roots[:1]
    calls = [node for node in graph.nodes if node.op.startswith("call_")]
    drawing = next((n for n in calls if is_random(n) and not reads_old_memory(n)), None)
    # The generator's later samples must be those of a graph that draws here, and of no other.
    if drawing is None and region.drawing:
        return Refusal("random", "the region is random, and the replacement is not", root)
    if drawing is not None and not region.drawing:
        return Refusal("random", f"the replacement is random: `{drawing.target}`", root)
    for node in calls:
        found = effects(node)
        if reads_old_memory(node) and not all(_overwrites(user, node) for user in node.users):
            reason = f"the replacement reads memory as it was: `{node.target}`"
            return Refusal("effect", reason, root)
        if found.unknown is not None:
            reason = f"the replacement calls `{found.unknown}`, whose effects are unknown"
            return Refusal("effect", f"{reason}; {DECLARE}", root)
        if region.communicating and communicates(node):
            continue
        # A trace is cached, and its nodes are placed and erased like any that only compute.
        if found.acts or found.is_border:
            return Refusal("effect", f"the replacement has an effect: `{node.target}`", root)
    return None


def writes_own_memory(graph: fx.Graph) -> bool:
    """Return whether a trace writes, and certainly only to memory that a call in it allocated, by
    operators that torch can functionalize.
    """
    written: list[fx.Node] = []
    for node in graph.nodes:
        if node.op == "call_function" and mutates(node) and node.target is not _DETACH:
            found = effects(node)
            if found.unknown is not None or not _is_functionalizable(node.target):
                return False
            written += found.writes
    made = [each for node in written for each in allocations(node)]
    return bool(made) and all(each.op == "call_function" for each in made)


def _is_functionalizable(target: Target) -> bool:
    if not isinstance(target, OpOverload):
        return False
    return target.namespace in ("aten", "prims") or can_auto_functionalize(target)


_DETACH = torch.ops.aten.detach_.default
"""Part of `torch.tensor` in a body; it writes to no memory."""


def _overwrites(node: fx.Node, given: fx.Node) -> bool:
    """Return whether a call reads no element of an argument, and returns a new tensor in its place.

    These are `aten.fill` and the like, and functionalized calls of operators that are declared to
    fill the argument.
    """
    if node.target in (auto_functionalized, auto_functionalized_v2):
        return _is_filled(node, given)
    if node.op not in ("call_function", "call_method") or node.args[:1] != (given,):
        return False
    candidates = resolve(node.op, node.target).candidates
    is_read = given in _nodes_in((node.args[1:], node.kwargs))
    return bool(candidates) and candidates[0].packet_name in known.OVERWRITING and not is_read


def _is_filled(node: fx.Node, given: fx.Node) -> bool:
    """Return whether a functionalized call gets a tensor only as the whole of what it fills."""
    keywords, at = dict(node.kwargs), "_base_index"
    bases = keywords.pop("_all_bases", None)
    if isinstance(bases, (list, tuple)):
        if [*bases].count(given) != 1:
            return False
        index = [*bases].index(given)
        places = {key[1 : -len(at)] for key in keywords if key.endswith(at)}
        names = {name for name in places if keywords[f"_{name}{at}"] == index}
        if any(f"_{name}_{part}" in keywords for name in names for part in ("size", "slice_dim")):
            return False
    else:
        names = {name for name, value in keywords.items() if value is given}
        keywords = {name: value for name, value in keywords.items() if name not in names}
    is_read = given in _nodes_in(tuple(keywords.values()))
    return bool(names) and not is_read and names <= filled_by(node.args[0])


def _nodes_in(values: tuple[fx.node.Argument, ...]) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(values, found.append)
    return found


def judge_outputs(
    roots: Sequence[fx.Node], old: Sequence[Argument], new: Sequence[Argument]
) -> Refusal | None:
    """Return a refusal unless shape, dtype and device are kept for every size; else None.

    `old` and `new` are the fake values of the outputs; None stands for an unknown value.
    """
    for root, before, after in zip(roots, old, new, strict=True):
        reason = None if before is None or after is None else _difference(before, after)
        if reason is not None:
            return Refusal("mismatch", reason, (root,))
    return None


def _difference(before: Argument, after: Argument) -> str | None:
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return _other_difference(before, after)
    if before.dtype != after.dtype:
        return f"the replacement has dtype {after.dtype}, the graph has {before.dtype}"
    if before.device != after.device:
        return f"the replacement is on {after.device}, the graph on {before.device}"
    if before.layout != after.layout:
        return f"the replacement has layout {after.layout}, the graph has {before.layout}"
    if not same_shape(before.shape, after.shape):
        sizes = (_show(after.shape), _show(before.shape))
        return f"the replacement has shape {sizes[0]}, the graph has {sizes[1]}"
    return None


def _other_difference(before: Argument, after: Argument) -> str | None:
    if isinstance(before, (tuple, list)) and isinstance(after, (tuple, list)):
        if len(before) != len(after):
            return f"the replacement has {len(after)} values, the graph has {len(before)}"
        return next(filter(None, map(_difference, before, after)), None)
    if isinstance(before, torch.Tensor) or isinstance(after, torch.Tensor):
        return f"the replacement is {_kind(after)}, the graph has {_kind(before)}"
    if isinstance(before, (int, float, torch.SymInt, torch.SymFloat)):
        same = isinstance(after, (int, float, torch.SymInt, torch.SymFloat))
        if not same or not statically_known_true(before == after):
            return f"the replacement is {after}, the graph has {before}"
    return None


def _kind(value: Argument) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _show(sizes: Sequence[IntLikeType]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
