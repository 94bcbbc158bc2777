"""PyPM: rewrite rules for tensor graphs, on a proven matching core."""

from pypm.core.operators import Parameter, operator
from pypm.core.rules import RuleSet
from pypm.diagnostics import PyPMError
from pypm.lang.decorators import decline, keep, let, op_var, pattern, rule, var
from pypm.lang.predicates import predicate

__version__ = "0.1.0.dev0"

__all__ = [
    "Parameter",
    "PyPMError",
    "RuleSet",
    "decline",
    "keep",
    "let",
    "op_var",
    "operator",
    "pattern",
    "predicate",
    "rule",
    "var",
]
