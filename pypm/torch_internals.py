"""The private names of torch that PyPM uses, each with its purpose: no other module imports any.

`tests/test_torch_internals.py` checks that each of them does what PyPM relies on. Names of
`torch._dynamo`, `torch._inductor`, `torch.export` and `torch.distributed.pipelining`, which take
seconds to import, are imported when they are first asked for.
"""

from __future__ import annotations

import sys
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final

# Reads the schema of an operator that torch need not have.
from torch._C import (
    DispatchKey,  # names the kernel that an operator has where it is composed of others
    FunctionSchema,
    TensorBase,  # owns the methods of `torch.Tensor` that are written in C++
    parse_schema,
)

# Tells whether a transform of `torch.func` is under way.
from torch._C import _are_functorch_transforms_active as are_functorch_transforms_active

# Traces a body without autocast, whatever the caller's mode is.
from torch._C import _DisableAutocast as DisableAutocast

# Tells overloads that can be called from those for TorchScript alone.
from torch._C import _dispatch_find_schema_or_throw as find_schema_or_throw

# Tells whether an operator has a formula for its gradient.
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel_for_dispatch_key

# Tells whether autocast is on for any device.
from torch._C import _is_any_autocast_enabled as any_autocast_enabled

# Lists the names of a library's operators.
from torch._C import _jit_get_all_schemas as all_schemas

# Switches gradients on or off in a graph.
from torch._C import _set_grad_enabled as set_grad_enabled

# Names the transforms of `torch.func`.
from torch._C._functorch import TransformType

# Decomposes composite operators in a trace, as `torch.compile` does.
from torch._dispatch.python import enable_python_dispatcher

# Tells the transform of `torch.func` that is under way.
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

# Tells whether `torch.compile` is compiling.
from torch._guards import TracingContext

# Operators that wrap an operator with writes as one without; the effects are the wrapped one's.
# Whether they can wrap an operator.
from torch._higher_order_ops.auto_functionalize import (
    auto_functionalized,
    auto_functionalized_v2,
    can_auto_functionalize,
)

# Calls a Triton kernel of the user's on copies of what it writes to: it is pure.
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

# Computes a custom operator of Python's and records it for its gradient, as torch does.
from torch._library.autograd import make_autograd_impl

# The custom operators of Python's; tells whether one has a formula for its gradient.
from torch._library.custom_ops import OPDEFS, CustomOpDef

# Writes a report where `TORCH_TRACE` asks for it.
from torch._logging._internal import trace_structured

# The classes of call targets.
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

# Fake tensors, their mode, and the way out of it to compute with real ones; the error where a
# trace asks for the value of a tensor.
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)

# Warns of calls that fail on fake tensors.
from torch._subclasses.fake_tensor import log as fake_tensor_log

# Values in place of writes, in the trace of a function.
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize

# Switch autocast on and off in a graph.
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.amp.autocast_mode import _exit_autocast as exit_autocast

# Enter and leave inference mode in a graph.
from torch.autograd.grad_mode import _enter_inference_mode as enter_inference_mode
from torch.autograd.grad_mode import _exit_inference_mode as exit_inference_mode

# Lets a GPU wait for some cycles, so that its queue fills.
from torch.cuda import _sleep as cuda_sleep

# Makes the metadata `tensor_meta`.
from torch.fx.passes.shape_prop import _extract_tensor_metadata as extract_tensor_metadata

# The metadata that torch copies from a node to what takes its place, as which values of a
# checkpoint are computed anew.
from torch.fx.proxy import _COPY_META_FIELDS as COPIED_METADATA

# Arguments and results of models as lists of tensors.
from torch.utils import _pytree as pytree

# Names a data type in a few letters.
from torch.utils._dtype_abbrs import dtype_abbrs

# Sees every operator that a computation calls.
from torch.utils._python_dispatch import TorchDispatchMode

# The integer division and remainder of symbolic sizes.
from torch.utils._sympy.functions import FloorDiv, Mod

# Computes a symbolic size from the sizes of a trace.
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

