"""Figures of the house, computed from the sources, and its picture: `python -m tests.floors`.

`python -m tests.floors --svg docs/floors.svg` draws the folders of `pypm` and those inside of
`pypm/fx`, each above all that it imports from; `python -m tests.floors --walks` prints the files
through which two small jobs go, in order.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from types import FrameType
from typing import Final

import networkx

ROOT: Final = Path(__file__).resolve().parent.parent
PUBLIC: Final = (
    *("pypm", "pypm.fx", "pypm.choice", "pypm.roofline", "pypm.pipeline", "pypm.evolve"),
    *("pypm.tools", "pypm.integrations"),
    *("pypm.rules.*", "pypm.events.*", "pypm.kernels.*", "pypm.tiles.*", "pypm.integrations.*"),
    "pypm.core.*",
)
"""Where users import from; packs do without the last two."""
PATTERNS: Final = frozenset(
    ("Var", "Op", "Fun", "Alt", "Exists", "Guarded", "Let", "Constrained", "Mu", "Call")
)
Graph = Mapping[str, frozenset[str]]


# --- imports ------------------------------------------------------------------------------------


@cache
def sources() -> dict[str, str]:
    """The source of each module of PyPM, by dotted name; that of a package ends in `__init__`."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "pypm").rglob("*.py"))
    }


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each module."""
    return {module: ast.parse(source) for module, source in sources().items()}


def imports(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every import in a module, wherever it stands: its line and the dotted name it reaches."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                # a package is named pypm.core.__init__ here, so level 1 is its own folder
                parts = module.split(".")[:-level] if level else []
                if base:
                    parts += base.split(".")
                yield from ((node.lineno, ".".join([*parts, alias.name])) for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


@cache
def file_graph() -> Graph:
    """For each module the others that it imports, late imports and those for types included."""
    graph = {}
    for module, tree in trees().items():
        found = {_module(name) for _, name in imports(module, tree)}
        graph[module] = frozenset(name for name in found if name and name != module)
    return graph


def _module(name: str) -> str | None:
    """The module that a dotted name is, or is in; None if it is not PyPM's."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        for found in (".".join(parts[:size]), ".".join([*parts[:size], "__init__"])):
            if found in sources():
                return found
    return None


def rooms(folder: str) -> Graph:
    """The files and folders right inside of a folder, and which others each imports from."""
    inside = f"{folder}."

    def room(module: str) -> str:
        return module.removeprefix(inside).partition(".")[0]

    found: dict[str, set[str]] = {}
    for module, others in file_graph().items():
        if module.startswith(inside):
            found.setdefault(room(module), set()).update(
                room(other) for other in others if other.startswith(inside)
            )
    return {name: frozenset(others - {name}) for name, others in found.items()}


