"""Files of figures beside Inductor's caches: replaced as a whole, and made anew if damaged."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from pypm.torch_internals import cache_dir

__all__ = ["keep", "kept"]


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


def keep(kind: str, key: str, value: object, *, replace: bool = True) -> None:
    """Store a value that JSON can hold, so that processes that read it meanwhile see old or new.

    Without `replace`, a file that is there stays, also one that another process writes meanwhile.
    A folder that cannot be written to is no error: then nothing is stored.
    """
    with suppress(OSError):
        path = _path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"key": key, "value": value}, file)
            if replace:
                os.replace(name, path)
            else:
                with suppress(FileExistsError):
                    os.link(name, path)
        finally:
            with suppress(OSError):
                os.unlink(name)


def _path(kind: str, key: str) -> Path:
    name = sha256(key.encode()).hexdigest()[:32]
    return Path(cache_dir()) / "pypm" / kind / f"{name}.json"
