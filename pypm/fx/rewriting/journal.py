"""Putting a replacement into a graph: the only module that changes a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import fx
from torch.fx.traceback import NodeSource, NodeSourceAction

from pypm.diagnostics import InternalError
from pypm.fx.legality.differentiation import cuts_gradient
from pypm.fx.legality.unknown_strides import reads_strides
from pypm.fx.operators.effects import PURE, communicates, is_pure
from pypm.fx.rewriting.plan import RewritePlan, needed
from pypm.fx.subject.view import ASSERTS_METADATA, View
from pypm.fx.values.fake_tensors import guardless
from pypm.fx.values.metadata import metadata, needs_gradient, tracked
from pypm.torch_internals import COPIED_METADATA, FakeTensor, extract_tensor_metadata

__all__ = ["Journal", "Splice"]

_INHERITED: Final = (
    *COPIED_METADATA,
    "autograd_backward",
    "fwd_nn_module_stack",
    "fwd_source_fn_stack",
    "seq_nr",
    "stack_trace",
)
"""Metadata that a new node takes over from the root it is computed for."""


class Splice(NamedTuple):
    """The changes of one rewrite."""

    new: tuple[fx.Node, ...]
    readers: tuple[fx.Node, ...]
    """The old nodes that now read other nodes."""
    buried: Sequence[fx.Node]
    """The nodes that are dead from now on."""


class Journal:
    """Changes to one graph. What is replaced stays there, in `view.dead`, until they are committed.

    The view is told of each change. A transaction undoes what is not to stay.
    """

    def __init__(self, graph: fx.Graph, view: View) -> None:
        self.graph = graph
        self.view = view
        self._outputs: _Outputs | None = None
        self._has_spliced = False
        self._sizes: dict[object, fx.Node] = {}
        for node in graph.find_nodes(op="placeholder"):
            size = metadata(node)
            if isinstance(size, torch.SymInt):
                self._sizes.setdefault(size.node.expr, node)

    def splice(self, plan: RewritePlan, rule: str) -> Splice:
        """Carry out a plan."""
        self._has_spliced = True
        emitted: dict[fx.Node, fx.Node] = dict(plan.inputs)
        new: list[fx.Node] = []
        readers: list[fx.Node] = []
        is_tracked = any(needs_gradient(root) for root, _ in plan.outputs) or any(
            cuts_gradient(node) for node in plan.region.nodes
        )
        for root, output in plan.outputs:
            wanted = needed(output)
            reads_root = any(emitted.get(node) is root for node in wanted)
            before = root.next if reads_root else root
            source = _source(root, rule)
            for node in wanted:
                known = emitted.get(node) or self._known_size(plan.values.get(node), node)
                if known is None:
                    known = self._emit(plan, node, before, emitted)
                    value = plan.values.get(node)
                    if is_tracked and _passes_gradient(known):
                        value = tracked(value)
                    self._describe(known, root, value, rule)
                    known.meta["from_node"] = [source]
                    new.append(known)
                emitted[node] = known
                self._hoist(known, before)
            result = emitted[output] if isinstance(output, fx.Node) else output
            users = [user for user in self.view.users(root) if user not in new]
            for user in users:
                self._redirect(user, root, result)
            readers += users
        for node, value in plan.updates.items():
            self._set_value(node, tracked(value) if needs_gradient(node) else value)
        replaced = [root for root, _ in plan.outputs]
        around = [*replaced, *plan.region.nodes, *plan.region.inputs, *new]
        # Of a replacement that is not judged by itself, what nobody reads need not be issued.
        unread = filter(communicates, new) if plan.region.together else ()
        buried = self._bury(around, plan.region.effectful.union(unread))
        new = [node for node in new if node not in self.view.dead]
        stay = tuple(dict.fromkeys(readers))
        self.view.invalidate([*new, *stay, *plan.updates])
        self.view.keep_plain(new, stay, reads_strides)
        return Splice(tuple(new), stay, buried)

    def commit(self) -> None:
        """Write the outputs, and erase what was replaced.

        A graph that nothing was put into stays as it is, with what nobody reads.
        """
        if not self._has_spliced and self._outputs is None:
            return
        dead = self.view.dead
        for node in dead:
            living = [user for user in node.users if user not in dead]
            if living:
                raise InternalError(f"{node} is dead but {living[0]} uses it")
        if self._outputs is not None:
            self._outputs.settle()
            self._outputs = None
        for node in sorted(dead, reverse=True):
            self.graph.erase_node(node)
        dead.clear()

    def _emit(
        self, plan: RewritePlan, node: fx.Node, before: fx.Node, emitted: Mapping[fx.Node, fx.Node]
    ) -> fx.Node:
        target = node.target
        if node.op == "get_attr":
            target = self._attribute(plan.owner, str(node.target))
        if node.op == "call_module":
            target = self._submodule(plan.owner, str(node.target))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: emitted[n])
        with self.graph.inserting_before(before):
            created = self.graph.create_node(node.op, target, args, kwargs, name=node.name)
        if node.op == "call_module":
            created.meta[PURE] = not plan.region.effectful
        return created

    def _known_size(self, value: Any, node: fx.Node) -> fx.Node | None:
        """The placeholder of the graph that holds a size a trace asks for."""
        asked = isinstance(value, torch.SymInt) and node.target is torch.ops.aten.sym_size.int
        return self._sizes.get(value.node.expr) if asked else None

    def _attribute(self, module: torch.nn.Module, name: str) -> str:
        """Take over a constant of the trace under a name that is free."""
        owner = self.graph.owning_module
        if owner is None:
            raise InternalError("a graph without a module cannot hold a constant")
        value = getattr(module, name)
        if isinstance(value, FakeTensor):
            value = value.constant
        free = next(n for i in range(10**6) if not hasattr(owner, n := f"_pypm_constant{i}"))
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            owner.register_buffer(free, value, persistent=False)
        else:
            setattr(owner, free, value)
        return free

    def _submodule(self, module: torch.nn.Module, name: str) -> str:
        """Take over a module that the replacement calls, under its name, which must be free."""
        owner = self.graph.owning_module
        if owner is None:
            raise InternalError("a graph without a module cannot call one")
        owner.add_module(name, module.get_submodule(name))
        return name

    def _describe(self, node: fx.Node, root: fx.Node, value: Any, rule: str) -> None:
        for key in _INHERITED:
            if key in root.meta:
                node.meta[key] = root.meta[key]
        node.meta["pypm"] = rule
        if value is not None:
            node.meta["example_value" if "example_value" in root.meta else "val"] = value
            if "tensor_meta" in root.meta and isinstance(value, torch.Tensor):
                node.meta["tensor_meta"] = _tensor_meta(value)

    def _set_value(self, node: fx.Node, value: Any) -> None:
        key = "example_value" if "example_value" in node.meta else "val"
        node.meta[key] = value
        if "tensor_meta" in node.meta and isinstance(value, torch.Tensor):
            node.meta["tensor_meta"] = _tensor_meta(value)

    def _redirect(self, user: fx.Node, old: fx.Node, new: Any) -> None:
        """Let `user` read `new` in the place of `old`."""
        if user.op == "output":
            self._outputs = self._outputs or _Outputs(user)
            self._outputs.redirect(old, new)
        elif isinstance(new, fx.Node):
            user.replace_input_with(old, new)
        else:
            swapped = fx.node.map_arg(
                (user.args, user.kwargs), lambda node: new if node is old else node
            )
            user.args, user.kwargs = swapped

    def _hoist(self, node: fx.Node, before: fx.Node) -> None:
        """Move a node, and what it is computed from, to where `before` can be computed from it."""
        if node < before or node is before:
            return
        for source in node.all_input_nodes:
            self._hoist(source, before)
        before.prepend(node)

    def _bury(self, nodes: Sequence[fx.Node], replaced: frozenset[fx.Node]) -> list[fx.Node]:
        """Mark as dead, and return, what nothing living uses and is pure or one of `replaced`."""
        todo = list(nodes)
        buried: list[fx.Node] = []
        dead = self.view.dead
        while todo:
            node = todo.pop()
            if node in dead or node.op in ("placeholder", "output") or self.view.is_used(node):
                continue
            if node.op != "get_attr" and not is_pure(node) and node not in replaced:
                continue
            dying = (node, *self._assertions(node))
            dead.update(dying)
            buried += dying
            todo += node.all_input_nodes
        return buried

    def _assertions(self, node: fx.Node) -> list[fx.Node]:
        """The assertions about a node's type; they go with it."""
        return [u for u in node.users if u.target is ASSERTS_METADATA and u not in self.view.dead]


