"""Functions and models as the graphs that rules meet: exported, at Inductor's hooks, traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.compile_fx import compile_fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm.core.rules import Rules
from pypm.fx import INDUCTOR, PROGRAM, Choice, Report, first, rewrite
from pypm.integrations import export, inductor

Result = tuple[Report, Any]
"""What the rules did, and what the rewritten graph computes."""


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def fired(report: Report) -> list[str]:
    """The names of the rules that were applied, in the order of the report."""
    return [record.rule for record in report.rewrites]


def exported(
    function: Callable[..., Any], args: Sequence[Tensor], rules: Rules, **options: Any
) -> Result:
    """Whole operators, by `torch.export`."""
    program = torch.export.export(_Module(function).eval(), tuple(args))
    report = export.rewrite(program, rules, **options)
    program.graph.lint()
    return report, program.module()(*args)


def whole_operators(function: Callable[..., Any], args: Sequence[Tensor]) -> fx.GraphModule:
    """What `torch.export` captures, less its assertions on casts, in less than half the time."""
    return make_fx(function, tracing_mode="fake", pre_dispatch=True)(*args)


def as_exported(
    function: Callable[..., Any], args: Sequence[Tensor], rules: Rules, **options: Any
) -> Result:
    """Whole operators, rewritten as an exported program is."""
    module = whole_operators(function, args)
    report = rewrite(module, rules, **{"dialect": PROGRAM, **options})
    module.graph.lint()
    return report, module(*args)


def traced(
    function: Callable[..., Any], args: Sequence[Tensor], rules: Rules, **options: Any
) -> Result:
    """Torch's functions and methods, by `symbolic_trace`, with metadata."""
    module = fx.symbolic_trace(function)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(value) for value in args]
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)
    report = rewrite(module, rules, **options)
    module.graph.lint()
    return report, module(*args)


def decomposed(
    function: Callable[..., Any], args: Sequence[Tensor], rules: Rules, **options: Any
) -> Result:
    """By Inductor's decompositions and without writes, as at its hooks, but without Dynamo."""
    module = make_fx(functionalize(function), select_decomp_table(), tracing_mode="fake")(*args)
    module.graph.eliminate_dead_code()
    report = rewrite(module, rules, dialect=INDUCTOR, **options)
    module.graph.lint()
    return report, module(*args)


def hooked(
    function: Callable[..., Any], args: Sequence[Any], rules: Rules, stage: str = "joint"
) -> Result:
    """At one of Inductor's hooks; the result is run, not compiled.

    Dynamo may start over, and then the hook sees the graph again: the last report counts.
    """
    compiled, rewritten = compile_to_graphs(function, rules, stage)
    result = compiled(*args)
    return rewritten.reports[-1], result


WAYS = {"export": as_exported, "symbolic_trace": traced, "decomposed": decomposed}
HOOKS = ("pre_grad", "joint")
WAYS_AND_HOOKS = {**WAYS, **{stage: partial(hooked, stage=stage) for stage in HOOKS}}


def compile_to_graphs(
    function: Callable[..., Any],
    rules: Rules,
    stage: str = "joint",
    *,
    dynamic: bool | None = False,
    choose: Choice = first,
) -> tuple[Callable[..., Any], inductor.Pass]:
    """`torch.compile` up to the code generator, in whose place the graphs are run as they are.

    Inductor's own rewrites are off, so that what is seen is PyPM's.
    """
    torch._dynamo.reset()
    rewritten = inductor.Pass(rules, stage, choose=choose)
    patches = {**rewritten.options(), "pattern_matcher": False, "fx_graph_cache": False}

    def backend(module: fx.GraphModule, examples: list[Any]) -> Any:
        with torch._functorch.config.patch(enable_autograd_cache=False):
            run = inductor.run_as_it_is
            return compile_fx(module, examples, inner_compile=run, config_patches=patches)

    return torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic), rewritten
