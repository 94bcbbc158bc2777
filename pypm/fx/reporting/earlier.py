"""Reports of earlier passes as text, so that a pass over an equal graph can repeat them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from types import NoneType
from typing import Final, TypeVar

from pypm.core.rules import Rule
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.reporting.decisions import CandidateRecord, Decision
from pypm.fx.reporting.report import RefusalRecord, Report, RewriteRecord, RuleRecord

__all__ = ["Earlier", "Made"]

R = TypeVar("R", "Made", Appraisal, CandidateRecord, RefusalRecord, RuleRecord)


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
            _checked(Made, rule, root, _texts(region), _texts(texts), worth and _worth(worth))
            for rule, root, region, texts, worth in plain["made"]
        )
        refusals = (
            _checked(RefusalRecord, rule, kind, reason, node, count, spans[rule])
            for rule, kind, reason, node, count in plain["refusals"]
        )
        counts = (_checked(RuleRecord, *each) for each in plain["rules"])
        decisions = (
            Decision(
                tuple(
                    _checked(CandidateRecord, rule, root, _texts(region), _worth(worth), fate)
                    for rule, root, region, worth, fate in each
                )
            )
            for each in plain["decisions"]
        )
        (note,) = _texts([plain["note"]])
        rest = Report((), tuple(refusals), tuple(counts), note=note, decisions=tuple(decisions))
        return Earlier(tuple(made), rest)


_KINDS: Final[dict[object, tuple[type, ...]]] = {
    "str": (str,), "Fate": (str,), "int": (int,), "float": (int, float),
    "float | None": (int, float, NoneType),
}  # fmt: skip
"""Types of values by the annotation of a field; other fields are checked elsewhere."""


def _checked(kind: type[R], *values: object) -> R:
    """Return a record of some values. Raises TypeError if one is of another type."""
    record = kind(*values)  # type: ignore[arg-type]
    for field in fields(kind):
        if not isinstance(getattr(record, field.name), _KINDS.get(field.type, (object,))):
            raise TypeError(f"the field `{field.name}` is not of type {field.type}")
    return record


def _worth(values: Iterable[object]) -> Appraisal:
    return _checked(Appraisal, *values)


def _texts(values: Sequence[str]) -> tuple[str, ...]:
    if not all(isinstance(value, str) for value in values):
        raise TypeError("there is a value that is not text")
    return tuple(values)
