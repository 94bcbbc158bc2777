"""Graphs of candidates made to run: on tensors of the sizes, strides and types they will have."""

from __future__ import annotations

import contextvars
import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.choice.sizes import HINTS, Sizes, number
from pypm.fx import metadata
from pypm.fx.subject.subgraphs import signature
from pypm.torch_internals import (
    PASSES,
    OpOverload,
    compile_fx,
    make_boxed_func,
    select_decomp_table,
)

__all__ = [
    "Compiled",
    "Input",
    "Unknown",
    "apart",
    "compiled",
    "concrete",
    "copies",
    "fill_with_largest",
    "gpu_of",
    "key_of",
    "optimized",
    "real_inputs",
    "traced",
]

Input: TypeAlias = Tensor | int | float
"""An input of a graph."""
Compiled: TypeAlias = Callable[[Sequence[Input]], object]
"""Runs a graph on inputs."""
Result = TypeVar("Result")
_SPREAD: Final = 0.2
"""Standard deviation of random inputs. Products over a thousand of them are near 1, as in models.
Exponentials of larger values underflow, and denormal numbers take many times as long."""
_LARGE: Final = 2**20
"""Bytes from which a tensor is taken for a weight or cache, which no model has just computed."""
_CACHES: Final = 2**26
"""Bytes of which a processor's caches hold no more than a part."""


class Unknown(Exception):
    """A size, type or device that is not known, so that the graph cannot be run."""


def real_inputs(values: Sequence[fx.node.Argument], sizes: Sizes = HINTS) -> list[Input]:
    """Return tensors and numbers like some fake ones: small random numbers, zeros for integers.

    Symbolic sizes that are not in `sizes` are taken at their hints. Raises Unknown if something has
    no metadata or no hint.
    """
    return [_real(value, sizes) for value in values]


def copies(inputs: Sequence[Input], cache: int = _CACHES) -> list[Sequence[Input]]:
    """Return some inputs several times, to be taken in turn: so many that no cache holds them.

    `cache` is the number of bytes of which caches hold no more than a part.

    A model reads a weight that all others have displaced from the caches. Only large tensors of
    floating-point numbers are copied; all others are the same in each.
    """
    sizes = [x.nbytes if isinstance(x, Tensor) and x.is_floating_point() else 0 for x in inputs]
    large = [n if n >= _LARGE else 0 for n in sizes]
    count = cache // sum(large) if any(large) else 0
    pairs = list(zip(inputs, large, strict=True))
    return [inputs, *([copy.deepcopy(x) if n else x for x, n in pairs] for _ in range(count))]


def gpu_of(values: Iterable[fx.node.Argument]) -> torch.device | None:
    """Return the GPU that holds all tensors among some values but those of the CPU.

    Return None if there are none, if they are on several devices, or on one that is not here.
    """
    devices = {value.device for value in values if isinstance(value, Tensor)}
    devices.discard(torch.device("cpu"))
    if len(devices) != 1 or not torch.cuda.is_available():
        return None
    (device,) = devices
    is_here = device.type == "cuda" and (device.index or 0) < torch.cuda.device_count()
    return device if is_here else None


def fill_with_largest(inputs: Sequence[Input]) -> None:
    """Put the largest place into all integers among some inputs, and True into truth values.

    That is the size, less one, of the longest dimension of any input.
    """
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    place = max((n for x in tensors for n in x.shape), default=1) - 1
    for x in tensors:
        if not (x.dtype.is_floating_point or x.dtype.is_complex) and x.numel():
            largest = 1 if x.dtype == torch.bool else min(place, torch.iinfo(x.dtype).max)
            extent = x.untyped_storage().nbytes() // x.dtype.itemsize
            x.as_strided((extent,), (1,), 0).fill_(largest)


def example(values: Sequence[fx.node.Argument], sizes: Sizes = HINTS) -> str:
    """Return the sizes and numbers that `real_inputs` takes for some fake values, as text.

    Raises Unknown as it does.
    """
    return repr([_layout(x, sizes) if isinstance(x, Tensor) else _at(x, sizes) for x in values])


def _layout(value: Tensor, sizes: Sizes) -> tuple[list[int], list[int]]:
    shape, strides = value.shape, value.stride()
    return [int(_at(n, sizes)) for n in shape], [int(_at(n, sizes)) for n in strides]


