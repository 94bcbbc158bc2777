"""No shipped rule of attention is called wrong."""

import pytest

from tests.tools.shipped_rules import check, names


@pytest.mark.parametrize("name", names("attention", "training"))
def test_shipped_rules(name: str) -> None:
    check(name)
