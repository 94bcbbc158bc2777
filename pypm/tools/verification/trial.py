"""One rule tried on one graph: rewritten by the real pass, then run beside the original."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, repeat
from random import Random
from typing import Final, TypeAlias

import torch
from torch import fx

from pypm.core.python_settings import with_room
from pypm.core.rules import ON_REQUEST, Rule, RuleSet
from pypm.diagnostics import BudgetError, RewriteError
from pypm.fx import Report, every, first, rewrite
from pypm.fx.rewriting.outcomes import Outcomes
from pypm.fx.rewriting.run import RewriteRun
from pypm.laws.algebra import NoMeaning
from pypm.laws.refutation.graphs import graph_difference
from pypm.tools.verification.comparing.compare import compare
from pypm.tools.verification.comparing.input_values import KINDS, filled
from pypm.tools.verification.comparing.reproduction import counterexample
from pypm.tools.verification.comparing.verdicts import Agreement, Difference, Unusable
from pypm.tools.verification.findings import Wrong
from pypm.tools.verification.sampling.graphs import copied, graph_of, written
from pypm.tools.verification.sampling.inputs import Wishes, hints_of
from pypm.tools.verification.sampling.sketches import SHALLOW, Sampler, Sketch, Unsampled
from pypm.tools.verification.sampling.solver import solve
from pypm.tools.verification.sampling.symbolic_graphs import (
    fake_inputs,
    other_sizes,
    with_symbolic_sizes,
)

__all__ = [
    "WITH_SYMBOLIC_SIZES",
    "Checks",
    "Outcome",
    "Passed",
    "Rejected",
    "Spec",
    "Trial",
    "Unchanged",
]

RANKS: Final = (2, 1, 3, 4, 0)
SIZES: Final = (2, 3, 4, 1, 5, 0)
DTYPES: Final = (
    torch.float64,
    torch.float32,
    torch.int64,
    torch.bfloat16,
    torch.bool,
    torch.complex128,
    torch.uint8,
    torch.float16,
    torch.int8,
    torch.complex64,
)
SYMBOLIC: Final = 4
"""One of so many samples is tried with symbolic sizes as well."""
WITH_SYMBOLIC_SIZES: Final = ", with symbolic sizes"
"""The end of the detail of a failure on a graph with symbolic sizes."""
COMMON: Final = 5
"""The first dtypes, of which most samples are."""
_CHOSEN: Final = (0, 0, 0, *range(COMMON), *range(COMMON), *range(len(DTYPES)))
PLAIN: Final = KINDS[0]
"""The filling of tensors whose values do not matter."""
EXACTLY: Final = 6
"""The number of graphs that are compared without rounding as well."""
MOST_ELEMENTS: Final = 300
"""The most elements of an input of such a graph."""
REWRITES: Final = 20
"""Rewrites of one sample after which its rules are taken not to settle."""


@dataclass(frozen=True)
class Spec:
    """The specification of a sample; smaller numbers make simpler samples."""

    fuel: int = 0
    rank: int = 0
    dtype: int = 0
    sizes: tuple[int, ...] = (0, 0, 0)
    layouts: tuple[int, ...] = (0, 0, 0)
    choices: tuple[int, ...] = (0,) * 12
    seed: int = 0
    symbolic: bool = False
    """True if the rule is tried on a graph with symbolic sizes as well."""

    @staticmethod
    def drawn(random: Random) -> Spec:
        spec = Spec(
            random.randrange(SHALLOW + 1),
            random.randrange(5),
            random.choice(_CHOSEN),
            tuple(random.randrange(12) for _ in range(3)),
            tuple(random.choice((0, 0, 1, 2, 3, 4)) for _ in range(3)),
            tuple(random.randrange(12) for _ in range(12)),
            random.randrange(1, 2**16),
        )
        return replace(spec, symbolic=spec.seed % SYMBOLIC == 0)

    @property
    def numbers(self) -> list[int]:
        """All numbers, in order."""
        lists = (*self.sizes, *self.layouts, *self.choices)
        return [self.fuel, self.rank, self.dtype, *lists, self.seed]

    @staticmethod
    def of(n: Sequence[int], symbolic: bool) -> Spec:
        """Make a specification from its `numbers`."""
        lists = tuple(n[3:6]), tuple(n[6:9]), tuple(n[9:21])
        return Spec(n[0], n[1], n[2], *lists, n[21], symbolic)


@dataclass(frozen=True)
class Checks:
    """Options of the comparison."""

    gradients: bool = False
    nonfinite: bool = True


@dataclass(frozen=True)
class Passed:
    agreement: Agreement
    graph: fx.GraphModule
    sketch: Sketch | None = None
    exactly: bool = False
    """True if the graphs were also compared without rounding."""


@dataclass(frozen=True)
class Unchanged:
    """The rule matched, or did not, but nothing was rewritten."""

    reason: str


@dataclass(frozen=True)
class Rejected:
    """There is no such sample."""

    reason: str


Outcome: TypeAlias = Passed | Wrong | Unchanged | Rejected

_Rewritten: TypeAlias = tuple[fx.GraphModule, Wrong | None] | Wrong | Unchanged
"""With a graph: the failure to report where the values are right, that the rule never settles."""


class Trial:
    """Samples of one rule, each tried with some rules."""

    def __init__(self, rule: Rule, checks: Checks) -> None:
        self.rule = rule
        self.rules = RuleSet((rule,))
        self.checks = checks
        self.sampler = Sampler(rule)
        self.hints = hints_of(rule)
        # many samples are the same graph, above all while one is made smaller
        self._graphs: dict[str, fx.GraphModule] = {}
        self._rewritten: dict[fx.GraphModule, _Rewritten] = {}
        self._exactly: dict[fx.GraphModule, bool | Wrong] = {}
        self._outcome = cache(self.on)
        self._failure_on_symbolic = cache(self._on_symbolic)

    def run(self, spec: Spec) -> Outcome:
        """Make a sample, and try the rule on it."""
        try:
            graph, sketch = self.sample(spec)
        except Unsampled as failure:
            return Rejected(str(failure))
        outcome = self._outcome(graph, _kinds(spec.seed))
        if not isinstance(outcome, Passed):
            return outcome
        wrong = self._failure_on_symbolic(graph) if spec.symbolic else None
        return wrong or replace(outcome, sketch=sketch)

    def _on_symbolic(self, static: fx.GraphModule) -> Wrong | None:
        """A failure on the graph with symbolic sizes: those of the sample, or others."""
        graph = with_symbolic_sizes(static, filled(PLAIN, fake_inputs(static), 0))
        if graph is None:
            return None
        for likes in (fake_inputs(static), other_sizes(graph)):
            outcome = self.on(graph, (PLAIN,), likes)
            if isinstance(outcome, Wrong):
                return replace(outcome, detail=outcome.detail + WITH_SYMBOLIC_SIZES)
        return None

    @with_room
    def _sketch(self, spec: Spec) -> Sketch:
        return self.sampler.draw(_numbers(spec), spec.fuel)

    def sample(self, spec: Spec) -> tuple[fx.GraphModule, Sketch]:
        """A graph that the rule's pattern should match, and the sketch that it is made from.

        Raises Unsampled where there is no such graph, or none is found.
        """
        sketch = self._sketch(spec)
        steps = solve(sketch, self._wishes(spec), self.hints)
        key = written(steps, sketch.roots)
        if key not in self._graphs:
            self._graphs[key] = graph_of(steps, sketch.roots)
        return self._graphs[key], sketch

    def on(
        self,
        before: fx.GraphModule,
        kinds: Sequence[str] = KINDS,
        likes: Sequence[torch.Tensor] | None = None,
    ) -> Outcome:
        """Try the rule on a graph, with tensors of some kinds.

        `likes` have the shapes, strides and dtypes of its inputs, where its metadata has symbols.
        """
        likes = fake_inputs(before) if likes is None else likes
        if before not in self._rewritten:
            self._rewritten[before] = self._try_rewrite(before, likes)
        match self._rewritten[before]:
            case (after, loops):
                outcome = self._compared(before, after, kinds, likes)
                return outcome if loops is None or isinstance(outcome, Wrong) else loops
            case outcome:
                return outcome

    def _try_rewrite(self, before: fx.GraphModule, likes: Sequence[torch.Tensor]) -> _Rewritten:
        after = copied(before)
        loops = None
        try:
            report = self._rewrite(after, self.rules)
        except BudgetError as unsettled:
            loops = self._failed("loops", unsettled.diagnostic.message, before, likes)
            report = applied_once(after, self.rules)
        except RewriteError as raised:
            return self._failed("raises", raised.diagnostic.message, before, likes)
        if not report.count(self.rule.name):
            return Unchanged(_reason(report))
        return after, loops

    def _compared(
        self,
        before: fx.GraphModule,
        after: fx.GraphModule,
        kinds: Sequence[str],
        likes: Sequence[torch.Tensor],
    ) -> Outcome:
        checks = self.checks
        found: list[Agreement] = []
        reason = ""
        for kind in kinds:
            make = partial(filled, kind, likes, KINDS.index(kind))
            word = self.rule.exactness
            match compare(before, after, make, checks.nonfinite, checks.gradients, word):
                case Difference(what, detail, error, tolerance):
                    shown = counterexample(before, after, make())
                    return Wrong(self.rule.name, what, detail, shown, error, tolerance)
                case Agreement() as agreement:
                    found.append(agreement)
                case Unusable(reason):
                    continue
        if not found:
            return Unchanged(f"it cannot be run: {reason}")
        worst = max(found, key=lambda a: a.error)
        zeros = any(agreement.zeros for agreement in found)
        exactly = self._compared_exactly(before, after, likes)
        if isinstance(exactly, Wrong):
            return exactly
        return Passed(replace(worst, zeros=zeros), before, exactly=exactly)

    def _compared_exactly(
        self, before: fx.GraphModule, after: fx.GraphModule, likes: Sequence[torch.Tensor]
    ) -> bool | Wrong:
        """Compare the first small graphs without rounding; return whether that was done."""
        is_small = all(isinstance(n, int) for x in likes for n in x.shape) and all(
            x.numel() <= MOST_ELEMENTS for x in likes
        )
        if before not in self._exactly and is_small and len(self._exactly) < EXACTLY:
            try:
                found = graph_difference(before, after, likes)
            except NoMeaning:
                self._exactly[before] = False
            else:
                shown = counterexample(before, after, filled(PLAIN, likes, 0))
                self._exactly[before] = found is None or Wrong(
                    self.rule.name, "law", str(found), shown
                )
        return self._exactly.get(before, False)

    def settles(self, before: fx.GraphModule, rules: RuleSet) -> Wrong | None:
        """Return whether several rules come to an end on a graph."""
        try:
            self._rewrite(copied(before), rules)
        except BudgetError as error:
            return self._failed("loops", error.diagnostic.message, before, fake_inputs(before))
        except RewriteError:
            return None  # a rule that raises is found by its own samples
        return None

    def _rewrite(self, module: fx.GraphModule, rules: RuleSet) -> Report:
        # a rule that pays sometimes is applied under a choice alone
        choose = every if any(rule.pays in ON_REQUEST for rule in rules) else first
        return rewrite(module, rules, budget=REWRITES, choose=choose)

    def _failed(
        self,
        what: str,
        detail: str,
        before: fx.GraphModule,
        likes: Sequence[torch.Tensor],
    ) -> Wrong:
        inputs = filled(PLAIN, likes, 0)
        return Wrong(self.rule.name, what, detail, counterexample(before, None, inputs))

    def _wishes(self, spec: Spec) -> Wishes:
        sizes = (*SIZES, *self.hints.sizes)
        dtypes = (*dict.fromkeys((*self.hints.dtypes, *DTYPES)),)
        return Wishes(
            RANKS[spec.rank % len(RANKS)],
            tuple(sizes[n % len(sizes)] for n in spec.sizes),
            dtypes[spec.dtype % len(dtypes)],
            spec.layouts,
            spec.seed,
        )


def applied_once(module: fx.GraphModule, rules: RuleSet) -> Report:
    """Rewrite at the first place only, by rules that would go on without an end."""
    outcomes = Outcomes(module.graph, REWRITES)
    run = RewriteRun(module.graph, rules, outcomes=outcomes, choose=every)
    any(map(run.visit, reversed(run.worklist.take())))
    report = run.report(rules)
    run.journal.commit()
    module.recompile()
    return report


def _kinds(seed: int) -> tuple[str, ...]:
    """Some kinds of tensors, all of them for the seed 0."""
    return KINDS if not seed else (*KINDS[:2], *Random(seed).sample(KINDS[2:], 2))


def _numbers(spec: Spec) -> Iterator[int]:
    """The choices, and then others that follow from the seed."""
    if not spec.seed:
        return chain(spec.choices, repeat(0))
    random = Random(spec.seed)
    return chain(spec.choices, iter(lambda: random.randrange(12), None))


def _reason(report: Report) -> str:
    if not report.refusals:
        return "the pattern does not match"
    refusal = report.refusals[0]
    return f"{refusal.kind}: {refusal.reason}"