__all__ = [
    "COPIED_METADATA",
    "OPDEFS",
    "PASSES",
    "CallFunctionVarArgs",
    "CompilerBisector",
    "Computation",
    "ConstantSource",
    "CustomGraphPass",
    "CustomOpDef",
    "DataDependentOutputException",
    "DisableAutocast",
    "DispatchKey",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "FloorDiv",
    "FunctionSchema",
    "FunctionalTensorMode",
    "HigherOrderOperator",
    "Match",
    "Mod",
    "OpOverload",
    "OpOverloadPacket",
    "PatternMatcherPass",
    "PipelineAction",
    "PipelineRuntime",
    "PythonReferenceAnalysis",
    "TensorBase",
    "TorchDispatchMode",
    "TracingContext",
    "TransformType",
    "all_schemas",
    "any_autocast_enabled",
    "are_functorch_transforms_active",
    "auto_functionalized",
    "auto_functionalized_v2",
    "cache_dir",
    "can_auto_functionalize",
    "compile_fx",
    "compile_lock",
    "counters",
    "cuda_sleep",
    "dispatch_functionalize",
    "dtype_abbrs",
    "dynamo_config",
    "enable_python_dispatcher",
    "enter_autocast",
    "enter_inference_mode",
    "exit_autocast",
    "exit_inference_mode",
    "extract_tensor_metadata",
    "fake_tensor_log",
    "find_schema_or_throw",
    "get_debug_dir",
    "has_kernel_for_dispatch_key",
    "ignore_backend_decomps",
    "inductor_config",
    "is_dynamo_imported",
    "list_mode_options",
    "lower_as",
    "make_autograd_impl",
    "make_boxed_func",
    "parse_schema",
    "pytree",
    "register_graph_pattern",
    "register_inductor_prims",
    "retrieve_current_functorch_interpreter",
    "select_decomp_table",
    "set_grad_enabled",
    "symmetric_fallback",
    "sympy_interp",
    "trace_structured",
    "triton_kernel_wrapper_functional",
    "unset_fake_temporarily",
]

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    # The limit of recompilations, which taking the graphs of a model may exceed.
    from torch._dynamo import config as dynamo_config

    # Held by `torch.compile` while it compiles.
    from torch._dynamo.convert_frame import compile_lock

    # Says where a size of an input comes from, when verification makes symbolic inputs.
    from torch._dynamo.source import ConstantSource

    # Torch's counters of what its passes did, and the folder `TORCH_COMPILE_DEBUG` asks for.
    from torch._dynamo.utils import counters, get_debug_dir

    # Makes what Inductor calls in place of the code that it did not generate.
    from torch._functorch._aot_autograd.utils import make_boxed_func

    # The passes that are configured already, which options with a pass of PyPM's must keep.
    from torch._inductor import config as inductor_config

    # The options that a mode of `torch.compile` stands for.
    from torch._inductor import list_mode_options

    # Compiles a graph as `torch.compile` does, to time it.
    from torch._inductor.compile_fx import compile_fx

    # Switches passes off one by one, to find the one that makes a result wrong.
    from torch._inductor.compiler_bisector import CompilerBisector

    # The class of passes that Inductor's caches know how to tell apart.
    from torch._inductor.custom_graph_pass import CustomGraphPass

    # The decompositions of Inductor, in which bodies for its graphs are traced.
    from torch._inductor.decomposition import select_decomp_table

    # Replaces calls in a graph of Inductor's by what a function is traced to, with metadata.
    from torch._inductor.pattern_matcher import (
        CallFunctionVarArgs,
        Match,
        PatternMatcherPass,
        register_graph_pattern,
    )

    # The folder of Inductor's caches, in which measured times are kept.
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    # Runs a list of actions on each rank of a pipeline; an action is a stage's computation or
    # transfer for one microbatch.
    from torch.distributed.pipelining.schedules import _Action as PipelineAction
    from torch.distributed.pipelining.schedules import _ComputationType as Computation
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime as PipelineRuntime

    # The settings in which torch traces a program that it exports.
    from torch.export._trace import _ignore_backend_decomps as ignore_backend_decomps
