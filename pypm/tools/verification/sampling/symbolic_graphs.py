"""Symbolic sizes: graphs with them, other sizes to run these on, and sizes that a term fixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.node import Argument

from pypm.fx import describe, metadata
from pypm.fx.operators.corrections import RESIZERS
from pypm.tools.verification.sampling.evaluation import Computed, filled_in
from pypm.tools.verification.sampling.operator_choice import result_of
from pypm.tools.verification.sampling.sketches import SketchSlot
from pypm.torch_internals import ConstantSource, FakeTensor, FakeTensorMode

__all__ = ["expression", "fake_inputs", "other_sizes", "pinned", "symbolic", "with_symbolic_sizes"]


def symbolic(mode: FakeTensorMode, value: Tensor, number: int) -> FakeTensor:
    """Return a fake tensor; each size but 0 and 1 is a symbol of its own."""
    context: StatelessSymbolicContext[..., object] = StatelessSymbolicContext(
        [DimDynamic.DYNAMIC] * value.dim()
    )
    source = ConstantSource(f"x{number}")
    return mode.from_tensor(value, source=source, symbolic_context=context)


def expression(size: object) -> sympy.Expr:
    """Return the sympy expression of a size."""
    return sympy.sympify(size.node.expr if isinstance(size, torch.SymInt) else size)


def with_symbolic_sizes(module: fx.GraphModule, inputs: Sequence[Tensor]) -> fx.GraphModule | None:
    """Return a copy of a graph in which the sizes of its inputs are symbols.

    A number in an argument that says the output's shape, such as that of `expand`, is replaced by
    the size of the first input that has it. Returns None where no size can be a symbol.
    """
    capture = _Capture(FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True))
    try:
        captured = capture.of(module, inputs)
    except Exception:  # whatever torch says of operators on symbolic sizes
        return None
    return captured if _symbols(captured) else None


@dataclass
class _Capture:
    mode: FakeTensorMode
    graph: fx.Graph = field(default_factory=fx.Graph)
    read: dict[int, tuple[fx.Node, int]] = field(default_factory=dict)
    """By size: an input, and the dimension of that size."""

    def of(self, module: fx.GraphModule, inputs: Sequence[Tensor]) -> fx.GraphModule:
        given = iter(inputs)
        made: dict[fx.Node, fx.Node] = {}
        for node in module.graph.nodes:
            copy = made[node] = self.graph.node_copy(node, made.__getitem__)
            if node.op == "placeholder":
                self._make_input(copy, next(given))
            elif node.op == "call_function":
                self._make_call(copy)
        return fx.GraphModule(module, self.graph)

    def _make_input(self, node: fx.Node, value: Tensor) -> None:
        node.meta["val"] = symbolic(self.mode, value, len(self.graph.nodes))
        for dim, size in enumerate(value.shape):
            if size > 1:
                self.read.setdefault(size, (node, dim))

    def _make_call(self, node: fx.Node) -> None:
        if describe(node).operator.name in RESIZERS:
            value, shape, *others = node.args
            assert isinstance(shape, Sequence)
            with self.graph.inserting_before(node):
                node.args = (value, [self._size(n) for n in shape], *others)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), metadata)
        assert callable(node.target)
        with self.mode, torch.no_grad():
            node.meta["val"] = node.target(*args, **kwargs)

    def _size(self, size: Argument) -> Argument:
        if not isinstance(size, int) or size not in self.read:
            return size
        source, dim = self.read[size]
        node = self.graph.call_function(torch.ops.aten.sym_size.int, (source, dim))
        node.meta["val"] = source.meta["val"].shape[dim]
        return node


Sizes: TypeAlias = Mapping[sympy.Symbol, int]


def other_sizes(module: fx.GraphModule) -> list[Tensor]:
    """Return meta tensors for the inputs, with sizes that differ from those at the capture.

    The sizes meet all guards of the capture. A size that cannot change stays as it is.
    """
    fakes = fake_inputs(module)
    env = next(fake.fake_mode.shape_env for fake in fakes)
    assert env is not None
    known: Sizes = {s: int(n) for s, n in env.var_to_val.items()}
    for symbol in sorted(_symbols(module), key=str):
        for size in (known[symbol] + 1, 2 * known[symbol]):
            changed = {**known, symbol: size}
            changed = {s: int(env.replace(s).xreplace(changed)) for s in known}
            if all(guard.expr.xreplace(changed) == sympy.true for guard in env.guards):
                known = changed
                break
    return [_with(fake, known) for fake in fakes]


def _with(fake: FakeTensor, sizes: Sizes) -> Tensor:
    shape, strides = (
        [int(expression(n).xreplace(sizes)) for n in numbers]
        for numbers in (fake.shape, fake.stride())
    )
    return torch.empty_strided(shape, strides, dtype=fake.dtype, device="meta")


def _symbols(module: fx.GraphModule) -> set[sympy.Symbol]:
    """The symbols that the sizes of the inputs depend on, and no guard fixes."""
    return {
        s for fake in fake_inputs(module) for n in fake.shape for s in expression(n).free_symbols
    }


def fake_inputs(module: fx.GraphModule) -> list[FakeTensor]:
    """Return the fake tensors that stand for the inputs of a graph."""
    found = []
    for node in module.graph.find_nodes(op="placeholder"):
        value = metadata(node)
        assert isinstance(value, FakeTensor)
        found.append(value)
    return found


def pinned(steps: Sequence[Computed]) -> set[tuple[SketchSlot, int]]:
    """Return the dimensions of inputs that the calls allow no other size.

    The calls are made with the arguments that they have, so a size that is written into one of
    them is fixed as well. Every dimension counts where a call cannot be made so.
    """
    sizes = ShapeEnv()
    mode = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)
    made: dict[SketchSlot, object] = {}
    inputs: dict[SketchSlot, FakeTensor] = {}
    try:
        for step in steps:
            made[step.slot] = step.value
            if step.overload is not None:
                with mode, torch.no_grad():
                    made[step.slot] = result_of(step.overload, filled_in(step.arguments, made))
            elif isinstance(step.value, torch.Tensor):
                fake = symbolic(mode, step.value, len(made))
                made[step.slot] = inputs[step.slot] = fake
    except Exception:  # whatever torch says of operators on symbolic sizes
        return {(s, d) for s, fake in inputs.items() for d in range(fake.dim())}
    return {
        (slot, dim)
        for slot, fake in inputs.items()
        for dim, size in enumerate(fake.shape)
        if sizes.simplify(expression(size)).is_number
    }
