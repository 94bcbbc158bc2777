"""Rules inside `torch.compile`: a pass for each of Inductor's hooks, and options that set it."""

from __future__ import annotations

import copy
import difflib
import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import torch
from torch import fx
from torch._dynamo.utils import counters, get_debug_dir
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._logging._internal import trace_structured

import pypm
from pypm.core.rules import Rules, as_rule_set
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx import INDUCTOR, POST_GRAD, PRE_GRAD, Dialect, NearMisses, Report, rewrite_graph
from pypm.fx.explaining.explain import Asked, Explainer
from pypm.fx.subject.order import put_in_order
from pypm.fx.subject.transaction import Transaction
from pypm.fx.values.user_input import check_callable, check_graph
from pypm.integrations.identity import Unhashable, identity

__all__ = ["STAGES", "Pass", "explain", "graphs", "options", "uncached"]


class Stage(NamedTuple):
    """One of Inductor's hooks."""

    option: str
    dialect: Dialect
    skipped_by: tuple[tuple[str, str], ...]
    """The counters of cache hits at which the hook is not called."""


_AOT: Final = ("aot_autograd", "autograd_cache_hit")
_FX: Final = ("inductor", "fxgraph_cache_hit")

STAGES: Final[Mapping[str, Stage]] = {
    "pre_grad": Stage("pre_grad_custom_pass", PRE_GRAD, (_AOT,)),
    "joint": Stage("joint_custom_pre_pass", INDUCTOR, (_AOT,)),
    "joint_post": Stage("joint_custom_post_pass", INDUCTOR, (_AOT,)),
    "post_grad": Stage("post_grad_custom_pre_pass", POST_GRAD, (_AOT, _FX)),
    "post_grad_post": Stage("post_grad_custom_post_pass", POST_GRAD, (_AOT, _FX)),
}
"""By name, from the first that Inductor calls to the last."""

OnError: TypeAlias = Literal["raise", "warn"]


def options(
    rules: Rules,
    stage: str = "joint",
    mode: str | None = None,
    on_error: OnError = "raise",
    **options: Any,
) -> dict[str, Any]:
    """The `options` of `torch.compile` under which `rules` rewrite every graph at a stage.

    Holds the options of a `mode` and `options`, and keeps passes that these or Inductor's
    configuration set at the same hook: they run first. With `on_error="warn"` a pass that fails
    leaves its graph as it was, warns, and compilation goes on.

    >>> sorted(options([], stage="joint", epilogue_fusion=True))
    ['epilogue_fusion', 'joint_custom_pre_pass']
    """
    return Pass(rules, stage, on_error).options(mode, **options)


