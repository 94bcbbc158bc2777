"""The documentation: its code prints what the pages show, its links lead somewhere, it builds."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from shutil import which
from typing import get_args

import pytest
from typer.testing import CliRunner

from pypm.fx.legality.region import Kind
from pypm.tools.cli import app
from tests.documents import blocks, check, run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *("index", "tutorial", "language", "matching", "legality", "kernels", "packs", "cost"),
    *(
        "serving",
        "where",
        "report",
        "migrating",
        "glossary",
        "pipeline",
        "debugging",
    ),  # debugging is last: it has PyPM log
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FOREIGN = re.compile(
    r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(?:https?:)?//[^"]*"'
)
VARYING = re.compile(
    r"\d+(\.\d+)?(?=(x| ms| s\b| rounds| drawn| solved| rewritten))|\d\.\de[-+]\d+"
    r"|(?<=/products\.py:)\d+|^\d+(?= \|     return aten\.matmul)",
    re.MULTILINE,
)
"""Numbers that differ from run to run, and lines of a pack's file."""
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    pages = [ROOT / "README.md", *(DOCS / f"{name}.md" for name in PAGES)]
    return run(pages, tmp_path_factory.mktemp("pages"))


def test_the_example_of_the_readme_fires(printed: dict[str, list[str]]) -> None:
    (output,) = printed["README"]
    assert "1 rewrite" in output
    assert "swiglu" in output


@pytest.mark.parametrize("name", PAGES)
def test_the_code_of_a_page(name: str, printed: dict[str, list[str]]) -> None:
    check(DOCS / f"{name}.md", printed[name])


def test_the_commands_of_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "command.md").read_text()
    (rules,) = re.findall(r"^```\n(rules .*?)^```$", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("clamp.pypm").write_text(rules)
    Path("model.py").write_text("\n".join(blocks(DOCS / "command.md", "python")))
    runpy.run_path("model.py")
    shown = re.findall(r"^\$ pypm (.*)\n((?:(?!\$ |```).*\n)*)", page, re.MULTILINE)
    assert {command.split()[0] for command, _ in shown} >= {"rewrite", "bench", "check"}
    for command, output in shown:
        said = CliRunner().invoke(app, shlex.split(command)).output
        said = said.replace(f"{tmp_path}{os.sep}", "").replace(f"{ROOT}{os.sep}", "")
        assert constant(said) == constant(output), command


def constant(output: str) -> list[str]:
    """The words of an output, with nothing in them that differs from run to run."""
    return VARYING.sub("?", output).split()


def test_every_kind_of_refusal_has_an_example() -> None:
    outputs = "".join(blocks(DOCS / "legality.md", "text"))
    shown = set(re.findall(r"^(\w+): ", outputs, re.MULTILINE))
    assert shown == {*get_args(Kind)}


def test_the_page_about_proofs_lists_every_theorem_and_files_that_exist() -> None:
    page = (DOCS / "proofs.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted(stated())
    for path in re.findall(r"`((?:pypm|coq)/[\w./]+)`", page):
        assert (ROOT / path).exists(), path
    for file in re.findall(r"`(\w+\.v)`", page):
        assert (ROOT / "coq/theories" / file).exists(), file


def stated() -> list[str]:
    """The theorems, by name."""
    return re.findall(r"^Theorem (\w+)", (ROOT / "coq/theories/Main.v").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_names_are_where_a_page_says(page: Path) -> None:
    text = CODE.sub("", page.read_text())
    for name, module in re.findall(r"`(\w+)(?:\([^`]*\))?`,? of\s+`(pypm[\w.]*)`", text):
        resolve_name(f"{module}:{name}")
    for path in re.findall(r"`(pypm(?:\.\w+)+)(?:\([^`]*\))?`", text):
        resolve_name(path)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(CODE.sub("", page.read_text())):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    headings = HEADING.findall(CODE.sub("", page.read_text()))
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.skipif(
    find_spec("material") is None or find_spec("mkdocstrings") is None,
    reason="no mkdocs: `make docs` installs it",
)
def test_the_site_builds(tmp_path: Path) -> None:
    with_coq = which("coqdoc") is not None
    if with_coq:
        subprocess.run(["make", "-s", "-C", ROOT / "coq", "html"], check=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(
        [*command, "--site-dir", tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tutorial.html").exists()
    for notebook in (DOCS / "notebooks").glob("*.ipynb"):
        page = (tmp_path / "notebooks" / notebook.stem).with_suffix(".html").read_text()
        cells = json.loads(notebook.read_text())["cells"]
        assert page.count('<div class="highlight">') >= sum(c["cell_type"] == "code" for c in cells)
        assert f'href="{notebook.name}"' in page
        assert f'href="notebooks/{notebook.stem}.html"' in (tmp_path / "index.html").read_text()
    proved = (tmp_path / "proofs.html").read_text()
    statements = (tmp_path / "coq" / "PyPM.Main.html").read_text() if with_coq else ""
    for name in stated() if with_coq else ():
        assert f'href="coq/PyPM.Main.html#{name}"' in proved and f'id="{name}"' in statements
    for page in tmp_path.glob("*.html"):
        assert FOREIGN.findall(page.read_text()) == [], f"{page.name} is not self-contained"
