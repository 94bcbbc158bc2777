"""Tools for those who write rules; each is imported at its first use, and torch with it."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "verify" if name == "verify" else "findings"
    return getattr(import_module(f"pypm.tools.verification.{home}"), name)
