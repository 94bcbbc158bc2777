"""Lines of code are counted as said, and what they find is read from a coverage file."""

from pathlib import Path

import pytest

from benchmarks.lines import lines_of, main, patterns_of, sources
from benchmarks.results import load

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


def test_code_is_counted_alone() -> None:
    assert lines_of(MODULE) == 9
    assert lines_of("") == 0


def test_patterns_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "pypm" / "some.py"
    path.parent.mkdir()
    path.write_text("@pattern\ndef P(x): ...\n\n\n@pattern(through=N)\ndef P(x): ...\n\n\nP(1)\n")
    assert patterns_of(path) == 2


def test_torch_has_the_files() -> None:
    for source in sources():
        assert source.files
        assert source.lines > source.patterns > 0
    generated = next(source for source in sources() if "generated" in source.who)
    assert generated.patterns >= len(generated.files) > 20


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "lines.json"
    main(["--output", str(written)])
    rows = {row[0]: row[1] for row in load(written)["tables"]["lines"]["rows"]}
    assert rows["attention: torch, generated from it"] > rows["attention: torch, by hand"] > 1000
    assert f"| attention: PyPM | {rows['attention: PyPM']:,} |" in capsys.readouterr().out


def test_the_name_of_the_folder_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pypm" / "site-packages" / "torch" / "_inductor" / "some.py"
    path.parent.mkdir(parents=True)
    path.write_text("def _sfdp_pattern_1(x): ...\n")
    assert patterns_of(path) == 1
