"""Errors of failed rewrites: at the rule, with the node and the line of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch.fx.proxy import TraceError

from pypm.core.rules import Rule
from pypm.diagnostics import Diagnostic, Span, defined_at, raised_at
from pypm.fx.matching.match import Match
from pypm.fx.operators.body_trace import DeclineDropped, NothingReturned
from pypm.fx.reporting.node_records import source_of
from pypm.fx.reporting.report import RewriteRecord
from pypm.torch_internals import DataDependentOutputException

__all__ = ["Ancestry", "answer_unfit", "body_failed", "choice_failed", "graph_edited", "unsettled"]


@dataclass(frozen=True, repr=False)
class Ancestry:
    """The rewrite a node comes from, and the one its root came from."""

    rule: str
    earlier: Ancestry | None


def body_failed(rule: Rule, match: Match, error: Exception) -> Diagnostic:
    """The body of a rule raised an error."""
    what, label, help = _failure(error)
    place = _place(rule, error)
    message = f"the body of rule `{rule.name}` {what}"
    return Diagnostic(message, place, label, help, _notes(match))


def _notes(match: Match) -> tuple[str, ...]:
    source = source_of(match.root)
    at = f"at `{match.root}`" + (f", from {source}" if source else "")
    return at, "the graph is as it was"


def _failure(error: Exception) -> tuple[str, str, str]:
    """Return what a body did wrong, the label of the place, and what to do."""
    raised = f"raised {type(error).__name__}: {error}"
    match error:
        case NothingReturned():
            help = "return what takes the region's place, or `decline(reason)`"
            return "returns nothing", "no `return`", help
        case DeclineDropped():
            help = "write `return decline(...)`, or return the decline that a helper gave"
            return "calls `decline` and returns another value", "this decline is dropped", help
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


def choice_failed(choose: object, rule: Rule, match: Match, error: Exception) -> Diagnostic:
    """Return the diagnostic for a function passed as `choose` that raised an error."""
    defined = defined_at(choose)
    place = defined and (raised_at(error, defined.file) or defined)
    message = f"{_choice(choose)} raised {type(error).__name__}: {error}"
    return Diagnostic(message, place, f"raised here, for rule `{rule.name}`", _WORTH, _notes(match))


def answer_unfit(choose: object, rule: Rule, match: Match, answer: object) -> Diagnostic:
    """Return the diagnostic for a function passed as `choose` whose result is no worth."""
    try:
        shown = repr(answer)
    except ValueError:  # Python writes no integer of more than some thousand digits
        shown = "a number of too many digits"
    message = f"{_choice(choose)} returned {shown}, which is no number of seconds"
    help = _WORTH
    if callable(answer):
        help = "pass what it returns: `choose=measured()`, `choose=bounds(hardware)`"
    label = f"called for rule `{rule.name}`"
    return Diagnostic(message, defined_at(choose), label, help, _notes(match))


_WORTH: Final = (
    "return the seconds that the rewrite saves, 0 to leave the region as it is, or an `Appraisal`"
)


def _choice(choose: object) -> str:
    name = getattr(choose, "__qualname__", type(choose).__qualname__)
    return f"the choice `{name}`"


def _place(rule: Rule, error: Exception) -> Span | None:
    """Return the place in the rule's own file that raised an error; else the rule's definition."""
    if isinstance(error, DeclineDropped) and error.span is not None:
        return error.span
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
