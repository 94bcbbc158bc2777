"""Result files: the tables and figures of one run, with machine, versions, commit and date.

A benchmark prints its tables through `Results`, which also writes them to the file of `--output`.
Files in `benchmarks/results/` are committed, and `benchmarks.figures` writes them into the
documentation. A file is JSON:

    command    the command that made it
    machine    processor, instruction sets, cores, threads, and the GPU if one was timed
    versions   of Python and of the packages that the run imported
    commit     of the repository; "+changes" follows if the work tree had others
    date       of the run
    note       a sentence for readers, or ""
    copied     true for figures that were taken over from the documentation, where they stood before
               there were result files: what was not recorded then is null, and the date is the day
               on which they came into the documentation
    tables     by name: columns, rows of texts and numbers, and a caption
    figures    single numbers by name
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias

__all__ = ["FOLDER", "Cell", "Document", "Results", "load", "markdown", "option", "setting"]

FOLDER: Final = Path(__file__).parent / "results"
PACKAGES: Final = ("torch", "triton", "numpy", "transformers", "diffusers", "timm", "torchvision")
SETS: Final = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
"""Instruction sets that decide which kernels run, as Linux names them."""

Cell: TypeAlias = str | int | float | None
Document: TypeAlias = dict[str, Any]
"""A result file."""


class Results:
    """The results of a run, which are printed and written as they come.

    A run that is stopped leaves what it has measured so far. If `output` is None, results are only
    printed.
    """

    def __init__(self, output: Path | None = None, *, has_gpu: bool = False) -> None:
        self.output = output
        self.document: Document = {**setting(has_gpu=has_gpu), "tables": {}, "figures": {}}
        self._rows: list[list[Cell]] = []

    def table(self, *columns: str, name: str = "table", caption: str = "") -> None:
        """Begin a table, and print its head."""
        self._rows = []
        table = {"columns": list(columns), "rows": self._rows, "caption": caption}
        self.document["tables"][name] = table
        print(markdown(table), flush=True)

    def row(self, *cells: Cell) -> None:
        """Add a row to the latest table, print and write it."""
        self._rows.append(list(cells))
        print(_line(map(shown, cells)), flush=True)
        self.write()

    def figure(self, name: str, value: float) -> None:
        """Add a single figure, print and write it."""
        self.document["figures"][name] = value
        print(f"{name}: {shown(value)}", flush=True)
        self.write()

    def write(self) -> None:
        if self.output is not None:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            self.output.write_text(dumped(self.document), encoding="utf-8")


def option(parser: argparse.ArgumentParser) -> None:
    """Add `--output FILE`."""
    parser.add_argument("--output", type=Path, help="a result file to write, as JSON")


def load(path: Path) -> Document:
    found: Document = json.loads(path.read_text(encoding="utf-8"))
    return found


def dumped(document: Document) -> str:
    """Return a result file as JSON, with a row of a table on one line."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    rows = re.compile(r"\[\n\s+[^\[\]{}]*?\n\s+\]")
    return rows.sub(lambda found: re.sub(r"\n\s+", " ", found[0]), text) + "\n"


def setting(*, has_gpu: bool = False) -> Document:
    """Return what a run depends on, as the head of a result file."""
    import torch

    from pypm.kept_figures import processor_field, processor_model

    machine = {
        "processor": processor_model(),
        "sets": [name for name in SETS if name in (processor_field("flags") or "").split()],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **({"gpu": torch.cuda.get_device_name()} if has_gpu else {}),
    }
    packages = {name: version(name) for name in PACKAGES if name in sys.modules}
    return {
        "command": _command(),
        "machine": machine,
        "versions": {"Python": platform.python_version(), **packages},
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "note": "",
    }


def _command() -> str:
    spec = sys.modules["__main__"].__spec__
    name = spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).name
    arguments = sys.argv[1:]
    if "--output" in arguments:
        at = arguments.index("--output")
        del arguments[at : at + 2]
    return " ".join(["python -m", name, *arguments])


def _commit() -> str | None:
    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        try:
            done = subprocess.run(
                command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:  # a machine without git
            return ""
        return done.stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD")
    return f"{commit}+changes" if commit and git("status", "--porcelain") else commit or None


# --- as Markdown ----------------------------------------------------------------------------------


def shown(cell: Cell) -> str:
    """Return a cell as text: a number with about three digits."""
    match cell:
        case None:
            return ""
        case float():
            size = abs(cell)
            if size < 0.1:
                return f"{cell:.2g}"
            return f"{cell:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}"
        case int():
            return f"{cell:,}"
        case str():
            return cell


def markdown(table: Document) -> str:
    """Return a table as Markdown. Columns of numbers are aligned to the right."""
    rows = [[shown(cell) for cell in row] for row in table["rows"]]
    columns = table["columns"]
    cells = [[row[at] for row in rows if row[at]] for at in range(len(columns))]
    numeric = [any(cell[0].isdigit() for cell in column) for column in cells]
    numeric[:1] = [False]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(_line(line) for line in (columns, rule, *rows))


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def said(document: Document) -> str:
    """Return the sentence that tells readers when, how and where the figures were measured."""
    machine, commit = document["machine"], document["commit"]
    sets = f" ({', '.join(machine['sets'])})" if machine["sets"] else ""
    processor = f"{machine['processor']}{sets}" if machine["processor"] else None
    place = [found for found in (machine.get("gpu", processor),) if found]
    if machine["threads"]:
        cores = f" on {_counted(machine['cores'], 'core')}" if machine["cores"] else ""
        place.append(f"{_counted(machine['threads'], 'thread')}{cores}")
    place += [f"{name} {each}" for name, each in document["versions"].items() if each]
    place += [f"commit {commit}" if commit else "commit not recorded"]
    when = f"{'Recorded' if document.get('copied') else 'Measured'} {document['date']}"
    by = f" by `{document['command']}`" if document["command"] else ""
    how = f"{when}{by}: {', '.join(place)}."
    return textwrap.fill(f"{how} {document['note']}", 100, break_on_hyphens=False)


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"
