"""Partitioning: each region that a pattern matches becomes a submodule, which may be compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Any, TypeAlias, assert_never

import torch
from torch import fx

from pypm.core.patterns import Pattern
from pypm.core.rules import Rule
from pypm.diagnostics import Diagnostic, RewriteError
from pypm.fx.legality.aliasing import must_share
from pypm.fx.legality.judge import depends_on
from pypm.fx.legality.region import Refusal, Region
from pypm.fx.matching.attempts import Attempts, Matched, NoMatch, RefusedMatch, SkippedRule
from pypm.fx.matching.match import Match
from pypm.fx.matching.opened_modules import OpenedModules
from pypm.fx.matching.patterns_as_rules import PatternLike, as_rule
from pypm.fx.matching.program import operators_of, program_of
from pypm.fx.matching.search import Allowance, MatchSearch
from pypm.fx.operators.effects import is_pure
from pypm.fx.reporting.node_records import Frame, source_of
from pypm.fx.reporting.report import RefusalRecord
from pypm.fx.rewriting.journal import Journal
from pypm.fx.rewriting.plan import RewritePlan
from pypm.fx.subject.order import put_in_order
from pypm.fx.subject.transaction import Transaction
from pypm.fx.subject.view import View
from pypm.fx.values.metadata import metadata
from pypm.fx.values.user_input import check_module
from pypm.match.matcher import STEPS

__all__ = ["Compile", "Partition", "RegionRecord", "partition"]

Compile: TypeAlias = Callable[[fx.GraphModule, list[Any]], Callable[..., object]]
"""A compiler of regions: takes a region as a graph module and an example of each of its inputs, and
returns a callable that computes the same.

The examples are the graph's metadata: fake tensors, symbolic sizes, or None if unknown.
"""


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """One region, by the names that the graph had; its nodes may be erased."""

    name: str
    """Name of the submodule, and of the node that calls it."""
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    """Names of the inputs, in the order of the submodule's parameters."""
    outputs: tuple[str, ...]
    source: Frame | None = None
    """The line of the model that the first output comes from."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The result of `partition`: the regions, from the outputs up, and the refused matches."""

    regions: tuple[RegionRecord, ...] = ()
    refusals: tuple[RefusalRecord, ...] = ()
    """Refused matches, one record for each root and reason."""

    def __len__(self) -> int:
        return len(self.regions)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[RegionRecord]:
        return iter(self.regions)

    def __str__(self) -> str:
        lines = [f"{len(self)} regions"]
        for region in self.regions:
            call = f"{', '.join(region.outputs)} = {region.name}({', '.join(region.inputs)})"
            source = f"  [{region.source}]" if region.source else ""
            lines.append(f"  {call}, {len(region.nodes)} nodes{source}")
        lines += [f"  {r.rule} refused at {r.node}: {r.reason}" for r in self.refusals]
        return "\n".join(lines)


def partition(
    gm: fx.GraphModule,
    pattern: Pattern | PatternLike | Rule,
    *,
    compile: Compile | None = None,
    name: str = "region",
    absorb: str | None = None,
    budget: int = STEPS,
) -> Partition:
    """Turn each region that a pattern matches into a submodule of `gm`, called in its place.

    Arguments:
        gm: the graph module, changed in place; for an exported program, `program.module()`.
        pattern: the pattern, or a rule, whose pattern is used.
        compile: called with each region (a graph module) and an example of each of its inputs; its
            result takes the region's place. It must compute the same, write no input, and share
            memory with the inputs only if the region did.
        name: the submodules are called `<name>_0`, `<name>_1`, and so on.
        absorb: a class of operators, as "pointwise"; operators of that class on paths between
            matched ones join the region.
        budget: the largest number of steps of the search from one root.

    Returns a `Partition` with the regions and the refused matches.

    Regions are maximal: roots are visited from the outputs up, each takes its first legal match,
    and no region lies inside another. As with `find`, a match is refused if an interior value has a
    user outside (an escape); then the next match at that root is tried. Views, constants and values
    marked `keep` may have users outside, and are then also computed there. A match is refused, too,
    if its output is a view of memory that is written or seen later.

    A submodule takes the pattern's variables, in order, and then the side inputs. It returns the
    pattern's output, or a tuple of the outputs that the graph has.

    Raises PyPMError if `gm` is not a graph module, and RewriteError if `compile` raises or returns
    something that cannot be called; the graph and the module are then unchanged.
    """
    check_module(gm, "pypm.fx.partition")
    gm.graph.owning_module = gm
    rule = as_rule(pattern)
    if absorb is not None:
        rule = replace(rule, absorb=absorb)
    with Transaction() as transaction:
        has_moved = put_in_order(gm.graph, transaction)
        modules = OpenedModules(gm.graph, operators_of([rule]), transaction)
        run = _Run(gm, rule, compile, name, budget, transaction)
        for node in reversed(run.view.starts):
            run.visit(node)
        run.journal.commit()
        modules.close(has_changed=bool(run.records))
        if has_moved or run.records:
            gm.recompile()
    return Partition(tuple(run.records), tuple(run.refusals.values()))


