"""One random model, captured in every way, rewritten, and held against eager."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.fx_passes.joint_graph import joint_graph_passes

from pypm import RuleSet
from pypm.core.rules import Rules
from pypm.fx import Report, first
from pypm.integrations import export, inductor
from pypm.rules import attention, inference, tiles
from tests.fx.small_rules import TIDY
from tests.rules.random_models import Model, Plan, smaller
from tests.small_gpu import as_on_a_small_gpu

__all__ = ["RULES", "WAYS", "Outcome", "check", "problem_of", "shrink"]

RULES: Final = RuleSet((*inference.RULES, *TIDY))
ON_GPUS: Final = RuleSet(
    (*attention.RULES, *(replace(rule, pays="always") for rule in tiles.RULES), *RULES)
)
"""Every pack whose rules compute what eager does, bit for bit or rounded otherwise."""
ATTENTION: Final = {rule.name for rule in attention.RULES}
FUSED: Final = ("_scaled_dot_product", "aten.scaled_dot_product_attention")
TOLERANCES: Final = {"float64": 1e-9, "rounded": 1e-4, "float32": 1e-4, "bfloat16": 5e-2}
"""Of an output, relative to its largest number. Of fewer bits four times eager's own error, too."""

Outputs = Sequence[Tensor]
Arguments = tuple[Tensor, ...]


@dataclass
class Outcome:
    """Counts, what PyPM did wrong, and what Inductor's own patterns did."""

    shares: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    inductor: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.shares += other.shares
        self.problems += other.problems
        self.inductor += other.inductor


@dataclass(frozen=True)
class Expected:
    """What eager computes, exactly and as the model does."""

    exact: Outputs
    error: float
    """Of the model itself in its own type."""
    tolerance: float

    def problem(self, results: Outputs) -> str:
        """What is wrong with results, or nothing."""
        error = distance(results, self.exact)
        allowed = self.tolerance + 4 * self.error
        return "" if error <= allowed else f"error {error:.1e}, allowed are {allowed:.1e}"


def distance(results: Outputs, expected: Outputs) -> float:
    """The largest difference, of each output relative to its largest number; inf if not finite."""
    largest = 0.0
    for ours, theirs in zip(results, expected, strict=True):
        if ours.shape != theirs.shape or not bool(ours.isfinite().all()):
            return float("inf")
        size = theirs.abs().max().item() or 1.0
        largest = max(largest, (ours.double() - theirs).abs().max().item() / size)
    return largest


def expected_of(plan: Plan) -> Expected | None:
    """None where eager's results are not finite."""
    args = plan.inputs()
    found = Model(plan)(*args)
    wide = [x.double() if x.is_floating_point() else x for x in args]
    exact = found if plan.dtype == torch.float64 else Model(plan).double()(*wide)
    if not all(bool(x.isfinite().all()) for x in (*found, *exact)):
        return None
    kind = str(plan.dtype).removeprefix("torch.")
    rounded = "rounded" if plan.rounds and kind == "float64" else kind
    return Expected(exact, distance(found, exact), TOLERANCES[rounded])


# --- ways to capture -----------------------------------------------------------------------------


def exported(model: nn.Module, args: Arguments, rules: Rules) -> tuple[Report, Outputs]:
    """Whole operators, by `torch.export`."""
    program = torch.export.export(model, args)
    report = export.rewrite(program, rules)
    return report, program.module()(*args)


def core(model: nn.Module, args: Arguments, rules: Rules) -> tuple[Report, Outputs]:
    """Core operators, by the decompositions of an exported program."""
    program = torch.export.export(model, args).run_decompositions()
    report = export.rewrite(program, rules)
    return report, program.module()(*args)


def joint(model: nn.Module, args: Arguments, rules: Rules) -> tuple[Report, Outputs]:
    """At Inductor's joint hook."""
    return hooked(model, args, rules)[:2]


WAYS: Final[dict[str, Callable[[nn.Module, Arguments, Rules], tuple[Report, Outputs]]]] = {
    "export": exported,
    "core": core,
    "joint": joint,
}


class _Alone(CustomGraphPass):
    """Lets Inductor's own joint passes run on a copy of the graph, and counts attention there."""

    def __init__(self) -> None:
        self.module: fx.GraphModule | None = None
        self.matches = 0
        self.problem = ""

    def __call__(self, graph: fx.Graph) -> None:
        assert graph.owning_module is not None
        module = fx.GraphModule(graph.owning_module, copy.deepcopy(graph))
        try:
            with torch._inductor.config.patch(
                joint_custom_pre_pass=None, joint_custom_post_pass=None, pattern_matcher=True
            ):
                joint_graph_passes(module)
        except Exception as problem:
            self.problem = _words(problem)
            return
        self.module = module
        self.matches = sum(
            node.op == "call_function" and any(name in str(node.target) for name in FUSED)
            for node in module.graph.nodes
        )

    def uuid(self) -> None:
        return None


