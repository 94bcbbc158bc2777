"""The plan of one rewrite, made before the graph changes: copies, strides, the order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import getitem
from typing import Any

import networkx as nx
import torch
from torch import fx
from torch.fx.node import Argument

from pypm.fx.legality import aliasing, strides, unknown_strides
from pypm.fx.legality.collectives import judge_collectives
from pypm.fx.legality.gradients import judge_gradients, writes_saved
from pypm.fx.legality.judge import depends_on
from pypm.fx.legality.positions import Placed, same_positions
from pypm.fx.legality.region import Refusal, Region
from pypm.fx.legality.replacement import judge_outputs
from pypm.fx.operators.dialects import Dialect
from pypm.fx.operators.effects import is_pure, is_random, reads_old_memory
from pypm.fx.subject.autocast import autocast_at, cast_by_autocast, narrowed
from pypm.fx.subject.calls import describe
from pypm.fx.subject.view import View
from pypm.fx.tracing.body import Replacement
from pypm.fx.values.fake_tensors import fake_mode, faked, guardless, run_node, symbolic_size
from pypm.fx.values.metadata import metadata
from pypm.torch_internals import DisableAutocast, FakeTensorMode, any_autocast_enabled

__all__ = ["RewritePlan", "needed", "plan"]


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """All that is decided about one rewrite before the graph changes."""

    region: Region
    owner: torch.nn.Module
    """Holds the constants of the replacement."""
    inputs: Mapping[fx.Node, fx.Node]
    """Nodes of the graph by the placeholders of the replacement."""
    outputs: tuple[tuple[fx.Node, Argument], ...]
    """Nodes of the graph, and what of the replacement replaces them, in the order to emit."""
    values: Mapping[fx.Node, Any]
    """Fake values of the nodes of the replacement; empty where unchecked."""
    updates: Mapping[fx.Node, Any] = field(default_factory=dict)
    """Fake values of nodes further down whose strides change."""
    checked: bool = True


def plan(
    view: View,
    region: Region,
    roots: Sequence[fx.Node | None],
    replacement: Replacement,
    dialect: Dialect,
) -> RewritePlan | Refusal:
    """Decide how to replace `roots`, or why the replacement does not do."""
    inputs = dict(zip(replacement.holes, region.operands, strict=True))
    pairs = _pairs(view, roots, replacement.outputs)
    if isinstance(pairs, Refusal):
        return pairs
    pairs = _emission_order(pairs, inputs)
    if isinstance(pairs, Refusal):
        return pairs
    refusal = _unmovable(pairs, inputs)
    if refusal is None:
        known = view.differentiated
        refusal = judge_gradients(region, replacement.graph, pairs, inputs, dialect, known)
    if refusal is not None:
        return refusal
    owner, graph = replacement.owner, replacement.graph
    return _Planning(view, region, owner, graph, inputs, pairs, dialect).finish()


def _pairs(
    view: View, roots: Sequence[fx.Node | None], outputs: Sequence[Argument]
) -> list[tuple[fx.Node, Argument]] | Refusal:
    """Return the node that each output replaces: a node with several values, item by item."""
    present = [root for root in roots if root is not None]
    if len(roots) == 1 and isinstance(metadata(present[0]), (tuple, list)):
        root = present[0]
        users = view.users(root)
        if all(u.target is getitem and 0 <= int(u.args[1]) < len(outputs) for u in users):  # type: ignore[arg-type]
            return [(u, outputs[int(u.args[1])]) for u in users]  # type: ignore[arg-type]
        return Refusal("mismatch", f"the values of `{root}` are not used one by one", (root,))
    if len(outputs) != len(roots):
        values = f"{len(outputs)} value{'s' * (len(outputs) != 1)}"
        reason = f"the replacement has {values}, not {len(roots)}"
        return Refusal("mismatch", reason, tuple(present))
    pairs = [(root, out) for root, out in zip(roots, outputs, strict=True) if root is not None]
    for root, out in pairs:
        if not isinstance(out, fx.Node) and not isinstance(metadata(root), (int, float)):
            return Refusal(
                "mismatch", f"the replacement is {out!r}, the graph has a tensor", (root,)
            )
    return pairs


def _emission_order(
    pairs: list[tuple[fx.Node, Argument]], inputs: Mapping[fx.Node, fx.Node]
) -> list[tuple[fx.Node, Argument]] | Refusal:
    """The outputs so that each comes after those it is computed from."""
    if len(pairs) == 1:
        return pairs
    outputs = dict(pairs)
    needs: nx.DiGraph[fx.Node] = nx.DiGraph()
    needs.add_nodes_from(outputs)
    for root, out in pairs:
        for hole in _holes(out):
            needs.add_edges_from((other, root) for other in depends_on(inputs[hole], [*outputs]))
    try:
        order = list(nx.topological_sort(needs))
    except nx.NetworkXUnfeasible:
        other, root = nx.find_cycle(needs)[0][:2]
        reason = f"the replacement of `{root}` would need `{other}`, which it replaces as well"
        return Refusal("cycle", reason, (root, other))
    return [(root, outputs[root]) for root in order]


def _unmovable(
    pairs: list[tuple[fx.Node, Argument]], inputs: Mapping[fx.Node, fx.Node]
) -> Refusal | None:
    """Return why a node cannot move: it draws random numbers or has an effect."""
    if len(pairs) == 1:
        return None
    for root, out in pairs:
        todo = [inputs[hole] for hole in _holes(out)]
        seen: set[fx.Node] = set()
        while todo:
            node = todo.pop()
            if node in seen or not root < node:
                continue
            if not is_pure(node) and not reads_old_memory(node):  # what `empty` holds is nobody's
                reason = f"`{node}` would have to be computed before `{root}`"
                return Refusal("random" if is_random(node) else "effect", reason, (node, root))
            seen.add(node)
            todo += node.all_input_nodes
    return None


def needed(output: Argument) -> list[fx.Node]:
    """The nodes of a trace that an output is computed from, itself included, in order."""
    found: set[fx.Node] = set()
    todo = [output] if isinstance(output, fx.Node) else []
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return sorted(found)


def _holes(output: Argument) -> list[fx.Node]:
    return [node for node in needed(output) if node.op == "placeholder"]


@dataclass
class _Planning:
    """A plan in the making."""

    view: View
    region: Region
    owner: torch.nn.Module
    graph: fx.Graph
    inputs: dict[fx.Node, fx.Node]
    pairs: list[tuple[fx.Node, Argument]]
    dialect: Dialect
    values: dict[fx.Node, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mode = fake_mode([*self.inputs.values(), *self.region.roots])

    def finish(self) -> RewritePlan | Refusal:
        refusal = self.share() or self.evaluate()
        if refusal is None:
            emitted = dict.fromkeys(node for _, out in self.pairs for node in needed(out))
            refusal = judge_collectives(self.region, emitted, self.values, self.inputs)
        if refusal is not None:
            return refusal
        roots = [root for root, _ in self.pairs]
        old = [metadata(root) for root in roots]
        new = [self.values.get(out) if isinstance(out, fx.Node) else out for _, out in self.pairs]
        refusal = judge_outputs(roots, old, new)
        if refusal is not None:
            return refusal
        updates = self.settle_strides()
        if isinstance(updates, Refusal):
            return updates
        refusal = self.own() or self.place()
        if refusal is not None:
            return refusal
        checked = bool(self.values) and all(value is not None for value in (*old, *new))
        pairs = tuple(self.pairs)
        return RewritePlan(
            self.region, self.owner, self.inputs, pairs, self.values, updates, checked
        )

    def share(self) -> Refusal | None:
        """Copy where shared memory would show, or would be written after autograd saved it."""
        gone = {*self.region.nodes} - self.region.alive
        for index, (root, out) in enumerate(self.pairs):
            if aliasing.still_shares(root, out, self.inputs):
                source = self.inputs.get(out) if isinstance(out, fx.Node) else None
                if self.dialect.is_differentiable and aliasing.must_be_another(root, source):
                    if describe(root).operator.name == "aten.alias":
                        reason = f"`{root}` is seen, and is another tensor than `{source}`"
                        return Refusal("layout", reason, (root,))
                    self.append(index, strides.alias_of)
                continue
            base = aliasing.sure_base(root)
            together = [
                node
                for node, other in self.pairs
                if aliasing.sure_base(node) is base and aliasing.share(out, other)
            ]
            if aliasing.must_share(self.view, root, self.region, together):
                reason = f"`{root}` is a view of memory that is written or seen later"
                return Refusal("layout", reason, (root,))
            sources = [self.inputs[hole] for hole in aliasing.aliases(out)]
            if (
                any(aliasing.must_copy(self.view, root, n, gone) for n in sources)
                or (aliasing.is_held(out) and aliasing.must_be_fresh(self.view, root))
                or (not sources and writes_saved(root, self.dialect))
            ):
                self.append(index, strides.copy_of)
        for index in range(1, len(self.pairs)):
            root, out = self.pairs[index]
            former = [node for node, other in self.pairs[:index] if aliasing.alike(out, other)]
            if any(aliasing.must_part(self.view, root, node) for node in former):
                self.append(index, strides.copy_of)
        return None

    def own(self) -> Refusal | None:
        """Copy where torch would refuse to write the view that stands for a value."""
        for index, (root, out) in enumerate(self.pairs):
            if not aliasing.must_own(root, out, self.values):
                continue
            if aliasing.still_shares(root, out, self.inputs):
                reason = f"`{root}` is written later, which torch may refuse for another view"
                return Refusal("layout", reason, (root,))
            self.append(index, strides.copy_of)  # keeps the strides
            self.evaluate()
        return None

    def place(self) -> Refusal | None:
        """Refuse where views that go on sharing memory would share other parts of it."""
        for index, (root, out) in enumerate(self.pairs):
            for other, its in self.places(index) if isinstance(out, fx.Node) else ():
                base = aliasing.sure_base(other) if its in self.inputs else other
                if aliasing.is_seen(self.view, root, base) and not (
                    isinstance(out, fx.Node)
                    and isinstance(its, fx.Node)
                    and aliasing.share(out, its)
                    and same_positions(self.placed(root, other), self.placed(out, its))
                ):
                    reason = f"`{root}` and `{other}` would share other parts of their memory"
                    return Refusal("layout", reason, (root, other))
        return None

    def places(self, index: int) -> list[tuple[fx.Node, Argument]]:
        """Return the nodes, and what stands for them in the trace, beside which a root is a view.

        None if it becomes another view of a variable's value, whatever that is: by the rule's
        equation, both are the same elements.
        """
        root, out = self.pairs[index]
        if isinstance(out, fx.Node) and aliasing.still_shares(root, out, self.inputs):
            hole = aliasing.sure_base(out)
            source = self.inputs[hole]
            is_any = source in self.region.variables and aliasing.views(root, source)
            return [] if is_any else [(source, hole)]
        base = aliasing.sure_base(root)
        return [pair for pair in self.pairs[:index] if aliasing.sure_base(pair[0]) is base]

    def placed(self, *pair: fx.Node) -> Placed:
        """Return two nodes of the graph, or of the trace, with their values and inputs."""
        one, other = pair
        values = [self.values.get(n) if n.graph is self.graph else metadata(n) for n in pair]
        return Placed((one, other), (values[0], values[1]), self.inputs)

    def append(self, index: int, make: Callable[..., fx.Node | None], *args: Any) -> bool:
        """Put something after an output, in a copy of the trace: the trace itself is cached."""
        copies: dict[fx.Node, fx.Node] = {}
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, copies))
        self.graph = graph
        self.inputs = {copies[hole]: node for hole, node in self.inputs.items()}
        self.values = {copies[n]: v for n, v in self.values.items() if n in copies}
        self.pairs = [
            (root, copies[out] if isinstance(out, fx.Node) else out) for root, out in self.pairs
        ]
        root, out = self.pairs[index]
        added = make(graph, out, *args, self.dialect)
        if added is None:
            return False
        self.pairs[index] = (root, added)
        return True

    def evaluate(self) -> Refusal | None:
        """The fake values of this very site: a cached trace may not share tensors between sites."""
        mode = self.mode
        if mode is None or any(metadata(node) is None for node in self.inputs.values()):
            return None
        try:
            with guardless(mode), self.autocast():
                for node in self.graph.nodes:
                    if node.op == "placeholder":
                        self.values[node] = metadata(self.inputs[node])
                    elif node not in self.values and node.op != "output":
                        self.values[node] = run_node(node, self.values.get, mode, self.owner)
                return self.cast_anew(mode) if any_autocast_enabled() else None
        except Exception as error:
            unknown = symbolic_size(error)
            if unknown is None:
                raise
            reason = f"the replacement depends on a symbolic size: {unknown}"
            return Refusal("symbolic", reason, self.region.roots)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Enter what the replacement runs under. A graph of ATen runs with autocast off, as it is
        after autograd, but where it switches that on itself.
        """
        with ExitStack() as stack:
            if self.dialect.style == "aten":
                stack.enter_context(DisableAutocast())
            if self.view.has_borders:
                stack.enter_context(autocast_at(self.pairs[0][0]))
            yield

    def cast_anew(self, mode: FakeTensorMode) -> Refusal | None:
        """Refuse where autocast rounds what the replacement reads, and does not in the graph."""
        cast = [
            (node, x)
            for node in self.graph.nodes
            if node.op == "call_function"
            for x in cast_by_autocast(partial(run_node, node, self.values.get, mode, self.owner))
        ]
        if not cast:
            return None
        given = [faked(metadata(node), mode) for node in self.region.inputs]
        before = narrowed(lambda: self.region.module(*given))
        known = {x.untyped_storage()._cdata for x in before}
        for node, x in cast:
            if x.untyped_storage()._cdata not in known:
                reason = (
                    f"autocast would round an operand of `{node}`, as nothing does in the graph"
                )
                return Refusal("mismatch", reason, self.region.roots)
        return None

    def settle_strides(self) -> Mapping[fx.Node, Any] | Refusal:
        """New values downstream, or copies that restore the strides that are observed."""
        changed: dict[fx.Node, torch.Tensor] = {}
        unknown: list[fx.Node] = []
        for root, out in self.pairs:
            if not isinstance(out, fx.Node):
                continue
            before, after = metadata(root), self.values.get(out)
            if before is None or after is None:
                if not unknown_strides.keeps_layout(root, out, self.inputs):
                    unknown.append(root)
            elif not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
                continue
            elif not strides.same_strides(before, after):
                changed[root] = after
        gone = frozenset(self.region.nodes) - self.region.alive
        observer = unknown_strides.observer(self.view, unknown, gone.difference(unknown))
        if observer is not None:
            reason = f"strides decide what `{observer}` does, and they are not known here"
            return Refusal("layout", reason, (*unknown, observer))
        mode = self.mode
        if not changed or mode is None:
            return {}
        leaving = gone - changed.keys()
        with guardless(mode):
            result = strides.propagate(self.view, changed, leaving, mode)
        if not isinstance(result, strides.Observed):
            return {node: value for node, value in result.items() if node not in changed}
        for index, (root, _) in enumerate(self.pairs):
            before = metadata(root)
            if root not in changed or not isinstance(before, torch.Tensor):
                continue
            if not self.restore(index, before):
                reason = f"`{result.node}` reads the strides of `{root}`, which cannot be kept"
                return Refusal("layout", reason, (root, result.node))
        return {}

    def restore(self, index: int, before: torch.Tensor) -> bool:
        if not self.append(index, strides.restore_strides, before):
            return False
        if self.evaluate() is not None:
            return False
        out = self.pairs[index][1]
        after = self.values.get(out) if isinstance(out, fx.Node) else None
        return isinstance(after, torch.Tensor) and strides.same_strides(before, after)
