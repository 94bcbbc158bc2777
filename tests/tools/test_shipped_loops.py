"""No shipped rule of loops or of quantized values is called wrong."""

import pytest

from tests.tools.shipped_rules import check, names


@pytest.mark.parametrize("name", names("loops", "quantization"))
def test_shipped_rules(name: str) -> None:
    check(name)
