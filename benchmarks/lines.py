"""`python -m benchmarks.lines`: how many lines a fusion takes, in PyPM and in torch's own passes.

Counted are lines of code: no blank lines, no comments, no docstrings. With `--coverage`, a file
that `python -m benchmarks.coverage --json` wrote, also what the lines find.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["Coverage", "Source", "coverage_of", "lines_of", "main", "patterns_of", "sources"]

LAYOUT: Final = frozenset(
    {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER, tokenize.ENCODING,
    }
)  # fmt: skip
REGISTERED: Final = re.compile(r"^_sfdp_pattern_\w+ = ", re.MULTILINE)
"""A pattern in a generated file: each is registered by its name."""
FAMILIES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "norms": (("norm",), ()),
    "quantization of norms and activations": (("quantization",), ()),
    "activations": (("activation",), ()),
    "rotary embeddings": (("rotary", "elements"), ()),
}
"""PyPM's other packs, and torch's passes for the same, where they are files of their own."""


@dataclass(frozen=True)
class Source:
    """Files that together make a set of fusions; `column` is theirs in a coverage file."""

    part: str
    who: str
    files: tuple[Path, ...]
    column: str = ""

    @property
    def lines(self) -> int:
        return sum(map(_lines, self.files))

    @property
    def patterns(self) -> int:
        """PyPM's alternates; torch's patterns, and where they are generated, only those."""
        generated = [path for path in self.files if path.parent.name == "serialized_patterns"]
        return sum(patterns_of(path) for path in generated or self.files)


@dataclass(frozen=True)
class Coverage:
    """What was found: sites; kinds (one model in one way to compile it); models in every way."""

    sites: int
    there: int
    kinds: int
    kinds_there: int
    models: int
    models_there: int


def sources() -> list[Source]:
    """Those to be counted, from the installed torch and PyPM."""
    ours, torchs = _folder("pypm"), _folder("torch") / "_inductor" / "fx_passes"
    rules = ours / "rules"
    generated = sorted((torchs / "serialized_patterns").glob("_sfdp_pattern_*.py"), key=_number)
    attention = (*sorted((rules / "attention").rglob("*.py")), rules / "spellings.py")
    kernels = sorted((ours / "kernels" / "attention").rglob("*.py"))
    fuse, mkldnn = torchs / "fuse_attention.py", torchs / "mkldnn_fusion.py"
    epilogue = (rules / "epilogue.py", rules / "spellings.py")
    return [
        Source("attention", "PyPM, rules", attention, "pypm"),
        Source("attention", "PyPM, with its kernels", (*attention, *kernels)),
        Source("attention", "torch, written by hand", (fuse,), "inductor"),
        Source("attention", "torch, generated from it", tuple(generated)),
        Source("attention", "torch, both", (fuse, *generated), "inductor"),
        Source("epilogues", "PyPM, rules", epilogue),
        Source("epilogues", "PyPM, with their kernels", (*epilogue, _kernel(ours, "linear"))),
        Source("epilogues", "torch", (mkldnn,)),
        *(
            Source("other packs", f"{family}: {who}", tuple(folder / f"{name}.py" for name in some))
            for family, names in FAMILIES.items()
            for who, folder, some in zip(("PyPM", "torch"), (rules, torchs), names, strict=True)
            if some
        ),
    ]


@cache
def _lines(path: Path) -> int:
    return lines_of(path.read_text(encoding="utf-8"))


def lines_of(text: str) -> int:
    """Lines of code in a module."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            found.update(range(token.start[0], token.end[0] + 1))
    lines = text.splitlines()
    blank = {number for number in found if not lines[number - 1].strip()}
    return len(found - blank - set(_docstrings(ast.parse(text))))


