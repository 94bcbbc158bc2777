"""Files that PyPM keeps: whole or made anew, whatever happened to them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from pypm import kept_files
from tests import damages
from tests.forks import exit_code


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    assert kept_files.read(path) is None
    for content in (b"", b"one", b"\n" * 65, bytes(range(256)) * 1000):
        kept_files.write(path, content)
        assert kept_files.read(path) == content
    kept_files.write_first(path, b"two")
    assert kept_files.read(path) == content and [*path.parent.iterdir()] == [path]


def test_a_damaged_file_is_told_of_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    kept_files.write(path, b"content")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match=f"^PyPM: a damaged file is made anew: {path}$"):
        assert kept_files.read(path) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept_files.read(path) is None
    kept_files.write_first(path, b"other")
    assert kept_files.read(path) == b"other"


def test_a_file_that_cannot_be_written_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    kept_files.replace(path, b"before")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            kept_files.replace(path, b"after")
        kept_files.write(path, b"after")
    assert path.read_bytes() == b"before" and [*tmp_path.iterdir()] == [path]


def test_whatever_is_damaged_everything_compiles() -> None:
    assert exit_code(lambda: damages.main(30, seed=1)) == 0
