"""Verification of rules: static checks, and samples of their own patterns."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from random import Random
from time import perf_counter
from typing import Final

from torch import fx

from pypm.core.rules import Rule, Rules, RuleSet, as_rule_set
from pypm.tools.verification.coverage import Coverage
from pypm.tools.verification.findings import (
    UNMADE,
    Bitwise,
    FewSolved,
    Finding,
    NeverFired,
    Refused,
    Trials,
    UpToRounding,
    Verification,
    Wrong,
)
from pypm.tools.verification.sampling.graphs import captured
from pypm.tools.verification.sampling.sketches import DEEPEST, SHALLOW
from pypm.tools.verification.static import unreachable, unsound
from pypm.tools.verification.trial import (
    WITH_SYMBOLIC_SIZES,
    Checks,
    Outcome,
    Passed,
    Rejected,
    Spec,
    Trial,
    Unchanged,
)
from pypm.torch_internals import fake_tensor_log

__all__ = ["verify"]

WIDTHS: Final = (22, 8, 4, 2, 1, 1)
"""Widths of the parts of a specification that become 0, all of it first, to shrink a failure."""
FEW: Final = 0.25
"""The share of solved samples below which a result says little."""
DEEPER: Final = 40
"""The most samples with deeper recursion, where no other sample was rewritten."""
TOGETHER: Final = 20
"""The number of samples of each rule on which all rules are tried together."""


def verify(
    rules: Rules,
    *,
    samples: int = 100,
    seed: int = 0,
    gradients: bool = False,
    nonfinite: bool = True,
    examples: Sequence[tuple[Callable[..., object], Sequence[object]]] = (),
) -> Verification:
    """Check rules without a model: each by itself, and that together they terminate.

    Arguments:
        rules: a rule, a rule set, or a list of those.
        samples: the number of graphs that are sampled from the pattern of each rule.
        seed: the seed of the samples; the same seed gives the same result.
        gradients: True compares gradients as well.
        nonfinite: False lets values differ if a NaN or an infinity occurs already in the original.
        examples: functions with their inputs, on whose graphs the rules are tried as well.

    For each sample, shapes, dtypes, literals and layouts are solved for that satisfy the guards;
    the graph is rewritten by the real pass, and both graphs are run on random and adversarial
    tensors. Values are held to the exactness that the rule says: `bitwise` to the same bits,
    `rounding` to the error that the original has itself, against float64, and two roundings of the
    inputs and the result. A failure is shrunk to a small graph. Returns a `Verification` with all
    findings. Raises TypeError if `rules` are not rules, and what `torch.export` raises for an
    example that it cannot trace.
    """
    listed = as_rule_set(rules)
    checks = Checks(gradients, nonfinite)
    unfit = {rule.name: unsound(rule) for rule in listed}
    sound = listed
    if any(unfit.values()):
        sound = RuleSet(tuple(rule for rule in listed if not unfit[rule.name]))
    findings: list[Finding] = [*chain(*unfit.values()), *unreachable(sound.rules)]
    graphs = [captured(function, inputs) for function, inputs in examples]
    trials: list[Trials] = []
    for rule in sound:
        hunt = _Hunt(rule, checks, sound if len(sound) > 1 else None)
        start = perf_counter()
        with _quiet():
            hunt.examples(graphs)
            hunt.samples(samples, seed)
        findings += hunt.findings()
        seconds = perf_counter() - start
        trials.append(Trials(rule.name, hunt.drawn, hunt.solved, hunt.fired, seconds))
    return Verification(tuple(findings), tuple(trials))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the logs and warnings of failing calls, many of which are sampled."""
    level = fake_tensor_log.level
    fake_tensor_log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        fake_tensor_log.setLevel(level)


LATER: Final = ("nonfinite", "exactness", "law", "raises", "loops")
"""Kinds of failures that are only searched for once no sample gives other values."""