class _Outputs:
    """The nodes that an output node reads, whose arguments are written anew only in the end.

    A graph with thousands of outputs would otherwise cost as much at every rewrite of one.
    """

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        self.firsts = {source: [source] for source in node.all_input_nodes}
        """For each node that is to be read, those that the arguments name in its place."""
        self.others: dict[fx.Node, object] = {}
        """Nodes that the arguments name in the place of what is no node."""

    def redirect(self, old: fx.Node, new: Any) -> None:
        """Read `new` in the place of `old`."""
        moved = self.firsts.pop(old)
        del old.users[self.node]
        if not isinstance(new, fx.Node):
            self.others.update(dict.fromkeys(moved, new))
        elif new in self.firsts:
            self.firsts[new] += moved
        else:
            self.firsts[new] = moved
            new.users[self.node] = None

    def settle(self) -> None:
        """Write the arguments."""
        values: dict[fx.Node, Any] = dict(self.others)
        for value, firsts in self.firsts.items():
            values.update(dict.fromkeys(firsts, value))
        for first in values:
            first.users[self.node] = None
        self.node.args = fx.node.map_arg(self.node.args, lambda n: values[n])


def _passes_gradient(node: fx.Node) -> bool:
    """Return whether the value needs a gradient where gradients are on."""
    return any(map(needs_gradient, node.all_input_nodes)) and not cuts_gradient(node)


def _tensor_meta(value: torch.Tensor) -> Any:
    """Torch's summary of a tensor; None where making it would guard a size."""
    if not value._has_symbolic_sizes_strides:
        return extract_tensor_metadata(value)
    mode = value.fake_mode if isinstance(value, FakeTensor) else None
    try:
        with guardless(mode):
            return extract_tensor_metadata(value)
    except RuntimeError:
        return None


def _source(root: fx.Node, rule: str) -> NodeSource:
    """Return where what replaces a root comes from; of several rewrites in a row, the last."""
    found = NodeSource(root, f"pypm:{rule}", NodeSourceAction.REPLACE)
    found.from_node = [
        each
        for known in found.from_node
        for each in (known.from_node if known.pass_name.startswith("pypm:") else [known])
    ]
    return found
