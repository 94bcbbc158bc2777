"""Finding matches in a graph, and rewriting it by rules until none of them matches."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeVar

from torch import fx

from pypm.core.patterns import Pattern
from pypm.core.rules import Rule, Rules, as_rule_set
from pypm.fx.bodies import bodies
from pypm.fx.dialect import Dialect, Match
from pypm.fx.given import check_module
from pypm.fx.groups import Turns
from pypm.fx.modules import left_whole
from pypm.fx.opened import OpenedModules
from pypm.fx.order import check_order, put_in_order
from pypm.fx.program import PatternLike, as_rule, program_of
from pypm.fx.recording import Recording
from pypm.fx.report import Report
from pypm.fx.run import Run
from pypm.fx.search import Allowance, Search
from pypm.fx.transaction import Transaction
from pypm.fx.view import View
from pypm.match.matcher import STEPS

__all__ = ["Match", "find", "rewrite", "rewrite_graph", "rewrite_module"]

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
    Raises PyPMError where `gm` is no graph module, or its graph is not in order. Warns where there
    are none and the graph calls modules, inside of which nothing matches.
    """
    check_module(gm, "pypm.fx.find")
    check_order(gm.graph)
    program = program_of([as_rule(pattern)])
    found: list[Match] = []
    with Transaction() as transaction:
        modules = OpenedModules(gm.graph, program, transaction)
        view = View(gm.graph, program.reader)
        search = Search(view, Allowance(budget))
        for node in reversed(view.starts):
            candidates = (c for t in program.at(view, node) for c in search.candidates(t, node))
            matches = (candidate for candidate in candidates if isinstance(candidate, Match))
            found += matches if all else islice(matches, 1)
        note = "" if found else left_whole(view, program)
        modules.close(has_changed=False)
    if note:
        warnings.warn(f"nothing matches: {note}", RuntimeWarning, stacklevel=2)
    return [_closed(match) for match in found]


def _closed(match: Match) -> Match:
    """The match in the graph as it is, without the nodes of opened modules' parameters."""
    region = match.region
    sides = tuple(node for node in region.side_inputs if not node._erased)
    if sides == region.side_inputs and not any(node._erased for node in region.variables):
        return match
    variables = tuple(node for node in region.variables if not node._erased)
    closed = replace(region, variables=variables, side_inputs=sides)
    return replace(match, region=closed, inputs=closed.inputs, side_inputs=sides)


def rewrite(
    gm: fx.GraphModule,
    rules: Rules,
    *,
    budget: int | None = None,
    exact: bool = False,
    dialect: Dialect | None = None,
    record: Recording | None = None,
) -> Report:
    """Apply rules in place until none matches, and recompile the module if that changed it.

    Where there are groups, each has landed or left no trace; one that did not land is tried again
    only where something changed since. A graph in which nodes read later ones is put in order.
    Branches of `cond`, bodies of `map`, `scan` and `while_loop`, and what runs without gradients
    are rewritten too, each by itself; the report notes other bodies, which are not.
    `budget` bounds the rewrites (4 for each node and 1000, if left out). With `exact`, rules that
    do not keep every value (NaN included) hold back. `record` takes down the graph and each change
    of it, to be shown afterwards. Where this raises, whatever it is, the graph and the module are
    as they were before: PyPMError where `gm` is no graph module, or its nodes read each other in a
    cycle; RewriteError where a rule's body raises; BudgetError where the rules do not settle.
    """
    check_module(gm, "pypm.fx.rewrite")
    gm.graph.owning_module = gm
    with Transaction() as transaction:
        return rewrite_module(
            gm, rules, transaction, budget=budget, exact=exact, dialect=dialect, record=record
        )


def rewrite_module(
    gm: fx.GraphModule,
    rules: Rules,
    transaction: Transaction,
    *,
    record: Recording | None = None,
    **options: Any,
) -> Report:
    """Rewrite a graph, and the bodies that its higher-order operators run as they are."""
    found = [*bodies(gm)]
    held = {id(body.module) for body in found if not body.is_entered}
    entered = {id(body.module): body for body in found if id(body.module) not in held}
    left = dict.fromkeys(body.operator for body in found if not body.is_entered)
    reports = [rewrite_graph(gm.graph, rules, record=record, transaction=transaction, **options)]
    for body in entered.values():
        report = rewrite_graph(body.module.graph, rules, transaction=transaction, **options)
        reports.append(report.inside(body.path))
    if left:
        names = ", ".join(f"`{name}`" for name in left)
        reports.append(Report(note=f"not rewritten: the bodies of {names}"))
    return reports[0] if len(reports) == 1 else Report.merge(reports)


@_with_room
def rewrite_graph(
    graph: fx.Graph,
    rules: Rules,
    *,
    budget: int | None = None,
    exact: bool = False,
    dialect: Dialect | None = None,
    record: Recording | None = None,
    transaction: Transaction | None = None,
) -> Report:
    """As `rewrite`, of a graph that may have no module.

    With a `transaction`, the graph goes back too where what follows in it raises.
    """
    chosen = as_rule_set(rules)
    with transaction or Transaction() as kept:
        has_moved = put_in_order(graph, kept)
        modules = OpenedModules(graph, program_of(chosen), kept)
        limit = 4 * len(graph.nodes) + 1000 if budget is None else budget
        run = Run(graph, chosen, dialect, limit, exact, recording=record, transaction=kept)
        if record is not None:
            record.begin(graph, chosen)
        turns = Turns(run)
        turns.to_fixpoint()
        report = run.report(turns.records())
        run.journal.commit()
        modules.close(has_changed=bool(len(report)))
        if graph.owning_module is not None and (has_moved or len(report)):
            graph.owning_module.recompile()
    _log(report)
    return report


def _log(report: Report) -> None:
    """One line for the pass; at level DEBUG, what it did and left alone too."""
    counts = len(report.rewrites), sum(r.count for r in report.refusals), len(report.rules)
    _LOG.info("rewrites: %d, refusals: %d, rules: %d, in %.3f s", *counts, report.seconds)
    if _LOG.isEnabledFor(logging.DEBUG):
        for record in (*report.rewrites, *report.refusals):
            _LOG.debug("%s", record)
