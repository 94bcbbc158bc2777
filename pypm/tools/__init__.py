"""Tools for those who write rules."""

from pypm.tools.verification.findings import (
    Counterexample,
    Exact,
    NeverFired,
    Refused,
    StaticProblem,
    Trials,
    Unexercised,
    UpToRounding,
    Verification,
    Wrong,
)
from pypm.tools.verification.verify import verify

__all__ = [
    "Counterexample",
    "Exact",
    "NeverFired",
    "Refused",
    "StaticProblem",
    "Trials",
    "Unexercised",
    "UpToRounding",
    "Verification",
    "Wrong",
    "verify",
]