else:
    _LATE: Final = {
        "CallFunctionVarArgs": "torch._inductor.pattern_matcher.CallFunctionVarArgs",
        "CompilerBisector": "torch._inductor.compiler_bisector.CompilerBisector",
        "Computation": "torch.distributed.pipelining.schedules._ComputationType",
        "ConstantSource": "torch._dynamo.source.ConstantSource",
        "CustomGraphPass": "torch._inductor.custom_graph_pass.CustomGraphPass",
        "Match": "torch._inductor.pattern_matcher.Match",
        "PatternMatcherPass": "torch._inductor.pattern_matcher.PatternMatcherPass",
        "PipelineAction": "torch.distributed.pipelining.schedules._Action",
        "PipelineRuntime": "torch.distributed.pipelining.schedules._PipelineScheduleRuntime",
        "cache_dir": "torch._inductor.runtime.cache_dir_utils.cache_dir",
        "compile_fx": "torch._inductor.compile_fx.compile_fx",
        "compile_lock": "torch._dynamo.convert_frame.compile_lock",
        "counters": "torch._dynamo.utils.counters",
        "dynamo_config": "torch._dynamo.config",
        "get_debug_dir": "torch._dynamo.utils.get_debug_dir",
        "ignore_backend_decomps": "torch.export._trace._ignore_backend_decomps",
        "inductor_config": "torch._inductor.config",
        "list_mode_options": "torch._inductor.list_mode_options",
        "make_boxed_func": "torch._functorch._aot_autograd.utils.make_boxed_func",
        "register_graph_pattern": "torch._inductor.pattern_matcher.register_graph_pattern",
        "select_decomp_table": "torch._inductor.decomposition.select_decomp_table",
    }

    def __getattr__(name: str) -> object:
        """Import a name at its first use. Raises AttributeError for any other name."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = resolve_name(_LATE[name])
        return value


PASSES: Final = {
    "pre_grad": "pre_grad_custom_pass",
    "joint": "joint_custom_pre_pass",
    "joint_post": "joint_custom_post_pass",
    "post_grad": "post_grad_custom_pre_pass",
    "post_grad_post": "post_grad_custom_post_pass",
}
"""The options of Inductor that hold custom passes, by the stage that they run at, in order."""


def is_dynamo_imported() -> bool:
    """Return whether something has imported `torch.compile`, so that it may be compiling."""
    return "torch._dynamo.convert_frame" in sys.modules


def lower_as(target: OpOverload, chosen: Callable[[fx.Node], OpOverload]) -> None:
    """Let Inductor, if it is imported, call another operator of the same schema in place of
    `target`: the one that a function of the node returns.

    Compiling with `cpp_wrapper=True` then raises NotImplementedError where the result is a list of
    one tensor: the process would end.
    """
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is None or not hasattr(lowering, "user_lowerings"):
        return

    def lowered(*args: fx.node.Argument, **kwargs: fx.node.Argument) -> object:
        graph = sys.modules["torch._inductor.virtualized"].V.graph
        node = graph.current_node
        result = node.meta.get("val")
        if (
            graph.cpp_wrapper
            and not graph.aot_mode
            and isinstance(result, list)
            and len(result) == 1
        ):
            crash = "torch's code crashes (https://github.com/pytorch/pytorch/pull/190551)"
            raise NotImplementedError(f"`{target}` returns a list of one tensor, for which {crash}")
        return lowering.fallback_handler(chosen(node), add_to_fallback_set=False)(*args, **kwargs)

    lowering.user_lowerings[target] = lowered


def symmetric_fallback(name: str) -> Callable[..., object] | None:
    """Return the function of torch that computes by functional collectives what an operator of
    `symm_mem` does, with its arguments in their order; None if there is none.
    """
    module = sys.modules.get("torch.distributed._symmetric_memory")
    return getattr(module, f"_{name}_fallback", None)


def register_inductor_prims() -> None:
    """Register the operators of `torch.ops.prims` that Inductor defines, such as `prims.fma`."""
    resolve_name("torch._inductor.inductor_prims")
