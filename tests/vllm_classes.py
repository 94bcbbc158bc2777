"""Stand-ins for the classes of vLLM 0.33 that run passes, by the names of its modules.

They do what PyPM depends on, and are written for these tests. Their signatures are held to
the sources of vLLM by `tests/integrations/test_vllm_wheel.py`.
"""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.torch_internals import CustomGraphPass
from tests import vllm_operators

CONTEXT: list[PassContext] = []


@dataclass
class Range:
    start: int
    end: int


class PassContext:
    def __init__(self, compile_range: Range) -> None:
        self.compile_range = compile_range


def get_pass_context() -> PassContext:
    return CONTEXT[-1]


@contextmanager
def pass_context(compile_range: Range) -> Iterator[None]:
    CONTEXT.append(PassContext(compile_range))
    yield
    CONTEXT.pop()


class InductorPass(CustomGraphPass):
    def __call__(self, graph: fx.Graph) -> None:
        raise NotImplementedError

    def uuid(self) -> Any:
        return type(self).__name__

    def is_applicable_for_range(self, compile_range: Range) -> bool:
        return True


class VllmInductorPass(InductorPass):
    dump_prefix: ClassVar[int | None] = None
    dumped: ClassVar[list[str]] = []
    pass_name: str

    def __init__(self, config: object) -> None:
        raise AssertionError("a pass of PyPM needs no configuration of vLLM")

    @staticmethod
    def time_and_log(
        call_fn: Callable[[VllmInductorPass, fx.Graph], None],
    ) -> Callable[[VllmInductorPass, fx.Graph], None]:
        def wrapped(self: VllmInductorPass, graph: fx.Graph) -> None:
            self.begin()
            self.dump_graph(graph, "before")
            call_fn(self, graph)
            self.dump_graph(graph, "after")
            self.end_and_log()

        return wrapped

    def dump_graph(self, graph: fx.Graph, stage: str) -> None:
        self.dumped.append(f"post_grad.{VllmInductorPass.dump_prefix}.{self.pass_name}.{stage}")

    def begin(self) -> None: ...

    def end_and_log(self) -> None: ...


class VllmPatternMatcherPass(VllmInductorPass):
    match_table: ClassVar[defaultdict[str, int]] = defaultdict(int)


class PostGradPassManager(CustomGraphPass):
    """Runs passes in order; vLLM's lowers its own operators behind them."""

    def __init__(self) -> None:
        self.passes: list[InductorPass] = []

    def __call__(self, graph: fx.Graph) -> None:
        VllmInductorPass.dump_prefix = 0
        for each in self.passes:
            if each.is_applicable_for_range(get_pass_context().compile_range):
                each(graph)
                VllmInductorPass.dump_prefix += 1
        graph.eliminate_dead_code()
        VllmInductorPass.dump_prefix = None

    def add(self, pass_: InductorPass) -> None:
        assert isinstance(pass_, InductorPass)
        self.passes.append(pass_)

    def uuid(self) -> Any:
        return str([get_pass_context().compile_range, *[each.uuid() for each in self.passes]])


@dataclass
class CompilationConfig:
    inductor_compile_config: dict[str, Any] = field(default_factory=dict)
    inductor_passes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, name in self.inductor_passes.items():
            module, _, member = name.rpartition(".")
            found = __import__(module).__dict__[member]  # as vLLM does: the package, not the module
            assert isinstance(found, InductorPass), "vLLM would key it by its class's source"
            self.inductor_compile_config[key] = found


@dataclass
class VllmConfig:
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)

    def __post_init__(self) -> None:
        self.instance_id = "made"


MODULES: dict[str, tuple[object, ...]] = {
    "vllm.compilation.passes.inductor_pass": (
        InductorPass, PassContext, get_pass_context, pass_context,
    ),
    "vllm.compilation.passes.vllm_inductor_pass": (VllmInductorPass, VllmPatternMatcherPass),
    "vllm.compilation.passes.pass_manager": (PostGradPassManager,),
    "vllm.config.vllm": (VllmConfig,),
    "vllm.config.compilation": (CompilationConfig,),
}  # fmt: skip
"""What the stand-ins are named in vLLM."""


def modules() -> dict[str, ModuleType]:
    """The stand-ins as modules, with the packages that hold them."""
    found: dict[str, ModuleType] = {}
    for name, members in MODULES.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            whole = ".".join(parts[:end])
            found.setdefault(whole, ModuleType(whole))
        vars(found[name]).update({each.__name__: each for each in members})  # type: ignore[attr-defined]
    return found


# --- a graph, and a worker -----------------------------------------------------------------------


def quantized_norm(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """RMSNorm, and eight bits of it, as vLLM's layers call their operators."""
    y = torch.ops.vllm_ir.rms_norm(x, weight, 1e-6)
    out = torch.empty(y.shape, device=y.device, dtype=vllm_operators.TYPE)
    static = torch.ops._C.static_scaled_fp8_quant.default
    call = torch.ops.higher_order.auto_functionalized
    return call(static, result=out, input=y, scale=scale, group_shape=[-1, -1])[1]


def inputs() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    kind = torch.bfloat16
    return torch.randn(6, 64, dtype=kind), torch.randn(64, dtype=kind), torch.tensor([0.02])


def graph() -> fx.GraphModule:
    vllm_operators.register()
    return make_fx(quantized_norm, tracing_mode="symbolic")(*inputs())


def managed(options: dict[str, Any], gm: fx.GraphModule, tokens: Range) -> Any:
    """Run passes on a graph as vLLM configures them, and return the key of its manager."""
    manager = PostGradPassManager()
    manager.add(options["post_grad_custom_post_pass"])
    with pass_context(tokens):
        manager(gm.graph)
        return manager.uuid()


def worker(pickled: bytes) -> SimpleNamespace:
    """Do in another process what a worker of vLLM does with the options that it is sent."""
    sys.modules.update(modules())
    options, gm = pickle.loads(pickled), graph()
    key = managed(options, gm, Range(1, 8))
    rewrites = VllmPatternMatcherPass.match_table["pypm"]
    return SimpleNamespace(key=key, rewrites=rewrites, targets=targets(gm))


def targets(gm: fx.GraphModule) -> list[str]:
    """The operators of a graph; of a functionalized call, the one that is called."""
    calls = (n for n in gm.graph.nodes if n.op == "call_function")
    names = (str(n.args[0] if "auto_functionalized" in str(n.target) else n.target) for n in calls)
    return [name for name in names if name.startswith(("_C", "vllm"))]
