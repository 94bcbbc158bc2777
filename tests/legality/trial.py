"""One case before three judges: PyPM's, Coq's, and torch, which runs the graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from operator import getitem
from typing import Final

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm.fx import rewrite
from pypm.fx.rewriting.candidates import Candidate
from pypm.fx.subject.memory import shared
from tests.hunt.outcomes import (
    Outcome,
    difference,
    kept_modes,
    long_strides,
    observed,
    seen_difference,
)
from tests.legality.cases import ByHand, Case, case, copied, replaced
from tests.legality.judge import question, roots_of, verdicts

__all__ = ["Counts", "judged"]


@dataclass
class Trial:
    """What came of one case."""

    seed: int
    case: Case
    before: fx.GraphModule
    by_hand: ByHand | None
    """The rule applied by hand; None if that makes no graph."""
    refused: tuple[str, ...] = ()
    """The kinds of PyPM's refusals, where it rewrites nothing."""
    rewritten: fx.Graph | None = None
    """The graph that PyPM made."""
    wrong: str = ""
    """How the outcome of PyPM's graph differs, or how running it fails."""
    wrong_but_for_draws: str = ""
    """How anything else than numbers differs: types, shapes, memory, gradients, effects, modes."""
    by_hand_differs: str = ""
    """The same of the rule applied by hand."""
    questions: dict[str, str] = field(default_factory=dict)
    """About PyPM's rewrite, and about the one by hand."""
    is_described: bool = False
    """True if the graph has metadata."""
    has_own_memory: bool = False
    """True if PyPM replaces a view of memory that only the region made, and that went with it."""


@dataclass
class Counts:
    """Counts of a run, and the cases that contradict the theorem or PyPM's promise."""

    graphs: int = 0
    rewritten: int = 0
    private: int = 0
    """Of the rewritten ones, exceptions: what `legal` takes for memory that others may see is that
    of a node that goes with the region, and nothing else is a view of it.
    """
    redrawn: int = 0
    """Other exceptions: rules with `redraws` that move a draw past another."""
    legal: int = 0
    """Rewrites by hand that Coq's judge accepts."""
    illegal: int = 0
    differing: int = 0
    """Of the illegal ones, those whose outcome differs on the inputs that were tried."""
    refused: Counter[str] = field(default_factory=Counter)
    """Legal rewrites that PyPM refuses, by the kind of its first refusal."""
    conditions: Counter[str] = field(default_factory=Counter)
    """Illegal rewrites, by the conditions that they fail."""
    unproved: list[tuple[int, str]] = field(default_factory=list)
    """Rewrites of PyPM that Coq's judge refuses, with the conditions that they fail."""
    wrong: list[tuple[int, str]] = field(default_factory=list)
    """Rewrites of PyPM that change the outcome."""
    restrided: int = 0
    """Accepted by Coq's judge, but with other strides of a root, and so not counted as legal. The
    equation that the theorem assumes is one of values with their strides: it does not hold there.
    """
    unaliased: int = 0
    """Not counted as legal either: a tensor that would stand for its alias, which PyPM refuses
    where that is seen. Coq's judge does not know which tensors are the same object.
    """
    disproved: list[tuple[int, str]] = field(default_factory=list)
    """Rewrites by hand that Coq's judge accepts and that change the outcome."""

    def __iadd__(self, other: Counts) -> Counts:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def judged(seeds: Iterable[int]) -> Counts:
    """Put the cases of some seeds before all judges."""
    trials = [trial for seed in seeds if (trial := _tried(seed)) is not None]
    asked = [(trial, key) for trial in trials for key in trial.questions]
    answers = verdicts([trial.questions[key] for trial, key in asked])
    counts = Counts(graphs=len(trials), rewritten=sum(t.rewritten is not None for t in trials))
    for (trial, key), failed in zip(asked, answers, strict=True):
        _count(counts, trial, key, failed)
    counts.wrong += [(trial.seed, trial.wrong) for trial in trials if trial.wrong]
    return counts


def _count(counts: Counts, trial: Trial, key: str, failed: frozenset[str]) -> None:
    if key == "PyPM's":
        if failed == {"WritesApart"} and trial.has_own_memory:
            counts.private += 1
        elif failed == {"SameEffects"} and trial.case.planted.redraws:
            counts.redrawn += 1
            trial.wrong = trial.wrong_but_for_draws
        elif failed:
            counts.unproved.append((trial.seed, " ".join(sorted(failed))))
    elif failed:
        counts.illegal += 1
        counts.differing += bool(trial.by_hand_differs)
        counts.conditions.update(failed)
    elif trial.by_hand_differs and not _restrides(trial):
        counts.disproved.append((trial.seed, trial.by_hand_differs))
    elif _restrides(trial, *(() if trial.is_described else _LAYOUTS)):
        counts.restrided += 1
    elif trial.case.planted.unaliases and trial.refused == ("layout",):
        counts.unaliased += 1
    else:
        counts.legal += 1
        if trial.rewritten is None:
            counts.refused[" ".join(trial.refused) or "no match"] += 1


