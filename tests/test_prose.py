"""Docstrings in plain words: they begin with a verb or a noun, and name arguments and errors."""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from tests.floors import sources

FREE_RELATIVE = re.compile(r"(what|whether|why|where|how|which|who|whose|when)\b", re.IGNORECASE)

LIMITS = {
    "pypm.fx.rewriting": 19,
}
"""Docstrings that begin with a free relative, by folder; all other folders have none."""

PUBLIC = ("pypm", "pypm.fx", "pypm.integrations.export", "pypm.integrations.inductor", "pypm.tools")

UNNAMED = {
    "pypm.fx.rewrite",
    "pypm.fx.rewrite_graph",
}
"""Functions whose docstrings may lack arguments or errors; take out the ones that do not."""


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a module, those below names included."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield text


def folder(module: str) -> str:
    """Return the dotted name of a module's folder, two names long inside of `pypm.fx`."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[:2] == ["pypm", "fx"] else 2])


def public_functions() -> dict[str, object]:
    """Return the public functions of PyPM by dotted name."""
    modules = {name: import_module(name) for name in PUBLIC}
    found = {
        f"{name}.{each}": getattr(m, each) for name, m in modules.items() for each in m.__all__
    }
    return {n: f for n, f in found.items() if inspect.isfunction(f)}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    counts: dict[str, int] = {}
    for module, source in sources().items():
        for text in docstrings(source):
            if FREE_RELATIVE.match(text.lstrip()):
                counts[folder(module)] = counts.get(folder(module), 0) + 1
    assert {name: n for name, n in counts.items() if n > LIMITS.get(name, 0)} == {}


@pytest.mark.parametrize("name", sorted(public_functions().keys() - UNNAMED))
def test_public_functions_name_arguments_and_errors(name: str) -> None:
    function = public_functions()[name]
    assert inspect.isfunction(function)
    text = inspect.getdoc(function) or ""
    unnamed = [
        p for p in inspect.signature(function).parameters if not re.search(rf"\b{p}\b", text)
    ]
    assert unnamed == []
    if re.search(r"\braise \w*Error|\bcheck_\w+\(", inspect.getsource(function)):
        assert "Raise" in text
