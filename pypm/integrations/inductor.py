"""Rules inside `torch.compile`: a pass for each of Inductor's hooks, and options that set it."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import torch
from torch import fx

from pypm.choice import Choice, first, tuned, worthwhile
from pypm.core.python_settings import without_collecting
from pypm.core.rules import Exactness, Rules, RuleSet, as_exactness, as_rule_set
from pypm.diagnostics import Diagnostic, PyPMError, did_you_mean
from pypm.fx import INDUCTOR, POST_GRAD, PRE_GRAD, Dialect, NearMisses, Report, rewrite_graph
from pypm.fx.explaining.explain import Asked, Explainer
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.rewriting.candidates import Candidate, check_choice
from pypm.fx.subject.order import put_in_order
from pypm.fx.subject.transaction import Transaction
from pypm.fx.values.user_input import check_callable, check_graph
from pypm.integrations.contents import Unhashable
from pypm.integrations.identity import identity
from pypm.integrations.launches import LAST, passes_of, with_launches
from pypm.sources import sources_hash
from pypm.torch_internals import (
    PASSES,
    CompilerBisector,
    CustomGraphPass,
    compile_fx,
    counters,
    dynamo_config,
    get_debug_dir,
    inductor_config,
    list_mode_options,
    make_boxed_func,
    trace_structured,
)

__all__ = ["STAGES", "Pass", "explain", "graphs", "options", "uncached"]


class Hook(NamedTuple):
    """One of Inductor's hooks for custom passes."""

    option: str
    dialect: Dialect
    skipped_by: tuple[tuple[str, str], ...]
    """The counters of cache hits for which the hook is not called."""
    subsystem: str
    """The passes among which torch's bisector looks for a wrong one."""


_AOT: Final = ("aot_autograd", "autograd_cache_hit")
_FX: Final = ("inductor", "fxgraph_cache_hit")

STAGES: Final[Mapping[str, Hook]] = {
    "pre_grad": Hook(PASSES["pre_grad"], PRE_GRAD, (_AOT,), "pre_grad_passes"),
    "joint": Hook(PASSES["joint"], INDUCTOR, (_AOT,), "joint_graph_passes"),
    "joint_post": Hook(PASSES["joint_post"], INDUCTOR, (_AOT,), "joint_graph_passes"),
    "post_grad": Hook(PASSES["post_grad"], POST_GRAD, (_AOT, _FX), "post_grad_passes"),
    "post_grad_post": Hook(PASSES["post_grad_post"], POST_GRAD, (_AOT, _FX), "post_grad_passes"),
}
"""The stages by name, in the order in which Inductor calls them."""

OnError: TypeAlias = Literal["raise", "warn"]


def options(
    rules: Rules,
    stage: str = "joint",
    mode: str | None = None,
    on_error: OnError = "raise",
    choose: Choice | None = None,
    exactness: Exactness = "reassociated",
    **options: object,
) -> dict[str, Any]:
    """Return `options` for `torch.compile` that rewrite every graph at a stage by `rules`.

    Arguments:
        rules: a rule, a rule set, or a list of those.
        stage: the hook of Inductor, a key of `STAGES`.
        mode: a mode of `torch.compile`, as "max-autotune", whose options are included.
        on_error: "raise", or "warn": a pass that fails then leaves its graph unchanged and warns,
            and compilation goes on.
        choose: what each rewrite is worth, as for `pypm.fx.rewrite`. By default it is
            `pypm.choice.worthwhile()`: rules for speed alone, as those that PyPM ships, are applied
            only where they are measured to be faster; with "max-autotune" as a mode or part of it,
            `pypm.choice.tuned()`, which times whole graphs.
        exactness: the least word of a rule that is accepted, as for `pypm.fx.rewrite`.
        options: further options of Inductor. Passes that these or Inductor's configuration set at
            the same hook are kept and run first.

    Raises PyPMError for an unknown stage or exactness or a choice that cannot be called, ValueError
    for another `on_error`, TypeError if `rules` are not rules, and RuntimeError for an unknown
    mode.

    >>> options([], stage="joint", epilogue_fusion=True)["joint_custom_pre_pass"].stage
    'joint'
    """
    return Pass(rules, stage, on_error, choose, exactness).options(mode, **options)