def _tried(seed: int) -> Trial | None:
    """Try the case of a seed; None if there is none, or torch does not run it."""
    torch.manual_seed(seed)
    made = case(seed)
    if made is None:
        return None
    is_described = not made.aliased and bool(seed % 2)
    if is_described:
        _describe(made)
    before = fx.GraphModule(torch.nn.Module(), copied(made.module.graph))
    expected = _outcome(before, made)
    if isinstance(expected, str):
        return None
    by_hand = replaced(made)
    trial = Trial(seed, made, before, by_hand, is_described=is_described)
    if by_hand is not None:
        if not by_hand.escaping:
            trial.by_hand_differs = _difference(before, expected, by_hand.module, made)
        trial.questions["by hand"] = question(
            before.graph,
            by_hand.module.graph,
            by_hand.roots,
            made.region,
            apart=not made.aliased,
            without=by_hand.escaping,
        )
    region: list[str] = []

    def choose(candidate: Candidate) -> float:
        if candidate.root not in made.roots:
            return -1.0
        region[:] = [node.name for node in candidate.nodes]
        return 1.0

    report = rewrite(made.module, (made.planted.rule,), choose=choose)
    if not report.rewrites:
        trial.refused = tuple(dict.fromkeys(refusal.kind for refusal in report.refusals))
        return trial
    after = trial.rewritten = made.module.graph
    trial.has_own_memory = _has_own_memory(before.graph, after, made.roots)
    trial.wrong = _difference(before, expected, made.module, made)
    actual = _outcome(made.module, made) if trial.wrong else expected
    if isinstance(actual, str):
        trial.wrong_but_for_draws = actual
    else:
        outcomes = _contiguous(expected), _contiguous(actual)
        trial.wrong_but_for_draws = seen_difference(before, *outcomes)
    trial.questions["PyPM's"] = question(
        before.graph, after, roots_of(before.graph, after), region, apart=not made.aliased
    )
    return trial


def _has_own_memory(before: fx.Graph, after: fx.Graph, roots: Sequence[str]) -> bool:
    """Return whether a root is a view of a node that is gone and has no other views that stay."""
    stays = {node.name for node in after.nodes}
    for node in before.nodes:
        bases = [node] if node.name in roots and shared(node) else []
        while bases and shared(bases[-1]):
            bases.append(shared(bases[-1])[0])
        if bases and bases[-1].name not in stays:
            viewers = [each for base in bases[1:] for each in base.users if base in shared(each)]
            if all(each in bases or each.name not in stays for each in viewers):
                return True
    return False


def _describe(made: Case) -> None:
    """Give nodes metadata; those of an item are made anew, as after a rewrite."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with kept_modes():
        FakeTensorProp(made.module, mode).propagate(*made.make(0))
        for item in made.module.graph.find_nodes(op="call_function", target=getitem):
            item.meta["val"] = item.meta["val"].clone()


def _outcome(module: fx.GraphModule, made: Case) -> Outcome | str:
    with kept_modes():
        try:
            return observed(module, made.make)
        except RuntimeError as error:
            return f"running raises {error}"


def _difference(
    before: fx.GraphModule, expected: Outcome, after: fx.GraphModule, made: Case
) -> str:
    actual = _outcome(after, made)
    if isinstance(actual, str):
        return actual
    return difference(before, _contiguous(expected), _contiguous(actual), made.make, None)


def _restrides(trial: Trial, *layouts: Layout) -> bool:
    """Return whether the rule by hand puts a value with other strides in the place of a root, for
    inputs as they are or in any of the layouts. Without metadata, PyPM has to answer for all.
    """
    assert trial.by_hand is not None
    inputs = trial.case.make(0.0)
    for chosen in product((_as_it_is, *layouts), repeat=len(inputs)):
        old, new = (_strides(g, trial.case, chosen) for g in (trial.before, trial.by_hand.module))
        for root, result in trial.by_hand.roots.items():
            if root in old and result in new and old[root] != new[result]:
                return True
    return False


Layout = Callable[[Tensor], Tensor]


def _as_it_is(x: Tensor) -> Tensor:
    return x


_LAYOUTS: Final[tuple[Layout, ...]] = (
    lambda x: x.mT.contiguous().mT,
    lambda x: torch.cat((x, x), -1)[..., : x.shape[-1]],
    lambda x: x[:1].expand(x.shape),
)
"""An input with its dimensions in another order, with gaps, and of one row."""


def _strides(module: fx.GraphModule, made: Case, layouts: Iterable[Layout]) -> dict[str, list[int]]:
    """Return the strides of each tensor that a graph computes, as far as the graph runs."""
    run = fx.Interpreter(module, garbage_collect_values=False)
    with kept_modes(), suppress(RuntimeError):
        run.run(*(laid(x) for laid, x in zip(layouts, made.make(0.0), strict=True)))
    tensors = ((node, value) for node, value in run.env.items() if isinstance(value, Tensor))
    return {node.name: long_strides(value) for node, value in tensors}


def _contiguous(outcome: Outcome) -> Outcome:
    """Return the outcome without strides: equations and verdicts are not about them."""
    return replace(outcome, outputs=[x.contiguous() for x in outcome.outputs])
