"""Comparing a region with its replacement by their operators, where that leaves no doubt.

Compiled, a graph takes no longer than its operators do one by one, and no less than those of its
kernels that Inductor calls and fuses nothing into. What is fused is estimated; that it is does not
make a replacement faster, unless its kernels are nearly all of it. Where the kernels of one side
alone take longer than the other, nothing need be compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle
from math import inf
from operator import call, getitem
from typing import Final

import torch
from torch import Tensor, fx

from pypm.choice.execution import Input, Unknown, copies, example, key_of, optimized, real_inputs
from pypm.fx import metadata
from pypm.fx.operators.effects import is_sure_view
from pypm.kernels.support.registration import STAND_INS
from pypm.kernels.support.twins import called_for
from pypm.timing import in_turn, shortest
from pypm.torch_internals import OpOverload, inductor_config, pytree

__all__ = ["FUSED", "OperatorTimes", "kind_of", "on_the_cpu", "work"]

CERTAIN: Final = 0.5
"""A replacement is faster for certain if its operators take at most this share of the time of the
region's kernels: Inductor may choose other layouts, or call a kernel with less overhead."""
SLOWER: Final = 1.1
"""The share of a region's time from which the kernels of a replacement are slower for certain."""
QUICKER: Final = 0.85
"""The share of a region's measured time below which the kernels of a replacement, and what is fused
of it as estimated, are faster for certain."""
SECONDS: Final = 0.005
"""The time for which an operator is timed by itself."""