class Pass(CustomGraphPass):
    """A pass of Inductor that applies rules at one stage; `reports` has one report for each graph.

    Arguments: those of `options`, which makes one. Raises PyPMError for an unknown stage or
    exactness or a choice that cannot be called, ValueError for another `on_error`, and TypeError if
    `rules` are not rules.
    """

    def __init__(
        self,
        rules: Rules,
        stage: str = "joint",
        on_error: OnError = "raise",
        choose: Choice | None = None,
        exactness: Exactness = "reassociated",
    ) -> None:
        if stage not in STAGES:
            raise PyPMError(_unknown_stage(stage))
        if on_error not in ("raise", "warn"):
            raise ValueError(f"on_error is 'raise' or 'warn', not {on_error!r}")
        self.rules = as_rule_set(rules)
        self.stage = stage
        self.on_error = on_error
        self.exactness = as_exactness(exactness)
        self.choose = _default_choice(self.rules) if choose is None else choose
        self._was_chosen = choose is not None
        check_choice(self.choose)
        self.reports: list[Report] = []
        self._hits = _cache_hits(stage)
        self._has_warned = False

    def options(self, mode: str | None = None, **options: object) -> dict[str, Any]:
        """Return the options of `torch.compile` with this pass, as the function `options` does.

        Where there is a GPU, `pypm.integrations.launches.Launches` is among them. The pass gets the
        choice that the mode means, unless one was given.
        """
        if not self._was_chosen and mode is not None and mode.startswith("max-autotune"):
            self.choose = tuned()
        given = {name.replace("-", "_"): value for name, value in options.items()}
        key = STAGES[self.stage].option
        own = [*passes_of(getattr(inductor_config, key)), *passes_of(given.get(key)), self]
        passes = {key: own}
        if torch.cuda.is_available():
            others = given[LAST] if LAST in given else getattr(inductor_config, LAST)
            passes[LAST] = with_launches(own if key == LAST else passes_of(others))
        chosen = {} if mode is None else dict(list_mode_options(mode))
        found = {at: each[0] if len(each) == 1 else each for at, each in passes.items()}
        return {**chosen, **given, **found}

    def __call__(self, graph: fx.Graph) -> None:
        check_graph(graph, "pypm.integrations.inductor.Pass")
        try:
            with without_collecting():
                dialect = _dialect_of(self.stage)
                choose = self.choose
                if CompilerBisector.bisection_enabled:
                    choose = partial(_bisected, choose, STAGES[self.stage].subsystem)
                report = rewrite_graph(
                    graph, self.rules, exactness=self.exactness, dialect=dialect, choose=choose
                )
        except Exception as error:
            if self.on_error == "raise":
                raise
            warnings.warn(f"PyPM's pass changed nothing: {error}", RuntimeWarning, stacklevel=2)
            report = Report(note=f"changed nothing: {error}")
        self.reports.append(report.detached())
        _record(report, self.stage)

    def uuid(self) -> str | None:
        """Return the key of the pass in Inductor's caches: a hash of rules, choice, exactness,
        stage, PyPM, torch, and the rank of this process, which bodies of rules may read.

        Return None, which turns these caches off, and warn once if a rule reaches a value without
        content that could be compared.
        """
        try:
            rules = identity(self.rules, self.choose)
        except Unhashable as problem:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"compiled code is not kept in torch's caches: {problem}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return None
        parts = (rules, self.exactness, self.stage, sources_hash(), torch.__version__, _rank())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def report(self) -> Report:
        """Return the reports so far, merged into one; `cached` if compiled code came from a cache
        instead.

        The caches belong to the process: a hit may be that of another function compiled meanwhile.
        It is only certain that this pass was not run for it.
        """
        hits = max(0, _cache_hits(self.stage) - self._hits)
        notes = [] if self.reports else ["the pass was not called"]
        if hits:
            notes.append(
                f"{hits} cache hits since the pass was made: for code that comes from a cache "
                "the pass is not called, and what it did when the code was made is not known"
            )
        elif not self.reports:
            notes.append("nothing has been compiled with it")
        note = Report(note="; ".join(notes), cached=hits > 0)
        return Report.merge([*self.reports, note])

    def __copy__(self) -> Pass:
        return self

    def __deepcopy__(self, memo: object) -> Pass:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # Rules hold functions, which need not pickle; a cache key needs the identity alone.
        return _Unpickled, (self.uuid(),)


class _Unpickled(CustomGraphPass):
    """A pass in another process: its identity without the rules."""

    def __init__(self, identity: str | None) -> None:
        self.identity = identity

    def __call__(self, graph: fx.Graph) -> None:
        raise TypeError("an unpickled PyPM pass has no rules to run: construct it in this process")

    def uuid(self) -> str | None:
        return self.identity


def _bisected(choose: Choice, subsystem: str, candidate: Candidate) -> Appraisal | float:
    """Leave a rewrite that torch's bisector switches off, and tell it the rule's name."""
    named = f"pypm:{candidate.rule.name} at {candidate.root}"
    is_off = CompilerBisector.disable_subsystem("inductor", subsystem, lambda: named)
    return 0.0 if is_off else choose(candidate)


def _dialect_of(stage: str) -> Dialect:
    """Return the dialect of a stage in the caller's mode: Dynamo's graphs begin in it."""
    found = STAGES[stage].dialect
    return replace(found, gradients_off=found.is_differentiable and not torch.is_grad_enabled())


def _default_choice(rules: RuleSet) -> Choice:
    return first if all(rule.pays == "always" for rule in rules) else worthwhile()


