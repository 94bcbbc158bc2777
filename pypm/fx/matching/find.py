"""Finding the matches of a pattern in a graph."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import islice

from torch import fx

from pypm.core.depth import with_stack_room
from pypm.core.patterns import Pattern
from pypm.core.rules import Rule
from pypm.fx.matching.attempts import Attempts, Matched
from pypm.fx.matching.match import Match
from pypm.fx.matching.opened_modules import OpenedModules
from pypm.fx.matching.patterns_as_rules import PatternLike, as_rule
from pypm.fx.matching.program import program_of
from pypm.fx.matching.search import Allowance, Search
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
        attempts = Attempts(program, Search(view, Allowance(budget)))
        for node in reversed(view.starts):
            matches = (a.match for a in attempts.at(node) if isinstance(a, Matched))
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
