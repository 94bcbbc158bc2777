"""A graph cut into stages: each value goes through the stages between its producer and its users.

Values that depend on the inputs of the program alone, such as masks, are computed in each stage
that uses them, and numbers are computed from the tensors that they come from.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Final, TypeAlias

import networkx as nx
import torch
from torch import fx

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx import metadata
from pypm.fx.matching.uncovered_modules import checks_inputs
from pypm.fx.operators.effects import Effects, effects, is_pure
from pypm.pipeline.blocks import is_mark
from pypm.pipeline.sending import memory_order, received_value, sent_value
from pypm.torch_internals import pytree

__all__ = ["Cut", "Inputs", "Stage", "cut_graph", "effects_in", "is_check"]

Inputs: TypeAlias = Mapping[str, object]
"""Inputs of a program by name; those that are no tensors are the same for each microbatch."""


class Stage(torch.nn.Module):
    """One stage: takes the values that it receives and inputs of the program by name.

    Returns the values that it sends, or the results of the program.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        received: Sequence[str],
        inputs: Sequence[str],
        sent: Sequence[str],
    ) -> None:
        super().__init__()
        self.module = module
        self.received = tuple(received)
        """Names of the values from the stage before, in the order of the arguments."""
        self.inputs = tuple(inputs)
        """Names of the inputs of the program that it reads."""
        self.sent = tuple(sent)
        """Names of the values for the stage after, in the order of the results."""

    def forward(self, *values: torch.Tensor, **inputs: object) -> tuple[torch.Tensor, ...]:
        results: tuple[torch.Tensor, ...] = self.module(
            *values, *(inputs[name] for name in self.inputs)
        )
        return results


@dataclass(frozen=True)
class Cut:
    """A program as a chain of stages that together compute the same."""

    stages: tuple[Stage, ...]
    inputs: tuple[str, ...]
    """Names of the inputs of the program, in order."""
    seconds: tuple[float, ...]
    """The estimated time of each stage's forward."""
    blocks: tuple[int, ...]
    """The number of blocks in each stage."""

    @property
    def ties(self) -> tuple[tuple[tuple[int, str], ...], ...]:
        """Return the weights that several stages use, each as pairs of stage and name."""
        owners: dict[Hashable, list[tuple[int, str]]] = {}
        for index, stage in enumerate(self.stages):
            for name, weight in stage.module.named_parameters():
                owners.setdefault(_memory(weight), []).append((index, name))
        return tuple(tuple(o) for o in owners.values() if len({stage for stage, _ in o}) > 1)

    def __call__(self, *args: object, **kwargs: object) -> tuple[torch.Tensor, ...]:
        """Run the stages one after the other, in one process. Returns the program's results."""
        inputs = self.named(args, kwargs)
        values: tuple[torch.Tensor, ...] = ()
        for stage in self.stages:
            values = stage(*values, **inputs)
        return values

    def named(self, args: Sequence[object], kwargs: Inputs) -> Inputs:
        """Return the inputs of the program by name.

        Raises PyPMError if one is missing, given twice, or not an input.
        """
        found = dict(zip(self.inputs, args, strict=False))
        unknown = [name for name in kwargs if name not in self.inputs or name in found]
        found |= kwargs
        missing = [name for name in self.inputs if name not in found]
        if len(args) > len(self.inputs) or unknown or missing:
            given = f"{len(args)} inputs by position and {', '.join(kwargs) or 'none'} by name"
            help = f"the inputs are {', '.join(self.inputs)}"
            raise PyPMError(Diagnostic(f"the inputs do not fit the program: {given}", help=help))
        return found

    def __str__(self) -> str:
        total = sum(self.seconds) or 1.0
        lines = []
        for index, stage in enumerate(self.stages):
            weights = sum(weight.numel() for weight in stage.parameters())
            lines.append(
                f"stage {index}: {self.blocks[index]} block{'s' * (self.blocks[index] != 1)}, "
                f"{self.seconds[index]:.3g} s ({self.seconds[index] / total:.1%}), "
                f"{weights:,} weights; sends {', '.join(stage.sent) or 'the results'}"
            )
        for tie in self.ties:
            where = " and ".join(f"`{name}` of stage {stage}" for stage, name in tie)
            lines.append(f"one weight: {where}")
        return "\n".join(lines)


def _memory(weight: torch.Tensor) -> Hashable:
    place = weight.untyped_storage().data_ptr(), weight.storage_offset()
    return (*place, weight.shape, weight.stride()) if place[0] else id(weight)


