"""What is said where a rewrite fails: at the rule, with the node and the line of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from traceback import extract_tb

from pypm.core.rules import Rule
from pypm.diagnostics import Diagnostic, Span
from pypm.fx.dialect import Match
from pypm.fx.records import source_of
from pypm.fx.report import RewriteRecord

__all__ = ["Ancestry", "body_failed", "graph_edited", "unsettled"]


@dataclass(frozen=True, repr=False)
class Ancestry:
    """The rewrite a node comes from, and the one its root came from."""

    rule: str
    earlier: Ancestry | None


def body_failed(rule: Rule, match: Match, error: Exception) -> Diagnostic:
    """The body of a rule raised an error."""
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


def graph_edited(rule: Rule, match: Match) -> Diagnostic:
    """The body of a rule changed what it was to look at."""
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


def unsettled(
    rule: Rule, limit: int, earlier: Ancestry | None, rewrites: Sequence[RewriteRecord]
) -> Diagnostic:
    """Rules go on matching what they made: those that repeat, and how often each was applied."""
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
