"""Gradients: if autograd may still run, a replacement cuts and needs them as its region does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import torch
from torch import fx
from torch.fx.node import Argument

from pypm.fx.legality.differentiation import cuts_gradient, has_tangents, is_untracked_view
from pypm.fx.legality.region import Refusal, Region
from pypm.fx.operators.dialects import Dialect
from pypm.fx.operators.effects import is_pure
from pypm.fx.subject.memory import may_share, sharers, viewers, written_after
from pypm.fx.values.metadata import metadata, needs_gradient
from pypm.torch_internals import (
    OPDEFS,
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    auto_functionalized,
    auto_functionalized_v2,
    enter_inference_mode,
    exit_inference_mode,
    has_kernel_for_dispatch_key,
    set_grad_enabled,
)

__all__ = ["is_trained", "judge_gradients", "writes_saved"]

_SWITCHES: Final = (set_grad_enabled, enter_inference_mode, exit_inference_mode)


def judge_gradients(
    region: Region,
    replacement: fx.Graph,
    pairs: Sequence[tuple[fx.Node, Argument]],
    inputs: Mapping[fx.Node, fx.Node],
    dialect: Dialect,
    reached: set[fx.Node],
) -> Refusal | None:
    """Return a refusal if other gradients would flow, as far as metadata tells; else None.

    `reached` are nodes at which a gradient may arrive; what is found is added.
    """
    if not dialect.is_differentiable:
        return None
    lacking = [*filter(_lacks_backward, replacement.nodes)]
    held = [source for hole, source in inputs.items() if dialect.writes_stay and _may_save(hole)]
    for root, _ in pairs:
        written = [source for source in held if written_after(sharers(source), root)]
        if not (lacking or written) or not _need_gradients([root], dialect):
            continue
        # Autograd would raise in the backward pass.
        if lacking:
            reason = f"`{root}` needs a gradient, and `{lacking[0].target}` has none"
            if not needs_gradient(root):  # an exported program: only its parameters say so
                reason += "; for inference, export the module after `requires_grad_(False)`"
            return Refusal("effect", reason, (root,))
        # The region need not have saved it: autograd refuses a saved tensor that was written since.
        reason = f"autograd may save `{written[0]}` for `{root}`, and it is written later"
        return Refusal("effect", reason, (written[0],))
    # Such operators drop a tangent without an error: the derivative would be wrong.
    root, dropping = region.roots[0], next(filter(_drops_tangents, replacement.nodes), None)
    if dropping is not None and has_tangents(root.graph):  # asked last: it visits the whole graph
        lacks = f"`{dropping}` has no forward-mode derivative"
        reason = f"a tangent may arrive at `{root}`, and {lacks}"
        return Refusal("effect", reason, region.roots)
    # The gradient would flow on where the model stops it.
    cut = next(filter(cuts_gradient, region.nodes), None)
    if cut is not None and not any(map(cuts_gradient, replacement.nodes)):
        reason = f"`{cut}` cuts the gradient, and the replacement does not"
        return Refusal("effect", reason, (cut,))
    # Such a view may be written without a record for its source; autograd tracks what replaces it.
    hidden = next(filter(is_untracked_view, region.nodes), None)
    if hidden is not None:
        for source in inputs.values():
            is_shared = any(may_share(root, source) for root, _ in pairs)
            if is_shared and _need_gradients([source], dialect):
                reason = f"autograd does not know that `{hidden}` is a view of `{source}`"
                return Refusal("effect", reason, (hidden,))
    # The root is cut off by its place alone; the input that stands for it was computed before.
    for root, out in pairs:
        if isinstance(out, fx.Node) and out in inputs and _is_cut(root, inputs[out], dialect):
            reason = f"`{root}` is computed with gradients off, and `{inputs[out]}` may need one"
            return Refusal("effect", reason, (root,))
    if len(pairs) == 1 or _are_off(_last_switch(pairs[-1][0]), dialect):
        return None
    return _exchanged(region, replacement, pairs, inputs, dialect, reached)


def _exchanged(
    region: Region,
    replacement: fx.Graph,
    pairs: Sequence[tuple[fx.Node, Argument]],
    inputs: Mapping[fx.Node, fx.Node],
    dialect: Dialect,
    reached: set[fx.Node],
) -> Refusal | None:
    """Return a refusal if one of several outputs needs a gradient only in the replacement, or if
    none arrives at one: the replacement computes all at once, and sends zeros back for it.
    """
    inside = frozenset(region.nodes)
    for root, out in pairs:
        own = _sources([root], inside)
        new = {inputs[n] for n in _sources([out], frozenset(replacement.nodes)) if n in inputs}
        if _need_gradients(new - own, dialect) and not _need_gradients(own, dialect):
            reason = f"`{root}` needs no gradient, and its replacement would"
            return Refusal("effect", reason, (root,))
    cut_off = [root for root, _ in pairs if not _may_arrive(root, reached)]
    if len(cut_off) < len(pairs) and _need_gradients(cut_off, dialect):
        reason = f"no gradient arrives at `{cut_off[0]}`, and its replacement would send on zeros"
        return Refusal("effect", reason, (cut_off[0],))
    return None


def _may_arrive(node: fx.Node, reached: set[fx.Node]) -> bool:
    """Return whether a gradient may arrive at a node: it leads to an output, or to an effect."""
    origins: dict[fx.Node, fx.Node | None] = {node: None}
    todo = [node]
    while todo:
        each = todo.pop()
        if each in reached or each.op == "output" or not is_pure(each):
            on_the_way: fx.Node | None = each
            while on_the_way is not None:
                reached.add(on_the_way)
                on_the_way = origins[on_the_way]
            return True
        fresh = [user for user in each.users if user not in origins and not _is_end(user)]
        origins.update(dict.fromkeys(fresh, each))
        todo += fresh
    return False


def _is_end(node: fx.Node) -> bool:
    """Return whether no gradient goes through a node; only Dynamo's metadata tells of all."""
    value = node.meta.get("example_value")
    return cuts_gradient(node) or (isinstance(value, torch.Tensor) and not value.requires_grad)


