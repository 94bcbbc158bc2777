"""Finding matches in a graph, and rewriting it by rules until none of them matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from traceback import extract_tb
from typing import Any, Final

import torch
from torch import fx

from pypm.core.operators import Operator
from pypm.core.patterns import Pattern
from pypm.core.rules import Rule, Rules, RuleSet, as_rule_set
from pypm.diagnostics import BudgetError, Diagnostic, PyPMError, RewriteError, Span
from pypm.fx.dialect import Dialect, Match, Outcome, dialect_of, takes_match, trace
from pypm.fx.legality import Refusal, Region
from pypm.fx.plan import Plan, plan
from pypm.fx.program import PatternLike, Target, as_rule, program_of
from pypm.fx.replace import Journal
from pypm.fx.report import RefusalRecord, Report, RewriteRecord, RuleRecord
from pypm.fx.search import Search, nodes_of
from pypm.fx.view import View, metadata
from pypm.match.matcher import STEPS

__all__ = ["Match", "find", "rewrite", "rewrite_graph"]

ANSWERS: Final = 1000
"""Distinct answers looked at for one rule at one root."""


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
) -> Report:
    """Apply rules in place until none matches, and recompile the module.

    `budget` bounds the rewrites (4 for each node and 1000, if left out). With `exact`, rules that
    do not keep every value (NaN included) hold back. The graph is as it was before where this
    raises: RewriteError where a rule's body does, BudgetError where the rules do not settle.
    """
    report = rewrite_graph(gm.graph, rules, budget=budget, exact=exact, dialect=dialect)
    gm.recompile()
    return report


def rewrite_graph(
    graph: fx.Graph,
    rules: Rules,
    *,
    budget: int | None = None,
    exact: bool = False,
    dialect: Dialect | None = None,
) -> Report:
    """As `rewrite`, of a graph whose module, if it has one, is recompiled by the caller."""
    limit = 4 * len(graph.nodes) + 1000 if budget is None else budget
    run = _Run(graph, as_rule_set(rules), dialect or dialect_of(graph), limit, exact)
    try:
        run.to_fixpoint()
        report = run.report()
        run.journal.commit()
    except BaseException:
        run.journal.rollback()
        raise
    return report


@dataclass
class _Tally:
    attempts: int = 0
    matches: int = 0
    rewrites: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, repr=False)
class _Ancestry:
    """The rewrite a node comes from, and the one its root came from."""

    rule: str
    earlier: _Ancestry | None


@dataclass(repr=False)
class _Run:
    """One call of `rewrite`."""

    graph: fx.Graph
    rules: RuleSet
    dialect: Dialect
    limit: int
    exact: bool
    started: float = field(default_factory=perf_counter)
    rewrites: list[RewriteRecord] = field(default_factory=list)
    refusals: dict[tuple[str, str, fx.Node | None, str], RefusalRecord] = field(
        default_factory=dict
    )
    traces: dict[object, Outcome] = field(default_factory=dict)
    ancestry: dict[fx.Node, _Ancestry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.program = program_of(self.rules)
        self.view = View(self.graph, self.program.reader)
        self.search = Search(self.view, exact=self.exact)
        self.journal = Journal(self.graph, self.view)
        self.tallies = {rule.name: _Tally() for rule in self.rules}
        self.touched: set[fx.Node] = set()

    def to_fixpoint(self) -> None:
        """Visit the nodes from the outputs up, and then what the rewrites may have changed."""
        todo = self.view.starts
        while todo:
            for node in reversed(todo):
                self.visit(node)
            todo = self.changed()

    def visit(self, node: fx.Node) -> None:
        """Rewrite at one root by the first rule that matches, if one does."""
        if node in self.view.dead or not self.view.users(node):
            return
        for target in self.program.at(self.view, node):
            tally, start = self.tallies[target.rule.name], perf_counter()
            has_rewritten = self.attempt(target, node, tally)
            tally.seconds += perf_counter() - start
            if has_rewritten:
                return

    def changed(self) -> list[fx.Node]:
        """The nodes where some rule may match anew: what was rewritten since last asked, and what
        is computed from it as near as the rules that may match there look down; in graph order.
        """
        found: set[fx.Node] = set()
        seen, self.touched = self.touched, set()
        level, distance = list(seen), 0
        while level and distance <= self.program.reach:
            following: list[fx.Node] = []
            for node in level:
                if node in self.view.dead:
                    continue
                if self.view.states[node].reach >= distance:
                    found.add(node)
                fresh = [user for user in node.users if user not in seen]
                seen.update(fresh)
                following += fresh
            level, distance = following, distance + 1
        return sorted(node for node in found if node.op.startswith("call_"))

    def attempt(self, target: Target, node: fx.Node, tally: _Tally) -> bool:
        """Rewrite by one rule at one root, if it matches and may."""
        tally.attempts += 1
        matched = False
        for candidate in self.search.candidates(target, node):
            if not matched:
                tally.matches += 1
                matched = True
            if isinstance(candidate, Refusal):
                self.refuse(target.rule, node, candidate)
                continue
            planned = self.plan(target.rule, candidate)
            if isinstance(planned, Refusal):
                self.refuse(target.rule, node, planned)
                continue
            tally.rewrites += 1
            self.apply(target.rule, candidate, planned)
            return True
        return False

    def plan(self, rule: Rule, match: Match) -> Plan | Refusal:
        try:
            outcome = self.trace(rule, match)
            if isinstance(outcome, Refusal):
                return outcome
            return plan(self.view, match.region, match.roots, outcome, self.dialect)
        except PyPMError:
            raise
        except Exception as error:
            raise RewriteError(_body_failed(rule, match, error)) from error

    def trace(self, rule: Rule, match: Match) -> Outcome:
        operands = _operands(match)
        key = _trace_key(rule, match, operands)
        known = self.traces.get(key)
        if known is None:
            before = _surroundings(match, operands)
            known = self.traces[key] = trace(rule, match, operands, self.dialect)
            if _surroundings(match, operands) != before:
                raise RewriteError(_graph_edited(rule, match))
        return known.at(operands) if not isinstance(known, Refusal) else known

    def apply(self, rule: Rule, match: Match, planned: Plan) -> None:
        record = _record(rule, match, planned)
        earlier = self.ancestry.get(match.root)
        if len(self.rewrites) >= self.limit:
            raise BudgetError(_unsettled(rule, self.limit, earlier, self.rewrites))
        new, readers = self.journal.splice(planned, rule.name)
        for node in new:
            self.ancestry[node] = _Ancestry(rule.name, earlier)
        self.rewrites.append(record.with_new(tuple(node.name for node in new)))
        self.view.invalidate([*new, *readers, *planned.updates])
        others = (*planned.region.inputs, *planned.region.nodes, *planned.updates)
        self.touched.update(new, readers)
        self.touched.update(node for node in others if node.op.startswith("call_"))

    def refuse(self, rule: Rule, node: fx.Node, refusal: Refusal) -> None:
        key = (rule.name, refusal.kind, node, refusal.reason)
        if key not in self.refusals:
            self.refusals[key] = RefusalRecord(
                rule.name, refusal.kind, refusal.reason, node.name, span=rule.span
            )

    def report(self) -> Report:
        rules = tuple(
            RuleRecord(name, t.attempts, t.matches, t.rewrites, t.seconds)
            for name, t in self.tallies.items()
        )
        seconds = perf_counter() - self.started
        full = Report(tuple(self.rewrites), tuple(self.refusals.values()), rules, seconds)
        return Report.merge([full])


def _operands(match: Match) -> tuple[fx.Node, ...]:
    """Every node that a body may compute with."""
    bound = nodes_of(tuple(match.bindings.values()))
    return tuple(dict.fromkeys([*match.region.inputs, *bound]))


def _record(rule: Rule, match: Match, planned: Plan) -> RewriteRecord:
    bindings = {name: str(value) for name, value in match.bindings.items()}
    return RewriteRecord(
        rule.name, match.root.name, (), bindings, source_of(match.root), planned.checked
    )


def source_of(node: fx.Node) -> str:
    """The line of the model a node comes from: the last frame of its stack trace."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
    frames = [i for i, line in enumerate(lines) if line.startswith("File ")]
    return " ".join(lines[frames[-1] : frames[-1] + 2]) if frames else ""