class _Hunt:
    """The search for failures of one rule."""

    def __init__(self, rule: Rule, checks: Checks, others: RuleSet | None) -> None:
        self.trial = Trial(rule, checks)
        self.others = others
        self.coverage = Coverage(rule)
        self.drawn = self.solved = self.fired = 0
        self.depth = 0
        """Levels of recursion to which samples went after none was rewritten."""
        self.passed: list[Passed] = []
        self.skipped: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.failures: dict[str, Wrong] = {}
        """By kind: the first failure, or the one to which it shrank."""

    def examples(self, graphs: Sequence[fx.GraphModule]) -> None:
        for graph in graphs:
            outcome = self._judged(self.trial.on(graph))
            if isinstance(outcome, Wrong):
                self.failures.setdefault(outcome.kind, outcome)

    def samples(self, count: int, seed: int) -> None:
        """Run samples until one gives other values, then smaller ones that fail alike.

        If none was rewritten and the pattern is recursive, run some with deeper recursion.
        """
        random = Random(seed)
        failing: dict[str, Spec] = {}
        for number in range(count + min(count, DEEPER)):
            spec = Spec.drawn(random) if number else Spec()
            if number >= count:
                if self.passed or failing or not self.trial.sampler.is_recursive:
                    break
                self.depth = DEEPEST
                spec = replace(spec, fuel=random.randrange(SHALLOW, DEEPEST) + 1)
            outcome = self._judged(self.trial.run(spec))
            if isinstance(outcome, Wrong) and outcome.kind not in failing:
                failing[outcome.kind] = spec
                self.failures[outcome.kind] = outcome
                if outcome.kind not in LATER:
                    break
        for kind, spec in failing.items():
            self.failures[kind] = self._shrunk(kind, spec)

    def _shrunk(self, kind: str, spec: Spec) -> Wrong:
        """Return the same failure in the simplest sample that was found near the failing one."""
        is_symbolic = self.failures[kind].detail.endswith(WITH_SYMBOLIC_SIZES)
        spec = replace(spec, symbolic=is_symbolic)  # symbolic sizes take most of a sample's time
        smallest, numbers = self.failures[kind], spec.numbers
        for width in WIDTHS:
            for start in range(0, len(numbers), width):
                zeroed = [
                    0 if n in range(start, start + width) else k for n, k in enumerate(numbers)
                ]
                if zeroed != numbers:
                    outcome = self._together(self.trial.run(Spec.of(zeroed, spec.symbolic)))
                    if isinstance(outcome, Wrong) and outcome.kind == kind:
                        smallest, numbers = outcome, zeroed
        return smallest

    def _together(self, outcome: Outcome) -> Outcome:
        """Return the outcome, or that all rules together do not terminate after a right one."""
        if isinstance(outcome, Passed) and self.others is not None:
            return self.trial.settles(outcome.graph, self.others) or outcome
        return outcome

    def _judged(self, outcome: Outcome) -> Outcome:
        """Count an outcome; where the rule is right, try it with all others."""
        self.drawn += 1
        match outcome:
            case Rejected(reason):
                self.rejected[reason] += 1
                return outcome
            case Unchanged(reason):
                self.skipped[reason] += 1
            case Passed(sketch=sketch):
                self.fired += 1
                self.passed.append(outcome)
                self.coverage.add(sketch)
                if self.fired <= TOGETHER:
                    outcome = self._together(outcome)
            case Wrong(kind=kind):
                self.fired += kind != "raises"
        self.solved += 1
        return outcome

    def findings(self) -> Iterator[Finding]:
        name = self.trial.rule.name
        yield from sorted(self.failures.values(), key=lambda found: found.kind in LATER)
        if self.failures:
            return
        if not self.passed:
            unmade = {f"{UNMADE}{why}": n for why, n in self.rejected.most_common(3)}
            yield NeverFired(name, {**dict(self.skipped.most_common(3)), **unmade}, self.depth)
            return
        worst = max((sample.agreement for sample in self.passed), key=lambda a: a.error)
        zeros = any(sample.agreement.zeros for sample in self.passed)
        if worst.error or zeros:
            exactly = sum(sample.exactly for sample in self.passed)
            yield UpToRounding(name, len(self.passed), worst.error, worst.tolerance, zeros, exactly)
        else:
            yield Bitwise(name, len(self.passed))
        if self.solved < FEW * self.drawn:
            reasons = dict(self.rejected.most_common(3))
            yield FewSolved(name, self.drawn, self.solved, reasons)
        missed = self.coverage.missed()
        if missed is not None:
            yield missed
        for reason, count in self.skipped.most_common(3):
            yield Refused(name, reason, count)