def cut_graph(gm: fx.GraphModule, stage_of: Mapping[fx.Node, int], count: int) -> tuple[Stage, ...]:
    """Return the stages of a graph.

    Arguments:
        gm: a graph module with metadata; it is not changed, and the stages share its weights.
        stage_of: the stage of each call, from 0 to `count - 1`; no value has an earlier user.

    Raises PyPMError for a value that cannot be cut: memory that two stages would share while one
    writes it, a number that is read from data in another stage, a switch of gradients or autocast.
    The message names the value and the two stages.
    """
    cutter = _Cutter(gm, _with_results(stage_of), count)
    cutter.check_memory()
    received: list[list[fx.Node]] = [[] for _ in range(count + 1)]
    for stage in reversed(range(1, count)):
        wanted = {*cutter.needed[stage], *received[stage + 1]}
        received[stage] = sorted(node for node in wanted if cutter.stage_of[node] < stage)
    built = tuple(cutter.build(s, received[s], received[s + 1]) for s in range(count))
    _share(built)
    return built


def _share(stages: Sequence[Stage]) -> None:
    """Make weights that share memory one object, so that an optimizer changes them once."""
    first: dict[Hashable, torch.nn.Parameter] = {}
    for stage in stages:
        for name, weight in [*stage.module.named_parameters(remove_duplicate=False)]:
            owner, _, attribute = name.rpartition(".")
            shared = first.setdefault(_memory(weight), weight)
            setattr(stage.module.get_submodule(owner), attribute, shared)


def _with_results(stage_of: Mapping[fx.Node, int]) -> dict[fx.Node, int]:
    """Put the parts of a tuple where the tuple is computed."""
    found = dict(stage_of)
    for node in stage_of:
        source = node.args[0] if node.target is getitem else None
        if isinstance(source, fx.Node) and source in found:
            found[node] = found[source]
    return found


@dataclass
class _Cutter:
    gm: fx.GraphModule
    stage_of: dict[fx.Node, int]
    count: int
    needed: list[dict[fx.Node, None]] = field(init=False)
    """The values from earlier stages that each stage uses."""
    copied: list[dict[fx.Node, None]] = field(init=False)
    """The nodes of other stages, and those of none, that each stage computes for itself."""

    def __post_init__(self) -> None:
        self.weights = {name for name, _ in self.gm.named_parameters(remove_duplicate=False)}
        self.written = self._written()
        self.free = self._free()
        self.needed = [{} for _ in range(self.count)]
        self.copied = [{} for _ in range(self.count)]
        for node, stage in self.stage_of.items():
            if node not in self.free and not self._is_removed(node):
                for source in node.all_input_nodes:
                    self._need(source, node, stage)
        for source in self.gm.graph.output_node().all_input_nodes:
            self._need(source, self.gm.graph.output_node(), self.count - 1)

    # --- memory -------------------------------------------------------------------------------

    def _written(self) -> dict[fx.Node, fx.Node]:
        """Return the node that writes each value, and each that may share memory with it."""
        groups = nx.utils.UnionFind(self.gm.graph.nodes)
        attributes: dict[Hashable, fx.Node] = {}
        writers: list[tuple[fx.Node, fx.Node]] = []
        for node in (*self.gm.graph.find_nodes(op="get_attr"), *self.stage_of):
            found = effects_in(self.gm, node)
            shared = [*found.shares]
            if node.op == "get_attr":
                shared.append(attributes.setdefault(node.target, node))
            groups.union(node, *shared)
            changed = node.all_input_nodes if found.unknown is not None else found.writes
            writers += [(node, each) for each in changed]
            if found.switches:
                message = f"`{node}` switches gradients, autocast or random numbers"
                help = "export the model with `torch.export`, which keeps such regions whole"
                raise PyPMError(
                    Diagnostic(f"{message}, which no stage can do for others", help=help)
                )
        by_group = {groups[each]: node for node, each in writers}
        return {n: by_group[groups[n]] for n in self.gm.graph.nodes if groups[n] in by_group}

    def check_memory(self) -> None:
        """Raise PyPMError if a stage writes memory that another one uses."""
        for node, writer in self.written.items():
            here = self.stage_of[writer]
            for user in (node, *node.users):
                there = self.count - 1 if user.op == "output" else self.stage_of.get(user, here)
                if there != here:
                    raise PyPMError(
                        Diagnostic(
                            f"`{_name(node)}` is written in stage {here} and used in stage {there}",
                            notes=(f"`{writer}` writes it, and `{user}` uses it",),
                            help="cut elsewhere, or write to a copy",
                        )
                    )

    # --- values -------------------------------------------------------------------------------

    def _free(self) -> set[fx.Node]:
        """Return the nodes that depend on inputs and constants alone, and only compute."""
        found: set[fx.Node] = set()
        for node in self.gm.graph.nodes:
            if node.op == "placeholder" or (
                node.op == "get_attr" and str(node.target) not in self.weights
            ):
                is_free = node not in self.written
            else:
                is_free = (
                    node.op in ("call_function", "call_method")
                    and not is_mark(node)
                    and node not in self.written
                    and all(source in found for source in node.all_input_nodes)
                    and effects_in(self.gm, node).is_pure
                )
            if is_free:
                found.add(node)
        return found

    def _need(self, node: fx.Node, user: fx.Node, stage: int) -> None:
        """Note that a stage uses a value."""
        if node in self.free or node.op in ("placeholder", "get_attr"):
            if node not in self.copied[stage]:
                self.copied[stage][node] = None
                for source in node.all_input_nodes:
                    self._need(source, node, stage)
        elif self._is_removed(node):
            self._need(node.all_input_nodes[0], user, stage)
        elif self.stage_of[node] > stage:
            what = f"`{node}` is computed in stage {self.stage_of[node]}"
            raise PyPMError(Diagnostic(f"{what} and used before, in stage {stage}"))
        elif self.stage_of[node] < stage and node not in self.copied[stage]:
            if isinstance(metadata(node), torch.Tensor):
                self.needed[stage][node] = None
            elif effects_in(self.gm, node).is_pure and node.target not in _READING:
                self.copied[stage][node] = None
                for source in node.all_input_nodes:
                    self._need(source, node, stage)
            else:
                raise PyPMError(self._no_tensor(node, user, stage))

    def _no_tensor(self, node: fx.Node, user: fx.Node, stage: int) -> Diagnostic:
        value = metadata(node)
        kind = "has no metadata" if value is None else f"is no tensor but a {type(value).__name__}"
        return Diagnostic(
            f"`{node}` of stage {self.stage_of[node]} cannot be sent to stage {stage}: it {kind}",
            notes=(f"`{user}` uses it",),
            help="stages send tensors; compute the number in the stage that uses it",
        )

    def _is_removed(self, node: fx.Node) -> bool:
        """Return whether a node is a mark whose value may be that of its source: no one writes
        either.
        """
        return is_mark(node) and self.written.keys().isdisjoint((node, *node.all_input_nodes))

    # --- stages -------------------------------------------------------------------------------

    def build(self, stage: int, received: Sequence[fx.Node], sent: Sequence[fx.Node]) -> Stage:
        """Return one stage, with the values that it receives and those that it sends."""
        graph = fx.Graph()
        own = self.copied[stage]
        inputs = [node for node in own if node.op == "placeholder"]
        inputs.sort()
        copies = {node: graph.placeholder(node.name) for node in (*received, *inputs)}
        for node, copy in copies.items():
            copy.meta = dict(node.meta)
        copies |= {
            node: received_value(graph, copies[node], memory_order(node)) for node in received
        }
        for node in self.gm.graph.nodes:
            if self._is_removed(node) and node.all_input_nodes[0] in copies:
                copies[node] = copies[node.all_input_nodes[0]]
            elif node not in copies and self._is_in(node, stage):
                copies[node] = _copied(graph, node, copies)
        if stage == self.count - 1:
            output = self.gm.graph.output_node()
            results = [copies[node] for node in _tensors(output)]
        else:
            results = [sent_value(graph, copies[node], memory_order(node)) for node in sent]
        graph.output(tuple(results))
        module = fx.GraphModule(self.gm, graph, f"Stage{stage}")
        module.train(self.gm.training)
        names = [[node.name for node in nodes] for nodes in (received, inputs, sent)]
        return Stage(module, *names)

    def _is_in(self, node: fx.Node, stage: int) -> bool:
        if node in self.copied[stage]:
            return True
        return (
            self.stage_of.get(node) == stage
            and node not in self.free
            and not self._is_removed(node)
        )


