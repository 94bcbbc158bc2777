"""Libraries of kernels: compiled by the command in CXX, kept with a checksum, made anew."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

from pypm import kept_files
from pypm.kernels.support import native
from tests.forks import at_once, exit_code


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    found = tmp_path / "kernel.cpp"
    found.write_text('extern "C" long number() {\n#ifdef MORE\nreturn MORE;\n#endif\nreturn 7;}')
    return found


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "pypm" / "native").glob("*"))


def test_a_library_is_compiled_once(source: Path, tmp_path: Path) -> None:
    assert native.compiled(source)["number"]() == 7
    (path,) = kept(tmp_path)
    made = path.stat().st_mtime_ns
    assert native.compiled(source)["number"]() == 7
    assert kept(tmp_path) == [path] and path.stat().st_mtime_ns == made


def test_a_compiler_with_options(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "c++ '-DMORE=8 + 1' -g0")
    assert native.compiled(source)["number"]() == 9
    monkeypatch.setenv("CXX", "")
    assert native.compiled(source)["number"]() == 7
    assert len(kept(tmp_path)) == 2


def test_without_a_compiler(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning tells once what failed, and what computes instead."""
    missing = str(tmp_path / "missing")
    monkeypatch.setenv("CXX", f"{missing} -m64")
    instead = "PyPM: kernels in C\\+\\+ are computed by torch's operators instead"
    reason = f"`{missing} -m64 -march=native .*` cannot be run: No such file or directory"
    with pytest.warns(RuntimeWarning, match=f"^{instead}: {reason}$"):
        assert native.library(source) is None
    assert native.library(tmp_path / "other.cpp") is None
    monkeypatch.setenv("CXX", "c++ 'and")
    with pytest.warns(RuntimeWarning, match='the variable CXX is no command, "c.. \'and": No clos'):
        assert native.library(tmp_path / "third.cpp") is None


def test_a_trace_compiles_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule whose rewrite is never applied does not cost the seconds of its kernel."""
    with FakeTensorMode():
        traced = torch.zeros(2)
    assert native.unsupported(source, (torch.float32,), traced) is None and not kept(tmp_path)
    assert native.unsupported(source, (torch.float32,), torch.zeros(2)) is None and kept(tmp_path)
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    with pytest.warns(RuntimeWarning, match="cannot be run"):
        reason = native.unsupported(source, (torch.float32,), traced)
    assert reason == "the kernel in C++ is for CPUs, and needs a compiler"


def test_a_compiler_that_fails(source: Path) -> None:
    source.write_text("this is no C++")
    with pytest.raises(OSError, match=r"`c\+\+ -O3 .*kernel.cpp -o .*` fails:\n(.*\n)*.*error"):
        native.compiled(source)
    with pytest.warns(RuntimeWarning, match=r"are computed by torch's operators instead: `c\+\+"):
        assert native.library(source) is None


def test_a_folder_that_cannot_be_written_to(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "pypm").write_text("a file, not a folder")
    assert native.compiled(source)["number"]() == 7


def test_a_library_that_cannot_be_loaded_is_made_anew(source: Path, tmp_path: Path) -> None:
    """As where a folder is shared with a machine of another kind."""
    assert exit_code(lambda: native.compiled(source)) == 0
    (path,) = kept(tmp_path)
    kept_files.write(path, b"no library")
    assert native.compiled(source)["number"]() == 7
    assert kept_files.read(path) != b"no library"


def test_several_processes_compile_at_once(source: Path, tmp_path: Path) -> None:
    assert at_once(lambda _: native.compiled(source)["number"](), 3) == [7] * 3
    (path,) = kept(tmp_path)
    assert kept_files.read(path) is not None


def test_one_that_is_killed_leaves_nothing_that_counts(source: Path, tmp_path: Path) -> None:
    """What was written beside is not read; the file itself is whole or missing."""

    def killed() -> None:
        os.replace = lambda *paths: os._exit(9)
        native.compiled(source)

    assert exit_code(killed) == 9
    (beside,) = kept(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native.compiled(source)["number"]() == 7
    assert len(kept(tmp_path)) == 2 and beside in kept(tmp_path)
