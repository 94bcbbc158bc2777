"""Reports of a call of `rewrite`: every rewrite, every refusal with its reason, and the time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any, Final

from pypm.core.rules import EXACTNESS, Exactness
from pypm.diagnostics import Diagnostic, Span, printable
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.reporting.decisions import COLUMNS, Decision, in_rows, in_words
from pypm.fx.reporting.node_records import Frame, NodeRecord, frame_of

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["RefusalRecord", "Report", "RewriteRecord", "RuleRecord"]

COUNTS: Final = ("tried", "matched", "rewritten", "ms")
REFUSED: Final = "refused, for example because"
UNFOLDED: Final = 100
"""The largest number of rewrites that a notebook shows."""


@dataclass(frozen=True, slots=True)
class RewriteRecord:
    """One rewrite, as text; its nodes may be erased."""

    rule: str
    root: str
    before: tuple[NodeRecord, ...]
    """The region, in graph order."""
    after: tuple[NodeRecord, ...]
    """The new nodes that replace the region."""
    bindings: Mapping[str, str]
    trace: str | None = field(default=None, repr=False)
    """The stack trace of the root."""
    checked: bool = True
    """True if shape, dtype and device were compared under fake tensors."""
    module: str = ""
    """The path of the module that the root is in."""
    worth: Appraisal | None = None
    """The time that the rewrite saves; None if nothing was compared."""
    exactness: Exactness = "reassociated"
    """The rule's word on what the new values keep of the old ones."""

    @property
    def new(self) -> tuple[str, ...]:
        return tuple(record.name for record in self.after)

    @property
    def frame(self) -> Frame | None:
        """Return the model's line that the root comes from; a line of torch's only if there is no
        other.
        """
        return frame_of(self.trace)

    @property
    def source(self) -> str:
        return str(self.frame or "")

    @property
    def where(self) -> str:
        """Return the root's module and line of the model as text."""
        return ": ".join(filter(None, [self.module, self.source]))

    def detached(self) -> RewriteRecord:
        """Return the record without nodes, which would keep the graph alive."""
        before, after = (
            tuple(record.detached() for record in records) for records in (self.before, self.after)
        )
        return replace(self, before=before, after=after)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with nodes as they print."""
        return {
            "rule": self.rule,
            "exactness": self.exactness,
            "root": self.root,
            "before": [*map(str, self.before)],
            "after": [*map(str, self.after)],
            "bindings": dict(self.bindings),
            "module": self.module,
            "source": None if self.frame is None else asdict(self.frame),
            "checked": self.checked,
            "worth": None if self.worth is None else self.worth.as_dict(),
        }

    def __str__(self) -> str:
        bound = ", ".join(f"{name}={value}" for name, value in self.bindings.items())
        where = f"  [{self.where}]" if self.where else ""
        rule = printable(self.rule, keep="")
        worth = f"  ({self.worth})" if str(self.worth or "") else ""
        head = f"{rule} ({self.exactness}) at {self.root}({bound})"
        return printable(f"{head} -> {', '.join(self.new)}{where}{worth}")


@dataclass(frozen=True, slots=True)
class RefusalRecord:
    """Refused matches of one rule and one kind, with the reason for the first."""

    rule: str
    kind: str
    reason: str
    node: str
    count: int = 1
    span: Span | None = None

    def __str__(self) -> str:
        rule = printable(self.rule, keep="")
        return printable(f"{rule} refused at {self.node}: {self.reason}{self._times}")

    @property
    def _times(self) -> str:
        return f" ({self.count} times)" if self.count > 1 else ""

    @property
    def diagnostic(self) -> Diagnostic:
        """Return the refusal as a diagnostic that points at the rule."""
        what = f"rule `{self.rule}` was not applied at `{self.node}`"
        return Diagnostic(
            f"{what}{self._times}",
            self.span,
            self.reason,
            _HELP.get(self.kind, ""),
        )


_HELP: Final = {
    "escape": "mark it with `keep(...)` if it may stay, or return it as a second output",
    "mismatch": "what replaces a value has its shape, dtype and device: convert it in the body",
    "symbolic": "guard on sizes that are known, or write the body without asking for them",
    "kernel": "guard on the inputs that the kernel takes",
    "exactness": "ask for less, by the option `exactness`",
    "cost": "pass `choose=first` to apply rules whatever they cost",
    "budget": "make alternates that can both match exclude each other",
}


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """Counts of one rule: nodes tried, nodes with a match, rewrites, and seconds; and its word."""

    rule: str
    attempts: int = 0
    matches: int = 0
    rewrites: int = 0
    seconds: float = 0.0
    exactness: Exactness = "reassociated"

    def __add__(self, other: RuleRecord) -> RuleRecord:
        return RuleRecord(
            self.rule,
            self.attempts + other.attempts,
            self.matches + other.matches,
            self.rewrites + other.rewrites,
            self.seconds + other.seconds,
            min(self.exactness, other.exactness, key=EXACTNESS.index),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The rewrites and refusals in one graph, or by `merge` in several."""

    rewrites: tuple[RewriteRecord, ...] = ()
    """In graph order, except that a rewrite follows those whose nodes it reads or changes."""
    refusals: tuple[RefusalRecord, ...] = ()
    rules: tuple[RuleRecord, ...] = ()
    seconds: float = 0.0
    cached: bool = False
    """True if compiled code came from a cache: the rules were not run; nothing else is known."""
    note: str = field(default="")
    decisions: tuple[Decision, ...] = ()
    """The places at which a choice compared rewrites, in the order in which it did."""

    def __len__(self) -> int:
        return len(self.rewrites)

    def __bool__(self) -> bool:
        return True

    def detached(self) -> Report:
        """Return the report without nodes, which keep the graph alive."""
        return replace(self, rewrites=tuple(rewrite.detached() for rewrite in self.rewrites))

    def inside(self, path: str) -> Report:
        """Return the report of a graph inside another graph, with its nodes prefixed by `path`."""
        rewrites = (replace(r, root=f"{path}.{r.root}") for r in self.rewrites)
        refusals = (replace(r, node=f"{path}.{r.node}") for r in self.refusals)
        decisions = tuple(decision.inside(path) for decision in self.decisions)
        return replace(
            self, rewrites=tuple(rewrites), refusals=tuple(refusals), decisions=decisions
        )

    @property
    def unchecked(self) -> int:
        """Return the number of rewrites whose shape, dtype and device could not be compared."""
        return sum(not rewrite.checked for rewrite in self.rewrites)

    def count(self, rule: str) -> int:
        """Return the number of rewrites of a rule, given by its name."""
        return sum(rewrite.rule == rule for rewrite in self.rewrites)

    def as_dict(self) -> dict[str, Any]:
        rewrites = [rewrite.as_dict() for rewrite in self.rewrites]
        decisions = [decision.as_dict() for decision in self.decisions]
        plain = asdict(replace(self, rewrites=(), decisions=()))
        return {**plain, "rewrites": rewrites, "decisions": decisions}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)

    @property
    def _headline(self) -> str:
        return f"{len(self)} rewrite{'s' * (len(self) != 1)} in {self.seconds:.3f} s"

    def __str__(self) -> str:
        if self.cached and not self.rewrites:
            return f"not run: {self.note}"
        lines = [self._headline, *filter(None, [self.note])]
        if self.unchecked:
            lines.append(f"{self.unchecked} of them unchecked: the graph has no metadata")
        refusals = (refusal for refusal in self.refusals if refusal.kind != "cost")
        lines += [f"  {record}" for record in (*self.rewrites, *refusals)]
        lines += [f"  {line}" for line in in_words(self.decisions)]
        return "\n".join(lines)

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rules = Table(title=self.note or None)
        rules.add_column("rule")
        rules.add_column("exactness")
        for column in COUNTS:
            rules.add_column(column, justify="right")
        rules.add_column(REFUSED)
        for name, exactness, counts, why in self._rows():
            rules.add_row(Text(name), exactness, *counts, Text("\n".join(why)))
        first = {rewrite.rule: rewrite for rewrite in reversed(self.rewrites)}
        chosen = _decision_tables(self.decisions)
        return Group(rules, *chosen, *map(_first_table, reversed(first.values())))

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: a table of the rules, and each rewrite to unfold."""
        rows = "".join(
            f"<tr>{_cells(name, exactness, *counts)}<td>{'<br>'.join(map(escape, why))}</td></tr>"
            for name, exactness, counts, why in self._rows()
        )
        rules = _table_html(("rule", "exactness", *COUNTS, REFUSED), rows)
        decided = "".join(f"<tr>{_cells(*row)}</tr>" for row in in_rows(self.decisions))
        chosen = _table_html(COLUMNS, decided) if decided else ""
        sites = "".join(map(_rewrite_html, self.rewrites[:UNFOLDED]))
        more = len(self.rewrites) - UNFOLDED
        return f"<p>{escape(self._headline)}</p>{rules}{chosen}{sites}" + (
            f"<p>and {more} more</p>" if more > 0 else ""
        )

    def _rows(self) -> Iterator[tuple[str, Exactness, tuple[str, ...], list[str]]]:
        """Yield each rule with its word, counts and refusals."""
        for rule in self.rules:
            refused = [refusal for refusal in self.refusals if refusal.rule == rule.rule]
            counts = (rule.attempts, rule.matches, rule.rewrites, f"{1e3 * rule.seconds:.1f}")
            why = [f"{refusal.count} × {refusal.reason}" for refusal in refused]
            yield rule.rule, rule.exactness, tuple(map(str, counts)), why

    @staticmethod
    def merge(reports: Iterable[Report]) -> Report:
        """Return several reports as one, with the counts of equal rules and refusals added."""
        parts = tuple(reports)
        rules: dict[str, RuleRecord] = {}
        refusals: dict[tuple[str, str], RefusalRecord] = {}
        for part in parts:
            for rule in part.rules:
                known = rules.get(rule.rule)
                rules[rule.rule] = rule if known is None else known + rule
            for refusal in part.refusals:
                key = (refusal.rule, refusal.kind)
                first = refusals.get(key)
                total = refusal.count + (first.count if first else 0)
                refusals[key] = replace(first or refusal, count=total)
        return Report(
            tuple(rewrite for part in parts for rewrite in part.rewrites),
            tuple(refusals.values()),
            tuple(rules.values()),
            sum(part.seconds for part in parts),
            any(part.cached for part in parts),
            "; ".join(dict.fromkeys(part.note for part in parts if part.note)),
            tuple(decision for part in parts for decision in part.decisions),
        )


def _lines(nodes: Iterable[NodeRecord]) -> str:
    return "\n".join(map(str, nodes))


def _table_html(columns: Iterable[str], rows: str) -> str:
    head = "".join(f"<th>{column}</th>" for column in columns)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cells(*texts: str) -> str:
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def _decision_tables(decisions: Iterable[Decision]) -> Iterator[RenderableType]:
    """Yield a table of decisions, unless there are none."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="chosen by cost")
    for column in COLUMNS:
        table.add_column(column)
    for row in in_rows(decisions):
        table.add_row(*map(Text, row))
    if table.rows:
        yield table


def _first_table(rewrite: RewriteRecord) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    title = f"first rewrite by {rewrite.rule}, at {rewrite.root}"
    table = Table(title=Text(title), caption=Text(rewrite.where))
    for column in ("before", "after"):
        table.add_column(column, ratio=1, overflow="fold")
    table.add_row(*(Text(_lines(nodes)) for nodes in (rewrite.before, rewrite.after)))
    return table


def _rewrite_html(rewrite: RewriteRecord) -> str:
    parts = [_lines(rewrite.before), "", "becomes", "", _lines(rewrite.after), "", rewrite.where]
    title = f"<summary>{escape(rewrite.rule)} at {escape(rewrite.root)}</summary>"
    return f"<details>{title}<pre>{escape(chr(10).join(parts).strip())}</pre></details>"
