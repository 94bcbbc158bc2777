"""Files of figures beside Inductor's caches: replaced as a whole, and made anew if damaged."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from pypm.torch_internals import cache_dir

__all__ = ["keep", "keep_first", "kept", "stored"]


def kept(kind: str, key: str) -> object:
    """Return the value that `keep` stored for a kind of figures and a key.

    Return None if there is none, or the file cannot be read, or was damaged.
    """
    with suppress(OSError, ValueError):
        found = json.loads(_path(kind, key).read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.get("key") == key:
            value: object = found.get("value")
            return value
    return None


def stored(kind: str) -> list[str]:
    """Return names and sizes of the files for a kind of figures, in order."""
    found: list[str] = []
    with suppress(OSError):
        for path in sorted(_folder(kind).glob("*.json")):
            with suppress(OSError):  # just replaced or cleared
                found.append(f"{path.name} {path.stat().st_size}")
    return found


def keep_first(kind: str, key: str, value: object) -> object:
    """Store a value unless there is one, and return the one that is stored.

    Of several processes that do so at once the first wins; a damaged file counts as none. Return
    None if nothing can be stored.
    """
    _write(kind, key, value, os.link)
    if kept(kind, key) is None:  # damaged
        keep(kind, key, value)
    return kept(kind, key)


def keep(kind: str, key: str, value: object) -> None:
    """Store a value that JSON can hold, so that processes that read it meanwhile see old or new.

    A folder that cannot be written to is no error: then nothing is stored.
    """
    _write(kind, key, value, os.replace)


def _write(kind: str, key: str, value: object, put: Callable[[str, Path], None]) -> None:
    with suppress(OSError):
        path = _path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"key": key, "value": value}, file)
            put(name, path)
        finally:
            with suppress(OSError):
                os.unlink(name)


def _path(kind: str, key: str) -> Path:
    name = sha256(key.encode()).hexdigest()[:32]
    return _folder(kind) / f"{name}.json"


def _folder(kind: str) -> Path:
    return Path(cache_dir()) / "pypm" / kind