def hooked(
    model: nn.Module, args: Arguments, rules: Rules, alone: _Alone | None = None
) -> tuple[Report, Outputs, Outputs | str]:
    """What PyPM made of the graph computes; and what Inductor's patterns made of it, or a crash."""
    torch._dynamo.reset()
    rewriting = inductor.Pass(rules, "joint", choose=first)
    passes = [rewriting] if alone is None else [alone, rewriting]
    patches = {"joint_custom_pre_pass": passes, "pattern_matcher": False}
    theirs: fx.GraphModule | None = None

    def run_as_it_is(module: fx.GraphModule, *_: Any, **__: Any) -> Any:
        ours = copy.copy(module)

        def run(*args: Any) -> Any:
            return (theirs or ours)(*args)

        return make_boxed_func(run)

    def backend(module: fx.GraphModule, examples: list[Any]) -> Any:
        with torch._functorch.config.patch(enable_autograd_cache=False):
            return compile_fx(
                module, examples, inner_compile=run_as_it_is,
                config_patches={**patches, "fx_graph_cache": False},
            )  # fmt: skip

    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        results = compiled(*args)
        if alone is None or alone.module is None:
            return rewriting.reports[-1], results, alone.problem if alone else ""
        theirs = alone.module
        try:
            return rewriting.reports[-1], results, compiled(*args)
        except Exception as problem:
            return rewriting.reports[-1], results, _words(problem)


# --- checks --------------------------------------------------------------------------------------


def check(plan: Plan, ways: Sequence[str] = tuple(WAYS), *, beside: bool = False) -> Outcome:
    """All ways of one plan; at the joint hook, if wanted, Inductor's attention patterns beside."""
    found = Outcome()
    with _quiet():
        expected = expected_of(plan)
        if expected is None:
            found.shares["models that are not finite"] += 1
            return found
        found.shares["models"] += 1
        for way in ways:
            alone = _Alone() if beside and way == "joint" else None
            _check_way(plan, way, expected, found, alone)
    return found


def _check_way(
    plan: Plan, way: str, expected: Expected, found: Outcome, alone: _Alone | None
) -> None:
    model, args = Model(plan), plan.inputs()
    rules = ON_GPUS if plan.on_gpu else RULES
    try:
        with as_on_a_small_gpu() if plan.on_gpu else nullcontext():
            if alone is None:
                report, results = WAYS[way](model, args, rules)
            else:
                report, results, theirs = hooked(model, args, rules, alone)
                _check_inductor(expected, found, alone, theirs)
    except Exception as problem:
        if _captures(plan, way):
            found.problems.append(f"{way}: {_words(problem)}")
        else:
            found.shares[f"not captured by {way}"] += 1
        return
    fused = sum(record.rule in ATTENTION for record in report.rewrites)
    found.shares["graphs"] += 1
    found.shares["graphs with a rewrite"] += len(report) > 0
    found.shares["rewrites"] += len(report)
    found.shares["attention layers"] += plan.sites
    found.shares["attention fused"] += fused
    found.shares[f"attention fused, {way}"] += fused
    wrong = expected.problem(results) or ("not checked" if report.unchecked else "")
    if wrong:
        found.problems.append(f"{way}: {wrong}")


def _captures(plan: Plan, way: str) -> bool:
    """Whether it works without rules: what fails then is torch's."""
    try:
        WAYS[way](Model(plan), plan.inputs(), [])
    except Exception:
        return False
    return True


def _check_inductor(
    expected: Expected, found: Outcome, alone: _Alone, results: Outputs | str
) -> None:
    found.shares["Inductor: attention fused"] += alone.matches
    if isinstance(results, str):
        found.shares["Inductor: crashes"] += 1
        found.inductor.append(results)
    elif wrong := expected.problem(results):
        found.shares["Inductor: wrong outputs"] += 1
        found.inductor.append(wrong)


def problem_of(plan: Plan, *, inductors: bool = False) -> str:
    """The first problem of a plan, PyPM's or Inductor's; none where it is no model at all."""
    try:
        found = check(plan, ["joint"] if inductors else list(WAYS), beside=inductors)
    except Exception:
        return ""
    return next(iter(found.inductor if inductors else found.problems), "")


def shrink(plan: Plan, wrong: Callable[[Plan], str]) -> Plan:
    """A plan without the layers and choices that what is wrong can do without."""
    if plan.dtype != torch.float64 and wrong(wide := replace(plan, dtype=torch.float64)):
        plan = wide
    while True:
        better = next((one for one in smaller(plan) if wrong(one)), None)
        if better is None:
            return plan
        plan = better


def _words(problem: Exception) -> str:
    lines = str(problem).strip().splitlines() or [""]
    return f"{type(problem).__name__}: {lines[0]}"


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
