"""Golden files: each a source, a line of dashes, and what is said of it, compared exactly.

`PYPM_UPDATE_GOLDEN=1 pytest` writes what is said anew: read the difference before it is committed.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path
from types import CodeType

GOLDEN = Path(__file__).resolve().parent / "golden"
LINE = "-" * 40 + "\n"


@contextmanager
def readable(source: str, file: str) -> Iterator[CodeType]:
    """The code of a source, the lines of which can be read in the meantime as if it were a file."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        yield compile(source, file, "exec")
    finally:
        del linecache.cache[file]


def check(path: Path, say: Callable[[str, str], str], suffix: str = ".py") -> None:
    """What is said of the source, under the path's name with `suffix`, is what the file holds."""
    source, _, expected = path.read_text(encoding="utf-8").partition(LINE)
    said = say(source, f"{path.stem}{suffix}")
    if os.environ.get("PYPM_UPDATE_GOLDEN"):
        path.write_text(source + LINE + said, encoding="utf-8")
        return
    difference = unified_diff(
        expected.splitlines(), said.splitlines(), "expected", "said", lineterm=""
    )
    assert said == expected, "\n".join(difference)
