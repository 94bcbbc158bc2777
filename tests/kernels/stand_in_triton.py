"""Stand-ins for a GPU and Triton's driver: Inductor writes code for a GPU, which is interpreted."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import config, scheduler
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode, fake_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

__all__ = ["install", "interpreted", "on_a_gpu", "written"]

HOPPER = SimpleNamespace(
    major=9, minor=0, name="Hopper", multi_processor_count=132, warp_size=32,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    regs_per_multiprocessor=65536, total_memory=2**36, L2_cache_size=2**25,
)  # fmt: skip


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch and Triton find a GPU, on which nothing can run."""
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", 90, 32)
    driver = SimpleNamespace(get_current_target=lambda: target)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
    monkeypatch.setattr(scheduler, "has_triton", lambda: True)  # it may have been asked before
    for name, found in {
        "is_available": True, "device_count": 1, "current_device": 0, "_lazy_init": None,
        "_get_device_properties": HOPPER, "get_device_capability": (9, 0),
    }.items():  # fmt: skip
        given = lambda *_, found=found: found  # noqa: E731
        monkeypatch.setattr(torch.cuda, name, given, raising=False)


def on_a_gpu(function: Callable[..., Any], args: Sequence[Any]) -> fx.GraphModule:
    """The graph of a function of these tensors, but as fake ones on a GPU."""
    mode = FakeTensorMode()

    def fake(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        with mode:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")

    flat = [fake(x) for x in args]
    with V.set_fake_mode(mode):
        return make_fx(lambda *x: tree_leaves(function(*x)), tracing_mode="real")(*flat)


def written(gm: fx.GraphModule, last: Callable[[fx.Graph], object]) -> str:
    """The code that Inductor writes for a graph, with a last pass after Inductor's own."""
    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    mode = next(x.fake_mode for x in inputs if isinstance(x, fake_tensor.FakeTensor))
    with V.set_fake_mode(mode), config.patch(post_grad_custom_post_pass=last, compile_threads=1):
        post_grad_passes(gm, is_inference=True)
        lowering = GraphLowering(gm, example_inputs=inputs)
        with V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()):
            lowering.run(*inputs)
            return lowering.codegen()[0].value


# --- in the process of the interpreter -----------------------------------------------------------


class _Kernel:
    """A kernel of generated code, run as the launcher that Inductor makes of it would."""

    def __init__(self, kernel: Any, constants: Mapping[str, Any], constant: Sequence[str]) -> None:
        self.kernel, self.constants = kernel, constants
        self.names = [name for name in kernel.arg_names if name not in constant]

    def run(self, *args: Any, stream: int) -> None:
        given = dict(zip(self.names, args[:-3], strict=True))
        self.kernel[args[-3:]](**{**given, **self.constants})


def _loaded(source: str, folder: str, number: int) -> Any:
    """The module of a source, in a file that the interpreter reads it from."""
    path = Path(folder, f"kernel_{number}.py")
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def interpreted(code: str, args: Sequence[Tensor]) -> list[Tensor]:
    """What generated code returns for these tensors, in a process whose kernels are interpreted."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime import triton_heuristics

    def user_autotune(*, inductor_meta: Any, triton_meta: Any, **_: Any) -> Any:
        names = inductor_meta["declared_constexpr_names"]
        return lambda kernel: _Kernel(kernel, triton_meta["constants"], names)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        made: list[str] = []

        def kernel(self: Any, name: str, source: str, device_str: str) -> Any:
            made.append(name)
            return getattr(_loaded(source, folder, len(made)), name)

        patch.setattr(AsyncCompile, "triton", kernel)
        patch.setattr(AsyncCompile, "wait", lambda self, scope: None)
        patch.setattr(triton_heuristics, "user_autotune", user_autotune)
        patch.setattr(torch.cuda, "_DeviceGuard", lambda index: nullcontext())
        patch.setattr(torch.cuda, "set_device", lambda index: None)
        scope: dict[str, Any] = {"__name__": "generated"}
        stream = "from torch._C import .* as get_raw_stream"
        exec(re.sub(stream, "get_raw_stream = int", code), scope)
        scope["empty_strided_cuda"] = lambda sizes, strides, dtype: torch.full(
            sizes, -7, dtype=dtype
        ).as_strided(sizes, strides)
        return list(scope["call"](list(args)))
