"""The code of the README runs, and does what the README says."""

import re
from pathlib import Path

from tests.documents import run

README = Path(__file__).parents[1] / "README.md"


def test_the_example_fires(tmp_path: Path) -> None:
    (output,) = run([README], tmp_path)[README.stem]
    assert "1 rewrite" in output
    assert "swiglu" in output


def test_the_commands_exist() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
