"""Rules that communicate together: applied to a whole graph, or not at all.

Processes that meet in a collective need the same one. So what decides about these rules is alike on
every process: the graph and the rules, but no measured time, and no other rule, since they come
first. They stay if the graph then issues what it issued before.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from pypm.core.rules import RuleSet
from pypm.fx.legality.issued_collectives import difference, issued
from pypm.fx.legality.region import Refusal
from pypm.fx.rewriting.outcomes import Outcomes
from pypm.fx.rewriting.run import RewriteRun
from pypm.fx.subject.transaction import Transaction

__all__ = ["apply_together"]


def apply_together(
    graph: fx.Graph,
    rules: RuleSet,
    outcomes: Outcomes,
    start: Callable[..., RewriteRun],
) -> None:
    """Apply rules until none matches, or leave the graph as it was and report why.

    Arguments:
        graph: the graph.
        rules: rules that communicate "together".
        outcomes: takes the rewrites and refusals.
        start: makes a `RewriteRun` of rules in the graph, with these outcomes.
    """
    before = [*issued(graph.nodes)]
    if not before:
        return
    with Transaction() as own:
        own.keep(graph)
        run = start(rules, transaction=own)
        run.settle()
        run.journal.commit()
        count = len(outcomes.rewrites)
        found = difference(before, [*issued(graph.nodes)]) if count else None
        if found is not None:
            own.restore()
            whole = f"of {count} rewrites that communicate together none is made"
            outcomes.undo(rules, Refusal("effect", f"{whole}: {found}", (before[0].node,)))
