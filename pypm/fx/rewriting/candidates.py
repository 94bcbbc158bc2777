"""Candidates: planned rewrites, with the region and what replaces it as graphs of the same inputs.

A function that chooses among rewrites is given these. Nothing has been applied to the graph yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf, isnan
from numbers import Real
from typing import Final, TypeAlias

from torch import Tensor, fx

from pypm.core.rules import Rule
from pypm.diagnostics import Diagnostic, PyPMError, RewriteError
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.rewriting.errors import answer_unfit, choice_failed
from pypm.fx.rewriting.plan import needed
from pypm.fx.rewriting.planner import Planned
from pypm.fx.subject.calls import rearranges
from pypm.fx.subject.subgraphs import Copy, in_module, signature
from pypm.fx.values.metadata import is_number, metadata

__all__ = ["Candidate", "Choice", "appraised", "check_choice", "every", "first"]


@dataclass(frozen=True, eq=False)
class Candidate:
    """One planned rewrite."""

    planned: Planned
    around: frozenset[fx.Node] = frozenset()
    """Nodes outside of the region that `before` and `after` compute as well."""

    @property
    def rule(self) -> Rule:
        return self.planned.rule

    @property
    def by_data(self) -> bool:
        """True if the contents of the inputs decide how long the replacement takes."""
        reading = self.planned.match.reading
        return self.rule.pays == "by data" or (reading is not None and reading.by_data)

    @property
    def root(self) -> str:
        """The name of the node that the rule matched at."""
        return self.planned.match.root.name

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """The region, in graph order."""
        return self.planned.plan.region.nodes

    @cached_property
    def inputs(self) -> tuple[fx.Node, ...]:
        """The nodes whose values `before` and `after` take, in graph order.

        In place of a copy or view that only the region reads, which a compiler makes part of it,
        stands what that is made of; so it does for what only the region reads, and the replacement
        computes anew.
        """
        plan, reading = self.planned.plan, self.planned.match.reading
        inside = {*plan.region.nodes, *self.around}
        read = {plan.inputs[n] for _, out in plan.outputs for n in needed(out) if n in plan.inputs}
        anew = {*(() if reading is None else reading.through)} - read
        sources = (source for node in self.around for source in node.all_input_nodes)
        todo = [n for n in (*plan.region.inputs, *read, *sources) if n not in inside]
        found: set[fx.Node] = set()
        while todo:
            node = todo.pop()
            if inside.issuperset(node.users) and (node in anew or _joins(node)):
                inside.add(node)
                todo += node.all_input_nodes
                found.difference_update(node.all_input_nodes)
            elif node not in inside:
                found.add(node)
        return tuple(sorted(found))

    @property
    def values(self) -> tuple[fx.node.Argument, ...]:
        """The fake tensors and numbers that the inputs have as metadata; None where it is missing.

        Numbers may be symbolic.
        """
        return tuple(metadata(node) for node in self.inputs)

    @cached_property
    def before(self) -> fx.GraphModule:
        """The region: from `inputs` to what it replaces, and to what else is used outside."""
        return in_module(self.graphs[0])

    @cached_property
    def after(self) -> fx.GraphModule:
        """The region after the rewrite: the same outputs from the same inputs."""
        return in_module(self.graphs[1])

    @cached_property
    def graphs(self) -> tuple[fx.Graph, fx.Graph]:
        """The graphs of `before` and `after`, for which no code is generated."""
        return self._before(), self._after()

    def _before(self) -> fx.Graph:
        copy = Copy(self.inputs)
        return copy.graph([copy.of(node) for node in self._results])

    def _after(self) -> fx.Graph:
        copy, plan = Copy(self.inputs), self.planned.plan
        values: dict[fx.Node, fx.Node] = {}
        new: dict[fx.Node, fx.node.Argument] = {}
        for root, output in plan.outputs:
            for node in needed(output):
                if node not in values:
                    values[node] = (
                        copy.of(plan.inputs[node])
                        if node.op == "placeholder"
                        else copy.add(node, values.__getitem__, plan.owner)
                    )
                    if node in plan.values:
                        values[node].meta["val"] = plan.values[node]
            new[root] = output
            if isinstance(output, fx.Node):
                new[root] = values[output]
                copy.put(root, values[output])
        results = (new[node] if node in new else copy.of(node) for node in self._results)
        return copy.graph(results)

    @property
    def signature(self) -> str:
        """A hash of both graphs, with types, sizes and strides of the inputs.

        It is equal in any two processes only if the graphs are.
        """
        return signature(self.values, *self.graphs)

    @cached_property
    def _results(self) -> tuple[fx.Node, ...]:
        """The nodes inside, but for what is before the region, whose values are used outside."""
        region = self.planned.plan.region
        inside = {*region.nodes, *self.around}
        replaced = dict.fromkeys(root for root, _ in self.planned.plan.outputs)
        kept = [node for node in region.nodes if node in region.alive and node not in replaced]
        after: dict[fx.Node, None] = {}
        for node in sorted(self.around):
            if any(n in after or n in region.nodes for n in node.all_input_nodes):
                after[node] = None
        used = [n for n in (*replaced, *kept, *after) if not inside.issuperset(n.users)]
        return tuple(used) or tuple(replaced)


def _joins(node: fx.Node) -> bool:
    """Return whether a compiler makes a copy or view part of what reads it: on one device, of
    values that `before` can take.
    """
    nodes = (node, *node.all_input_nodes)
    tensors = [value for value in map(metadata, nodes) if isinstance(value, Tensor)]
    are_known = len(tensors) + sum(map(is_number, nodes)) == len(nodes)
    return rearranges(node) and are_known and len({value.device for value in tensors}) == 1


Choice: TypeAlias = Callable[[Candidate], "Appraisal | float"]
"""From a candidate to what it is worth: an appraisal, or the seconds that it saves. One that has a
method `begin` is first given each graph as it is, the rules, and the dialect or None."""

_ALWAYS: Final = Appraisal(inf, "rules are applied wherever they may be")


def first(candidate: Candidate) -> Appraisal:
    """Return the worth of a candidate where rules are applied whatever they cost.

    With this choice no other rewrite of a node is planned than the first, in the order of the
    rules.
    """
    return _ALWAYS


def every(candidate: Candidate) -> Appraisal:
    """Return the worth of a candidate where each legal rewrite is to be made, as in tests of rules.

    Unlike with `first`, rules that pay sometimes are applied too.
    """
    return _ALWAYS


def check_choice(choose: object) -> None:
    """Raise PyPMError unless `choose` can be called."""
    if not callable(choose):
        what = f"`choose` takes a function of a candidate, not {choose!r}"
        help = "pass `first`, `measured()`, `bounds(hardware)`, or a function of your own"
        raise PyPMError(Diagnostic(what, help=help))


def appraised(choose: Choice, candidate: Candidate) -> Appraisal:
    """Return the result of a choice for a candidate as an appraisal.

    Raises RewriteError if the choice raises an error, or returns neither a number of seconds nor an
    appraisal with one.
    """
    rule, match = candidate.rule, candidate.planned.match
    try:
        found: object = choose(candidate)
    except PyPMError:
        raise
    except Exception as error:
        raise RewriteError(choice_failed(choose, rule, match, error)) from error
    worth = found if isinstance(found, Appraisal) else Appraisal(found)  # type: ignore[arg-type]
    known = (worth.before, worth.after, worth.bound)
    if not _is_number(worth.saved) or not all(x is None or _is_number(x) for x in known):
        raise RewriteError(answer_unfit(choose, rule, match, found))
    return worth


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, Real) and not isnan(value)
    except OverflowError:  # an integer that is larger than any float
        return False
