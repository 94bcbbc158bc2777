"""`find`: the matches of a pattern in a graph."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import islice

from torch import fx

from pypm.core.patterns import Pattern
from pypm.core.python_settings import with_stack_room
from pypm.core.rules import Rule
from pypm.fx.matching.attempts import Attempts, Matched
from pypm.fx.matching.match import Match
from pypm.fx.matching.opened_modules import OpenedModules
from pypm.fx.matching.patterns_as_rules import PatternLike, as_rule
from pypm.fx.matching.program import operators_of, program_of
from pypm.fx.matching.search import Allowance, MatchSearch
from pypm.fx.matching.uncovered_modules import left_whole
from pypm.fx.subject.order import check_order
from pypm.fx.subject.transaction import Transaction
from pypm.fx.subject.view import View
from pypm.fx.values.user_input import check_module
from pypm.match.matcher import STEPS

__all__ = ["find"]


@with_stack_room
def find(
    gm: fx.GraphModule,
    pattern: Pattern | PatternLike | Rule,
    *,
    all: bool = False,
    budget: int = STEPS,
) -> list[Match]:
    """Return the legal matches of a pattern, from the outputs of the graph upwards.

    Arguments:
        gm: the graph module; it is not changed.
        pattern: a pattern, or a rule, whose pattern and guards are used.
        all: True for all distinct legal matches at each root, in order; by default the first one.
        budget: the number of steps that the search at one root may take.

    Nothing is replaced, so matches may overlap. Raises PyPMError if `gm` is not a graph module, or
    its graph is not in order. Warns if there are no matches and the graph calls modules, since
    nothing matches inside of these.
    """
    check_module(gm, "pypm.fx.find")
    check_order(gm.graph)
    rules = [as_rule(pattern)]
    program = program_of(rules)
    found: list[Match] = []
    with Transaction() as transaction:
        modules = OpenedModules(gm.graph, operators_of(rules), transaction)
        view = View(gm.graph, program.reader)
        attempts = Attempts(program, MatchSearch(view, Allowance(budget)))
        for node in reversed(view.starts):
            matches = (a.match for a in attempts.at(node) if isinstance(a, Matched))
            found += matches if all else islice(matches, 1)
        note = "" if found else left_whole(view, program)
        modules.close(has_changed=False)
    if note:
        warnings.warn(f"nothing matches: {note}", RuntimeWarning, stacklevel=2)
    return [_closed(match) for match in found]


def _closed(match: Match) -> Match:
    """Return the match without the nodes of opened modules' parameters, which were erased."""
    region = match.region
    sides = tuple(node for node in region.side_inputs if not node._erased)
    if sides == region.side_inputs and not any(node._erased for node in region.variables):
        return match
    variables = tuple(node for node in region.variables if not node._erased)
    closed = replace(region, variables=variables, side_inputs=sides)
    return replace(match, region=closed, inputs=closed.inputs, side_inputs=sides)