def levels(graph: Graph) -> dict[str, int]:
    """How many others stand below each; those of a cycle stand on one level."""
    directed = networkx.DiGraph(
        [(name, other) for name, others in graph.items() for other in others]
    )
    directed.add_nodes_from(graph)
    condensed = networkx.condensation(directed)
    order = [*reversed([*networkx.topological_sort(condensed)])]
    level: dict[int, int] = {}
    for part in order:
        level[part] = max((level[below] + 1 for below in condensed[part]), default=0)
    return {name: level[part] for name, part in condensed.graph["mapping"].items()}


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of modules that import each other."""
    directed = networkx.DiGraph(
        [(name, other) for name, others in graph.items() for other in others]
    )
    found = networkx.strongly_connected_components(directed)
    return sorted(sorted(group) for group in found if len(group) > 1)


def below(prefix: str) -> Graph:
    """The modules whose names begin so, and which others of them each imports."""
    return {
        name: frozenset(other for other in others if other.startswith(prefix))
        for name, others in file_graph().items()
        if name.startswith(prefix)
    }


def modules_in_folders() -> dict[str, int]:
    """How many modules are right inside of each folder."""
    count: dict[str, int] = {}
    for module in sources():
        folder, _, name = module.rpartition(".")
        count[folder] = count.get(folder, 0) + (name != "__init__")
    return count


# --- what users import --------------------------------------------------------------------------

BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def user_code() -> Iterator[tuple[str, str]]:
    """Code as a user would write it: rule packs, examples, and what the documentation shows."""
    for folder in ("pypm/rules", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        for block in BLOCK.findall(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT)), block
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and re.search(r"^(from|import) \w", source, re.M):
                yield str(path.relative_to(ROOT)), source


def deep_imports() -> list[str]:
    """Imports of users' code from modules that are not for users."""
    found = []
    for path, source in user_code():
        try:
            tree = ast.parse(source)
        except SyntaxError:  # Coq
            continue
        public = PUBLIC[:-2] if path.startswith("pypm/rules") else PUBLIC
        for line, name in imports(path, tree):
            package, _, member = name.rpartition(".")
            if f'"{member}",' in sources().get(f"{package}.__init__", ""):
                name = package  # a name that it exports, even if a module inside has that name too
            module = _module(name) if name.partition(".")[0] == "pypm" else None
            if module and not _is_public(module.removesuffix(".__init__"), public):
                found.append(f"{path}:{line} imports {name}")
    return found


def _is_public(module: str, public: Iterable[str]) -> bool:
    return any(
        module.startswith(name[:-1]) if name.endswith("*") else module == name for name in public
    )


# --- other figures ------------------------------------------------------------------------------


def any_types() -> int:
    """How often `Any` stands in annotations and aliases."""
    nodes = (node for tree in trees().values() for node in ast.walk(tree))
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)


def users_of_private_torch() -> list[str]:
    """Modules that import, or reach from `torch` on, what its name says is private."""
    return sorted(module for module, tree in trees().items() if any(private_torch(module, tree)))


def private_torch(module: str, tree: ast.AST) -> Iterator[str]:
    """The private names of torch that a module imports, or reaches from `torch` on."""
    written = (ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    for name in (*(name for _, name in imports(module, tree)), *written):
        if re.match(r"torch\.(?!ops\.)(.*\.)?_(?!_)", name):
            yield name


def matches_over_patterns() -> list[str]:
    """`match` statements that take the forms of patterns apart."""
    return [
        f"{module}:{node.lineno}"
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Match) and len(PATTERNS & {*_classes(node)}) > 1
    ]


def _classes(statement: ast.Match) -> Iterator[str]:
    for case in statement.cases:
        for node in ast.walk(case.pattern):
            if isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
                yield node.cls.id


def askers_of_rules() -> list[str]:
    """Functions that ask which rules match at a node."""
    found = []
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(map(_asks, ast.walk(node))):
                found.append(f"{module}:{node.name}")
    return found


def _asks(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="at"), args=[_, _]):
            return True
        case ast.Call(func=ast.Attribute(attr="candidates")):
            return True
    return False


# --- walks --------------------------------------------------------------------------------------


@dataclass
class Call:
    """A call from one file to another, the first from the one to the other."""

    caller: str
    callee: str
    leads_on: bool = False
    """True if another file is called before it returns, so that a reader follows it."""


