"""Tracing on proxies: the replacement calls torch's functions and methods, as users do."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem, setitem
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.node import Argument
from torch.fx.proxy import TraceError

from pypm.fx.values.fake_tensors import fake_mode, faked, guardless, run_node, unguarded
from pypm.fx.values.metadata import metadata
from pypm.torch_internals import DataDependentOutputException, FakeTensorMode, OpOverload

__all__ = ["items_of", "trace_on_proxies"]

_Sizes: TypeAlias = "int | fx.Proxy | tuple[_Sizes, ...]"
"""Known numbers, and proxies of others."""


class _Value(fx.Proxy):
    """A traced value that answers questions about shape, dtype and strides from its metadata."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: tuple[type, ...],
        args: tuple[object, ...] | None = None,
        kwargs: dict[str, object] | None = None,
    ) -> fx.Proxy:
        """Trace a call; for overloads, four times as fast as torch's own, which searches the
        tracer.
        """
        if isinstance(function, OpOverload) and args and isinstance(args[0], cls):
            return args[0].tracer.create_proxy("call_function", function, args, kwargs or {})
        return super().__torch_function__(function, types, args, kwargs)

    def _fake(self) -> object:
        return self.node.meta.get("val")

    def __getattr__(self, name: str) -> Any:
        fake = self._fake()
        if isinstance(fake, torch.Tensor):
            if name == "shape":
                return self.size()
            if name in ("dtype", "device", "ndim", "layout", "is_cuda", "is_cpu"):
                return getattr(fake, name)
        return super().__getattr__(name)

    def __setitem__(self, index: object, value: object) -> None:
        self.tracer.create_proxy("call_function", setitem, (self, index, value), {})

    def __index__(self) -> int:
        raise TraceError(f"the value of `{self.node}` is not known")

    def __bool__(self) -> bool:
        self._ask()
        return bool(super().__bool__())

    def __float__(self) -> float:
        self._ask()
        raise TraceError("the number is not known")

    def __int__(self) -> int:
        self._ask()
        raise TraceError("the number is not known")

    def _ask(self) -> None:
        """Raise the error of ATen tracing if this stands for a tensor: its value is unknown."""
        if isinstance(self._fake(), torch.Tensor):
            raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)

    def dim(self) -> int | fx.Proxy:
        fake = self._fake()
        if isinstance(fake, torch.Tensor):
            return fake.dim()
        return self.tracer.create_proxy("call_method", "dim", (self,), {})

    def is_contiguous(self) -> bool | fx.Proxy:
        fake = self._fake()
        if isinstance(fake, torch.Tensor) and all(isinstance(n, int) for n in fake.stride()):
            return fake.is_contiguous()
        return self.tracer.create_proxy("call_method", "is_contiguous", (self,), {})

    def size(self, dim: int | None = None) -> _Sizes:
        """Return the size of `dim`, or all sizes: known ones as numbers, others as traced calls."""
        return self._number("size", dim)

    def stride(self, dim: int | None = None) -> _Sizes:
        """Return the stride of `dim`, or all strides: known ones as numbers, others as traced
        calls.
        """
        return self._number("stride", dim)

    def _number(self, name: str, dim: int | None) -> _Sizes:
        fake = self._fake()
        if dim is None and isinstance(fake, torch.Tensor):
            return tuple(self._number(name, i) for i in range(fake.dim()))
        known = getattr(fake, name)(dim) if isinstance(fake, torch.Tensor) else None
        if isinstance(known, int):
            return known
        args = (self,) if dim is None else (self, dim)
        return self.tracer.create_proxy("call_method", name, args, {})


class _Tracer(fx.Tracer):
    def __init__(self, mode: FakeTensorMode | None) -> None:
        super().__init__(autowrap_modules=())  # type: ignore[arg-type]
        self.root = torch.nn.Module()
        self.graph = fx.Graph(tracer_cls=fx.Tracer)
        self.tensor_attrs = {}
        self.mode = mode

    def create_arg(self, a: object) -> Argument:
        if isinstance(a, _Value):
            return a.node
        if isinstance(a, torch.SymInt):
            return self.size(a)
        if isinstance(a, torch.nn.Parameter):  # of another module: held as any tensor is
            name = self.get_fresh_qualname("_param_constant")
            setattr(self.root, name, a)
            return self.create_node("get_attr", name, (), {})
        return super().create_arg(a)

    def size(self, wanted: torch.SymInt) -> fx.Node:
        """Return a node that reads a symbolic size from an operand.

        Raises TraceError if no operand has that size.
        """
        for hole in self.graph.find_nodes(op="placeholder"):
            for dim, known in enumerate(getattr(hole.meta.get("val"), "shape", ())):
                if isinstance(known, torch.SymInt) and known.node.expr == wanted.node.expr:
                    return self.create_proxy(
                        "call_method", "size", (_Value(hole, self), dim), {}
                    ).node
        raise TraceError(f"no operand has the size {wanted}")

    def proxy(self, node: fx.Node) -> fx.Proxy:
        if self.mode is not None and node.op.startswith("call_"):
            with guardless(self.mode):
                value = run_node(node, lambda n: n.meta.get("val"), self.mode, self.root)
            if value is not None:
                node.meta["val"] = value
        return _Value(node, self)


def trace_on_proxies(
    body: Callable[..., object], operands: tuple[fx.Node, ...]
) -> tuple[torch.nn.Module, fx.Graph]:
    """Return the module that holds a body's constants, and the graph of its calls.

    Arguments:
        body: the function to trace; it takes one value for each operand.
        operands: nodes whose metadata describes the values; the graph has a placeholder for each.

    Raises TraceError if the body depends on an unknown value, and whatever the body raises.
    """
    known = [metadata(node) for node in operands]
    mode = fake_mode(operands)
    tracer = _Tracer(mode)
    holes = []
    for index, value in enumerate(known):
        hole = tracer.graph.placeholder(f"input_{index}")
        if value is not None and mode is not None:
            hole.meta["val"] = faked(value, mode)
        holes.append(tracer.proxy(hole))
    with unguarded(mode):
        result = body(*(_scalar(hole) for hole in holes))
    tracer.graph.output(tracer.create_arg(result))
    return tracer.root, tracer.graph


def items_of(result: fx.Proxy, expected: int) -> tuple[fx.Proxy, ...]:
    """Return the values that one traced call returns: its items if it returns several.

    `expected` is the number of outputs of the region. It decides where metadata is missing.
    """
    value = result.node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return tuple(getitem(result, index) for index in range(len(value)))
    if value is None and expected > 1:
        return tuple(getitem(result, index) for index in range(expected))
    return (result,)


def _scalar(hole: fx.Proxy) -> float | fx.Proxy:
    """Return the number if the operand is a known size, else its proxy."""
    value = hole.node.meta.get("val")
    return value if isinstance(value, (int, float)) else hole
