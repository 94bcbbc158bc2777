"""No other shipped rule is called wrong; `make soak` takes more samples of all rules."""

import pytest

from tests.rules.shipped import SHIPPED
from tests.tools.shipped_rules import check, names

ELSEWHERE = names("attention", "training", "loops", "quantization")


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in ELSEWHERE])
def test_shipped_rules(name: str) -> None:
    check(name)


@pytest.mark.soak
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_rules_on_more_samples(name: str) -> None:
    check(name, 20)
