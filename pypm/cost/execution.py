"""Graphs of candidates made to run: on tensors of the sizes, strides and types they will have."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.torch_internals import compile_fx, select_decomp_table

__all__ = ["Compiled", "Unknown", "apart", "compiled", "concrete", "real_inputs"]

Compiled = Callable[[], object]
"""Runs a graph on its inputs."""
Result = TypeVar("Result")

HOOKS: Final = (
    "pre_grad_custom_pass",
    "joint_custom_pre_pass",
    "joint_custom_post_pass",
    "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass",
)
"""The options of Inductor that hold passes: a graph that is timed is compiled without them."""


class Unknown(Exception):
    """A size, type or device that is not known, so that the graph cannot be run."""


def real_inputs(values: Sequence[object]) -> list[object]:
    """Return tensors and numbers like some fake ones: random numbers, zeros for integers.

    Symbolic sizes are taken at their hints. Raises Unknown if something has no metadata or no hint.
    """
    return [_real(value) for value in values]


def _real(value: object) -> object:
    if isinstance(value, Tensor):
        sizes, strides = ([_whole(n) for n in ns] for ns in (value.shape, value.stride()))
        pairs = zip(sizes, strides, strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in pairs) if all(sizes) else 0
        flat = torch.zeros(extent, dtype=value.dtype, device=value.device)
        if value.dtype.is_floating_point and value.dtype.itemsize > 1:
            flat.normal_()
        return flat.as_strided(sizes, strides)
    if isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _hint(value)
    raise Unknown("an input has no metadata")


def _hint(value: object) -> object:
    """Return a number, a symbolic one as at the call that is compiled for."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        if not value.node.has_hint():
            raise Unknown(f"nothing is known of the size `{value}`")
        return value.node.hint
    return value


def _whole(size: int) -> int:
    """Return a size, a symbolic one as at the call that is compiled for."""
    found = _hint(size)
    assert isinstance(found, int)
    return found


def concrete(module: fx.GraphModule, inputs: Sequence[object]) -> fx.GraphModule:
    """Return a graph in Inductor's operators, of the tensors among its inputs alone."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]

    def run(*given: Tensor) -> object:
        left = iter(given)
        return module(*[next(left) if isinstance(x, Tensor) else x for x in inputs])

    with torch.no_grad():
        found: fx.GraphModule = make_fx(run, select_decomp_table(), tracing_mode="fake")(*tensors)
    return found


def compiled(module: fx.GraphModule, inputs: Sequence[object]) -> Compiled:
    """Compile a graph as `torch.compile` does, without custom passes, and run it once.

    Raises whatever compiling or running it raises.
    """
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    # without the hooks, one of which may be what asks for this
    made = compile_fx(concrete(module, inputs), tensors, config_patches=dict.fromkeys(HOOKS))
    call = cast("Callable[..., object]", made)
    call(*tensors)
    return lambda: call(*tensors)


def apart(run: Callable[[], Result]) -> Result:
    """Run a function as if nothing was being traced or compiled, and return its result.

    It runs in a thread of its own, since torch's modes belong to threads, with the number of
    threads and the configuration of this one. Raises what the function raises.
    """
    threads, context = torch.get_num_threads(), contextvars.copy_context()
    result: list[Result] = []
    failure: list[BaseException] = []

    def body() -> None:
        torch.set_num_threads(threads)
        try:
            with torch.no_grad():
                result.append(context.run(run))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body, name="pypm-measuring")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
