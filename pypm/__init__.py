"""PyPM: rewrite rules for tensor graphs, on a proven matching core."""

from importlib import import_module

from pypm.core.operators import Parameter, operator
from pypm.core.records import record
from pypm.core.rules import Rule, RuleSet
from pypm.diagnostics import PyPMError
from pypm.lang.decorators import PROVER, decline, keep, let, op_var, pattern, rule, var
from pypm.lang.pattern_function import PatternFunction as Pattern
from pypm.lang.predicates import predicate

__version__ = "0.1.0.dev0"

__all__ = [
    "Parameter",
    "Pattern",
    "PyPMError",
    "RuleSet",
    "decline",
    "keep",
    "let",
    "op_var",
    "operator",
    "pattern",
    "predicate",
    "record",
    "rule",
    "var",
]


def _check_law(rule: Rule) -> None:
    import_module(f"{__name__}.laws.definition").check_law(rule)  # torch is imported with it


PROVER.check = _check_law
