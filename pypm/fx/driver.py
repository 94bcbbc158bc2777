"""Finding matches in a graph, and rewriting it by rules until none of them matches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, TypeVar

from torch import fx

from pypm.core.patterns import Pattern
from pypm.core.rules import Rule, Rules, as_rule_set
from pypm.fx.dialect import Dialect, Match
from pypm.fx.groups import Turns
from pypm.fx.program import PatternLike, as_rule, program_of
from pypm.fx.recording import Recording
from pypm.fx.report import Report
from pypm.fx.run import Run
from pypm.fx.search import Search
from pypm.fx.view import View
from pypm.match.matcher import STEPS

__all__ = ["Match", "find", "rewrite", "rewrite_graph"]

_LOG: Final = logging.getLogger(__name__)
_Called = TypeVar("_Called", bound=Callable[..., Any])


def _with_room(function: _Called) -> _Called:
    """Let a function, and all that it calls, run in one piece of Python's stack.

    CPython keeps frames in pieces of 16 KiB. Where a call crosses the end of one, the next is got
    from the system, and given back on return, each time: deep inside `torch.compile` a pass took
    three times as long. A frame that asks for 133 KiB gets a piece of 256 KiB, the rest of which is
    for the frames above it.
    """
    code = function.__code__
    function.__code__ = code.replace(co_stacksize=17_000)
    return function


@_with_room
def find(
    gm: fx.GraphModule,
    pattern: Pattern | PatternLike | Rule,
    *,
    all: bool = False,
    budget: int = STEPS,
) -> list[Match]:
    """The matches of a pattern, from the outputs up: at each root the first that is legal.

    With `all`, every distinct legal one, in order. Nothing is replaced, so matches may overlap.
    """
    program = program_of([as_rule(pattern)])
    view = View(gm.graph, program.reader)
    search = Search(view, budget)
    found: list[Match] = []
    for node in reversed(view.starts):
        candidates = (c for t in program.at(view, node) for c in search.candidates(t, node))
        matches = (candidate for candidate in candidates if isinstance(candidate, Match))
        found += matches if all else islice(matches, 1)
    return found


def rewrite(
    gm: fx.GraphModule,
    rules: Rules,
    *,
    budget: int | None = None,
    exact: bool = False,
    dialect: Dialect | None = None,
    record: Recording | None = None,
) -> Report:
    """Apply rules in place until none matches, and recompile the module.

    Where there are groups, each has landed or left no trace; one that did not land is tried again
    only where something changed since.
    `budget` bounds the rewrites (4 for each node and 1000, if left out). With `exact`, rules that
    do not keep every value (NaN included) hold back. `record` takes down the graph and each change
    of it, to be shown afterwards. The graph is as it was before where this
    raises: RewriteError where a rule's body does, BudgetError where the rules do not settle.
    """
    report = rewrite_graph(
        gm.graph, rules, budget=budget, exact=exact, dialect=dialect, record=record
    )
    gm.recompile()
    return report


@_with_room
def rewrite_graph(
    graph: fx.Graph,
    rules: Rules,
    *,
    budget: int | None = None,
    exact: bool = False,
    dialect: Dialect | None = None,
    record: Recording | None = None,
) -> Report:
    """As `rewrite`, of a graph whose module, if it has one, is recompiled by the caller."""
    limit = 4 * len(graph.nodes) + 1000 if budget is None else budget
    chosen = as_rule_set(rules)
    run = Run(graph, chosen, dialect, limit, exact, recording=record)
    if record is not None:
        record.begin(graph, chosen)
    turns = Turns(run)
    try:
        turns.to_fixpoint()
        report = run.report(turns.records())
        run.journal.commit()
    except BaseException:
        run.journal.rollback()
        raise
    if record is not None:
        record.end(report)
    _log(report)
    return report


def _log(report: Report) -> None:
    """One line for the pass; at level DEBUG, what it did and left alone too."""
    counts = len(report.rewrites), sum(r.count for r in report.refusals), len(report.rules)
    _LOG.info("rewrites: %d, refusals: %d, rules: %d, in %.3f s", *counts, report.seconds)
    if _LOG.isEnabledFor(logging.DEBUG):
        for record in (*report.rewrites, *report.refusals):
            _LOG.debug("%s", record)
