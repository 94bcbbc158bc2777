"""Choosing by times of whole graphs: as they are, rewritten in ways, and one rewrite at a time."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import copysign, inf
from pathlib import Path
from typing import Final

import torch
from torch import fx

from pypm.choice import gpu_times
from pypm.choice.execution import (
    Compiled,
    apart,
    compiled,
    concrete,
    example,
    gpu_of,
    key_of,
    real_inputs,
)
from pypm.choice.kept_times import figures, numbers
from pypm.choice.measuring import ROUNDS, surroundings, worthwhile
from pypm.core.rules import ON_REQUEST, RuleSet
from pypm.diagnostics import BudgetError, Diagnostic, PyPMError
from pypm.fx import Appraisal, Candidate, Choice, metadata, rewrite_graph
from pypm.fx.operators.dialects import Dialect
from pypm.fx.rewriting.candidates import appraised
from pypm.fx.subject.subgraphs import signature
from pypm.kept_figures import keep_first, kept
from pypm.sources import sources_hash
from pypm.timing import Times, interleave

__all__ = ["Tried", "Tuned", "tuned"]

_LOG: Final = logging.getLogger("pypm.choice")
ALONE: Final = "torch.compile alone"
FLIPS: Final = 24
"""The most rewrites that are turned one at a time; of more, those that save most by themselves."""
QUICKER: Final = 0.99
"""The ratio of a graph's time to that of the best so far below which it is the best."""
MOST: Final = 1e9
"""The worth, in seconds, of a rewrite that whole graphs are faster with."""
_KIND: Final = "tuned"


@dataclass(frozen=True, slots=True)
class Tried:
    """A whole graph that was timed."""

    name: str
    speed: float
    """The speed over that of the graph as it is."""
    rewrites: int
    is_best: bool = False

    def __str__(self) -> str:
        count = f"{self.rewrites} rewrite{'s' * (self.rewrites != 1)}"
        return f"{self.name:24}{self.speed:>6.2f}x  {count}{'; the fastest' * self.is_best}"


class Tuned:
    """Decides by times of whole graphs; `tuned` makes one."""

    def __init__(self, seconds: float, answers: Mapping[str, float] | None) -> None:
        self.table: dict[str, float] = dict(answers or {})
        """The worth of each candidate by its signature: what is positive is applied."""
        self.tried: list[Tried] = []
        """The graphs that were timed here, in order."""
        self._seconds = seconds
        self._may_time = answers is None
        self._otherwise = worthwhile(seconds=0.2 if self._may_time else 0.0)

    def begin(self, graph: fx.Graph, rules: RuleSet, dialect: Dialect | None) -> None:
        """Find out what to do with a graph, before a rewrite of it is asked about.

        A graph that cannot be run is left to the default choice.
        """
        if not self._may_time:
            return
        values = [metadata(node) for node in graph.find_nodes(op="placeholder")]
        try:
            parts = (signature(values, graph), rules.content_hash(), example(values))
            key = "\n".join((*parts, surroundings(), sources_hash()))
            found = kept(_KIND, key, numbers)
            if found is None:
                search = _Search(graph, rules, dialect, self._seconds)
                self.tried += search.tried
                found = keep_first(_KIND, key, search.best.worths, numbers) or search.best.worths
        except Exception as error:  # inputs without an example, or whatever running it raises
            _LOG.info("a graph is left to the default choice: %s", error)
            return
        self.table.update(found)

    def __call__(self, candidate: Candidate) -> Appraisal:
        saved = self.table.get(candidate.signature)
        if saved is None:
            return self._otherwise(candidate)
        return Appraisal(saved if abs(saved) < MOST else copysign(inf, saved), "by whole graphs")

    def identity(self) -> str:
        """Return what choices depend on, beside the graph and the rules."""
        table = json.dumps(sorted(self.table.items())) if not self._may_time else ""
        return f"tuned {self._seconds} {table} {self._otherwise.identity()}"

    def save(self, path: Path) -> None:
        """Write the table, with what it holds for, so that `tuned(answers=path)` can read it."""
        known = {"machine": surroundings(), "answers": self.table}
        path.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


