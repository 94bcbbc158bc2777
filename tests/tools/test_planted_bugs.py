"""Every planted bug is found, with a small graph that shows it."""

import inspect

import pytest
import torch

from pypm.core.rules import Rule
from pypm.tools import verify
from pypm.tools.verification.verify import LATER
from tests.tools.wrong_rules import WRONG


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_planted_bug_is_found(wrong: Rule) -> None:
    kind, operators = WRONG[wrong]
    samples = 20 if kind in LATER else 100  # all of them are run: other values would come first
    verification = verify(wrong, samples=samples, gradients=kind == "gradient")
    assert not verification.ok
    found = verification.wrong[0]
    assert found.kind == kind
    assert found.counterexample.operators <= operators
    check_counterexample(found.counterexample.code, kind)


def check_counterexample(code: str, kind: str) -> None:
    """That a counterexample runs, and shows what it is said to show."""
    space: dict[str, object] = {}
    if kind == "crash":
        with pytest.raises(RuntimeError):
            exec(code, space)
        return
    exec(code, space)
    before, after = space["before"], space.get("after")
    assert callable(before)
    if after is None:
        return
    assert callable(after)
    inputs = [space[name] for name in inspect.signature(before).parameters]
    if kind in ("value", "nonfinite"):
        expected, actual = _outputs(before(*inputs)), _outputs(after(*inputs))
        assert not all(map(torch.equal, expected, actual))


def _outputs(value: object) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]


def test_there_are_enough_planted_bugs() -> None:
    assert len(WRONG) >= 30
    assert len({kind for kind, _ in WRONG.values()}) >= 7
