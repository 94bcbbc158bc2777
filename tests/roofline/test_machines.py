"""Hardware: what ships, files of users, this machine, and what is kept on disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch

from pypm import PyPMError, kept_figures, kept_files
from pypm.roofline import Hardware, hardware, probe, this_machine

NAMES = ("H100 SXM", "H200", "B200", "A100 SXM 80GB", "L40S", "MI300X")

COMPLETE = """
name = "mine"
source = "its data sheet"
vector = 1e12
memory_bandwidth = 1e11
memory = 1e10
cache = 1e7
matrix = { float32 = 2e12, bfloat16 = 8e12 }
"""


# --- shipped -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_shipped_hardware(name: str) -> None:
    found = hardware(name.lower())
    assert found.name == name
    assert "data sheet" in found.source
    assert found.matrix["bfloat16"] >= 2 * found.matrix["float32"]
    assert found.matrix["bfloat16"] in (0.5 * found.matrix["int8"], found.matrix["float16"])
    assert found.cache < found.memory < found.memory_bandwidth


def test_prefixes() -> None:
    assert hardware("mi").name == "MI300X"
    assert hardware(" A100 ").name == "A100 SXM 80GB"


@pytest.mark.parametrize(
    ("name", "problem", "near"),
    [
        ("H", "several kinds of hardware begin with `H`", "`H100 SXM`, `H200`"),
        ("H300", "there is no hardware named `H300`", "`H200`"),
        ("", "there is no hardware named ``", "`MI300X`"),
    ],
)
def test_unknown_names(name: str, problem: str, near: str) -> None:
    with pytest.raises(PyPMError) as error:
        hardware(name)
    assert error.value.diagnostic.message == problem
    assert near in error.value.diagnostic.help


# --- rates ---------------------------------------------------------------------------------------


def test_a_wider_type_serves_where_a_narrow_one_is_slow() -> None:
    slow = Hardware("x", "y", {"float32": 2.0, "bfloat16": 1.0, "int8": 9.0}, 1, 1, 1, 1)
    assert slow.rate("bfloat16") == slow.rate("float16") == slow.rate("float32") == 2
    assert slow.rate("int8") == slow.rate("int64") == 9
    assert slow.rate("float64") == 9


def test_tf32_where_the_precision_allows_it() -> None:
    found = hardware("H100")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert found.rate("float32") == 66.9e12
        torch.set_float32_matmul_precision("high")
        assert found.rate("float32") == 494.7e12
        torch.set_float32_matmul_precision("medium")
        assert found.rate("float32") == 989.4e12
    finally:
        torch.set_float32_matmul_precision(before)


def test_small_working_sets_are_faster() -> None:
    found = Hardware("x", "y", {"float32": 1.0}, 1, 5, 1, 1, ((10, 50.0), (100, 20.0), (1000, 5.0)))
    assert [found.bandwidth(n) for n in (1, 10, 99, 100, 5000)] == [50, 50, 50, 20, 5]
    assert hardware("H100").bandwidth(1) == 3.35e12


# --- files ---------------------------------------------------------------------------------------


def test_a_file_of_a_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(COMPLETE + "levels = [[1000, 4e11], [1000000, 1e11]]")
    found = Hardware.from_file(path)
    assert found.name == "mine"
    assert found.matrix == {"float32": 2e12, "bfloat16": 8e12}
    assert found.levels == ((1000, 4e11), (1000000, 1e11))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("memory = 1e10\n", "", "the field `memory` is missing"),
        ("vector", "vectr", "did you mean `vector`?"),
        ("cache = 1e7", "cache = 1e7\nspeed = 3", "the field `speed` is not known"),
        ("float32 =", "fp32 =", "the field `matrix.fp32` is not known"),
        ("= 1e12", "= -1e12", "`vector` is not a positive number: -1"),
        ("= 1e11", "= nan", "`memory_bandwidth` is not a positive number"),
        ("= 1e11", "= true", "`memory_bandwidth` is not a positive number"),
        ("2e12", '"fast"', "`matrix.float32` is not a positive number: 'fast'"),
        ('"mine"', "3", "`name` is not a text"),
        ("cache = 1e7", "cache = 1e7\nlevels = [3]", "`levels` is not a list of pairs"),
        (
            "cache = 1e7",
            "cache = 1e7\nlevels = [[2, 1], [1, 1]]",
            "sizes that do not rise",
        ),
        ("cache = 1e7", "cache =", "cannot be read: Invalid value"),
    ],
)
def test_wrong_files(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tmp_path / "mine.toml"
    assert old in COMPLETE
    path.write_text(COMPLETE.replace(old, new))
    with pytest.raises(PyPMError) as error:
        Hardware.from_file(path)
    assert str(path) in str(error.value)
    assert problem in str(error.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PyPMError, match="cannot be read"):
        Hardware.from_file(tmp_path / "none.toml")


# --- this machine --------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path / "pypm" / "machines"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads of the probes that ran, which measure nothing."""
    seen: list[int] = []

    def products() -> dict[str, float]:
        seen.append(torch.get_num_threads())
        return {"float32": 1e11, "float64": 5e10, "bfloat16": 3e11}

    monkeypatch.setattr(probe, "_products", products)
    monkeypatch.setattr(
        probe, "_moves", lambda: [(1 << 14, 1e11), (1 << 20, 4e10), (1 << 26, 5e10)]
    )
    return seen