def explain(
    model: Callable[..., object],
    inputs: Sequence[object],
    rules: Asked,
    stage: str = "joint",
    choose: Choice | None = None,
    **options: object,
) -> tuple[NearMisses, ...]:
    """Return near misses of rules, or of a pattern, in the graphs of a stage of `torch.compile`.

    Arguments:
        model: a module, or a function of tensors.
        inputs: its positional arguments.
        rules: rules, or a pattern.
        stage: the hook of Inductor, a key of `STAGES`.
        choose: what each rewrite is worth. By default as for `options`, but nothing is timed: only
            times that are kept say whether a rewrite is left.
        options: options of Inductor to compile under.

    Returns the `NearMisses` of each of the stage's `graphs`, in order; nothing is rewritten. If the
    graphs lack operators that the rules need, the model is compiled once more for each other stage,
    until one has them. Raises what `graphs` and `pypm.fx.explain` raise.
    """
    choose = worthwhile(seconds=0) if choose is None else choose
    found = _near_misses(model, inputs, rules, stage, choose, **options)
    if not found or not all(misses.lacking for misses in found):
        return found
    for other in STAGES:
        if other != stage and any(
            not misses.lacking
            for misses in _near_misses(model, inputs, rules, other, choose, **options)
        ):
            where = f" at stage {stage!r}; at {other!r} it has"
            return tuple(replace(misses, elsewhere=where) for misses in found)
    return found


def _near_misses(
    model: Callable[..., object],
    inputs: Sequence[object],
    rules: Asked,
    stage: str,
    choose: Choice,
    **options: object,
) -> tuple[NearMisses, ...]:
    found = graphs(model, inputs, stage, **options)
    dialect = _dialect_of(stage)
    return tuple(
        Explainer(gm.graph, rules, dialect=dialect, choose=choose).near_misses() for gm in found
    )


def graphs(
    model: Callable[..., object], inputs: Sequence[object], stage: str = "joint", **options: Any
) -> tuple[fx.GraphModule, ...]:
    """Return copies of the graphs that a stage of `torch.compile` receives, in order.

    Arguments:
        model: a module, or a function of tensors.
        inputs: its positional arguments; the compiled model is called with them once.
        stage: the hook of Inductor, a key of `STAGES`.
        options: options of Inductor to compile under.

    The model is compiled anew, without caches, and for a stage before `post_grad` without code. If
    parameters or inputs need gradients, the joint graph is that of training. Raises PyPMError for
    an unknown stage, and if the model is an exported program or cannot be called; otherwise what
    compiling or calling the model raises.
    """
    check_callable(model, "pypm.integrations.inductor.graphs")
    copying = _Copying(stage)
    patches = copying.options(**options)
    if STAGES[stage].dialect is POST_GRAD:
        compiled = torch.compile(model, options=patches)
    else:
        backend = partial(compile_fx, inner_compile=run_as_it_is, config_patches=patches)  # type: ignore[arg-type]
        compiled = torch.compile(model, backend=backend)
    with uncached(), dynamo_config.patch(recompile_limit=RECOMPILATIONS):
        compiled(*inputs)
    return tuple(copying.found)


def run_as_it_is(gm: fx.GraphModule, *_: object, **__: object) -> object:
    """Take the place of Inductor's code generator: graphs run as they are."""
    return make_boxed_func(copy.copy(gm).forward)


@contextmanager
def uncached() -> Iterator[None]:
    """Compile without caches inside the block."""
    caches: Any = torch.compiler.config
    with caches.patch(force_disable_caches=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "dynamo_pgo force disabled")
        yield


RECOMPILATIONS: Final = 1000
"""The limit of compilations of one function; each call of `graphs` is one."""


class _Copying(Pass):
    """A pass that copies graphs and changes nothing."""

    def __init__(self, stage: str) -> None:
        super().__init__([], stage)
        self.found: list[fx.GraphModule] = []

    def __call__(self, graph: fx.Graph) -> None:
        with Transaction() as transaction:
            put_in_order(graph, transaction)
        owner = graph.owning_module or torch.nn.Module()
        self.found.append(fx.GraphModule(owner, copy.deepcopy(graph)))


def _record(report: Report, stage: str) -> None:
    """Store a report where torch stores what its own passes did.

    These places are `counters["pypm"]`, the trace of `TORCH_TRACE` (as an artifact), and the folder
    of `TORCH_COMPILE_DEBUG`.
    """
    for rule in report.rules:
        refused = sum(r.count for r in report.refusals if r.rule == rule.rule)
        counts = {"matches": rule.matches, "rewrites": rule.rewrites, "refusals": refused}
        counters["pypm"].update({f"{rule.rule}.{what}": n for what, n in counts.items() if n})
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": f"pypm_{stage}_report", "encoding": "json"},
        payload_fn=report.to_json,
    )
    tracing = inductor_config.trace
    if tracing.enabled:
        folder = Path(tracing.debug_dir or get_debug_dir(), "pypm")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{len([*folder.iterdir()])}_{stage}.json"
        path.write_text(report.to_json(), encoding="utf-8")


def _rank() -> str:
    """Return the rank of this process among those of `torch.distributed`, or "" without any."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return ""
    return f"{distributed.get_rank()} of {distributed.get_world_size()}"


def _cache_hits(stage: str) -> int:
    return sum(counters[group][name] for group, name in STAGES[stage].skipped_by)


def _unknown_stage(stage: str) -> Diagnostic:
    help = f"{did_you_mean(str(stage), STAGES)} the stages are {', '.join(STAGES)}".lstrip()
    return Diagnostic(f"there is no stage `{stage}`", help=help)
