"""The content of PyPM itself, on which compiled code and measured times depend."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

__all__ = ["sources_hash"]


@cache
def sources_hash() -> str:
    """Return a hash of PyPM's own sources, kernels and rules included."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".lark")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