def effects_in(gm: fx.GraphModule, node: fx.Node) -> Effects:
    """Return the effects of a node; a region without gradients or autocast has those inside."""
    if node.target in (
        torch.ops.higher_order.wrap_with_set_grad_enabled,
        torch.ops.higher_order.wrap_with_autocast,
    ):
        body = next(each for each in node.all_input_nodes if each.op == "get_attr")
        inner = gm.get_submodule(str(body.target))
        if isinstance(inner, fx.GraphModule) and all(
            node.op == "output" or is_pure(node) or is_check(node) for node in inner.graph.nodes
        ):
            return Effects(shares=tuple(node.all_input_nodes))
    return effects(node)


def _copied(graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Copy a node; a mark becomes the copy of a tensor that it is."""
    if not is_mark(node):
        return graph.node_copy(node, copies.__getitem__)
    source = copies[node.all_input_nodes[0]]
    made = graph.call_function(torch.ops.aten.clone.default, (source,))
    made.meta = dict(node.meta)
    return made


def is_check(node: fx.Node) -> bool:
    """Return whether a node only checks inputs, as the trace found them."""
    return checks_inputs(node) or node.target is torch.ops.aten._assert_tensor_metadata.default


def _tensors(output: fx.Node) -> Iterator[fx.Node]:
    """Yield the results of a graph. Raises PyPMError for one that is not a tensor."""
    for node in pytree.tree_leaves(output.args[0]):
        if isinstance(node, fx.Node) and isinstance(metadata(node), torch.Tensor):
            yield node
        elif node is not None:
            raise PyPMError(Diagnostic(f"the result `{node}` of the program is no tensor"))


_READING: Final = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
"""Operators that compute a number from the elements of a tensor."""


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "get_attr" else node.name