# --- what decides a trace -----------------------------------------------------------------------


def _surroundings(match: Match, operands: Sequence[fx.Node]) -> object:
    """What a body can see of the graph, and must leave as it is."""
    nodes = (*match.region.nodes, *operands)
    seen = [(n.op, n.target, n.args, n.kwargs, tuple(n.users), n.next) for n in nodes]
    return len(match.root.graph.nodes), seen


def _trace_key(rule: Rule, match: Match, operands: Sequence[fx.Node]) -> object:
    """Equal for matches whose traces are equal: equal layers are traced once."""
    names = {node: index for index, node in enumerate(operands)}
    bindings = tuple((name, _key(value, names)) for name, value in match.bindings.items())
    known = tuple(_metadata_key(metadata(node)) for node in operands)
    region = _region_key(match.region, names) if takes_match(rule) else None
    return id(rule), bindings, known, region


def _key(value: object, names: Mapping[fx.Node, int]) -> object:
    if isinstance(value, fx.Node):
        return ("node", names.get(value, value.name))
    if isinstance(value, (tuple, list)):
        return (type(value), *(_key(part, names) for part in value))
    if isinstance(value, dict):
        return tuple((name, _key(part, names)) for name, part in value.items())
    if isinstance(value, Operator):
        return value
    return (type(value), repr(value))


