"""Rewriting a graph by rules until none of them matches."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any, Final

from torch import fx

from pypm.core.python_settings import with_stack_room
from pypm.core.rules import TOGETHER, Exactness, Rules, RuleSet, as_rule_set
from pypm.fx.matching.opened_modules import OpenedModules
from pypm.fx.matching.program import operators_of
from pypm.fx.operators.dialects import Dialect, dialect_of
from pypm.fx.reporting.recording import Recording
from pypm.fx.reporting.report import Report
from pypm.fx.rewriting.candidates import Choice, first
from pypm.fx.rewriting.outcomes import Outcomes
from pypm.fx.rewriting.run import RewriteRun
from pypm.fx.rewriting.together import apply_together
from pypm.fx.rewriting.writes_as_values import WritesAsValues
from pypm.fx.subject.inner_graphs import bodies
from pypm.fx.subject.order import put_in_order
from pypm.fx.subject.transaction import Transaction
from pypm.fx.subject.writes_as_stack import WritesAsStack
from pypm.fx.values.user_input import check_module

__all__ = ["rewrite", "rewrite_graph", "rewrite_module"]

_LOG: Final = logging.getLogger("pypm.fx")


def rewrite(
    gm: fx.GraphModule,
    rules: Rules,
    *,
    budget: int | None = None,
    exactness: Exactness = "reassociated",
    dialect: Dialect | None = None,
    choose: Choice = first,
    record: Recording | None = None,
) -> Report:
    """Apply rules in place until none matches, and return a report of what was done.

    Arguments:
        gm: the module. It is recompiled if its graph changed. A graph in which nodes read later
            ones is put in order. Branches of `cond`, bodies of `map`, `scan` and `while_loop`, and
            regions that run without gradients are rewritten too, each by itself; the report names
            other bodies, which are not.
        rules: a rule, a rule set, or a sequence of both.
        budget: the most rewrites; 4 for each node and 1000, if None.
        exactness: the least word of a rule that is accepted: "reassociated" accepts all, "rounding"
            the same operations with fewer roundings, "bitwise" the same bits.
        dialect: the operators and semantics of the graph; found from the graph, if None.
        choose: a function from a planned rewrite to the seconds it saves. Of rewrites that overlap,
            those that save most together are made, and none that saves nothing. By default each is
            made, in the order of the rules.
        record: takes down the graph and each change of it, to be shown afterwards.

    Raises PyPMError if `gm` is not a graph module, its nodes read each other in a cycle, or there
    is no such `exactness`; RewriteError if a rule's body or `choose` raises, or `choose` returns no
    number; and BudgetError if the rules do not settle.
    Whatever is raised, the graph and the module are as they were.
    """
    check_module(gm, "pypm.fx.rewrite")
    gm.graph.owning_module = gm
    with Transaction() as transaction:
        return rewrite_module(
            gm,
            rules,
            transaction,
            budget=budget,
            exactness=exactness,
            dialect=dialect,
            choose=choose,
            record=record,
        )


def rewrite_module(
    gm: fx.GraphModule,
    rules: Rules,
    transaction: Transaction,
    *,
    record: Recording | None = None,
    dialect: Dialect | None = None,
    **options: Any,
) -> Report:
    """Rewrite a graph, and the bodies that its higher-order operators run as they are."""
    options["transaction"] = transaction
    found = [*bodies(gm)]
    held = {id(body.module) for body in found if not body.is_entered}
    entered = {id(body.module): body for body in found if id(body.module) not in held}
    left = dict.fromkeys(body.operator for body in found if not body.is_entered)
    off = {id(body.module) for body in found if body.gradients_off}
    reports = [rewrite_graph(gm.graph, rules, record=record, dialect=dialect, **options)]
    for key, body in entered.items():
        graph, own = body.module.graph, dialect
        if key in off:
            own = replace(dialect or dialect_of(graph), gradients_off=True)
        reports.append(rewrite_graph(graph, rules, dialect=own, **options).inside(body.path))
    if left:
        names = ", ".join(f"`{name}`" for name in left)
        reports.append(Report(note=f"not rewritten: the bodies of {names}"))
    return reports[0] if len(reports) == 1 else Report.merge(reports)


@with_stack_room
def rewrite_graph(
    graph: fx.Graph,
    rules: Rules,
    *,
    budget: int | None = None,
    exactness: Exactness = "reassociated",
    dialect: Dialect | None = None,
    choose: Choice = first,
    record: Recording | None = None,
    transaction: Transaction | None = None,
) -> Report:
    """Rewrite a graph that may have no module, and return a report of what was done.

    Arguments:
        graph: the graph; bodies that its operators call stay as they are.
        rules, budget, exactness, dialect, choose, record: as for `rewrite`.
        transaction: if given, the graph also goes back to what it was if something else in the
            transaction raises.

    Raises as `rewrite` does.
    """
    chosen = as_rule_set(rules)
    with transaction or Transaction() as kept:
        has_moved = put_in_order(graph, kept)
        named = operators_of(chosen)
        stacks = WritesAsStack(graph, named, kept)
        values = WritesAsValues(graph, named, kept)
        modules = OpenedModules(graph, named, kept)
        limit = 4 * len(graph.nodes) + 1000 if budget is None else budget
        outcomes = Outcomes(graph, limit)
        if record is not None:
            record.begin(graph, chosen)
            outcomes.recording = record
        start = partial(RewriteRun, graph, dialect=dialect, exactness=exactness, outcomes=outcomes)
        together, apart = _parted(chosen)
        if together:
            apply_together(graph, together, outcomes, start)
        if (begin := getattr(choose, "begin", None)) is not None:
            begin(graph, apart, dialect)
        run = start(apart, choose=choose, transaction=kept)
        run.settle()
        report = run.report(chosen)
        run.journal.commit()
        modules.close(has_changed=bool(len(report)))
        values.close(has_changed=bool(len(report)))
        stacks.close(has_changed=bool(len(report)))
        if graph.owning_module is not None and (has_moved or len(report)):
            graph.owning_module.recompile()
    _log(report)
    return report


def _parted(rules: RuleSet) -> tuple[RuleSet, RuleSet]:
    """Return the rules that communicate together, and the others."""
    together = tuple(rule for rule in rules if rule.communicates == TOGETHER)
    if not together:
        return RuleSet(()), rules
    apart = tuple(rule for rule in rules if rule.communicates != TOGETHER)
    return RuleSet(together, rules.name), RuleSet(apart, rules.name)


def _log(report: Report) -> None:
    """One line for the pass; at level DEBUG, what it did and left alone too."""
    counts = len(report.rewrites), sum(r.count for r in report.refusals), len(report.rules)
    _LOG.info("rewrites: %d, refusals: %d, rules: %d, in %.3f s", *counts, report.seconds)
    if _LOG.isEnabledFor(logging.DEBUG):
        for record in (*report.rewrites, *report.refusals):
            _LOG.debug("%s", record)
