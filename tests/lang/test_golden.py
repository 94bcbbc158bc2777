"""Every mistake that a user can make, with the diagnostic that it gets, compared exactly.

A file of tests/golden is the source of one mistake, a line of dashes, and the diagnostic. After a
change, `PYPM_UPDATE_GOLDEN=1 pytest tests/lang/test_golden.py` writes the diagnostics anew: read
the difference before it is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pypm
from pypm import Parameter, PyPMError, operator
from pypm.core.operators import Operator, Signature
from pypm.lang.pattern_function import PatternFunction
from pypm.lang.tags import TAGS
from tests.golden_files import GOLDEN, check, readable

PATHS = sorted(GOLDEN.glob("*.txt"))


class Namespace:
    """A few operators, found as those of torch are."""

    relu = operator("aten.relu", ["self"], tags=["pointwise"])
    mm = operator("aten.mm", ["self", "mat2"])
    permute = operator("aten.permute", ["self", Parameter("dims", "attribute", dimension=True)])
    pad = operator("aten.pad", ["self", Parameter("value", "attribute", 0.0)])
    cat = operator("aten.cat", [Parameter("tensors", "list"), Parameter("dim", "attribute", 0)])
    sum = Operator(
        "aten.sum",
        (
            Signature((Parameter("self"),)),
            Signature(
                (
                    Parameter("self"),
                    Parameter("dim", "attribute", dimension=True),
                    Parameter("keepdim", "attribute", False),
                )
            ),
        ),
    )


def names() -> dict[str, Any]:
    return {
        "__name__": "golden",
        "aten": Namespace(),
        **{n: getattr(pypm, n) for n in pypm.__all__},
    }


def diagnostic(source: str, file: str) -> str:
    """What is said about the source: where it is run, or where its patterns are first used."""
    scope = names()
    with readable(source, file) as code:
        try:
            exec(code, scope)
            for form in forms(scope):
                if not form.takes_patterns:
                    form.core
        except PyPMError as problem:
            return str(problem) + "\n"
        except TypeError as problem:
            return f"TypeError: {problem}\n"
    return "no mistake\n"


def forms(scope: dict[str, Any]) -> Iterator[PatternFunction]:
    for value in list(scope.values()):
        if isinstance(value, PatternFunction):
            yield value
        elif isinstance(value, type):
            yield from forms(dict(vars(value)))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    check(path, diagnostic)


def test_the_tags_are_those_of_torch() -> None:
    assert set(torch.Tag.__members__) == TAGS


def test_there_are_golden_files() -> None:
    assert len(PATHS) > 40