@dataclass
class Walk:
    """The files that a run goes through: each call from one to another the first time it is made.

    A stay is a visit of a file; a return, one to a file that was left before. The walk ends with
    the call of the function of that name.
    """

    end: str
    calls: dict[tuple[str, str], Call] = field(default_factory=dict)
    is_over: bool = False
    _open: list[Call | None] = field(default_factory=list)
    """For each function that has not returned the call that led into it."""

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """Follow calls and returns; to be given to `sys.setprofile`."""
        if self.is_over:
            return
        if event == "return" and self._open:
            self._open.pop()
        elif event == "call":
            callee, caller = _own(frame), _own(frame.f_back)
            self.is_over = frame.f_code.co_qualname == self.end and callee is not None
            self._open.append(self._entered(caller, callee))

    def _entered(self, caller: str | None, callee: str | None) -> Call | None:
        if caller is None or callee is None or caller == callee:
            return None
        for call in self._open:
            if call is not None:
                call.leads_on = True
        if (caller, callee) in self.calls:
            return None
        return self.calls.setdefault((caller, callee), Call(caller, callee, self.is_over))

    @property
    def way(self) -> list[Call]:
        """The calls that a reader follows."""
        return [call for call in self.calls.values() if call.leads_on]

    @property
    def figures(self) -> str:
        """Stays and returns, counted by files and by folders, and without calls that end there."""
        files = [call.callee for call in self.calls.values()]
        folders = [str(Path(file).parent) for file in files]
        followed = _stays([call.callee for call in self.way])
        return (
            f"{_stays(files)} of files, {_stays(folders)} of folders;"
            f" {followed} of files that call others"
        )


def _stays(places: list[str]) -> str:
    entered = [
        place for place, before in zip(places, ["", *places], strict=False) if place != before
    ]
    return f"{len(entered) - len(set(entered))} returns in {len(entered)} stays"


_PACKAGE: Final = f"{ROOT / 'pypm'}/"


def _own(frame: FrameType | None) -> str | None:
    """The file of PyPM's that a frame is in, or was called from."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            return name.removeprefix(_PACKAGE)
        frame = frame.f_back
    return None


def _walk(run: Callable[[], object], end: str) -> Walk:
    walk = Walk(end)
    sys.setprofile(walk.see)
    try:
        run()
    finally:
        sys.setprofile(None)
    assert walk.is_over, f"{end} was not called"
    return walk


def walks() -> dict[str, Walk]:
    """Two walks: from a pattern to its matcher, and from Inductor's hook to a node replaced.

    Much is remembered from its first use on, so this is for a process of its own.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from pypm import pattern, rule
    from pypm.fx import aten, find
    from pypm.integrations.inductor import Pass

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x * 2) * x

    gm = make_fx(model, tracing_mode="fake")(torch.ones(4, 4))

    def to_the_matcher() -> None:
        def Swish(x):  # type: ignore[no-untyped-def]
            return aten.sigmoid(x * 2) * x

        find(gm, pattern(Swish))

    @pattern
    def Doubled(x):  # type: ignore[no-untyped-def]
        return x * 2

    @rule(Doubled)
    def added(x):  # type: ignore[no-untyped-def]
        return x + x

    hook = Pass([added], "joint")
    return {
        "from `@pattern` to the matcher": _walk(to_the_matcher, "Matcher.answers"),
        "from Inductor's hook to a node replaced": _walk(lambda: hook(gm.graph), "Journal.splice"),
    }


# --- the report and the picture -----------------------------------------------------------------


@cache
def figures() -> dict[str, int]:
    """All figures that the sources tell, each the lower the better."""
    fx, folders = rooms("pypm.fx"), modules_in_folders()
    inside = {name: others for name, others in fx.items() if name != "__init__"}
    largest = max(n for f, n in folders.items() if f.startswith("pypm.fx"))
    return {
        "modules in a folder of fx": largest,
        "modules in another folder": max(
            n for f, n in folders.items() if not f.startswith("pypm.fx")
        ),
        "arrows between the rooms of fx": sum(map(len, inside.values())),
        "floors inside fx": max(levels(inside).values()) + 1,
        "cycles among files of fx": len(cycles(below("pypm.fx."))),
        "cycles among other files": len(cycles(file_graph())) - len(cycles(below("pypm.fx."))),
        "imports by users' code from inner modules": len(deep_imports()),
        "`Any`": any_types(),
        "modules that import private parts of torch": len(users_of_private_torch()),
        "`match` statements over patterns": len(matches_over_patterns()),
        "functions that ask for rules at a node": len(askers_of_rules()),
    }


WIDTH, LINE, GAP, MARGIN = 150, 15, 26, 24

ASIDE = WIDTH + 2 * GAP


