"""`python -m benchmarks.lines`: how many lines a fusion takes, in PyPM and in torch's own passes.

With `--vllm FOLDER`, a folder with the sources of vLLM, also in passes of vLLM. Counted are lines
of code: no blank lines, no comments, no docstrings.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.results import Results, option

__all__ = ["Source", "lines_of", "main", "patterns_of", "sources"]

LAYOUT: Final = frozenset(
    {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER, tokenize.ENCODING,
    }
)  # fmt: skip
REGISTERED: Final = re.compile(r"^_sfdp_pattern_\w+ = ", re.MULTILINE)
"""A pattern in a generated file: each is registered by its name."""
FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "norms": ("norm",),
    "quantization of norms and activations": ("quantization",),
    "activations": ("activation",),
    "rotary embeddings": ("rotary", "vocabulary/indexing"),
}
"""PyPM's other packs, for which torch has no passes in files of their own."""

THEIRS: Final = ("rms_quant", "act_quant", "qk_norm_rope", "attn_quant", "allreduce_rms")
"""vLLM's files of the fusions that `pypm.rules.vllm` holds. The last one also has fusions for ROCm
and all-reduces with quantization; vLLM has no file for sequence parallelism.
"""


@dataclass(frozen=True)
class Source:
    """Files that together make a set of fusions."""

    who: str
    files: tuple[Path, ...]

    @property
    def lines(self) -> int:
        return sum(map(_lines, self.files))

    @property
    def patterns(self) -> int:
        """PyPM's alternates; torch's patterns, and where they are generated, only those."""
        generated = [path for path in self.files if path.parent.name == "serialized_patterns"]
        return sum(patterns_of(path) for path in generated or self.files)


def sources(vllm: Path | None = None) -> list[Source]:
    """Those to be counted, from the installed torch and PyPM, and the sources of vLLM if given."""
    ours, torchs = _folder("pypm"), _folder("torch") / "_inductor" / "fx_passes"
    rules = ours / "rules"
    generated = sorted((torchs / "serialized_patterns").glob("_sfdp_pattern_*.py"), key=_number)
    vocabulary = sorted((rules / "vocabulary").glob("*.py"))
    attention = (*sorted((rules / "attention").rglob("*.py")), *vocabulary)
    kernels = sorted((ours / "kernels" / "attention").rglob("*.py"))
    fuse, mkldnn = torchs / "fuse_attention.py", torchs / "mkldnn_fusion.py"
    epilogue = (rules / "epilogue.py", *vocabulary)
    return [
        Source("attention: PyPM", attention),
        Source("attention: PyPM, with its kernels", (*attention, *kernels)),
        Source("attention: torch, by hand", (fuse,)),
        Source("attention: torch, generated from it", tuple(generated)),
        Source("epilogues: PyPM", epilogue),
        Source("epilogues: PyPM, with their kernels", (*epilogue, _kernel(ours, "linear"))),
        Source("epilogues: torch", (mkldnn,)),
        *(
            Source(f"{family}: PyPM", tuple(rules / f"{name}.py" for name in names))
            for family, names in FAMILIES.items()
        ),
        Source("fusions of vLLM: PyPM", tuple(sorted((rules / "vllm").glob("*.py")))),
        *([] if vllm is None else [Source("fusions of vLLM: vLLM", _of_vllm(vllm))]),
    ]


def _of_vllm(folder: Path) -> tuple[Path, ...]:
    passes = folder / "vllm" / "compilation" / "passes" / "fusion"
    return (*(passes / f"{name}_fusion.py" for name in THEIRS), passes / "matcher_utils.py")


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
    if path.parts[-3:-1] == ("passes", "fusion"):  # of vLLM: functions that are traced
        named = [f for f in functions if f.name.lstrip("_").startswith("pattern")]
        return sum(not f.decorator_list for f in named)
    if "_inductor" not in path.parts:  # a clone, too, may be in a folder named `pypm`
        return sum(any("pattern" in _names(d) for d in node.decorator_list) for node in functions)
    traced = sum(node.name.startswith("_sfdp_pattern_") for node in functions)
    calls = (node for node in ast.walk(module) if isinstance(node, ast.Call))
    registered = sum(any("register" in name for name in _names(call.func)) for call in calls)
    return traced or registered


def _names(node: ast.expr) -> list[str]:
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lines", description=__doc__)
    parser.add_argument("--vllm", type=Path, metavar="FOLDER", help="it holds the folder `vllm`")
    option(parser)
    given = parser.parse_args(arguments)
    results = Results(given.output)
    results.table("", "lines", "patterns", "files", name="lines")
    for source in sources(given.vllm):
        results.row(source.who, source.lines, source.patterns, _listed(source.files))
        results.document["figures"][source.who] = source.lines
    results.write()


def _listed(files: Sequence[Path]) -> str:
    names = [f"`{path.parent.name}/{path.name}`" for path in files]
    return ", ".join(names) if len(names) <= 6 else f"{len(names)}, from {names[0]} on"


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