@dataclass(repr=False)
class _Run:
    """State of one call of `partition`."""

    gm: fx.GraphModule
    rule: Rule
    compile: Compile | None
    prefix: str
    budget: int
    transaction: Transaction
    records: list[RegionRecord] = field(default_factory=list)
    refusals: dict[tuple[fx.Node | None, str], RefusalRecord] = field(default_factory=dict)
    inside: set[fx.Node] = field(default_factory=set)
    """Nodes of the regions made so far; some stay outside as well."""

    def __post_init__(self) -> None:
        program = program_of([self.rule])
        self.view = View(self.gm.graph, program.reader)
        self.attempts = Attempts(program, MatchSearch(self.view, Allowance(self.budget)))
        self.journal = Journal(self.gm.graph, self.view)

    def visit(self, node: fx.Node) -> None:
        """Make a region with the root `node`, if it has a legal match."""
        if node in self.inside or node in self.view.dead or not self.view.is_used(node):
            return
        for attempt in self.attempts.at(node):
            match attempt:
                case Matched(match=match):
                    refusal = _joint(match.region) or _unshared(self.view, match.region)
                    if refusal is None:
                        self.make(match)
                        return
                    self.refuse(node, refusal)
                case RefusedMatch(refusal=refusal) | SkippedRule(refusal=refusal):
                    self.refuse(node, refusal)
                case NoMatch():
                    pass
                case _:
                    assert_never(attempt)

    def refuse(self, node: fx.Node, refusal: Refusal) -> None:
        if refusal.kind == "uncovered":  # a pattern that ends in a variable matches anything
            return
        record = RefusalRecord(
            self.rule.name, refusal.kind, refusal.reason, node.name, span=self.rule.span
        )
        self.refusals.setdefault((node, refusal.reason), record)

    def make(self, match: Match) -> None:
        self.transaction.keep(self.gm.graph)
        region = match.region
        numbers = range(len(self.records), 10**6)
        name = next(n for i in numbers if not hasattr(self.gm, n := f"{self.prefix}_{i}"))
        self.records.append(_record(name, region))
        plan = _plan(name, region, self.compiled(name, region))
        self.journal.splice(plan, self.rule.name)
        self.inside.update(region.nodes)

    def compiled(self, name: str, region: Region) -> torch.nn.Module:
        if self.compile is None:
            return region.module
        try:
            made: object = self.compile(region.module, [metadata(node) for node in region.inputs])
        except Exception as error:
            raised = f"raised {type(error).__name__}: {error}"
            help = "guard the pattern so that it matches only what `compile` takes"
            raise RewriteError(_not_compiled(name, self.rule, region, raised, help)) from error
        if isinstance(made, torch.nn.Module):
            return made
        if not callable(made):
            gave = f"gave {made!r}, which cannot be called"
            help = "return a function of the region's inputs, or the module that it was given"
            raise RewriteError(_not_compiled(name, self.rule, region, gave, help))
        return _Compiled(made)


class _Compiled(torch.nn.Module):
    """A module that calls the function that a compiler returned for a region."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: object) -> object:
        return self.function(*inputs)


def _plan(name: str, region: Region, module: torch.nn.Module) -> RewritePlan:
    """Return the plan that replaces the region's outputs by one call of the module."""
    owner, graph = torch.nn.Module(), fx.Graph()
    owner.add_module(name, module)
    inputs = {graph.placeholder(node.name): node for node in region.inputs}
    call = graph.create_node("call_module", name, tuple(inputs), name=name)
    roots = sorted(region.roots)
    values = [metadata(root) for root in region.roots]
    if len(roots) == 1:
        return RewritePlan(region, owner, inputs, ((roots[0], call),), {call: values[0]})
    items = [graph.call_function(getitem, (call, i)) for i in range(len(roots))]
    fakes: dict[fx.Node, object] = dict(zip(items, values, strict=True))
    if all(value is not None for value in values):
        fakes[call] = tuple(values)
    outputs = dict(zip(region.roots, items, strict=True))
    return RewritePlan(region, owner, inputs, tuple((root, outputs[root]) for root in roots), fakes)


def _joint(region: Region) -> Refusal | None:
    """Return the reason for which one call, at the first output, cannot compute all; else None."""
    if len(region.roots) == 1:
        return None
    first = min(region.roots)
    todo = [node for node in region.inputs if first < node]
    for node in todo:
        for root in depends_on(node, region.roots):
            reason = f"the input `{node}` is computed from the output `{root}`"
            return Refusal("cycle", reason, (node, root))
    seen = set(todo)
    while todo:
        node = todo.pop()
        if not is_pure(node):
            reason = f"`{node}` comes after the output `{first}` and cannot be moved before it"
            return Refusal("effect", reason, (node, first))
        fresh = [source for source in node.all_input_nodes if first < source and source not in seen]
        seen.update(fresh)
        todo += fresh
    return None


def _unshared(view: View, region: Region) -> Refusal | None:
    for root in region.roots:
        if must_share(view, root, region, region.roots):
            return Refusal(
                "layout", f"`{root}` is a view of memory that is written or seen later", (root,)
            )
    return None


def _record(name: str, region: Region) -> RegionRecord:
    names = [tuple(n.name for n in part) for part in (region.nodes, region.inputs, region.roots)]
    nodes, inputs, outputs = names
    return RegionRecord(name, nodes, inputs, outputs, source_of(region.roots[0]))


def _not_compiled(name: str, rule: Rule, region: Region, happened: str, help: str) -> Diagnostic:
    source = source_of(region.roots[0])
    ends = ", ".join(f"`{root}`" for root in region.roots)
    return Diagnostic(
        f"`compile` {happened}",
        rule.span,
        help=help,
        notes=(
            f"for `{name}`, a region of `{rule.name}` with {len(region.nodes)} nodes",
            f"it ends in {ends}" + (f", from {source}" if source else ""),
            "the graph is as it was",
        ),
    )
