"""The size of `pypm/`: each measure has a budget, which falls."""

from functools import cache
from pathlib import Path

import pytest

from tests.floors import ROOT
from tests.house import BUDGETS, LENGTH, PARAMETERS, main, measures

SOURCE = f"""
class Twice: ...
class Once: ...

def many({", ".join(f"x{number}" for number in range(PARAMETERS - 1))}, *xs, **kwargs): ...

def long(x: object, *xs: list[object]) -> object:
{"    x" + chr(10) * LENGTH}    return x
"""


@cache
def found() -> dict[str, list[str]]:
    return measures(ROOT / "pypm")


@pytest.mark.parametrize("name", BUDGETS)
def test_budgets(name: str) -> None:
    """`python -m tests.house -v` prints the places; lower the budget of what has shrunk."""
    assert found().keys() == BUDGETS.keys()
    assert len(found()[name]) <= BUDGETS[name]


def test_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "first.py").write_text(SOURCE)
    (tmp_path / "second.py").write_text("class Twice: ...\n")
    lines, names, parameters, lengths, objects = measures(tmp_path).values()
    assert len(lines) == SOURCE.count("\n") + 1
    assert names == ["Twice first.py second.py"]
    assert parameters == ["first.py:5 many"]
    assert lengths == ["first.py:7 long"]
    assert objects == ["first.py:7 long"] * 3
    main(["-v", str(tmp_path)])
    assert "     1 functions of more than 8 parameters\n" in capsys.readouterr().out


def test_within_its_limits(tmp_path: Path) -> None:
    source = SOURCE.replace("**kwargs", "").replace("x0, ", "").replace("\n    return x", "")
    (tmp_path / "first.py").write_text(source)
    _, names, parameters, lengths, _ = measures(tmp_path).values()
    assert names == parameters == lengths == []
