"""Measured figures in README and docs are those of result files, and say where they are from."""

import re
from pathlib import Path

import pytest

from benchmarks.figures import BLOCK, FIGURE, PAGES, RESULTS, names, renewed

MEASURED = re.compile(
    r"\d (?:ms|µs|us)\b|[\d.]+ times (?:as (?:fast|long)|the (?:CPU )?time)|"
    r"(?:gain\w*|speedup) (?:of|was|were) \d|\d % (?:faster|slower|more|less|lower|higher)"
)
EXAMPLES = (  # limits, thresholds and explanations, which nobody measured
    "0.95 times as fast",
    "at least 1.15 times as fast as the plain kernel",
    "10 times as long",
    "2 % faster",
)
CODE = re.compile(r"^```.*?^```$|^    .*?$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_have_the_figures_of_the_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert renewed(text) == text, "run `make figures`"


@pytest.mark.parametrize("name", RESULTS)
def test_files_say_where_they_are_from(name: str) -> None:
    found = RESULTS[name]
    expected = {"command", "machine", "versions", "commit", "date", "note", "tables", "figures"}
    assert expected <= found.keys() <= {*expected, "copied", "records", "tools"}
    assert {"processor", "sets", "cores", "threads"} <= found["machine"].keys()
    assert {"Python", "torch"} <= found["versions"].keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    if not found.get("copied"):
        facts = [found["command"], found["commit"], *found["versions"].values()]
        assert all([*facts, *(v for k, v in found["machine"].items() if k != "sets")])


def test_files_are_used() -> None:
    used = {name for page in PAGES for name in names(page.read_text(encoding="utf-8"))}
    unused = [
        (file, table)
        for file, found in RESULTS.items()
        for table in found["tables"]
        if not {(file, table), (file, "")} & used
    ]
    assert unused == []
    assert RESULTS.keys() <= {file for file, _ in used}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_figure_is_written_by_hand(page: Path) -> None:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    text = " ".join(FIGURE.sub("", BLOCK.sub("", text)).split())
    for example in EXAMPLES:
        text = text.replace(example, "")
    assert MEASURED.findall(text) == []
