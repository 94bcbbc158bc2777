"""What a call of `rewrite` did: every rewrite, every refusal and its reason, and the time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pypm.diagnostics import Diagnostic, Span

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["RefusalRecord", "Report", "RewriteRecord", "RuleRecord"]


@dataclass(frozen=True, slots=True)
class RewriteRecord:
    """One rewrite, in words; the nodes it speaks of may be gone."""

    rule: str
    root: str
    new: tuple[str, ...]
    bindings: Mapping[str, str]
    source: str = ""
    """The line of the model that the root comes from."""
    checked: bool = True
    """Whether shape, dtype and device were compared under fake tensors."""

    def with_new(self, names: tuple[str, ...]) -> RewriteRecord:
        return replace(self, new=names)

    def __str__(self) -> str:
        bound = ", ".join(f"{name}={value}" for name, value in self.bindings.items())
        source = f"  [{self.source}]" if self.source else ""
        return f"{self.rule} at {self.root}({bound}) -> {', '.join(self.new)}{source}"


@dataclass(frozen=True, slots=True)
class RefusalRecord:
    """Matches of one rule that were refused for reasons of one kind; the first in words.

    Of the kind "group": a group that did not land, by its name and that of the layer.
    """

    rule: str
    kind: str
    reason: str
    node: str
    count: int = 1
    span: Span | None = None

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        refused = "did not land" if self.kind == "group" else f"refused at {self.node}"
        return f"{self.rule} {refused}: {self.reason}{times}"

    @property
    def diagnostic(self) -> Diagnostic:
        """The refusal as one, at the rule."""
        times = "" if self.count == 1 else f" ({self.count} times)"
        what = f"rule `{self.rule}` was not applied at `{self.node}`"
        if self.kind == "group":
            what = f"group `{self.rule}` did not land"
        return Diagnostic(
            f"{what}{times}",
            self.span,
            self.reason,
            _HELP.get(self.kind, ""),
        )


_HELP: Final = {
    "escape": "mark it with `keep(...)` if it may stay, or return it as a second output",
    "mismatch": "what replaces a value has its shape, dtype and device: convert it in the body",
    "symbolic": "guard on sizes that are known, or write the body without asking for them",
    "group": "guard its rules so that they match only what they can replace",
    "kernel": "guard on the inputs that the kernel takes",
    "budget": "make alternates that can both match exclude each other",
}


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """What one rule came to: nodes tried, nodes with an answer, rewrites, seconds."""

    rule: str
    attempts: int = 0
    matches: int = 0
    rewrites: int = 0
    seconds: float = 0.0

    def __add__(self, other: RuleRecord) -> RuleRecord:
        return RuleRecord(
            self.rule,
            self.attempts + other.attempts,
            self.matches + other.matches,
            self.rewrites + other.rewrites,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What was done to one graph, or by `merge` to several."""

    rewrites: tuple[RewriteRecord, ...] = ()
    refusals: tuple[RefusalRecord, ...] = ()
    rules: tuple[RuleRecord, ...] = ()
    seconds: float = 0.0
    cached: bool = False
    """A compiled artifact came from a cache, so the rules were not run: nothing else is known."""
    note: str = field(default="")

    def __len__(self) -> int:
        return len(self.rewrites)

    def __bool__(self) -> bool:
        return True

    @property
    def unchecked(self) -> int:
        """Rewrites whose shape, dtype and device could not be compared."""
        return sum(not rewrite.checked for rewrite in self.rewrites)

    def count(self, rule: str) -> int:
        """How often a rule was applied."""
        return sum(rewrite.rule == rule for rewrite in self.rewrites)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        if self.cached and not self.rewrites:
            return f"not run: {self.note}"
        lines = [f"{len(self)} rewrite{'s' * (len(self) != 1)} in {self.seconds:.3f} s"]
        if self.note:
            lines.append(self.note)
        if self.unchecked:
            lines.append(f"{self.unchecked} of them unchecked: the graph has no metadata")
        lines += [f"  {record}" for record in (*self.rewrites, *self.refusals)]
        return "\n".join(lines)

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table(title=self.note or None)
        table.add_column("rule")
        for column in ("tried", "matched", "rewritten", "ms"):
            table.add_column(column, justify="right")
        table.add_column("refused, for example because")
        for rule in self.rules:
            refused = [refusal for refusal in self.refusals if refusal.rule == rule.rule]
            why = "\n".join(f"{refusal.count} × {refusal.reason}" for refusal in refused)
            numbers = (rule.attempts, rule.matches, rule.rewrites, f"{1e3 * rule.seconds:.1f}")
            table.add_row(rule.rule, *map(str, numbers), why)
        for refusal in self.refusals:
            if refusal.kind == "group":
                table.add_row(refusal.rule, *[""] * 4, f"{refusal.count} × {refusal.reason}")
        return table

    @staticmethod
    def merge(reports: Iterable[Report]) -> Report:
        """Several reports as one, rules and refusals of one kind added up."""
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
        )
