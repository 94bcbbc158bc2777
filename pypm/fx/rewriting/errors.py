"""What is said where a rewrite fails: at the rule, with the node and the line of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx.proxy import TraceError

from pypm.core.rules import Rule
from pypm.diagnostics import Diagnostic, Span, raised_at
from pypm.fx.matching.match import Match
from pypm.fx.operators.calls_in_bodies import NothingReturned
from pypm.fx.reporting.model_origins import source_of
from pypm.fx.reporting.report import RewriteRecord
from pypm.torch_internals import DataDependentOutputException

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
    what, label, help = _failure(error)
    place = _place(rule, error)
    return Diagnostic(f"the body of rule `{rule.name}` {what}", place, label, help, tuple(notes))


def _failure(error: Exception) -> tuple[str, str, str]:
    """What a body did wrong, the label of the place, and what to do."""
    raised = f"raised {type(error).__name__}: {error}"
    match error:
        case NothingReturned():
            help = "return what takes the region's place, or `decline(reason)`"
            return "returns nothing", "no `return`", help
        case DataDependentOutputException() | TraceError():
            help = (
                "a body is traced, so it may ask for shapes, dtypes and literals alone; choose "
                "between values with `torch.where`, or return `decline(reason)`"
            )
            return "asks for the value of a tensor", "not known while it is traced", help
        case NameError() | TypeError() | AttributeError() | ImportError():
            return raised, "raised here", ""
        case _:
            help = "let the body return `decline(...)` where it does not apply"
            return raised, "raised here", help


def graph_edited(rule: Rule, match: Match) -> Diagnostic:
    """The body of a rule changed what it was to look at."""
    return Diagnostic(
        f"the body of rule `{rule.name}` changed the graph itself",
        rule.span,
        help="return what the matched value is to be; nodes are for looking at",
        notes=(f"at `{match.root}`", "the graph is as it was"),
    )


def _place(rule: Rule, error: Exception) -> Span | None:
    """Where the rule's own file raised an error; else where the rule is defined."""
    return rule.span and (raised_at(error, rule.span.file) or rule.span)


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