def tuned(*, seconds: float = 2.0, answers: Path | str | None = None) -> Tuned:
    """Return a choice by times of whole graphs, which spares nothing.

    Each graph is compiled and timed as it is, as the default choice rewrites it, with all legal
    rewrites, and then with single rewrites turned: made or left, until none makes it faster. That
    takes many compilations of the graph, once: what was found is kept beside Inductor's caches.

    Arguments:
        seconds: how long two graphs are timed in turn.
        answers: a file of `pypm tune`, or of `Tuned.save`. Then nothing is timed: what it does not
            know is decided by times that are kept, and where there are none by what rules say.

    Raises PyPMError for `seconds` that are not positive, and for a file that holds no answers.
    """
    if not seconds > 0:
        raise PyPMError(Diagnostic(f"`seconds` is a time above 0, not {seconds!r}"))
    return Tuned(seconds, None if answers is None else _read(Path(answers)))


def _read(path: Path) -> dict[str, float]:
    try:
        found = numbers(json.loads(path.read_text(encoding="utf-8"))["answers"])
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if found is None:
        help = "make one by `pypm tune MODEL --rules RULES --output FILE`"
        raise PyPMError(Diagnostic(f"`{path}` is no file of answers", help=help))
    return found


# --- the search ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Way:
    """A graph rewritten by a choice."""

    worths: dict[str, float]
    """The worth of each candidate that was asked about, by its signature."""
    key: str
    rewrites: int
    run: Compiled


def _wherever(candidate: Candidate) -> float:
    return -inf if candidate.rule.pays in ON_REQUEST else inf


def _by_table(worths: Mapping[str, float], candidate: Candidate) -> float:
    return worths.get(candidate.signature, -inf)


class _Search:
    """The search for the fastest way to rewrite one graph; made, it is done."""

    def __init__(
        self, graph: fx.Graph, rules: RuleSet, dialect: Dialect | None, seconds: float
    ) -> None:
        self._graph = graph
        self._rules = rules
        self._dialect = dialect
        self._seconds = seconds
        nodes = graph.find_nodes(op="placeholder")
        self._inputs = apart(lambda: real_inputs([metadata(node) for node in nodes]))
        self._made: dict[str, Compiled] = {}
        self._alone = self.best = self._way(lambda candidate: -inf)
        self.tried = [Tried(ALONE, 1.0, 0, is_best=True)]
        for name, choose in (("default choice", worthwhile()), ("all legal rewrites", _wherever)):
            self._try(name, choose)
        by_worth = sorted(self.best.worths.items(), key=lambda item: -abs(item[1]))
        for number, (turned, worth) in enumerate(by_worth[:FLIPS], 1):
            other = {**self.best.worths, turned: -MOST if worth > 0 else MOST}
            name = f"rewrite {number} {'left' if worth > 0 else 'made'}"
            self._try(name, partial(_by_table, other))

    def _way(self, choose: Choice) -> _Way:
        """Return a copy of the graph, rewritten and compiled; equal ones are compiled once.

        It is rewritten in this thread, which may hold the lock of what compiles.
        """
        owner = self._graph.owning_module or torch.nn.Module()
        gm = fx.GraphModule(owner, copy.deepcopy(self._graph))
        worths: dict[str, float] = {}

        def recorded(candidate: Candidate) -> Appraisal:
            worth = appraised(choose, candidate)
            worths[candidate.signature] = max(-MOST, min(MOST, worth.saved))
            return worth

        report = rewrite_graph(
            gm.graph,
            self._rules,
            budget=len(gm.graph.nodes),
            dialect=self._dialect,
            choose=recorded,
        )
        key = key_of(gm)
        if key not in self._made:
            gm.recompile()
            self._made[key] = apart(lambda: compiled(concrete(gm, self._inputs), self._inputs))
        return _Way(worths, key, len(report), self._made[key])

    def _timed(self, ways: Mapping[str, _Way]) -> Times:
        gpu = gpu_of(self._inputs)
        if gpu is not None:
            versions = {each: (ways[each].run, self._inputs) for each in ways}
            return gpu_times.whole(versions, gpu, self._seconds)
        calls = {each: partial(ways[each].run, self._inputs) for each in ways}
        threads = torch.get_num_threads()
        return interleave(calls, seconds=self._seconds, rounds=ROUNDS, threads=threads)

    def _try(self, name: str, choose: Choice) -> None:
        """Time a way beside the best so far, and keep the faster one.

        A way that undoes what it did, and so does not end, is none.
        """
        try:
            way = self._way(choose)
        except BudgetError:
            return
        if way.key == self.best.key:
            return
        ways = {"alone": self._alone, "before": self.best, "after": way}
        times = apart(partial(self._timed, ways))
        found = figures(times)
        is_best = found["ratio"] < QUICKER and found["upper"] < 1
        if is_best:
            self.best = way
            self.tried = [replace(each, is_best=False) for each in self.tried]
        self.tried.append(Tried(name, times.speedup("alone", "after"), way.rewrites, is_best))
