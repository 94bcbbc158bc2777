"""Reports of earlier passes as text, so that a pass over an equal graph can repeat them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

from pypm.core.rules import Rule
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.reporting.decisions import CandidateRecord, Decision
from pypm.fx.reporting.report import RefusalRecord, Report, RewriteRecord, RuleRecord

__all__ = ["Earlier", "Made"]


@dataclass(frozen=True, slots=True)
class Made:
    """One rewrite of an earlier pass."""

    rule: str
    root: str
    region: tuple[str, ...]
    """The names of its nodes, in graph order."""
    text: tuple[str, ...]
    """The nodes before and after, and the bindings, as they print."""
    worth: Appraisal | None

    @staticmethod
    def of(record: RewriteRecord) -> Made:
        """Return the rewrite of a record."""
        bound = [f"{name}={value}" for name, value in record.bindings.items()]
        text = (*map(str, record.before), "=>", *map(str, record.after), *bound)
        region = tuple(node.name for node in record.before)
        return Made(record.rule, record.root, region, text, record.worth)


@dataclass(frozen=True, slots=True)
class Earlier:
    """A pass over an equal graph, by the same rules and the same choice."""

    made: tuple[Made, ...]
    """Its rewrites, in the order in which they were made."""
    report: Report
    """Its report, without the rewrites and without seconds."""

    @staticmethod
    def of(report: Report) -> Earlier:
        """Return the pass of a report."""
        records = sorted(report.rewrites, key=lambda record: record.turn)
        counts = tuple(replace(rule, seconds=0.0) for rule in report.rules)
        rest = replace(report, rewrites=(), rules=counts, seconds=0.0)
        return Earlier(tuple(map(Made.of, records)), rest)

    def repeated(self, report: Report) -> Report:
        """Return the report of the same rewrites, made again, with all that was found earlier."""
        seconds = {rule.rule: rule.seconds for rule in report.rules}
        counts = (replace(r, seconds=seconds.get(r.rule, 0.0)) for r in self.report.rules)
        return replace(
            self.report, rewrites=report.rewrites, rules=tuple(counts), seconds=report.seconds
        )

    def to_json(self) -> str:
        """Return the pass as text."""
        known = self.report
        plain = {
            "made": [astuple(one) for one in self.made],
            "refusals": [
                (one.rule, one.kind, one.reason, one.node, one.count) for one in known.refusals
            ],
            "rules": [(one.rule, one.attempts, one.matches, one.rewrites) for one in known.rules],
            "decisions": [[astuple(one) for one in each.candidates] for each in known.decisions],
            "note": known.note,
        }
        return json.dumps(plain)

    @staticmethod
    def from_json(text: str, rules: Iterable[Rule]) -> Earlier:
        """Return the pass that a text describes; refusals point at these rules.

        Raises KeyError, TypeError or ValueError if it is not what `to_json` returns.
        """
        plain = json.loads(text)
        spans = {rule.name: rule.span for rule in rules}
        made = (
            Made(rule, root, tuple(region), tuple(texts), worth and Appraisal(*worth))
            for rule, root, region, texts, worth in plain["made"]
        )
        refusals = (
            RefusalRecord(rule, kind, reason, node, count, spans[rule])
            for rule, kind, reason, node, count in plain["refusals"]
        )
        counts = (RuleRecord(*each) for each in plain["rules"])
        decisions = (
            Decision(
                tuple(
                    CandidateRecord(rule, root, tuple(region), Appraisal(*worth), fate)
                    for rule, root, region, worth, fate in each
                )
            )
            for each in plain["decisions"]
        )
        rest = Report(
            (), tuple(refusals), tuple(counts), note=plain["note"], decisions=tuple(decisions)
        )
        return Earlier(tuple(made), rest)
