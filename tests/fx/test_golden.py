"""What is said of rules that cannot be applied, compared exactly; the graph stays as it was.

A file of tests/golden/rewriting is source that defines a `function` of two matrices and the `rules`
to apply to it, maybe with what is to `choose`, or the `regions` and the `compiler` to partition it
by; a line of dashes; and what is said. `PYPM_UPDATE_GOLDEN=1` writes these anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import pypm
from pypm import PyPMError
from pypm.core.text import parse_rule
from pypm.fx import aten, first, partition, rewrite
from pypm.integrations import inductor
from tests.golden_files import GOLDEN, check, readable

REWRITING = sorted((GOLDEN / "rewriting").glob("*.txt"))
TEXT = sorted((GOLDEN / "text").glob("*.txt"))


def said_of_rewriting(source: str, file: str) -> str:
    """The exception, or the reasons for which rules were not applied."""
    scope: dict[str, Any] = {
        "__name__": "golden",
        "torch": torch,
        "aten": aten,
        "inductor": inductor,
        **{name: getattr(pypm, name) for name in pypm.__all__},
    }
    with readable(source, file) as code:
        try:
            exec(code, scope)
            return reasons(scope)
        except PyPMError as problem:
            return f"{problem}\n"


def reasons(scope: dict[str, Any]) -> str:
    """Why the rules that a source has defined are not applied to its function."""
    example = (torch.ones(2, 3), torch.ones(2, 3))
    gm = make_fx(scope["function"], tracing_mode="fake")(*example)
    before = gm.print_readable(print_output=False)
    try:
        if "regions" in scope:
            report = partition(gm, scope["regions"], compile=scope["compiler"])
        else:
            report = rewrite(gm, scope["rules"], budget=40, choose=scope.get("choose", first))
    finally:
        assert gm.print_readable(print_output=False) == before
    assert not len(report)
    return "".join(f"{refusal.diagnostic}\n" for refusal in report.refusals)


def said_of_text(source: str, file: str) -> str:
    try:
        parse_rule(source, file=file)
    except PyPMError as problem:
        return f"{problem}\n"
    return "no mistake\n"


@pytest.mark.parametrize("path", REWRITING + TEXT, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    if path in TEXT:
        check(path, said_of_text, ".pypm")
    else:
        check(path, said_of_rewriting)


def test_there_are_golden_files() -> None:
    assert len(REWRITING) >= 7
    assert len(TEXT) >= 3