def _docstrings(module: ast.Module) -> Iterator[int]:
    """Their lines. A string that stands alone is one, too: it says what the name before it is."""
    for node in ast.walk(module):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def patterns_of(path: Path) -> int:
    """PyPM's alternates, torch's functions that are traced, generated or registered patterns."""
    text = path.read_text(encoding="utf-8")
    if path.parent.name == "serialized_patterns":
        return len(REGISTERED.findall(text))
    module = ast.parse(text)
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    if "_inductor" not in path.parts:  # a clone, too, may be in a folder named `pypm`
        return sum(any("pattern" in _names(d) for d in node.decorator_list) for node in functions)
    traced = sum(node.name.startswith("_sfdp_pattern_") for node in functions)
    calls = (node for node in ast.walk(module) if isinstance(node, ast.Call))
    registered = sum(any("register" in name for name in _names(call.func)) for call in calls)
    return traced or registered


def _names(node: ast.expr) -> list[str]:
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]


def coverage_of(records: Iterable[Mapping[str, Any]], column: str) -> Coverage:
    """Of models that have attention."""
    some = [record for record in records if record["sites"]]
    found = [(r["model"], min(r[column], r["sites"]), r["sites"]) for r in some]
    models = {model for model, _, _ in found}
    missing = {model for model, ours, there in found if ours < there}
    return Coverage(
        sum(ours for _, ours, _ in found),
        sum(there for _, _, there in found),
        sum(ours == there for _, ours, there in found),
        len(found),
        len(models - missing),
        len(models),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lines", description=__doc__)
    parser.add_argument("--coverage", type=Path, help="JSON of `python -m benchmarks.coverage`")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    options = parser.parse_args(arguments)
    records: list[Mapping[str, Any]] = []
    if options.coverage:
        try:
            found = json.loads(options.coverage.read_text(encoding="utf-8"))
            records = found["records"] if isinstance(found, dict) else found
        except (OSError, ValueError, KeyError) as problem:
            parser.error(f"cannot read {options.coverage}: {problem}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    counted = [_counted(source, records) for source in sources()]
    for part in dict.fromkeys(source["part"] for source in counted):
        rows = [source for source in counted if source["part"] == part]
        console.print(_table(part, rows, covered=any(row["coverage"] for row in rows)))
        for row in rows:
            console.print(f"[dim]{row['who']}: {_listed(row['files'])}", highlight=False)
        console.print()
    if options.json:
        options.json.write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")


def _counted(source: Source, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    covered = coverage_of(records, source.column) if records and source.column else None
    return {
        "part": source.part,
        "who": source.who,
        "files": {f"{path.parent.name}/{path.name}": _lines(path) for path in source.files},
        "lines": source.lines,
        "patterns": source.patterns,
        "coverage": vars(covered) if covered else None,
    }


def _table(part: str, rows: Sequence[Mapping[str, Any]], *, covered: bool) -> Table:
    theirs = "places where torch registers one or several"
    if part == "attention":
        theirs = "the functions torch traces, those generated"
    caption = f"Patterns: PyPM's alternates; {theirs}."
    table = Table(title=f"Lines: {part}", caption=caption, box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    headers = ["lines", "patterns"]
    if covered:
        headers += ["sites", "kinds", "models", "lines/kind", "lines/model"]
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row['lines']:,}", str(row["patterns"])]
        table.add_row(row["who"], *cells, *(_covered(row) if covered else ()))
    return table


def _covered(row: Mapping[str, Any]) -> tuple[str, ...]:
    found, lines = row["coverage"], row["lines"]
    if found is None:
        return ("",) * 5
    return (
        f"{found['sites']} of {found['there']}",
        f"{found['kinds']} of {found['kinds_there']}",
        f"{found['models']} of {found['models_there']}",
        f"{lines / found['kinds']:.1f}" if found["kinds"] else "-",
        f"{lines / found['models']:.1f}" if found["models"] else "-",
    )


def _listed(files: Mapping[str, int]) -> str:
    if len(files) > 6:
        return f"{len(files)} files, {next(iter(files))} to {list(files)[-1].rpartition('/')[2]}"
    return ", ".join(f"{name} {lines:,}" for name, lines in files.items())


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _kernel(folder: Path, name: str) -> Path:
    return folder / "kernels" / f"{name}.py"


def _number(path: Path) -> int:
    return int(re.findall(r"\d+", path.stem)[0])


if __name__ == "__main__":
    main()
