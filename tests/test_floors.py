"""The floors: each module imports from its own folder and from lower floors, and nothing else."""

import ast
import subprocess
import sys

import pytest

from tests.floors import ROOT, figures, imports, rooms, sources, svg

FLOORS = {
    "diagnostics": 0,
    "kept_files": 0,
    "moved": 0,
    "sources": 0,
    "core": 1,
    "lang": 2,
    "match": 3,
    "torch_internals": 3,
    "fx": 4,
    "kept_figures": 4,
    "timing": 4,
    "kernels": 5,
    "roofline": 5,
    "choice": 6,
    "rules": 6,
    "integrations": 7,
    "pipeline": 7,
    "tools": 8,
    "problems": 9,
    "evolve": 10,
    "tools.cli": 11,
}
PUBLIC_FLOOR = 3
"""`from pypm import pattern`: the public names stand on the highest floor without torch, so that
rules may be written like a user's, while the floors that they come from may not import them."""

FX_FLOORS = {
    "values": 0,
    "operators": 1,
    "reporting": 1,
    "subject": 2,
    "legality": 3,
    "matching": 4,
    "tracing": 5,
    "rewriting": 6,
    "explaining": 7,
    "partition": 7,
    "suggesting": 7,
}
"""The floors inside of `pypm/fx`; its `__init__.py` holds the public names."""

LIMITS = {
    "modules in a folder of fx": 12,
    "modules in another folder": 18,
    "arrows between the rooms of fx": 43,
    "floors inside fx": 8,
    "cycles among files of fx": 0,
    "cycles among other files": 0,
    "imports by users' code from inner modules": 0,
    "`Any`": 43,
    "modules that import private parts of torch": 1,
    "`match` statements over patterns": 16,
    "functions that ask for rules at a node": 1,
}
"""Figures that must not grow, as `python -m tests.floors` prints them; lower what has shrunk."""

LINES = 420


def folder(module: str) -> str:
    """The part of a dotted name below `pypm`: `core` of `pypm.core.terms`, `tools.cli`."""
    parts = [*module.split("."), "", ""]
    inner = ".".join(parts[1:3])
    return inner if inner in FLOORS else parts[1]


def floor_violations(module: str, source: str) -> list[str]:
    """What the module imports from a floor that is not below it; or that it is on no floor."""
    own = folder(module)
    if own not in FLOORS:
        return [f"{module} is on no floor"]
    found = []
    for line, name in imports(module, ast.parse(source)):
        if name.split(".")[0] != "pypm" or folder(name) == own:
            continue
        if FLOORS.get(folder(name), PUBLIC_FLOOR) >= FLOORS[own]:
            found.append(f"{module}:{line} imports {name}")
    return found


def foreign_to_core(module: str, source: str) -> list[str]:
    """What a core module imports beside the standard library, lark and lower PyPM."""
    return [
        f"{module}:{line} imports {name}"
        for line, name in imports(module, ast.parse(source))
        if name.split(".")[0] not in {*sys.stdlib_module_names, "lark", "pypm"}
    ]


def test_floors() -> None:
    modules = {name: text for name, text in sources().items() if name != "pypm.__init__"}
    assert "pypm.diagnostics" in modules
    assert [bad for item in modules.items() for bad in floor_violations(*item)] == []


def test_floors_inside_fx() -> None:
    """Each room imports from lower ones alone, late imports and those for types included."""
    found = {name: others for name, others in rooms("pypm.fx").items() if name != "__init__"}
    assert found.keys() == FX_FLOORS.keys()
    for name, others in found.items():
        assert {other for other in others if FX_FLOORS[other] >= FX_FLOORS[name]} == set(), name


@pytest.mark.parametrize("name", LIMITS)
def test_figures(name: str) -> None:
    assert figures().keys() == LIMITS.keys()
    assert figures()[name] <= LIMITS[name]


def test_the_picture_is_up_to_date() -> None:
    """`python -m tests.floors --svg docs/floors.svg` draws it anew."""
    assert (ROOT / "docs" / "floors.svg").read_text(encoding="utf-8") == svg()


def test_core_is_plain_python() -> None:
    core = {name: text for name, text in sources().items() if folder(name) == "core"}
    assert core
    assert [bad for item in core.items() for bad in foreign_to_core(*item)] == []


def test_modules_are_short() -> None:
    lengths = {name: len(source.splitlines()) for name, source in sources().items()}
    assert {name: length for name, length in lengths.items() if length > LINES} == {}


def test_import_pypm_imports_neither_torch_nor_what_only_failures_need() -> None:
    program = "import pypm, sys; print({'torch', 'logging', 'traceback'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_a_pass_imports_no_more_than_it_needs() -> None:
    """Bounds are for reports, and searches and pipelines for themselves."""
    program = "import pypm.integrations.inductor, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {folder(name) for name in done.stdout.split() if name.startswith("pypm.")}
    assert "choice" in loaded
    assert loaded.isdisjoint({"evolve", "pipeline", "problems", "roofline", "tools"})


@pytest.mark.parametrize(
    ("module", "source", "names"),
    [
        # allowed
        ("pypm.core.terms", "import math, torch\nimport pypm.diagnostics", []),
        ("pypm.core.terms", "from pypm.core.operators import Operator", []),
        ("pypm.core.__init__", "from .terms import Term", []),
        ("pypm.fx.subject.view", "from ...core import terms\nfrom pypm import pattern", []),
        ("pypm.rules.norm", "from pypm import pattern, rule\nfrom pypm.fx import aten", []),
        # not allowed
        ("pypm.core.terms", "import pypm.match", ["pypm.match"]),
        ("pypm.core.terms", "from pypm import fx", ["pypm.fx"]),
        ("pypm.core.terms", "from ..lang import capture", ["pypm.lang.capture"]),
        ("pypm.core.__init__", "from ..fx.view import View", ["pypm.fx.view.View"]),
        ("pypm.diagnostics", "from pypm.core import terms", ["pypm.core.terms"]),
        ("pypm.diagnostics", "from .core import terms", ["pypm.core.terms"]),
        ("pypm.lang.capture", "from pypm import pattern", ["pypm.pattern"]),
        ("pypm.lang.capture", "import pypm", ["pypm"]),
        ("pypm.match.index", "def f():\n    import pypm.rules.norm", ["pypm.rules.norm"]),
        ("pypm.match.index", "importlib.import_module('pypm.fx')", ["pypm.fx"]),
        (
            "pypm.lang.capture",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pypm.fx import view",
            ["pypm.fx.view"],
        ),
    ],
)
def test_floor_violations(module: str, source: str, names: list[str]) -> None:
    found = floor_violations(module, source)
    assert [violation.split(" imports ")[1] for violation in found] == names


def test_a_module_outside_the_floors() -> None:
    assert floor_violations("pypm.utils", "") == ["pypm.utils is on no floor"]


@pytest.mark.parametrize("library", ["torch", "torch.fx", "networkx", "numpy", "rich.console"])
def test_foreign_to_core(library: str) -> None:
    source = f"import math\nimport lark\nfrom pypm.diagnostics import Span\nimport {library}"
    [violation] = foreign_to_core("pypm.core.text", source)
    assert violation == f"pypm.core.text:4 imports {library}"
