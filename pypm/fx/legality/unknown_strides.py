"""Strides that are not known: nodes whose values or success depend on them.

Without metadata, a replacement may lie in memory in another order than what it replaces. Of calls
that compute element by element, and of products, sums and the like, torch's rules still tell it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Set
from typing import Final

import torch
from torch import fx

from pypm.fx.legality.positions import SAME, UNDOING
from pypm.fx.legality.strides import reads_layout, shows_if_shared
from pypm.fx.operators import corrections, known_effects
from pypm.fx.operators.effects import effects, is_random, mutates
from pypm.fx.operators.targets import resolve
from pypm.fx.subject.calls import describe
from pypm.fx.subject.memory import may_be_view, may_share
from pypm.fx.subject.view import View

__all__ = ["keeps_layout", "observer", "reads_strides"]


def observer(view: View, changed: Collection[fx.Node], leaving: Set[fx.Node]) -> fx.Node | None:
    """Return a node downstream of `changed` that observes strides; None if there is none.

    It reads them, samples in the order of memory, or may raise for some; or strides decide if it is
    a view or a copy, where it is observed which, or if torch refuses its write. Outputs of the
    graph do not count, and neither do nodes that are `leaving` it. If nothing downstream may be one
    of these, the view of the graph remembers that.
    """
    todo = [*changed]
    seen: set[fx.Node] = {*todo}
    is_plain = True
    while todo:
        for user in view.users(todo.pop()):
            if user in seen or user in view.plain:
                continue
            if user in leaving:
                is_plain = False
                continue
            if reads_strides(user):
                return user
            if may_be_view(user):
                is_plain = False
                if shows_if_shared(view, user):
                    return user
            if mutates(user) and len(user.all_input_nodes) > 1:
                is_plain = False
                if _may_overlap(user):
                    return user
            seen.add(user)
            if not _hides_strides(user):
                todo.append(user)
    if is_plain:
        view.plain |= seen.difference(changed)
    return None


def _may_overlap(node: fx.Node) -> bool:
    """Return whether a write may read memory that it writes, as another view of it."""
    written = effects(node).writes
    others = [each for each in node.all_input_nodes if each not in written]
    return any(may_share(each, other) for each in written for other in others)


def reads_strides(node: fx.Node) -> bool:
    """Return whether the value, or the success, of a call depends on the strides of its arguments.

    Of functions without a schema that `corrections` do not list, those that are known to only
    compute, and torch's modules, do not.
    """
    if node.op == "output":
        return False
    if node.op == "call_module":
        return is_random(node) or effects(node).unknown is not None
    name = resolve(node.op, node.target).operator.name
    if name in corrections.LAYOUT_READERS:
        return True
    if name in _BLIND or _is_contiguous(node):
        return False
    return is_random(node) or reads_layout(node)


def _hides_strides(node: fx.Node) -> bool:
    """Return whether the strides of a value do not depend on those of the call's arguments."""
    if _is_contiguous(node):
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    found = resolve(node.op, node.target).candidates
    return bool(found) and not any("Tensor" in kind for each in found for kind in each.returns)


def _is_contiguous(node: fx.Node) -> bool:
    """Return whether the value is contiguous, whatever the strides of the arguments are."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = resolve(node.op, node.target).operator.name
    given = node.kwargs.get("memory_format")
    if name == "aten.contiguous" and given is None:
        return len(node.args) == 1
    return name in corrections.CONTIGUOUS or given is torch.contiguous_format


def keeps_layout(root: fx.Node, output: fx.Node, inputs: Mapping[fx.Node, fx.Node]) -> bool:
    """Return whether an output of a trace certainly has the strides of `root`, if it has its shape.

    `inputs` are the nodes of the graph by the placeholders of the trace.
    """
    read = {node: node for node in inputs.values()}
    return _layout(root, read) == _layout(output, inputs)


def _layout(node: fx.Node, read: Mapping[fx.Node, fx.Node]) -> Hashable:
    """Return a term that is equal for values of one shape only if they have the same strides."""
    if node in read or not node.op.startswith("call_"):
        source = read.get(node, node)
        return "contiguous" if _is_contiguous(source) else source
    if _is_contiguous(node):
        return "contiguous"
    call = describe(node)
    below = [_layout(each, read) for each in call.nodes]
    name = call.operator.name
    if len(set(below)) == 1 and _is_pointwise(node):
        (given,) = set(below)
        return given if _is_dense(given) else ("dense", given)
    if name in SAME:
        return below[0]
    rest = name, str(call.attributes), str(fx.node.map_arg(call.arguments, lambda _: ""))
    given = below[0] if below else None
    if name in UNDOING and isinstance(given, tuple) and given[:3] == rest:
        undone: Hashable = given[3]
        return undone
    return *rest, *below


def _is_pointwise(node: fx.Node) -> bool:
    """Return whether torch lays the value out like the arguments, without gaps or overlaps."""
    if node.op not in ("call_function", "call_method") or may_be_view(node):
        return False
    call = describe(node)
    name = call.operator.name
    if call.attributes.get("memory_format") not in (None, torch.preserve_format):
        return False
    # The results of `log_sigmoid` are contiguous on CPUs only.
    return name == "aten.clone" or ("pointwise" in call.tags and name != "aten.log_sigmoid")


def _is_dense(layout: Hashable) -> bool:
    """Return whether values of a layout are a block of memory in some order of their dimensions:
    `_is_pointwise` calls keep that order. Of empty tensors, only those of two dimensions have it.
    """
    if isinstance(layout, fx.Node):
        return _is_pointwise(layout)
    if isinstance(layout, tuple):
        return layout[0] == "dense" or (layout[0] == "aten.t" and _is_dense(layout[3]))
    return layout == "contiguous"


_BLIND: Final = (
    known_effects.PURE
    | known_effects.MODES
    | known_effects.EFFECTS
    | {"getitem", "operator.setitem", "builtins.getattr"}
)
"""Functions that only compute, and others, that do not look at the strides of their arguments."""