class OperatorTimes:
    """The times of operators, each timed once for the same arguments, and what they decide."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}
        self._optimized: dict[str, fx.GraphModule] = {}

    def compared(
        self, region: fx.GraphModule, replacement: fx.GraphModule, inputs: Sequence[Input]
    ) -> dict[str, float] | None:
        """Return the times of a region and its replacement, both `concrete`, if they leave no doubt
        which is faster, or if Inductor makes the same of both; else None.

        Nothing is decided for inputs that are not on the CPU, nor if an operator fails by itself.
        """
        if not on_the_cpu(inputs):
            return None
        with suppress(Exception):
            made = [region, replacement]
            if any(map(_may_be_attention, made)):
                # no other pass of Inductor's replaces a product
                made = [self._made(each, inputs) for each in made]
            return self._compared(*(each.graph for each in made))
        return None

    def beside(
        self, seconds: float, replacement: fx.GraphModule, inputs: Sequence[Input]
    ) -> dict[str, float] | None:
        """Return the times of a region and its replacement, if the time of the region, and those of
        the replacement's operators, leave no doubt which is faster.
        """
        if not on_the_cpu(inputs):
            return None
        with suppress(Exception):
            if _may_be_attention(replacement):
                replacement = self._made(replacement, inputs)
            graph = replacement.graph
            for at_best in (True, False):
                kernels = self._longer(graph, SLOWER * seconds, at_best=at_best)
                if kernels is not None:
                    return _answer(seconds, kernels / seconds)
            most = self._kernels(graph) + _fused(graph)
            return _answer(seconds, most / seconds) if most < QUICKER * seconds else None
        return None

    def at_best(self, module: fx.GraphModule, inputs: Sequence[Input]) -> float:
        """Return an estimate of the seconds that a `concrete` graph takes at least, those of its
        kernels and half of what is fused; 0 if nothing is known.
        """
        return self._estimate(module, inputs, at_best=True) or 0.0

    def at_most(self, module: fx.GraphModule, inputs: Sequence[Input]) -> float:
        """Return an estimate of the seconds that a `concrete` graph takes at most; infinity if
        nothing is known.
        """
        return self._estimate(module, inputs, at_best=False) or inf

    def _estimate(
        self, module: fx.GraphModule, inputs: Sequence[Input], *, at_best: bool
    ) -> float | None:
        if on_the_cpu(inputs):
            with suppress(Exception):
                made = self._made(module, inputs) if _may_be_attention(module) else module
                fused = _fused(made.graph)
                return self._kernels(made.graph, at_best=at_best) + fused / (2 if at_best else 1)
        return None

    def _made(self, module: fx.GraphModule, inputs: Sequence[Input]) -> fx.GraphModule:
        """Return what is `optimized`, once for equal graphs: several rules may take one region."""
        key = key_of(module)
        if key not in self._optimized:
            self._optimized[key] = optimized(module, inputs)
        return self._optimized[key]

    def _compared(self, before: fx.Graph, after: fx.Graph) -> dict[str, float] | None:
        least, at_best = self._kernels(before), self._kernels(after, at_best=True)
        if work(before) == work(after):
            return _answer(least + self._others(before), 1.0)
        if at_best > least:
            most = least + _fused(before)
            longer = self._longer(after, most, at_best=True)
            return None if longer is None else _answer(most, longer / most)
        if at_best <= CERTAIN * least:
            most = self._kernels(after) + self._others(after)
            return _answer(least, most / least) if most <= CERTAIN * least else None
        return None

    def _longer(self, graph: fx.Graph, seconds: float, *, at_best: bool) -> float | None:
        """Return the time of the kernels of a graph if it is longer than some seconds, also when
        they are timed once more, at another moment.
        """
        for anew in (False, True):
            found = self._kernels(graph, at_best=at_best, anew=anew)
            if found <= seconds:
                return None
        return found

    def _kernels(self, graph: fx.Graph, *, at_best: bool = False, anew: bool = False) -> float:
        """Return the time of the kernels that Inductor calls."""
        nodes = filter(_is_kernel, _computing(graph))
        return sum(self._of(node, at_best=at_best, anew=anew) for node in nodes)

    def _others(self, graph: fx.Graph) -> float:
        """Return the time of all other operators, one by one; views take none."""
        return sum(self._of(node) for node in _computing(graph) if not _is_kernel(node))

    def _of(self, node: fx.Node, *, at_best: bool = False, anew: bool = False) -> float:
        """Return the time of an operator for arguments like those that it has in the graph.

        With `at_best`, this is that of a function that no such operator is faster than, where one
        is known; `anew`, that of another try if it is less. Raises Unknown for anything but a call
        of an operator whose arguments have metadata.
        """
        target = node.target
        if not isinstance(target, OpOverload):
            raise Unknown(f"`{target}` is not timed by itself")
        called = called_for(node, target)
        function = STAND_INS.get(target, called) if at_best else called
        values = fx.map_arg((node.args, node.kwargs), metadata)
        leaves, spec = pytree.tree_flatten(values)
        given = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[i] for i in given]
        types = [(tensor.dtype, tensor.device) for tensor in tensors]
        rest = [None if i in given else leaf for i, leaf in enumerate(leaves)]
        settings = torch.get_num_threads(), torch.get_float32_matmul_precision()
        key = f"{function} {example(tensors)} {types} {rest} {spec} {settings}"
        if anew or key not in self._known:
            made = []
            for inputs in copies(real_inputs(tensors)):
                for i, tensor in zip(given, inputs, strict=True):
                    leaves[i] = tensor
                args, kwargs = pytree.tree_unflatten(leaves, spec)
                made.append(partial(function, *args, **kwargs))
            found = shortest(in_turn(call, cycle(made)), SECONDS)
            self._known[key] = min(found, self._known.get(key, found))
        return self._known[key]


def _computing(graph: fx.Graph) -> Iterator[fx.Node]:
    """Yield the nodes of a graph that take time."""
    for node in graph.nodes:
        is_call = node.op not in ("placeholder", "get_attr", "output")
        if is_call and node.target is not getitem and not is_sure_view(node):
            yield node


def _fused(graph: fx.Graph) -> float:
    """Return an estimate of what Inductor fuses of a graph, which is no less than it takes.

    Raises Unknown where it may write out a product.
    """
    from pypm.choice.estimates import fused_seconds, has_products  # late: most answers are kept
    from pypm.roofline.fusion import kernels

    groups = [group for group in kernels(graph) if not any(map(_is_kernel, group))]
    if any(map(has_products, groups)):
        raise Unknown("a product may be no kernel")
    return sum(map(fused_seconds, groups))


def on_the_cpu(inputs: Sequence[Input]) -> bool:
    """Return whether all tensors among some inputs are on the CPU."""
    return all(x.device.type == "cpu" for x in inputs if isinstance(x, Tensor))


def _may_be_attention(module: fx.GraphModule) -> bool:
    batched = module.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)
    return len(batched) > 1


def _answer(before: float, ratio: float) -> dict[str, float]:
    return {"before": before, "ratio": ratio, "upper": ratio, "rounds": 0}


def work(graph: fx.Graph) -> Counter[str]:
    """Return the operators of a graph, with the types, sizes and strides of results."""
    calls = (node for node in graph.nodes if node.op.startswith("call_"))
    return Counter(map(kind_of, calls))


def kind_of(node: fx.Node) -> str:
    """Return the operator of a call, with the types, sizes and strides of its results."""
    return f"{node.op} {node.target} {_type(metadata(node))}"


def _type(value: fx.node.Argument) -> str:
    if isinstance(value, Tensor):
        return str((value.dtype, value.shape, value.stride()))
    return str(type(value))


FUSED: Final = ("aten", "prims", "quantized_decomposed")
"""Namespaces of operators that Inductor generates code for."""
_ATTENTION: Final = "_scaled_dot_product"
_PRODUCTS: Final = ("mm", "addmm", "bmm")


def _is_kernel(node: fx.Node) -> bool:
    """Return whether Inductor calls a kernel for the node, with which nothing is fused."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    namespace, name = str(target._schema.name).split("::")
    if namespace not in FUSED or name.startswith(_ATTENTION):
        return True
    tunes = inductor_config.max_autotune or inductor_config.max_autotune_gemm
    return name in _PRODUCTS and not tunes and all(map(_is_matrix, node.args[-2:]))


def _is_matrix(operand: fx.node.Argument) -> bool:
    """Return whether no product with an operand is written out, and none copies it first."""
    value = metadata(operand) if isinstance(operand, fx.Node) else None
    return (
        isinstance(value, Tensor)
        and value.numel() > 0
        and min(value.shape[-2:]) > 1
        and 1 in value.stride()[-2:]
    )
