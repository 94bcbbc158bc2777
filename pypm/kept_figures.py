"""Figures kept for later processes beside Inductor's caches: files that are replaced as a whole."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

import torch

from pypm import kept_files
from pypm.torch_internals import cache_dir

__all__ = [
    "keep",
    "keep_first",
    "kept",
    "processor",
    "processor_field",
    "processor_model",
    "stored",
]

T = TypeVar("T")
_SUFFIX: Final = ".kept"


@cache
def processor() -> str:
    """Return the model of the CPU, and what it can do that other machines of the model cannot:
    the name by which figures that were measured on it are kept.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{processor_model()}, {capability}, {os.cpu_count()} cores"


def processor_model() -> str:
    """Return the name that the CPU gives itself, or of its architecture if it gives none."""
    return processor_field("model name") or platform.processor() or platform.machine()


def processor_field(name: str) -> str | None:
    """Return a field of the first CPU as Linux lists it; None elsewhere, or if there is none."""
    with suppress(OSError, StopIteration, UnicodeDecodeError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return None


def kept(kind: str, key: str, form: Callable[[object], T | None]) -> T | None:
    """Return what `form` makes of the value that `keep` stored for a kind of figures and a key.

    Return None if there is none, or the file is damaged, or `form` returns None or raises. Of the
    last three a warning tells, once for each file.
    """
    path = _path(kind, key)
    content = kept_files.read(path)
    if content is None:
        return None
    with suppress(Exception):  # whatever a value of another form raises
        found = json.loads(content)
        if found["key"] != key:
            return None
        value = form(found["value"])
        if value is not None:
            return value
    kept_files.warn_once(f"a file that does not fit is made anew: {path}")
    return None


def stored(kind: str) -> list[str]:
    """Return names and sizes of the files for a kind of figures, in order."""
    found: list[str] = []
    with suppress(OSError):
        for path in sorted(_folder(kind).glob(f"*{_SUFFIX}")):
            with suppress(OSError):  # just replaced or cleared
                found.append(f"{path.name} {path.stat().st_size}")
    return found


def keep_first(kind: str, key: str, value: object, form: Callable[[object], T | None]) -> T | None:
    """Store a value unless there is one, and return what `kept` does.

    Of several processes that do so at once the first wins; a value that does not fit counts as
    none. Return None if nothing can be stored.
    """
    kept_files.write_first(_path(kind, key), _content(key, value))
    found = kept(kind, key, form)
    if found is None:
        keep(kind, key, value)
        found = kept(kind, key, form)
    return found


def keep(kind: str, key: str, value: object) -> None:
    """Store a value that JSON can hold, so that processes that read it meanwhile see old or new.

    A folder that cannot be written to is no error: then nothing is stored.
    """
    kept_files.write(_path(kind, key), _content(key, value))


def _content(key: str, value: object) -> bytes:
    return json.dumps({"key": key, "value": value}).encode()


def _path(kind: str, key: str) -> Path:
    name = sha256(key.encode()).hexdigest()[:32]
    return _folder(kind) / f"{name}{_SUFFIX}"


def _folder(kind: str) -> Path:
    with suppress(OSError):
        return Path(cache_dir()) / "pypm" / kind
    return Path(os.devnull, kind)  # nothing can be read or written there
