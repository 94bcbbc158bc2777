"""The commands of the README and of all pages exist."""

import re
from pathlib import Path

import pytest

from benchmarks.figures import BLOCK as FIGURES

README = Path(__file__).parents[1] / "README.md"
PAGES = (README, README.with_name("CONTRIBUTING.md"), *sorted(README.parent.glob("docs/*.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_exist(page: Path) -> None:
    makefile = (README.parent / "Makefile").read_text()
    text = FIGURES.sub("", page.read_text())
    for target in re.findall(r"(?:`make\s|^make (?=\w+ +#))([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for module in re.findall(r"python -m\s((?:benchmarks|examples|pypm|tests)[\w.]*)", text):
        path = README.parent.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
