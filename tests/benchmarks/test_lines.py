"""Lines of code are counted as said, and what they find is read from a coverage file."""

import json
from pathlib import Path

import pytest

from benchmarks.lines import coverage_of, lines_of, main, patterns_of, sources

MODULE = '''"""Of a module,
in two lines."""

import os  # used

# alone


@pattern
def P(x):
    """What it matches."""
    text = """one

    three"""
    return os.path.join(
        x,
        text,
    )
'''
RECORDS = [
    {"model": "a", "variant": "static", "sites": 4, "inductor": 4, "pypm": 4},
    {"model": "a", "variant": "dynamic", "sites": 4, "inductor": 1, "pypm": 4},
    {"model": "b", "variant": "static", "sites": 2, "inductor": 2, "pypm": 3},
    {"model": "none", "variant": "static", "sites": 0, "inductor": 0, "pypm": 0},
]


def test_code_is_counted_alone() -> None:
    assert lines_of(MODULE) == 9
    assert lines_of("") == 0


def test_patterns_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "pypm" / "some.py"
    path.parent.mkdir()
    path.write_text("@pattern\ndef P(x): ...\n\n\n@pattern(through=N)\ndef P(x): ...\n\n\nP(1)\n")
    assert patterns_of(path) == 2


def test_what_was_found_is_no_more_than_there_is() -> None:
    theirs, ours = coverage_of(RECORDS, "inductor"), coverage_of(RECORDS, "pypm")
    assert (theirs.sites, theirs.there, theirs.kinds, theirs.models) == (7, 10, 2, 1)
    assert (ours.sites, ours.kinds, ours.kinds_there, ours.models, ours.models_there) == (
        10, 3, 3, 2, 2,
    )  # fmt: skip


def test_torch_has_the_files() -> None:
    for source in sources():
        assert source.files
        assert source.lines > source.patterns > 0
    generated = next(source for source in sources() if "generated" in source.who)
    assert generated.patterns >= len(generated.files) > 20


def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, written = tmp_path / "coverage.json", tmp_path / "lines.json"
    given.write_text(json.dumps(RECORDS))
    main(["--coverage", str(given), "--json", str(written)])
    shown = capsys.readouterr().out
    assert "10 of 10" in shown
    assert "7 of 10" in shown
    by_name = {(row["part"], row["who"]): row for row in json.loads(written.read_text())}
    rules = by_name["attention", "PyPM, rules"]
    assert rules["lines"] == sum(rules["files"].values())
    assert f"{rules['lines'] / 3:.1f}" in shown
    with pytest.raises(SystemExit):
        main(["--coverage", str(tmp_path / "no such file")])


def test_the_name_of_the_folder_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pypm" / "site-packages" / "torch" / "_inductor" / "some.py"
    path.parent.mkdir(parents=True)
    path.write_text("def _sfdp_pattern_1(x): ...\n")
    assert patterns_of(path) == 1