def svg() -> str:
    """The rooms of `fx` on their floors, and below and above them the other folders of PyPM."""
    fx = {n: others for n, others in rooms("pypm.fx").items() if n != "__init__"}
    rows = _rows(fx)
    boxes: dict[str, tuple[float, float, float]] = {}
    drawn: list[str] = []
    level = levels({n: others for n, others in rooms("pypm").items() if n != "__init__"})
    outside = sorted(level, key=lambda name: (level[name], name))
    contents = {name: _files(f"pypm.fx.{name}") for name in fx}
    y: float = MARGIN
    widest = max(map(len, rows)) * (WIDTH + GAP)
    for row in reversed(rows):
        height = max(24 + LINE * len(contents[name]) for name in row)
        x = MARGIN + ASIDE + (widest - len(row) * (WIDTH + GAP)) / 2
        for name in row:
            boxes[name] = (x, y, 24 + LINE * len(contents[name]))
            x += WIDTH + GAP
        y += height + GAP
    bottom = y
    order = networkx.transitive_reduction(
        networkx.DiGraph([(name, other) for name, others in fx.items() for other in others])
    )
    for name, other in sorted(order.edges):
        (x1, y1, h1), (x2, y2, _) = boxes[name], boxes[other]
        drawn.append(
            f'<path d="M{x1 + WIDTH / 2:g} {y1 + h1:g} L{x2 + WIDTH / 2:g} {y2:g}" '
            'class="arrow" marker-end="url(#head)"/>'
        )
    for name, (x, y, height) in sorted(boxes.items()):
        drawn += _box(name, contents[name], x, y, height)
    step = (bottom - MARGIN) / len(outside)
    for index, name in enumerate(reversed(outside)):
        drawn += _box(name, [], MARGIN, MARGIN + index * step, 24)
    size = f'width="{widest + ASIDE + 2 * MARGIN:g}" height="{bottom:g}"'
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', STYLE, *drawn, "</svg>\n"]
    )


STYLE: Final = """<style>
text { font: 12px sans-serif; fill: #222 } .name { font-weight: bold }
rect { fill: #f4f6f8; stroke: #607d8b } .arrow { stroke: #90a4ae; fill: none }
</style>
<rect width="100%" height="100%" style="fill: white; stroke: none"/>
<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7"
markerHeight="7" orient="auto">
<path d="M0 0 L8 4 L0 8 z" fill="#90a4ae"/></marker>"""


def _rows(graph: Graph) -> list[list[str]]:
    level = levels(graph)
    numbers = range(max(level.values()) + 1)
    return [sorted(name for name in level if level[name] == number) for number in numbers]


def _files(folder: str) -> list[str]:
    inside = f"{folder}."
    names = (m.removeprefix(inside) for m in sources() if m.startswith(inside))
    return sorted(name for name in names if name != "__init__")


def _box(name: str, lines: list[str], x: float, y: float, height: float) -> Iterator[str]:
    yield f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{height:g}" rx="4"/>'
    yield f'<text x="{x + 8:g}" y="{y + 16:g}" class="name">{escape(name)}</text>'
    for number, line in enumerate(lines, 1):
        yield f'<text x="{x + 16:g}" y="{y + 16 + LINE * number:g}">{escape(line)}</text>'


def main(arguments: list[str]) -> None:
    """Print the figures, or the walks, or write the picture to the file after `--svg`."""
    if arguments[:1] == ["--svg"]:
        Path(arguments[1]).write_text(svg(), encoding="utf-8")
        return
    if arguments == ["--walks"]:
        for name, walk in walks().items():
            print(f"\n{name}: {walk.figures}")
            for call in walk.way:
                print(f"  {call.caller:35} calls {call.callee}")
        return
    for name, figure in figures().items():
        print(f"{figure:5} {name}")
    for name, walk in walks().items():
        print(f"{name}: {walk.figures}")


if __name__ == "__main__":
    main(sys.argv[1:])