def _real(value: fx.node.Argument, sizes: Sizes) -> Input:
    if isinstance(value, Tensor):
        shape, strides = _layout(value, sizes)
        pairs = zip(shape, strides, strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in pairs) if all(shape) else 0
        flat = torch.zeros(extent, dtype=value.dtype, device=value.device)
        if value.dtype.is_floating_point and value.dtype.itemsize > 1:
            flat.normal_(std=_SPREAD)
        return flat.as_strided(shape, strides)
    return _at(value, sizes)


def _at(value: fx.node.Argument, sizes: Sizes) -> int | float:
    found = number(value, sizes)
    if found is None:
        raise Unknown("an input has no metadata" if value is None else f"`{value}` has no example")
    return found


def traced(
    function: Callable[..., object],
    inputs: Sequence[object],
    decompositions: dict[OpOverload, Callable[..., object]] | None = None,
) -> fx.GraphModule:
    """Return the graph of a function of the tensors among its inputs, with metadata.

    Raises whatever the function raises on tensors without data.
    """
    tensors = [value for value in inputs if isinstance(value, Tensor)]

    def run(*given: Tensor) -> object:
        left = iter(given)
        return function(*[next(left) if isinstance(x, Tensor) else x for x in inputs])

    with torch.no_grad():
        found: fx.GraphModule = make_fx(
            run, decompositions, tracing_mode="fake", _allow_non_fake_inputs=True
        )(*tensors)
    return found


def concrete(module: fx.GraphModule, inputs: Sequence[Input]) -> fx.GraphModule:
    """Return a graph in Inductor's operators, of the tensors among its inputs alone."""
    return traced(module, inputs, select_decomp_table())


def optimized(graph: fx.GraphModule, inputs: Sequence[Input]) -> fx.GraphModule:
    """Return the graph that Inductor generates code for from a `concrete` one, with metadata.

    No code is generated, and nothing is run. Raises whatever optimizing it raises.
    """
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    found: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, *_: object, **__: object) -> object:
        found.append(gm)
        return make_boxed_func(gm.forward)

    copied = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    patches = dict.fromkeys(PASSES.values())
    compile_fx(copied, tensors, inner_compile=keep, config_patches=patches)  # type: ignore[arg-type]
    (result,) = found
    return result


def key_of(graph: fx.GraphModule) -> str:
    """Return text that is equal for equal graphs whose inputs have equal metadata."""
    return signature(map(metadata, graph.graph.find_nodes(op="placeholder")), graph.graph)


def compiled(graph: fx.GraphModule, inputs: Sequence[Input]) -> Compiled:
    """Compile a `concrete` graph as `torch.compile` does, without custom passes, and run it once.

    The compiler may change the graph. A call returns when the result is computed, except on a GPU
    (`gpu_of`), of which device and host are timed. Raises whatever compiling or running it raises.
    """
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    # Without the hooks, one of which may be what asks for this. Torch's trees of CUDA graphs belong
    # to the thread that imported them.
    patches = {**dict.fromkeys(PASSES.values()), "triton.cudagraphs": False}
    call = cast("Callable[..., object]", compile_fx(graph, tensors, config_patches=patches))
    is_queued = gpu_of(tensors) is None and any(tensor.device.type != "cpu" for tensor in tensors)

    def run(inputs: Sequence[Input]) -> object:
        result = call(*(value for value in inputs if isinstance(value, Tensor)))
        if is_queued:
            torch.accelerator.synchronize()
        return result

    run(inputs)
    return run


def apart(run: Callable[[], Result]) -> Result:
    """Run a function as if nothing was being traced or compiled, and return its result.

    It runs in a thread of its own, since torch's modes belong to threads, with the number of
    threads and the configuration of this one. The generators of random numbers, which all threads
    share, are afterwards as before. Raises what the function raises.
    """
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if has_cuda else []
    threads, context = torch.get_num_threads(), contextvars.copy_context()
    result: list[Result] = []
    failure: list[BaseException] = []

    def body() -> None:
        torch.set_num_threads(threads)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices):
                result.append(context.run(run))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body, name="pypm-measuring")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
