"""Each private name of torch that PyPM uses exists, and does what PyPM relies on.

A torch for which one of these fails needs a change where the name is used.
"""

from __future__ import annotations

import ast
import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from threading import RLock
from types import MethodType
from typing import Any

import pytest
import sympy
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pypm import torch_internals as internals
from tests.floors import trees
from tests.process_group import process_group_of_one

relu: Any = torch.ops.aten.relu


class Fresh(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() + 1


def fake() -> Any:
    return internals.FakeTensorMode().from_tensor(torch.ones(2, 3))


def asks_for_a_value() -> bool:
    with pytest.raises(internals.DataDependentOutputException):
        fake().sum().item()
    error = internals.DataDependentOutputException(relu.default)
    return error.func is relu.default


def takes_the_arguments_of_fused_collectives() -> bool:
    import torch.distributed._symmetric_memory  # defines the operators

    for name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
        arguments = getattr(torch.ops.symm_mem, name).default._schema.arguments
        fallback = internals.symmetric_fallback(name)
        named = [a.name for a in arguments if a.kwarg_only]
        positional = [None] * (len(arguments) - len(named))
        inspect.signature(fallback).bind(*positional, **dict.fromkeys(named))
    return internals.symmetric_fallback("multimem_all_reduce_") is None


def has_no_known_size() -> bool:
    with pytest.raises(internals.DynamicOutputShapeException):
        fake().nonzero()
    return True


def has_values_for_writes() -> bool:
    mode = internals.FunctionalTensorMode(pre_dispatch=False)
    changed = internals.dispatch_functionalize(lambda x: x.clone().add_(1), mode)
    targets = {node.target for node in make_fx(changed)(torch.ones(2)).graph.nodes}
    return torch.ops.aten.add.Tensor in targets


def waits_on_a_gpu() -> bool:
    """Without a GPU, it is the function that a GPU would be asked by."""
    if not torch.cuda.is_available():
        return [*inspect.signature(internals.cuda_sleep).parameters] == ["cycles"]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    internals.cuda_sleep(10_000_000)
    end.record()
    is_busy = not end.query()
    end.synchronize()
    return is_busy and start.elapsed_time(end) > 1


def leaves_the_mode() -> bool:
    with internals.FakeTensorMode(), internals.unset_fake_temporarily():
        return type(torch.ones(2)) is torch.Tensor


def traces_without_autocast() -> bool:
    def product(x: torch.Tensor) -> torch.Tensor:
        with internals.DisableAutocast():
            return x @ x

    with torch.autocast("cpu", torch.bfloat16):
        return product(torch.ones(2, 2)).dtype is torch.float32


def switches_gradients() -> bool:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x + 1

    graph = make_fx(function, pre_dispatch=True)(torch.ones(2)).graph
    switches = graph.find_nodes(op="call_function", target=internals.set_grad_enabled)
    return [node.args for node in switches] == [(False,), (True,)]


def switches_inference_mode() -> bool:
    targets = []

    def backend(gm: fx.GraphModule, _: object) -> Callable[..., Any]:
        targets.extend(node.target for node in gm.graph.nodes if node.op == "call_function")
        return gm.forward

    @torch.compile(backend=backend)
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = x + 1
        return y

    function(torch.ones(2))
    return {internals.enter_inference_mode, internals.exit_inference_mode} <= {*targets}


def wraps_what_returns_nothing() -> bool:
    with torch.library._scoped_library("pypm_internals", "FRAGMENT") as library:
        library.define("written(Tensor(a!) x) -> ()")
        library.define("returned(Tensor(a!) x) -> Tensor(a!)")
        written, returned = (
            getattr(torch.ops.pypm_internals, name).default for name in ("written", "returned")
        )
        may = internals.can_auto_functionalize
        return may(written) and not may(returned) and not may(torch.ops.aten.add_.Tensor)


def decomposes_linear() -> bool:
    def called() -> set[Any]:
        x = torch.ones(2, 2)
        return {n.target for n in make_fx(torch.nn.functional.linear)(x, x).graph.nodes}

    with internals.enable_python_dispatcher():
        found = called()
    return torch.ops.aten.mm.default in found


def knows_no_schema(name: str) -> bool:
    try:
        internals.find_schema_or_throw(name, "")
    except RuntimeError:
        return True
    return False


def knows_compiling() -> bool:
    found = []

    def backend(gm: fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        found.append(internals.TracingContext.try_get() is not None)
        return gm.forward

    torch.compile(Fresh(), backend=backend)(torch.ones(3))
    return found == [True] and internals.TracingContext.try_get() is None


def registers_a_custom_operator() -> bool:
    @torch.library.custom_op("pypm_internals::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    defined = internals.OPDEFS["pypm_internals::twice"]
    assert isinstance(defined, internals.CustomOpDef)
    return defined._backward_fn is None


def adds_to_a_kernel_of_autograd() -> bool:
    """A kernel of a key goes before that of `Autograd`, and may call what torch has there."""
    seen = []

    @torch.library.custom_op("pypm_internals::thrice", mutates_args=())
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    original = internals.make_autograd_impl(thrice._opoverload, thrice)

    def kernel(keys: object, *args: object) -> object:
        seen.append(args)
        return original(keys, *args)

    thrice.register_autograd(lambda ctx, grad: grad * 3)
    thrice._lib.impl(thrice._name, kernel, "AutogradCPU", with_keyset=True)
    x = torch.ones(2, requires_grad=True)
    thrice(x).sum().backward()  # type: ignore[no-untyped-call]
    return len(seen) == 1 and x.grad is not None and x.grad.tolist() == [3, 3]


def tells_the_transform() -> bool:
    found: list[object] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        assert internals.are_functorch_transforms_active()
        found.append(internals.retrieve_current_functorch_interpreter().key())
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    torch.func.vmap(function)(torch.ones(2))
    kinds = internals.TransformType
    assert not internals.are_functorch_transforms_active()
    return found == [kinds.Grad, kinds.Vmap] and kinds.Jvp not in found


def computes(expression: sympy.Basic, sizes: dict[sympy.Symbol, int]) -> object:
    return internals.sympy_interp(internals.PythonReferenceAnalysis, sizes, expression)


def compiles_a_graph() -> bool:
    x = torch.ones(3)
    graph = make_fx(torch.neg)(x)
    call: Any = internals.compile_fx(graph, [x], config_patches={"epilogue_fusion": False})
    return bool((call(x)[0] == -1).all())


def calls_another_operator() -> bool:
    chosen = []

    def sine(node: fx.Node) -> internals.OpOverload:
        chosen.append(node.target)
        return torch.ops.aten.sin.default

    graph = make_fx(torch.neg)(torch.ones(3))
    torch._inductor.lowering  # imported
    target = torch.ops.aten.neg.default
    internals.lower_as(target, sine)
    try:
        found: Any = internals.compile_fx(graph, [torch.ones(3)])(torch.ones(3))
    finally:
        del torch._inductor.lowering.user_lowerings[target]
    return chosen == [target] and bool((found[0] == torch.ones(3).sin()).all())


def replaces_calls() -> bool:
    """Return whether a pass replaces a call by what a function is traced to, with metadata."""
    graph = make_fx(torch.neg, tracing_mode="fake")(torch.ones(3)).graph
    passes = internals.PatternMatcherPass(pass_name="pypm_internals")

    def by_sine(match: internals.Match, x: fx.Node) -> None:
        match.replace_by_example(lambda x: x.sin(), [x], run_functional_passes=False)

    called = internals.CallFunctionVarArgs(torch.ops.aten.neg.default)
    internals.register_graph_pattern(
        called, extra_check=lambda match: match.output_node() is not None, pass_dict=passes
    )(by_sine)
    passes.apply(graph)
    (node,) = (each for each in graph.nodes if each.op == "call_function")
    return node.target is torch.ops.aten.sin.default and bool(node.meta["val"].shape == (3,))


def has_a_config(config: Any, option: str) -> bool:
    before = getattr(config, option)
    with config.patch(**{option: 7}):
        inside = getattr(config, option)
    return inside == 7 and getattr(config, option) == before


def switches_autocast() -> bool:
    entered = internals.enter_autocast("cpu", torch.bfloat16, True, True)
    inside = torch.is_autocast_enabled("cpu")
    internals.exit_autocast(entered)
    return inside and not torch.is_autocast_enabled("cpu")


def tells_of_autocast() -> bool:
    with torch.autocast("cpu", torch.bfloat16):
        inside = internals.any_autocast_enabled()
    return inside and not internals.any_autocast_enabled()


def sees_what_autocast_casts() -> bool:
    seen = []

    class Watching(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **kwargs or {})

    with torch.autocast("cpu", torch.bfloat16), Watching():
        torch.ones(2, 2) @ torch.ones(2, 2)
    return torch.ops.aten._to_copy.default in seen


def exports_without_backends() -> bool:
    before = torch.backends.cudnn.enabled
    with internals.ignore_backend_decomps():
        inside = torch.backends.cudnn.enabled
    return before and not inside and torch.backends.cudnn.enabled


def is_a_pass() -> bool:
    class Own(internals.CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            return None

        def uuid(self) -> str:
            return "own"

    return Own().uuid() == "own" and Own.__mro__[1] is internals.CustomGraphPass


def registers_fma() -> bool:
    internals.register_inductor_prims()
    return isinstance(torch.ops.prims.fma, internals.OpOverloadPacket)


def runs_a_pipeline() -> bool:
    """Return whether the runtime runs its actions in order, and a stage's own weights gradients."""
    from torch.distributed.pipelining import PipelineStage

    with process_group_of_one():
        layer, x = torch.nn.Linear(2, 1, bias=False), torch.ones(2, 2, device="meta")
        stage = PipelineStage(
            layer, 0, 1, torch.device("cpu"), input_args=(x,), output_args=(x[:, :1],)
        )
        runtime: Any = internals.PipelineRuntime(  # type: ignore[no-untyped-call]
            [stage], 2, loss_fn=lambda y, t: (y * t).sum(), scale_grads=False
        )
        kinds, action = internals.Computation, internals.PipelineAction
        order = [action(0, kinds(kind), i) for i in range(2) for kind in "FIW"]
        runtime._prepare_schedule_with_comms({0: order})
        losses: list[torch.Tensor] = []
        runtime.step(torch.ones(4, 2), target=torch.ones(4, 1), losses=losses)
        ran = [str(each) for each in runtime.pipeline_order_with_comms[0]]
    in_order = [each for each in ran if each in {str(a) for a in order}]
    return in_order == [str(a) for a in order] and bool((layer.weight.grad == 4).all())


n = sympy.Symbol("n", integer=True, positive=True)

CHECKS: dict[str, Callable[[], object]] = {
    "ConstantSource": lambda: internals.ConstantSource("x").name == "x",
    "CustomGraphPass": is_a_pass,
    "DataDependentOutputException": asks_for_a_value,
    "TorchDispatchMode": sees_what_autocast_casts,
    "DisableAutocast": traces_without_autocast,
    "DispatchKey": lambda: torch.ops.aten.linear.default.has_kernel_for_dispatch_key(
        internals.DispatchKey.CompositeImplicitAutograd
    ),
    "DynamicOutputShapeException": has_no_known_size,
    "FunctionalTensorMode": has_values_for_writes,
    "dispatch_functionalize": has_values_for_writes,
    "FakeTensor": lambda: (
        isinstance(fake(), internals.FakeTensor) and fake().fake_mode and fake().constant is None
    ),
    "FakeTensorMode": lambda: (
        internals.FakeTensorMode(allow_non_fake_inputs=True).allow_non_fake_inputs
        and internals.FakeTensorMode().shape_env is None
    ),
    "FloorDiv": lambda: internals.FloorDiv(n, 4).subs(n, 9) == 2,
    "HigherOrderOperator": lambda: isinstance(
        torch.ops.higher_order.cond, internals.HigherOrderOperator
    ),
    "CallFunctionVarArgs": replaces_calls,
    "Match": replaces_calls,
    "PatternMatcherPass": replaces_calls,
    "register_graph_pattern": replaces_calls,
    "Mod": lambda: internals.Mod(n, 4).subs(n, 9) == 1,
    "CustomOpDef": registers_a_custom_operator,
    "OPDEFS": registers_a_custom_operator,
    "TransformType": tells_the_transform,
    "are_functorch_transforms_active": tells_the_transform,
    "lower_as": calls_another_operator,
    "make_autograd_impl": adds_to_a_kernel_of_autograd,
    "retrieve_current_functorch_interpreter": tells_the_transform,
    "OpOverload": lambda: isinstance(relu.default, internals.OpOverload),
    "OpOverloadPacket": lambda: isinstance(relu, internals.OpOverloadPacket),
    "Computation": lambda: [internals.Computation(kind).value for kind in "FBIW"] == [*"FBIW"],
    "PipelineAction": lambda: (
        str(internals.PipelineAction(1, internals.Computation("F"), 2)) == "1F2"
    ),
    "PipelineRuntime": runs_a_pipeline,
    "PythonReferenceAnalysis": lambda: computes(n + 1, {n: 3}) == 4,
    "TensorBase": lambda: torch.Tensor.relu.__objclass__ is internals.TensorBase,  # type: ignore[attr-defined]
    "TracingContext": knows_compiling,
    "all_schemas": lambda: "aten::relu" in {schema.name for schema in internals.all_schemas()},
    "auto_functionalized": lambda: isinstance(
        internals.auto_functionalized, internals.HigherOrderOperator
    ),
    "auto_functionalized_v2": lambda: isinstance(
        internals.auto_functionalized_v2, internals.HigherOrderOperator
    ),
    "can_auto_functionalize": wraps_what_returns_nothing,
    "COPIED_METADATA": lambda: {"recompute", "custom", "from_node"} <= {*internals.COPIED_METADATA},
    "CompilerBisector": lambda: (
        not internals.CompilerBisector.bisection_enabled
        and not internals.CompilerBisector.disable_subsystem("inductor", "joint_graph_passes")
    ),
    "PASSES": lambda: all(
        has_a_config(internals.inductor_config, option) for option in internals.PASSES.values()
    ),
    "cache_dir": lambda: isinstance(internals.cache_dir(), str),
    "compile_fx": compiles_a_graph,
    "compile_lock": lambda: isinstance(internals.compile_lock, type(RLock())),
    "counters": lambda: isinstance(internals.counters["pypm_internals"], Counter),
    "cuda_sleep": waits_on_a_gpu,
    "dtype_abbrs": lambda: internals.dtype_abbrs[torch.float32] == "f32",
    "dynamo_config": lambda: has_a_config(internals.dynamo_config, "recompile_limit"),
    "enable_python_dispatcher": decomposes_linear,
    "any_autocast_enabled": tells_of_autocast,
    "enter_autocast": switches_autocast,
    "enter_inference_mode": switches_inference_mode,
    "exit_autocast": switches_autocast,
    "exit_inference_mode": switches_inference_mode,
    "extract_tensor_metadata": lambda: (
        internals.extract_tensor_metadata(torch.ones(2, 3)).shape == (2, 3)
    ),
    "fake_tensor_log": lambda: isinstance(internals.fake_tensor_log, logging.Logger),
    "find_schema_or_throw": lambda: (
        not knows_no_schema("aten::relu") and knows_no_schema("aten::none_such")
    ),
    "FunctionSchema": lambda: isinstance(
        internals.parse_schema("own::f(Tensor! x) -> ()"), internals.FunctionSchema
    ),
    "parse_schema": lambda: (
        [a.is_write for a in internals.parse_schema("own::f(Tensor!? x, float y) -> ()").arguments]
        == [True, False]
    ),
    "get_debug_dir": lambda: isinstance(internals.get_debug_dir(), str),
    "has_kernel_for_dispatch_key": lambda: (
        internals.has_kernel_for_dispatch_key("aten::relu", "CPU")
        and not internals.has_kernel_for_dispatch_key("aten::linear", "SparseCPU")
    ),
    "ignore_backend_decomps": exports_without_backends,
    "inductor_config": lambda: (
        has_a_config(internals.inductor_config, "joint_custom_pre_pass")
        and isinstance(internals.inductor_config.trace.enabled, bool)
    ),
    "is_dynamo_imported": lambda: internals.compile_lock and internals.is_dynamo_imported(),
    "list_mode_options": lambda: internals.list_mode_options("max-autotune")["max_autotune"],
    "make_boxed_func": lambda: internals.make_boxed_func(math.pow)([2, 3]) == 8,
    "pytree": lambda: (
        internals.pytree.tree_leaves({"a": (1, 2)}) == [1, 2]
        and internals.pytree.tree_map_only(int, math.sqrt, [4, "a"]) == [2, "a"]
        and internals.pytree.tree_unflatten([1, 2], internals.pytree.tree_structure({"a": (0, 0)}))
        == {"a": (1, 2)}
    ),
    "register_inductor_prims": registers_fma,
    "select_decomp_table": lambda: torch.ops.aten.silu.default in internals.select_decomp_table(),
    "set_grad_enabled": switches_gradients,
    "symmetric_fallback": takes_the_arguments_of_fused_collectives,
    "sympy_interp": lambda: computes(internals.FloorDiv(n, 2), {n: 7}) == 3,
    "trace_structured": lambda: (
        internals.trace_structured("artifact", metadata_fn=dict, payload_fn=str) is None
    ),
    "triton_kernel_wrapper_functional": lambda: isinstance(
        internals.triton_kernel_wrapper_functional, internals.HigherOrderOperator
    ),
    "unset_fake_temporarily": leaves_the_mode,
}


@pytest.mark.parametrize("name", internals.__all__)
def test_name(name: str) -> None:
    assert CHECKS[name]()


def test_every_check_is_of_a_name() -> None:
    assert sorted(CHECKS) == sorted(internals.__all__)


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'none_such'"):
        internals.none_such  # type: ignore[attr-defined]


# --- private attributes of torch's public classes ------------------------------------------------

gm = fx.symbolic_trace(Fresh())
NODE = next(iter(gm.graph.find_nodes(op="call_method")))


@torch.library.custom_op("pypm_internals::owned", mutates_args=())
def owned(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


ATTRIBUTES: list[tuple[object, str, type]] = [
    (NODE, "_args", tuple),
    (NODE, "_erased", bool),
    (NODE, "_input_nodes", dict),
    (NODE, "_kwargs", dict),
    (NODE, "_next", fx.Node),
    (NODE, "_prev", fx.Node),
    (NODE, "_sort_key", tuple),
    (fx.Node, "_pretty_print_target", object),
    (gm.graph, "_find_nodes_lookup_table", object),
    (gm.graph._find_nodes_lookup_table, "table", dict),
    (torch.Tensor, "_make_subclass", object),
    (gm.graph, "_graph_namespace", object),
    (gm.graph, "_root", fx.Node),
    (gm, "_buffers", dict),
    (gm, "_modules", dict),
    (gm, "_non_persistent_buffers_set", set),
    (gm, "_parameters", dict),
    (gm, "_compiled_call_impl", type(None)),
    (ShapeEnv(), "_check_frozen", MethodType),
    (torch.ones(2), "_is_view", object),
    (torch.ones(2), "_has_symbolic_sizes_strides", bool),
    (torch.ones(2).untyped_storage(), "_cdata", int),
    (relu, "_overload_names", list),
    (relu, "_qualified_op_name", str),
    (relu.default, "_name", str),
    (relu.default, "_schema", torch.FunctionSchema),  # type: ignore[attr-defined]
    (torch.ops.higher_order.cond, "_name", str),
    (internals.PipelineRuntime, "_prepare_schedule_with_comms", object),
    (owned, "_lib", torch.library.Library),
    (owned, "_name", str),
    (owned, "_opoverload", internals.OpOverload),
    (owned, "_qualname", str),
]
"""Attributes by their owner, and what they are; `_backward_fn` is checked with `OPDEFS`."""


@pytest.mark.parametrize(("owner", "name", "kind"), ATTRIBUTES)
def test_attribute(owner: object, name: str, kind: type) -> None:
    assert isinstance(getattr(owner, name), kind)


@pytest.mark.parametrize("hooks", ["forward", "forward_pre", "backward", "backward_pre"])
def test_hooks_of_modules(hooks: str) -> None:
    assert getattr(gm, f"_{hooks}_hooks") == {}
    assert getattr(torch.nn.modules.module, f"_global_{hooks}_hooks") == {}


def test_every_private_attribute_is_checked() -> None:
    own = {"_backward_fn", "_exit", "_getframe", "_replace", *(name for _, name, _ in ATTRIBUTES)}
    for tree in trees().values():
        own.update(_defined(tree))
    read = {
        f"{module}: {ast.unparse(node)}"
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in own
        and not ast.unparse(node).startswith(("aten.", "torch.ops."))
    }
    assert read == set()


def _defined(tree: ast.AST) -> Iterator[str]:
    """The attributes and functions that a module of PyPM's defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store()):
                yield name
