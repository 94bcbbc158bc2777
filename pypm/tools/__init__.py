"""Tools for rule authors; each is imported at its first use, and torch with it."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pypm.laws.prove import prove
    from pypm.timing import Times, interleave
    from pypm.tools.report_page.page import Page, show
    from pypm.tools.verification.findings import (
        Bitwise,
        Counterexample,
        FewSolved,
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
    "Bitwise",
    "Counterexample",
    "FewSolved",
    "NeverFired",
    "Page",
    "Refused",
    "StaticProblem",
    "Times",
    "Trials",
    "Unexercised",
    "UpToRounding",
    "Verification",
    "Wrong",
    "interleave",
    "prove",
    "show",
    "verify",
]

_HOMES: Final = {
    "Page": "tools.report_page.page",
    "show": "tools.report_page.page",
    "verify": "tools.verification.verify",
    "Times": "timing",
    "interleave": "timing",
    "prove": "laws.prove",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "tools.verification.findings")
    return getattr(import_module(f"pypm.{home}"), name)
