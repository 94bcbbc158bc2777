"""Candidates: planned rewrites, with the region and what replaces it as graphs of the same inputs.

A function that chooses among rewrites is given these. Nothing has been applied to the graph yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import inf, isnan
from numbers import Real
from operator import attrgetter
from typing import Final, TypeAlias

import torch
from torch import fx

from pypm.core.rules import Rule
from pypm.diagnostics import Diagnostic, PyPMError, RewriteError
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.rewriting.alternatives import Planned
from pypm.fx.rewriting.errors import answer_unfit, choice_failed
from pypm.fx.rewriting.plan import needed
from pypm.fx.values.metadata import metadata

__all__ = ["Candidate", "Choice", "appraised", "check_choice", "every", "first"]


@dataclass(frozen=True, eq=False)
class Candidate:
    """One planned rewrite."""

    planned: Planned

    @property
    def rule(self) -> Rule:
        return self.planned.rule

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
        """The nodes whose values `before` and `after` take, in graph order."""
        plan = self.planned.plan
        read = {plan.inputs[n] for _, out in plan.outputs for n in needed(out) if n in plan.inputs}
        return tuple(sorted({*plan.region.inputs, *read.difference(plan.region.nodes)}))

    @property
    def values(self) -> tuple[object, ...]:
        """The fake tensors and numbers that the inputs have as metadata; None where it is missing.

        Numbers may be symbolic.
        """
        return tuple(metadata(node) for node in self.inputs)

    @cached_property
    def before(self) -> fx.GraphModule:
        """The region: from `inputs` to what it replaces, and to what else is used outside."""
        copy = _Copy(self.inputs)
        return copy.module([copy.of(node) for node in (*self._replaced, *self._kept)])

    @cached_property
    def after(self) -> fx.GraphModule:
        """The region after the rewrite: the same outputs from the same inputs."""
        copy, plan = _Copy(self.inputs), self.planned.plan
        values: dict[fx.Node, fx.Node] = {}
        results: list[object] = []
        for _, output in plan.outputs:
            for node in needed(output):
                if node not in values:
                    values[node] = (
                        copy.of(plan.inputs[node])
                        if node.op == "placeholder"
                        else copy.add(node, values.__getitem__, plan.owner)
                    )
                    if node in plan.values:
                        values[node].meta["val"] = plan.values[node]
            results.append(values[output] if isinstance(output, fx.Node) else output)
        return copy.module([*results, *(copy.of(node) for node in self._kept)])

    @property
    def signature(self) -> str:
        """A hash of both graphs, with types, sizes and strides of the inputs.

        It is equal in any two processes only if the graphs are.
        """
        inputs = [_described(value) for value in self.values]
        texts = [*inputs, *_lines(self.before.graph), "=>", *_lines(self.after.graph)]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    @property
    def _replaced(self) -> tuple[fx.Node, ...]:
        return tuple(root for root, _ in self.planned.plan.outputs)

    @property
    def _kept(self) -> tuple[fx.Node, ...]:
        """The nodes inside that are not replaced and used outside."""
        region = self.planned.plan.region
        inside = {*region.nodes}
        replaced = {*self._replaced}
        return tuple(
            node
            for node in region.nodes
            if node in region.alive and node not in replaced and not inside.issuperset(node.users)
        )


Choice: TypeAlias = Callable[[Candidate], "Appraisal | float"]
"""From a candidate to what it is worth: an appraisal, or the seconds that it saves."""

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
    return isinstance(value, Real) and not isnan(value)


class _Copy:
    """A graph in the making, from nodes of other graphs and what they read of their modules."""

    def __init__(self, inputs: Iterable[fx.Node]) -> None:
        self._graph = fx.Graph()
        self._owner = torch.nn.Module()
        self._copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            copy = self._copies[node] = self._graph.placeholder(node.name)
            copy.meta = dict(node.meta)

    def of(self, node: fx.Node) -> fx.Node:
        """Return the copy of a node of the user's graph, with all that it is computed from."""
        todo = [node]
        while todo:
            current = todo[-1]
            if current in self._copies:
                todo.pop()
            elif missing := [x for x in current.all_input_nodes if x not in self._copies]:
                todo += missing
            else:
                owner = current.graph.owning_module
                self._copies[current] = self.add(current, self._copies.__getitem__, owner)
        return self._copies[node]

    def add(
        self, node: fx.Node, of: Callable[[fx.Node], fx.Node], owner: torch.nn.Module | None
    ) -> fx.Node:
        """Add a copy of a node, on the copies of what it reads."""
        copy = self._graph.node_copy(node, of)
        if node.op == "get_attr" and owner is not None:
            copy.target = f"held_{len(self._graph.nodes)}"
            setattr(self._owner, copy.target, attrgetter(str(node.target))(owner))
        return copy

    def module(self, results: Iterable[object]) -> fx.GraphModule:
        self._graph.output(tuple(results))  # type: ignore[arg-type]
        return fx.GraphModule(self._owner, self._graph)


def _lines(graph: fx.Graph) -> list[str]:
    """The nodes of a graph as text, with numbers for names."""
    names = {node: f"%{place}" for place, node in enumerate(graph.nodes)}
    return [
        f"{names[node]} = {node.op} {_target(node)} "
        f"{fx.node.map_arg((node.args, node.kwargs), lambda n: _Name(names[n]))}"
        for node in graph.nodes
        if node.op != "placeholder"
    ]


class _Name(str):
    """The name of a node, which prints without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


def _target(node: fx.Node) -> str:
    if node.op == "call_function" and not isinstance(node.target, str):
        return f"{getattr(node.target, '__module__', '')}.{node._pretty_print_target(node.target)}"
    if node.op == "get_attr":
        owner = node.graph.owning_module
        return _described(attrgetter(str(node.target))(owner)) if owner is not None else "?"
    return str(node.target)


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        layout = f"{[*value.shape]} {[*value.stride()]}"
        return f"{value.dtype} {layout} {value.device.type}"
    if isinstance(value, fx.GraphModule):
        return "; ".join(_lines(value.graph))
    return repr(value)
