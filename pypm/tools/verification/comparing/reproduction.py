"""A counterexample as a program that anyone can run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from pypm.tools.verification.findings import Counterexample
from pypm.tools.verification.sampling.graphs import operators_in
from pypm.torch_internals import HigherOrderOperator, OpOverload

__all__ = ["counterexample"]


def counterexample(
    before: fx.GraphModule, after: fx.GraphModule | None, inputs: Sequence[Tensor]
) -> Counterexample:
    """Both graphs as functions, where there is a second, and the tensors to call them on."""
    holes = before.graph.find_nodes(op="placeholder")
    names = ", ".join(node.name for node in holes)
    lines = ["import operator", "", "import torch", "", *_function("before", before)]
    if not any(_is_python(module) for module in (before, after) if module is not None):
        del lines[:2]
    if after is not None:
        lines += ["", *_function("after", after)]
    lines.append("")
    for node, value in zip(holes, inputs, strict=True):
        lines.append(f"{node.name} = {_tensor(value)}")
    lines.append(f"print(before({names}))")
    if after is not None:
        lines.append(f"print(after({names}))")
    return Counterexample("\n".join(lines), operators_in(before))


def _function(name: str, module: fx.GraphModule) -> list[str]:
    holes = ", ".join(node.name for node in module.graph.find_nodes(op="placeholder"))
    lines = [f"def {name}({holes}):"]
    for node in module.graph.nodes:
        match node.op:
            case "get_attr":
                lines.append(f"    {node.name} = {_tensor(getattr(module, str(node.target)))}")
            case "call_function":
                args = [_value(value) for value in node.args]
                args += [f"{key}={_value(value)}" for key, value in node.kwargs.items()]
                lines.append(f"    {node.name} = {_target(node.target)}({', '.join(args)})")
            case "output":
                lines.append(f"    return {_value(node.args[0])}")
    return lines


def _is_python(module: fx.GraphModule) -> bool:
    """Return whether a graph calls functions of Python's, as it does to take one of several
    outputs.
    """
    calls = [n.target for n in module.graph.nodes if n.op == "call_function"]
    return any(getattr(target, "__module__", "") == "_operator" for target in calls)


def _target(target: fx.node.Target) -> str:
    if isinstance(target, (OpOverload, HigherOrderOperator)):
        return f"torch.ops.{target}"
    module, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
    return f"{module.removeprefix('_')}.{name}"


def _value(value: fx.node.Argument) -> str:
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_value, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    return repr(value)


def _tensor(value: Tensor) -> str:
    if not value.numel():
        return f"torch.empty({list(value.shape)}, dtype={value.dtype})"
    if value.is_contiguous():
        return f"torch.tensor({_value(value.tolist())}, dtype={value.dtype})"
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    stored = _value(value.as_strided((extent,), (1,)).tolist())
    return (
        f"torch.tensor({stored}, dtype={value.dtype})"
        f".as_strided({list(value.shape)}, {list(value.stride())})"
    )
