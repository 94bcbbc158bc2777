"""Marked parameters, changed at random near the incumbent, or by Optuna."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.evolve.candidate import digest_of, read_files, write_files
from pypm.evolve.operators.marks import MarkedParameter, parameters, with_values
from pypm.evolve.operators.operator import Evaluate, Exhausted, History, Turn

if TYPE_CHECKING:
    import optuna

__all__ = ["Parameters", "TreeSampler"]

_TRIES: Final = 200
_FAR: Final = 0.25
"""The share of proposals that are anywhere, rather than near the incumbent."""


class Parameters:
    """Changes one or two marked parameters of the incumbent, and sometimes all of them."""

    name = "parameters"

    def vary(
        self,
        workdir: Path,
        lineage: History,
        knowledge: Path,
        evaluate: Evaluate,
        budget: Turn,
    ) -> str:
        files = read_files(workdir)
        found = marked(files)
        random = budget.random()
        tried = lineage.judged()
        for _ in range(_TRIES):
            far = bool(budget.hint) or random.random() < _FAR
            values = _anywhere(found, random) if far else _near(found, random)
            made = with_values(files, values)
            if digest_of(made) not in tried:
                write_files(made, workdir)
                return _changes(found, values)
        count = prod(len(each.choices) for each in found.values())
        raise Exhausted(f"no new values of {len(found)} parameters, of {count} in all")


def marked(files: Mapping[str, bytes]) -> dict[str, MarkedParameter]:
    """Return the marked parameters. Raises PyPMError if there are none."""
    found = parameters(files)
    if not found:
        help = "mark some, as `constexpr int ROWS = 4;  // evolve: 1 2 4 8`"
        raise PyPMError(Diagnostic("the candidate has no marked parameters", help=help))
    return found


def _anywhere(found: Mapping[str, MarkedParameter], random: Random) -> dict[str, str]:
    return {name: random.choice(each.choices) for name, each in found.items()}


def _near(found: Mapping[str, MarkedParameter], random: Random) -> dict[str, str]:
    values = {name: each.value for name, each in found.items()}
    for name in random.sample([*found], min(len(found), random.choice((1, 1, 2)))):
        choices = [each for each in found[name].choices if each != values[name]]
        if choices:
            values[name] = random.choice(choices)
    return values


def _changes(found: Mapping[str, MarkedParameter], values: Mapping[str, str]) -> str:
    """Return the values that are not the incumbent's, as a summary."""
    return ", ".join(f"{n} = {value}" for n, value in values.items() if value != found[n].value)


class TreeSampler:
    """Marked parameters by Optuna's sampler of trees, from the scores of all attempts."""

    name = "optuna"

    def __init__(self) -> None:
        """Raise PyPMError if Optuna is not installed."""
        try:
            import optuna
        except ImportError:
            help = "`pip install 'pypm[evolve]'` brings it; the operator `parameters` needs nothing"
            what = "the operator `optuna` needs the package `optuna`"
            raise PyPMError(Diagnostic(what, help=help)) from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)

    def vary(
        self,
        workdir: Path,
        lineage: History,
        knowledge: Path,
        evaluate: Evaluate,
        budget: Turn,
    ) -> str:
        import optuna

        files = read_files(workdir)
        found = marked(files)
        seed = budget.random().randrange(2**32)
        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed)
        )
        study.add_trials([*_trials(found, lineage)])
        tried = lineage.judged()
        for _ in range(_TRIES):
            trial = study.ask()
            values = {n: trial.suggest_categorical(n, p.choices) for n, p in found.items()}
            made = with_values(files, values)
            if digest_of(made) not in tried:
                write_files(made, workdir)
                return _changes(found, values)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        raise Exhausted("Optuna proposes values that were tried alone")


def _trials(
    found: Mapping[str, MarkedParameter], lineage: History
) -> Iterator[optuna.trial.FrozenTrial]:
    """Yield the attempts with the same parameters, with their scores."""
    import optuna

    kinds: dict[str, optuna.distributions.BaseDistribution] = {
        n: optuna.distributions.CategoricalDistribution(p.choices) for n, p in found.items()
    }
    for digest, attempt in lineage.judged().items():
        there = parameters(lineage.snapshots.files(digest))
        if there.keys() == found.keys() and all(
            each.value in found[name].choices for name, each in there.items()
        ):
            yield optuna.trial.create_trial(
                params={name: each.value for name, each in there.items()},
                distributions=kinds,
                value=attempt.verdict.score,
            )
