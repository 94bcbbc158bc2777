"""The floors: each module imports from its own folder and from lower floors, and nothing else."""

import ast
import copy
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp
import pytest
from importlinter import Contract
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

from tests.floors import ROOT, figures, imports, sources, svg

KINDS = {"layers": LayersContract, "forbidden": ForbiddenContract}
OPTIONS = read_configuration(str(ROOT / "pyproject.toml"))
CONTRACTS = {
    contract["name"]: KINDS[contract["type"]](
        contract["name"], OPTIONS["session_options"], contract
    )
    for contract in OPTIONS["contracts_options"]
}
"""Those of pyproject.toml, by their names."""

LIMITS = {
    "modules in a folder of fx": 12,
    "modules in another folder": 18,
    "arrows between the rooms of fx": 43,
    "floors inside fx": 8,
    "cycles among files of fx": 0,
    "cycles among other files": 0,
    "imports by users' code from inner modules": 0,
    "`Any`": 44,
    "modules that import private parts of torch": 1,
    "`match` statements over patterns": 17,
    "functions that ask for rules at a node": 1,
}
"""Figures that must not grow, as `python -m tests.floors` prints them; lower what has shrunk."""

LINES = 420


@cache
def graph() -> grimp.ImportGraph:
    """All imports of PyPM, late ones and those for types included."""
    return grimp.build_graph("pypm", include_external_packages=True, cache_dir=None)


def broken(importer: str, imported: str) -> set[str]:
    """The names of the contracts that one more import breaks."""
    changed = copy.deepcopy(graph())
    for module in {importer, imported} - changed.modules:
        changed.add_module(module)
    changed.add_import(importer=importer, imported=imported)
    return {name for name, contract in CONTRACTS.items() if not is_kept(contract, changed)}


def is_kept(contract: Contract, imported: grimp.ImportGraph) -> bool:
    return contract.check(copy.deepcopy(imported), verbose=False).kept


def foreign_to_core(module: str, source: str) -> list[str]:
    """What a core module imports beside the standard library, lark and PyPM."""
    return [
        f"{module}:{line} imports {name}"
        for line, name in imports(module, ast.parse(source))
        if name.split(".")[0] not in {*sys.stdlib_module_names, "lark", "pypm"}
    ]


@pytest.mark.parametrize("name", CONTRACTS)
def test_contracts(name: str) -> None:
    """`lint-imports` prints what breaks one."""
    assert is_kept(CONTRACTS[name], graph())


FLOORS, FX, PUBLIC, PASS = CONTRACTS


@pytest.mark.parametrize(
    ("importer", "imported", "names"),
    [
        # allowed
        ("pypm.core.terms", "pypm.diagnostics", set()),
        ("pypm.fx.subject.view", "pypm.core.terms", set()),
        ("pypm.fx.subject.view", "pypm", set()),
        ("pypm.rules.norm", "pypm", set()),
        ("pypm.rules.norm", "pypm.fx", set()),
        ("pypm.choice.measuring", "pypm.roofline.flops", set()),
        # not allowed
        ("pypm.core.terms", "pypm.match", {FLOORS}),
        ("pypm.core.terms", "pypm.lang.capture", {FLOORS}),
        ("pypm.core", "pypm.fx.subject.view", {FLOORS}),
        ("pypm.diagnostics", "pypm.core.terms", {FLOORS}),
        ("pypm.match.index", "pypm.rules.norm", {FLOORS, FX}),
        ("pypm.kernels.rotary", "pypm.roofline.flops", {FLOORS}),
        ("pypm.integrations.inductor", "pypm.pipeline", {FLOORS, PASS}),
        ("pypm.integrations.inductor", "pypm.roofline.flops", {PASS}),
        ("pypm.integrations.identity", "pypm.roofline.flops", {PASS}),
        ("pypm.problems", "pypm.evolve", {FLOORS}),
        ("pypm.tools.headroom", "pypm.tools.cli", {FLOORS}),
        ("pypm.fx.subject.view", "pypm.fx.legality", {FX}),
        ("pypm.fx.partition", "pypm.fx.suggesting", {FX}),
        ("pypm.lang.capture", "pypm", {PUBLIC}),
        ("pypm.diagnostics", "pypm", {FLOORS, PUBLIC}),
        ("pypm.utils", "pypm.core", {FLOORS}),  # on no floor
        ("pypm.fx.utils", "pypm.core", {FX}),
    ],
)
def test_one_more_import(importer: str, imported: str, names: set[str]) -> None:
    assert broken(importer, imported) == names


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import pypm.rules.norm",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pypm.rules import norm",
    ],
)
def test_late_imports_count(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(source.replace("pypm.rules", package.name))
    (package / "norm.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    found = grimp.build_graph(package.name, cache_dir=None)
    assert found.direct_import_exists(importer=package.name, imported=f"{package.name}.norm")


@pytest.mark.parametrize("name", LIMITS)
def test_figures(name: str) -> None:
    assert figures().keys() == LIMITS.keys()
    assert figures()[name] <= LIMITS[name]


def test_the_picture_is_up_to_date() -> None:
    """`python -m tests.floors --svg docs/floors.svg` draws it anew."""
    assert (ROOT / "docs" / "floors.svg").read_text(encoding="utf-8") == svg()


def test_core_is_plain_python() -> None:
    core = {name: text for name, text in sources().items() if name.startswith("pypm.core.")}
    assert core
    assert [bad for item in core.items() for bad in foreign_to_core(*item)] == []


def test_modules_are_short() -> None:
    lengths = {name: len(source.splitlines()) for name, source in sources().items()}
    assert {name: length for name, length in lengths.items() if length > LINES} == {}


IMPORTS = """
import pypm, sys
print({"torch", "logging", "traceback"} & {*sys.modules})
import pypm.fx
print({"torch._dynamo", "torch._inductor"} & {*sys.modules})
print(pypm.fx.prims.fma.name)  # of Inductor's
import pypm.integrations.inductor
print(*sys.modules)
import pypm.integrations.vllm, pypm.rules.vllm
pypm.integrations.vllm.register()
print("vllm" in sys.modules)
"""


def test_a_pass_imports_no_more_than_it_needs() -> None:
    """Bounds are for reports, and searches and pipelines for themselves; torch, and what only
    failures need or is slow to import, waits, and vLLM is imported by nothing but its pass.
    """
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *first, loaded, vllm = done.stdout.splitlines()
    assert (*first, vllm) == ("set()", "set()", "prims.fma", "False")
    assert "pypm.choice" in loaded.split()
    rooms = ("evolve", "pipeline", "problems", "roofline", "tools")
    assert {*loaded.split()}.isdisjoint({f"pypm.{room}" for room in rooms})


@pytest.mark.parametrize("library", ["torch", "torch.fx", "networkx", "numpy", "rich.console"])
def test_foreign_to_core(library: str) -> None:
    source = f"import math\nimport lark\nfrom pypm.diagnostics import Span\nimport {library}"
    [violation] = foreign_to_core("pypm.core.text", source)
    assert violation == f"pypm.core.text:4 imports {library}"
