"""Docstrings in plain words: they begin with a verb or a noun, and name arguments and errors."""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from tests.floors import sources

FREE_RELATIVE = re.compile(r"(what|whether|why|where|how|which|who|whose|when)\b", re.IGNORECASE)

PUBLIC = (
    *("pypm", "pypm.fx", "pypm.integrations.export", "pypm.integrations.inductor"),
    *("pypm.pipeline", "pypm.evolve", "pypm.tools"),
)


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a module, those below names included."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield text


def public_functions() -> dict[str, object]:
    """Return the public functions of PyPM by dotted name."""
    modules = {name: import_module(name) for name in PUBLIC}
    found = {
        f"{name}.{each}": getattr(m, each) for name, m in modules.items() for each in m.__all__
    }
    return {n: f for n, f in found.items() if inspect.isfunction(f)}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = {
        (module, text)
        for module, source in sources().items()
        for text in docstrings(source)
        if FREE_RELATIVE.match(text.lstrip())
    }
    assert found == set()


@pytest.mark.parametrize("name", sorted(public_functions()))
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
