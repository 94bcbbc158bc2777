"""The choice of the tests that `make check` runs."""

import subprocess
from pathlib import Path

import pytest

from tests import affected as module
from tests.affected import (
    MOST_FILES,
    MOST_SECONDS,
    READERS,
    affected,
    changed,
    default_base,
    main,
    taken,
)
from tests.floors import ROOT, sources
from tests.golden_files import GOLDEN


def test_a_changed_test_is_chosen_alone() -> None:
    assert affected(["tests/fx/test_driver.py"]) == ["tests/fx/test_driver.py"]


def test_a_changed_helper_chooses_the_tests_that_import_it() -> None:
    chosen = affected(["tests/rules/shipped.py"])
    assert chosen[:3] == [
        "tests/rules/test_golden.py",
        "tests/legality/test_other_tensors.py",
        "tests/tools/test_shipped_rules.py",
    ]
    assert "tests/fx/test_driver.py" not in chosen


def test_nearer_tests_come_first() -> None:
    chosen = affected(["pypm/rules/norm.py"])
    assert chosen[0] == "tests/rules/test_norm.py"  # named after it
    direct, next_ = "tests/models/test_sites.py", "tests/rules/test_building_blocks.py"
    assert (
        chosen.index(direct)
        < chosen.index(next_)
        < chosen.index("tests/fx/test_partial_programs.py")
    )


def test_of_equal_distance_those_in_the_folder_of_the_same_name_come_first() -> None:
    chosen = affected(["pypm/fx/rewriting/driver.py"])
    assert chosen.index("tests/fx/test_replace.py") < chosen.index("tests/test_language_tour.py")


def test_a_name_is_followed_to_the_module_that_defines_it() -> None:
    source = (ROOT / "tests" / "test_language_tour.py").read_text(encoding="utf-8")
    assert "from pypm.fx import aten, find, rewrite" in source
    assert "pypm.fx." not in source
    assert "tests/test_language_tour.py" in affected(["pypm/fx/matching/find.py"])
    assert "tests/test_language_tour.py" not in affected(["pypm/fx/suggesting/suggest.py"])


def test_imports_are_followed_until_a_test_is_found() -> None:
    assert "tests/laws/test_prove.py" in affected(["pypm/fx/tracing/proxies.py"])


def test_every_module_has_a_test() -> None:
    names = [name for name in sources() if not name.endswith("__init__")]
    tests = {path: affected([path]) for path in (f"{name.replace('.', '/')}.py" for name in names)}
    assert [p for p, found in tests.items() if {*found} <= {"tests/test_floors.py", p}] == []


def test_doctests_of_a_changed_module_are_run() -> None:
    assert "pypm/core/terms.py" in affected(["pypm/core/terms.py"])
    assert "pypm/core/terms.py" not in affected(["pypm/core/operators.py"])
    assert "pypm/core/rules.py" not in affected(["pypm/core/rules.py"])  # has none


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("tests/golden/unbound_local.txt", "tests/lang/test_golden.py"),
        ("tests/golden/explain/arity.txt", "tests/fx/test_explain.py"),
        ("tests/golden/rules/norm/rms_norm.txt", "tests/rules/test_golden.py"),
        ("docs/tutorial.md", "tests/test_docs.py"),
        ("docs/notebooks/calculus.ipynb", "tests/test_notebooks.py"),
        ("examples/01_first_rule.py", "tests/test_examples.py"),
        ("README.md", "tests/test_readme.py"),
        ("pypm/tools/report_page/page.js", "tests/tools/test_browser.py"),
    ],
)
def test_files_that_are_read(path: str, test: str) -> None:
    assert (ROOT / path).is_file()
    assert test in affected([path])


def test_readers_are_there_and_every_golden_folder_has_some() -> None:
    paths = {*READERS, *(test for tests in READERS.values() for test in tests)}
    assert [path for path in paths if not (ROOT / path).exists()] == []
    folders = [path for path in GOLDEN.iterdir() if path.is_dir()]
    assert {f"tests/golden/{folder.name}/" for folder in folders} <= READERS.keys()


@pytest.mark.parametrize("path", ["LICENSE", "coq/Makefile", "tests/fx/test_gone.py"])
def test_files_that_no_test_reads(path: str) -> None:
    assert affected([path]) == []


def test_as_many_are_taken_as_there_is_time_for() -> None:
    assert taken(["a", "b", "c"], {"a": 2 * MOST_SECONDS}) == ["a"]
    assert taken(["a", "b", "c"], {"b": MOST_SECONDS}) == ["a", "c"]
    files = [str(number) for number in range(2 * MOST_FILES)]
    assert taken(files, dict.fromkeys(files, 0.1)) == files[:MOST_FILES]


def test_tests_beyond_the_nearest_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "SECONDS", tmp_path / "none")
    monkeypatch.setattr(module, "changed", lambda base: ["pypm/core/terms.py"])
    main(["HEAD"])
    printed = capsys.readouterr()
    assert printed.out.split() == taken(affected(["pypm/core/terms.py"]), {})
    assert printed.err.split()[-1] == affected(["pypm/core/terms.py"])[-1]
    assert "left out" in printed.err


def test_changes_count_from_where_the_branch_left_main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, capture_output=True, check=True)

    def commit(name: str) -> None:
        (tmp_path / name).touch()
        git("add", name)
        git("-c", "user.name=A", "-c", "user.email=a@b", "commit", "-m", name)

    monkeypatch.setattr(module, "ROOT", tmp_path)
    git("init", "-b", "main")
    for name in ("first", "second"):
        commit(name)
    (tmp_path / "new").touch()
    assert changed(default_base()) == ["second", "new"]
    git("checkout", "-b", "branch")
    for name in ("third", "fourth"):
        commit(name)
    assert changed(default_base()) == ["fourth", "third", "new"]
    git("branch", "-D", "main")
    assert changed(default_base()) == ["fourth", "new"]
