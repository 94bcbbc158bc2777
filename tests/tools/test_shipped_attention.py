"""No shipped rule of attention is called wrong; `make soak` asks for the large ones too."""

import pytest

from tests.tools.shipped_rules import LARGE, check, names


@pytest.mark.parametrize(
    "name", [name for name in names("attention", "training") if name not in LARGE]
)
def test_shipped_rules(name: str) -> None:
    check(name)
