"""Files that PyPM keeps for later processes: replaced as a whole, with a checksum at the end."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

__all__ = ["read", "replace", "warn_once", "write", "write_first"]

_LENGTH: Final = 65
"""Bytes of a checksum: a line end, and the hexadecimal digits of SHA-256."""


def read(path: Path) -> bytes | None:
    """Return the content that `write` stored in a file.

    Return None if there is no such file, or if it is damaged: then warn, once for each file.
    """
    with suppress(OSError):
        whole = path.read_bytes()
        content = whole[:-_LENGTH]
        if whole == content + _checksum(content):
            return content
        warn_once(f"a damaged file is made anew: {path}")
    return None


def write(path: Path, content: bytes) -> None:
    """Store content with a checksum; processes that read it meanwhile see the old or the new file.

    A folder that cannot be written to is no error: then nothing is stored.
    """
    with suppress(OSError):
        _put(path, content + _checksum(content), os.replace)


def write_first(path: Path, content: bytes) -> None:
    """Store content as `write` does unless a whole file is there: the first of several wins."""
    with suppress(OSError):
        _put(path, content + _checksum(content), os.link)
    if read(path) is None:
        write(path, content)


def replace(path: Path, content: bytes) -> None:
    """Write a file without a checksum, as a whole: when this returns, it is on disk.

    Raises OSError where that cannot be done; the file is then as it was.
    """
    _put(path, content, os.replace)


@cache
def warn_once(message: str) -> None:
    """Warn that something kept, or something to be kept, is not as it should be."""
    warnings.warn(f"PyPM: {message}", RuntimeWarning, stacklevel=3)


def _put(path: Path, content: bytes, put: Callable[[Path, Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        with made.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        put(made, path)
    finally:
        with suppress(OSError):
            made.unlink()


def _checksum(content: bytes) -> bytes:
    return b"\n" + sha256(content).hexdigest().encode()