def writes_saved(root: fx.Node, dialect: Dialect) -> bool:
    """Return whether a node is written after autograd may have saved its value."""
    return (
        dialect.is_differentiable
        and dialect.writes_stay
        and written_after(viewers(root), root)
        and _need_gradients([root], dialect)
    )


def is_trained(nodes: Sequence[fx.Node], dialect: Dialect) -> bool:
    """Return whether a gradient may be sent back through nodes: metadata says so of them, or, if
    autograd may still run, of what they are computed from.
    """
    return any(map(needs_gradient, nodes)) or (
        dialect.is_differentiable and _need_gradients(nodes, dialect)
    )


def _is_cut(root: fx.Node, source: fx.Node, dialect: Dialect) -> bool:
    """Return whether gradients are off at `root`, and `source` may need one.

    Torch says of views that they need a gradient even there, so that metadata does not tell.
    """
    if not needs_gradient(source) and "example_value" in source.meta:
        return False
    last = _last_switch(root)
    if not _are_off(last, dialect):
        return False
    return any(
        node.op in ("placeholder", "get_attr") or (last is not None and node < last)
        for node in sharers(source)
    )


def _last_switch(node: fx.Node) -> fx.Node | None:
    """Return the last call before a node that switches gradients on or off; else None."""
    find = node.graph.find_nodes
    switches = [call for each in _SWITCHES for call in find(op="call_function", target=each)]
    return max((switch for switch in switches if switch < node), default=None)


def _are_off(switch: fx.Node | None, dialect: Dialect) -> bool:
    """Return whether gradients are off after a switch; None stands for the start of the graph."""
    if switch is None:
        return dialect.gradients_off
    if switch.target is exit_inference_mode:  # what held before it was entered holds again
        (entered,) = switch.all_input_nodes
        return _are_off(_last_switch(entered), dialect)
    return switch.args[:1] == (switch.target is enter_inference_mode,)


def _may_save(hole: fx.Node) -> bool:
    """Return whether a call that is no view reads a placeholder of a trace, or a view of it."""
    values = viewers(hole)
    return any(user.op != "output" for node in values for user in {*node.users} - values)


def _lacks_backward(node: fx.Node) -> bool:
    """Return whether the node calls a custom operator without a registered gradient."""
    target = node.target
    if target in (auto_functionalized, auto_functionalized_v2):
        return True
    if isinstance(target, OpOverloadPacket):
        return any(_has_no_formula(getattr(target, name)) for name in target._overload_names)
    return isinstance(target, OpOverload) and _has_no_formula(target)


def _drops_tangents(node: fx.Node) -> bool:
    """Return whether the node calls an operator without forward-mode derivatives.

    Those of `torch.library.custom_op` have none, but where another kernel precedes theirs; and
    torch has none of its fused attention.
    """
    target = node.target
    if "scaled_dot_product" in getattr(target, "__name__", ""):
        return True
    if not isinstance(target, OpOverload) or target._schema.name not in OPDEFS:
        return _lacks_backward(node)
    return not has_kernel_for_dispatch_key(target._name, "AutogradCPU")


def _has_no_formula(operator: OpOverload) -> bool:
    if operator.namespace in {"aten", "prims"}:
        return operator is torch.ops.aten.copy.default  # `copy_` as a value: torch has no formula
    defined = OPDEFS.get(operator._schema.name)
    if defined is not None:
        return defined._backward_fn is None
    keys = ("CompositeImplicitAutograd", "Autograd", "AutogradCPU", "AutogradCUDA")
    return not any(has_kernel_for_dispatch_key(operator._name, key) for key in keys)


def _sources(values: Iterable[Argument], inside: Set[fx.Node]) -> set[fx.Node]:
    """Return the nodes that values are computed from: those not inside, or without inputs."""
    found: set[fx.Node] = set()
    todo = [value for value in values if isinstance(value, fx.Node)]
    seen = set(todo)
    while todo:
        node = todo.pop()
        above = node.all_input_nodes if node in inside else ()
        if not above:
            found.add(node)
        fresh = [source for source in above if source not in seen]
        seen.update(fresh)
        todo += fresh
    return found


def _need_gradients(nodes: Iterable[fx.Node], dialect: Dialect) -> bool:
    """Return whether a value is known to need a gradient, or is computed from one that does.

    Dynamo's fake values record this; in exported programs, only the parameters do.
    """
    todo = list(nodes)
    seen = set(todo)
    while todo:
        node = todo.pop()
        if needs_gradient(node):
            return True
        if "example_value" in node.meta or _needs_none(node, dialect):
            continue
        fresh = [source for source in node.all_input_nodes if source not in seen]
        seen.update(fresh)
        todo += fresh
    return False


def _needs_none(node: fx.Node, dialect: Dialect) -> bool:
    """Return whether a value needs no gradient whatever its arguments need."""
    value = metadata(node)
    if isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex()):
        return True
    target = node.target
    if isinstance(target, HigherOrderOperator) and target._name == "wrap_with_set_grad_enabled":
        return not node.args[0]
    return cuts_gradient(node) or _are_off(_last_switch(node), dialect)
