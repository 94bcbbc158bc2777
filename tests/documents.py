"""The code of pages: the blocks of one run in order as one file, and print what the page shows.

A `python` block is run; a `text` block is the output of the `python` block before it. The blocks of
a page are one file, an empty line between them, so the places that a diagnostic names are those
that a reader gets who copies them. With PYPM_UPDATE_GOLDEN set, the outputs are written anew.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.caches import CACHE, fresh_cache_in

BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BETWEEN, AFTER = "\x1e", "\x1d"
RUNNER = f"""
import gc, runpy, sys
gc.set_threshold(200_000, 20, 100)
for script in sys.argv[1:]:
    runpy.run_path(script, run_name="__main__")
    print({AFTER!r}, end="")
"""
VARYING = [
    re.compile(r"\d+\.\d+(?= (ms|s)\b)"),
    re.compile(r"\bs\d+\b"),  # a symbolic size
    re.compile(r"\d+(?= (drawn|solved|rewritten|samples|times)\b)"),
    re.compile(r"(?<=: error )[\d.e-]+(?=, tolerance)|(?<=, tolerance )[\d.e-]+"),  # by the CPU
]


def blocks(page: Path, language: str) -> list[str]:
    return [block for kind, block in BLOCK.findall(page.read_text()) if kind == language]


def run(pages: Sequence[Path], folder: Path) -> dict[str, list[str]]:
    """What each block of each page prints, by the page's name; torch is loaded once for all.

    Blocks that import what is not installed are left out.
    """
    for page in pages:
        code = [block if can_run(block) else "\n" for block in blocks(page, "python")]
        (folder / f"{page.stem}.py").write_text(f"print({BETWEEN!r}, end='')\n".join(code))
    fresh = {**os.environ, CACHE: fresh_cache_in(folder / "cache")}
    command = [sys.executable, "-W", "ignore", "-c", RUNNER, *(f"{p.stem}.py" for p in pages)]
    done = subprocess.run(
        command, env=fresh, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.replace(f"{folder}{os.sep}", "").split(AFTER)
    return {
        page.stem: page_printed.split(BETWEEN)
        for page, page_printed in zip(pages, printed, strict=False)
    }


def can_run(block: str) -> bool:
    """Whether the packages are installed that a block imports from."""
    imports = [node for node in ast.parse(block).body if isinstance(node, ast.ImportFrom)]
    return all(find_spec(str(node.module).partition(".")[0]) for node in imports)


def check(page: Path, printed: list[str]) -> None:
    """The page shows what its code has printed, apart from times and the like."""
    outputs = list(_outputs(page, printed))
    if os.environ.get("PYPM_UPDATE_GOLDEN"):
        _update(page, outputs)
    for shown, output in zip(blocks(page, "text"), outputs, strict=True):
        if output is not None:
            assert _constant(output) == _constant(shown)


def _outputs(page: Path, printed: list[str]) -> Iterator[str | None]:
    """For each block that shows an output what is printed there, if that is known."""
    latest: str | None = None
    following = iter(printed)
    for kind, block in BLOCK.findall(page.read_text()):
        if kind == "text":
            yield latest
        else:
            output = next(following)
            latest = output if can_run(block) else None


def _update(page: Path, outputs: list[str | None]) -> None:
    following = iter(outputs)

    def renew(match: re.Match[str]) -> str:
        output = next(following) if match[1] == "text" else None
        return match[0] if output is None else f"```text\n{output}```"

    page.write_text(BLOCK.sub(renew, page.read_text()))


def _constant(output: str) -> str:
    for varying in VARYING:
        output = varying.sub("?", output)
    return output