def _metadata_key(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        sizes = (tuple(map(str, value.shape)), tuple(map(str, value.stride())))
        return (*sizes, value.dtype, value.device, value.layout)
    if isinstance(value, (tuple, list)):
        return tuple(map(_metadata_key, value))
    return (type(value), str(value))


def _region_key(region: Region, operands: Mapping[fx.Node, int]) -> object:
    names = dict(operands)
    parts: list[object] = []
    for node in region.nodes:
        call = (_key(node.args, names), _key(dict(node.kwargs), names))
        parts.append((node.op, str(node.target), call, _metadata_key(metadata(node))))
        names.setdefault(node, len(names))
    return tuple(parts), tuple(names[root] for root in region.roots)


# --- errors -------------------------------------------------------------------------------------


def _body_failed(rule: Rule, match: Match, error: Exception) -> Diagnostic:
    source = source_of(match.root)
    notes = [f"at `{match.root}`" + (f", from {source}" if source else "")]
    notes.append("the graph is as it was")
    return Diagnostic(
        f"the body of rule `{rule.name}` raised {type(error).__name__}: {error}",
        _raised_at(rule, error),
        "raised here",
        help="let the body return `decline(...)` where it does not apply",
        notes=tuple(notes),
    )


def _graph_edited(rule: Rule, match: Match) -> Diagnostic:
    return Diagnostic(
        f"the body of rule `{rule.name}` changed the graph itself",
        rule.span,
        help="return what the matched value is to be; nodes are for looking at",
        notes=(f"at `{match.root}`", "what the body changed stays; everything else is as it was"),
    )


def _raised_at(rule: Rule, error: Exception) -> Span | None:
    """The innermost place in the rule's own file that an error passed through."""
    file = rule.span.file if rule.span is not None else None
    for frame in reversed(extract_tb(error.__traceback__)):
        if frame.filename == file and frame.lineno and frame.colno is not None:
            end = frame.end_colno or frame.colno + 1
            return Span(file, frame.lineno, frame.colno, frame.end_lineno or frame.lineno, end)
    return rule.span


def _unsettled(
    rule: Rule, limit: int, earlier: _Ancestry | None, rewrites: Sequence[RewriteRecord]
) -> Diagnostic:
    history = [rule.name]
    while earlier is not None and len(history) < 64:
        history.append(earlier.rule)
        earlier = earlier.earlier
    history.reverse()
    cycle = _period(history)
    fired = ", ".join(
        f"`{name}` {sum(rewrite.rule == name for rewrite in rewrites)} times"
        for name in dict.fromkeys(cycle)
    )
    return Diagnostic(
        f"the rules do not settle: after {limit} rewrites they still match",
        rule.span,
        help="guard one of the rules so that its own result does not match it again",
        notes=(
            f"they repeat: {' -> '.join([*cycle, cycle[0]])}",
            f"applied: {fired}",
            "the graph is as it was",
        ),
    )


def _period(history: Sequence[str]) -> Sequence[str]:
    """The shortest stretch that the end of a history repeats; all of it, if it does not."""
    for length in range(1, len(history) // 2 + 1):
        if history[-length:] == history[-2 * length : -length]:
            return history[-length:]
    return history
