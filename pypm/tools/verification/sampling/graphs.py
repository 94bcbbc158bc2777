"""Graphs to try rules on: from solved terms, or from functions that the user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import describe, metadata
from pypm.tools.verification.sampling.evaluation import Computed, filled_in, value_in
from pypm.tools.verification.sampling.inputs import Leaf
from pypm.tools.verification.sampling.operator_choice import target
from pypm.tools.verification.sampling.sketches import SketchSlot, Unsampled
from pypm.torch_internals import FakeTensorMode

__all__ = ["CONSTANT", "captured", "copied", "graph_of", "operators_in", "written"]


CONSTANT: Final = "sampled_constant_"
"""The prefix of the names of constants in samples."""


def graph_of(steps: Sequence[Computed], roots: Sequence[SketchSlot | None]) -> fx.GraphModule:
    """The term as a graph of ATen's operators, with metadata.

    Raises Unsampled if torch has no fake kernel for a call, or an output is no tensor.
    """
    builder = _Builder()
    for step in sorted(steps, key=lambda step: step.leaf is None):
        try:
            builder.add(step)
        except Exception as error:  # whatever torch says of arguments drawn at random
            raise Unsampled(str(error)) from error
    outputs = []
    for root in filter(None, roots):
        made = value_in(root.find, builder.made)
        if not isinstance(made, fx.Node):
            raise Unsampled("an output is no tensor")
        outputs.append(made)
    builder.graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
    return fx.GraphModule(builder.owner, builder.graph)


def written(steps: Sequence[Computed], roots: Sequence[SketchSlot | None]) -> str:
    """Return a text of a term; terms with equal texts have equal graphs."""
    names = {step.slot: f"%{number}" for number, step in enumerate(steps)}
    calls = [
        (step.leaf, step.overload and (step.overload.packet_name, step.overload.name), arguments)
        for step in steps
        for arguments in [filled_in(step.arguments, names)]
    ]
    return repr((calls, [root and value_in(root.find, names) for root in roots]))


class _Builder:
    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.owner = torch.nn.Module()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.made: dict[SketchSlot, object] = {}
        """The node or number of each slot."""

    def add(self, step: Computed) -> None:
        if step.leaf is not None:
            self.made[step.slot] = self._leaf(step.leaf)
        elif step.overload is not None:
            kinds = {argument.name: argument for argument in step.overload.slots}
            args: list[object] = []
            kwargs: dict[str, object] = {}
            for name, filled in filled_in(step.arguments, self.made).items():
                value = list(filled) if isinstance(filled, tuple) else filled
                argument = kinds[name]
                if argument.parameter.keyword_only:
                    if value != argument.parameter.default:
                        kwargs[name] = value
                else:
                    args.append(value)
            while args and self._is_default(step, len(args) - 1, args[-1]):
                args.pop()
            self.made[step.slot] = self._call(target(step.overload), args, kwargs)

    def _is_default(self, step: Computed, position: int, value: object) -> bool:
        assert step.overload is not None
        default = step.overload.slots[position].parameter.default
        if isinstance(value, fx.Node) or isinstance(default, fx.Node):
            return False
        value = tuple(value) if isinstance(value, list) else value
        return type(value) is type(default) and bool(value == default)

    def _leaf(self, leaf: Leaf) -> object:
        if leaf.kind == "number":
            return leaf.number
        count = len(self.graph.nodes)
        with self.mode:
            fake = torch.empty_strided(leaf.shape, leaf.strides, dtype=leaf.dtype)
        if leaf.kind == "constant":
            generator = torch.Generator().manual_seed(count)
            value = torch.randn(leaf.shape, generator=generator).to(leaf.dtype)
            self.owner.register_buffer(f"{CONSTANT}{count}", value)
            node = self.graph.get_attr(f"{CONSTANT}{count}")
        else:
            node = self.graph.placeholder("xyzuvwabcdefgh"[count] if count < 14 else f"x{count}")
        node.meta["val"] = fake
        return node

    def _call(
        self, function: Callable[..., object], args: list[Any], kwargs: dict[str, Any]
    ) -> fx.Node:
        node = self.graph.call_function(function, tuple(args), kwargs)
        fakes = fx.node.map_arg((node.args, node.kwargs), metadata)
        with self.mode, torch.no_grad():
            node.meta["val"] = function(*fakes[0], **fakes[1])
        return node


def captured(function: Callable[..., object], inputs: Sequence[object]) -> fx.GraphModule:
    """A function's graph on inputs like these, in ATen's operators before decomposition."""
    return make_fx(function, tracing_mode="fake", pre_dispatch=True)(*inputs)


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """A copy that shares the fake tensors of the metadata."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


def operators_in(module: fx.GraphModule) -> int:
    """Return how many calls of operators a graph has, numbers that are written as tensors aside."""
    calls = [node for node in module.graph.nodes if node.op.startswith("call_")]
    return sum(describe(node).operator.name != "literal" for node in calls)