def test_a_probe(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SIZES", (1 << 14, 1 << 16))
    monkeypatch.setattr(probe, "_SIDES", ((64, 64, 64),))
    found = this_machine(1)
    assert {"float32", "bfloat16", "float64"} <= found.matrix.keys()
    assert found.vector == found.matrix["float32"] > 1e9
    assert [size for size, _ in found.levels] == [1 << 14, 1 << 16]


def test_this_machine_is_probed_once(cache: Path, probes: list[int]) -> None:
    before = torch.get_num_threads()
    found = this_machine(1)
    assert this_machine(1) == found
    assert probes == [1]
    assert this_machine(2).name != found.name
    assert probes == [1, 2]
    assert torch.get_num_threads() == before
    assert len([*cache.iterdir()]) == 2
    assert [round(rate / 1e9) for _, rate in found.levels] == [110, 55, 55]
    assert found.matrix["float32"] == pytest.approx(1.1e11)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}', '{"value": 3}', "\udcff", "half"])
def test_a_damaged_file_is_made_anew(cache: Path, probes: list[int], damage: str) -> None:
    this_machine(1)
    (path,) = cache.iterdir()
    whole = path.read_text()
    text = whole.replace('"memory"', '"memry"') if damage == "half" else damage
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.warns(RuntimeWarning, match=f"a damaged file is made anew: {path}"):
        this_machine(1)
    assert probes == [1, 1]
    assert path.read_text() == whole
    this_machine(1)
    assert probes == [1, 1]


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probes: list[int]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "pypm").write_text("a file, not a folder")
    assert this_machine(1).name
    assert this_machine(1).name
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "pypm"))
    assert this_machine(1).name
    assert probes == [1, 1, 1]


@pytest.mark.parametrize("rate", ["1e11", float("nan"), -1.0, None, [], True])
def test_a_machine_without_its_rates_is_probed_anew(
    cache: Path, probes: list[int], rate: object
) -> None:
    found = this_machine(1)
    (path,) = cache.iterdir()
    kept = json.loads(kept_files.read(path) or b"")
    kept_figures.keep("machines", kept["key"], {**kept["value"], "vector": rate})
    with pytest.warns(RuntimeWarning, match=f"that does not fit is made anew: {path}"):
        assert this_machine(1) == found
    assert probes == [1, 1]


def as_it_is(value: object) -> object:
    return value


def _write(path: str) -> None:
    """Write until the values of another process were read twenty times."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = path
    read = 0
    while read < 20:
        kept_figures.keep("machines", "shared", [1] * 2_000)
        read += kept_figures.kept("machines", "shared", as_it_is) == [2] * 2_000


def test_two_processes_write_at_once(cache: Path) -> None:
    folder = str(cache.parent.parent)
    other = multiprocessing.get_context("spawn").Process(target=_write, args=(folder,))
    other.start()
    while other.is_alive():
        kept_figures.keep("machines", "shared", [2] * 2_000)
        assert kept_figures.kept("machines", "shared", as_it_is) in ([1] * 2_000, [2] * 2_000)
        time.sleep(0.001)
    assert other.exitcode == 0
    assert len([*cache.iterdir()]) == 1


def test_another_key_with_the_same_name_is_not_read(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_figures, "_path", lambda kind, key: cache / "one.json")
    kept_figures.keep("machines", "a", 1)
    assert kept_figures.kept("machines", "a", as_it_is) == 1
    assert kept_figures.kept("machines", "b", as_it_is) is None