class Pass(CustomGraphPass):
    """Rules at one stage of Inductor, with a `reports` entry for each graph they were run on."""

    def __init__(self, rules: Rules, stage: str = "joint", on_error: OnError = "raise") -> None:
        if stage not in STAGES:
            raise PyPMError(_unknown_stage(stage))
        if on_error not in ("raise", "warn"):
            raise ValueError(f"on_error is 'raise' or 'warn', not {on_error!r}")
        self.rules = as_rule_set(rules)
        self.stage = stage
        self.on_error = on_error
        self.reports: list[Report] = []
        self._hits = _cache_hits(stage)
        self._has_warned = False

    def options(self, mode: str | None = None, **options: Any) -> dict[str, Any]:
        """As the function of this name."""
        given = {name.replace("-", "_"): value for name, value in options.items()}
        key = STAGES[self.stage].option
        passes = [*_passes(_configured(key)), *_passes(given.get(key)), self]
        chosen = {} if mode is None else dict(torch._inductor.list_mode_options(mode))
        return {**chosen, **given, key: passes[0] if len(passes) == 1 else passes}

    def __call__(self, graph: fx.Graph) -> None:
        check_graph(graph, "pypm.integrations.inductor.Pass")
        try:
            report = rewrite_graph(graph, self.rules, dialect=STAGES[self.stage].dialect)
        except Exception as error:
            if self.on_error == "raise":
                raise
            warnings.warn(f"PyPM's pass changed nothing: {error}", RuntimeWarning, stacklevel=2)
            report = Report(note=f"changed nothing: {error}")
        self.reports.append(report.detached())
        _record(report, self.stage)

    def uuid(self) -> str | None:
        """Equal for equal rules, kernels, PyPM and torch: the key of Inductor's caches.

        None, which turns these caches off, with a warning, where a rule can reach what has no
        content that could be compared.
        """
        try:
            rules = identity(self.rules)
        except Unhashable as problem:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"compiled code is not kept in torch's caches: {problem}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return None
        parts = (rules, self.stage, sources_hash(), torch.__version__)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def report(self) -> Report:
        """The reports so far as one; `cached` where compiled code came from a cache instead.

        The caches are the process's: a hit may have been that of a function compiled beside
        this one, so what is known is only that this pass was not run for it.
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

    def __reduce__(self) -> tuple[Any, ...]:
        # Rules hold functions, which need not pickle; a cache key needs the identity alone.
        return _Unpickled, (self.uuid(),)


class _Unpickled(CustomGraphPass):
    """What a pass is in another process: its identity, without the rules."""

    def __init__(self, identity: str | None) -> None:
        self.identity = identity

    def __call__(self, graph: fx.Graph) -> None:
        raise TypeError("a PyPM pass cannot be run where it was unpickled: make it there")

    def uuid(self) -> str | None:
        return self.identity


def explain(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    rules: Asked,
    stage: str = "joint",
    **options: Any,
) -> tuple[NearMisses, ...]:
    """Why rules, or a pattern, do not match in the graphs that a stage of `torch.compile` gets.

    Gives the near misses of each of the `graphs` of that stage, in order; nothing is rewritten.
    Where the graphs lack operators that the rules need, the model is compiled once more for each
    other stage, until one is found that has them.
    """
    found = _near_misses(model, inputs, rules, stage, **options)
    if not found or not all(misses.lacking for misses in found):
        return found
    for other in STAGES:
        if other != stage and any(
            not misses.lacking for misses in _near_misses(model, inputs, rules, other, **options)
        ):
            where = f" at stage {stage!r}; at {other!r} it has"
            return tuple(replace(misses, elsewhere=where) for misses in found)
    return found


def _near_misses(
    model: Callable[..., Any], inputs: Sequence[Any], rules: Asked, stage: str, **options: Any
) -> tuple[NearMisses, ...]:
    dialect = STAGES[stage].dialect
    found = graphs(model, inputs, stage, **options)
    return tuple(Explainer(gm.graph, rules, dialect=dialect).near_misses() for gm in found)


def graphs(
    model: Callable[..., Any], inputs: Sequence[Any], stage: str = "joint", **options: Any
) -> tuple[fx.GraphModule, ...]:
    """Copies of the graphs that a stage of `torch.compile` gets, to look at and to match in.

    Compiles the model anew under `options`, and calls it with the inputs. They are in the order in
    which the stage got them; where parameters or inputs need gradients, the joint graph is that of
    training.
    Raises PyPMError where the model is an exported program, which cannot be called.
    """
    check_callable(model, "pypm.integrations.inductor.graphs")
    copying = _Copying(stage)
    with uncached(), torch._dynamo.config.patch(recompile_limit=RECOMPILATIONS):
        torch.compile(model, options=copying.options(**options))(*inputs)
    return tuple(copying.found)


@contextmanager
def uncached() -> Iterator[None]:
    """Whatever is compiled is compiled anew."""
    caches: Any = torch.compiler.config
    with caches.patch(force_disable_caches=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "dynamo_pgo force disabled")
        yield


RECOMPILATIONS: Final = 1000
"""Compilations of one function, each call of `graphs` being one."""


class _Copying(Pass):
    """A pass that copies graphs, and does nothing."""

    def __init__(self, stage: str) -> None:
        super().__init__([], stage)
        self.found: list[fx.GraphModule] = []

    def __call__(self, graph: fx.Graph) -> None:
        with Transaction() as transaction:
            put_in_order(graph, transaction)
        owner = graph.owning_module or torch.nn.Module()
        self.found.append(fx.GraphModule(owner, copy.deepcopy(graph)))


def _record(report: Report, stage: str) -> None:
    """Keep what a pass did where torch keeps what its own passes do.

    That is `counters["pypm"]`, the trace that `TORCH_TRACE` asks for (as an artifact), and the
    folder that `TORCH_COMPILE_DEBUG` asks for.
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
    tracing = _configured("trace")
    if tracing.enabled:
        folder = Path(tracing.debug_dir or get_debug_dir(), "pypm")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{len([*folder.iterdir()])}_{stage}.json"
        path.write_text(report.to_json(), encoding="utf-8")


def _passes(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _configured(option: str) -> Any:
    from torch._inductor import config

    return getattr(config, option)


def _cache_hits(stage: str) -> int:
    return sum(counters[group][name] for group, name in STAGES[stage].skipped_by)


@cache
def sources_hash() -> str:
    """A hash of PyPM's own sources, kernels and rules included."""
    root = Path(pypm.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".lark")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _unknown_stage(stage: str) -> Diagnostic:
    close = difflib.get_close_matches(str(stage), STAGES, n=1, cutoff=0.5)
    suggestion = f"did you mean `{close[0]}`? " if close else ""
    return Diagnostic(
        f"there is no stage `{stage}`", help=f"{suggestion}the stages are {', '.join(STAGES)}"
    )
