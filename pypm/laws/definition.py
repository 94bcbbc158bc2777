"""The proof of a rule's law where the rule is defined."""

from __future__ import annotations

from typing import assert_never

from pypm.core.rules import Rule
from pypm.diagnostics import Diagnostic, PatternError
from pypm.laws.prove import prove
from pypm.laws.verdicts import Open, Proved, Refuted, parting

__all__ = ["check_law"]


def check_law(rule: Rule) -> None:
    """Prove the law of a rule. Raises PatternError, with both normal forms, if that fails."""
    law = prove(rule).verdicts[0]
    match law:
        case Proved():
            return
        case Refuted(name, counterexample):
            what = f"rule `{name}` does not compute what its pattern matches"
            found = Diagnostic(what, rule.span, "another value", "", (counterexample,))
        case Open(name, reason, _, sides, help):
            what = f"the law of rule `{name}` is not proved: {reason}"
            found = Diagnostic(what, rule.span, "not proved", help, tuple(parting(sides)))
        case _:
            assert_never(law)
    raise PatternError(found)
