"""Old names of modules: they can be imported for one release, with a warning."""

import subprocess
import sys
from importlib import import_module
from types import FunctionType

import pytest

import pypm.fx
from pypm.moved import MOVED

ROOT = pypm.__path__[0].rpartition("/")[0]


@pytest.mark.parametrize(
    "statement",
    [
        "from pypm.fx.dialect import JOINT, exact, expect",
        "from pypm.fx.driver import Match, find, rewrite, rewrite_graph",
        "from pypm.fx.explain import explain",
        "from pypm.fx.operators import GETITEM, aten, describe, prims",
        "from pypm.fx.program import program_of",
        "from pypm.fx.report import Report",
        "from pypm.fx.suggest import suggest, suggest_function",
        "from pypm.fx.view import metadata",
        "from pypm.kernels.gpu import as_on_a_gpu",
    ],
)
def test_the_old_name_of_a_module(statement: str) -> None:
    old, _, names = statement.removeprefix("from ").partition(" import ")
    namespace: dict[str, object] = {}
    with pytest.warns(DeprecationWarning, match=f"from `{MOVED[old]}`"):
        exec(statement, namespace)
    new = import_module(MOVED[old])
    assert all(namespace[name] is getattr(new, name) for name in names.split(", "))


def test_every_old_module_has_gone() -> None:
    """Or is a package of that name; and what took its place is there."""
    for old, new in MOVED.items():
        module = import_module(old)
        assert getattr(module, "__file__", "__init__.py").endswith("__init__.py"), old
        assert import_module(new).__all__


@pytest.mark.parametrize("module", ["pypm.fx.driver", "pypm.kernels.gpu"])
def test_an_old_module_is_imported_first(module: str) -> None:
    program = f"import {module}\nprint({module}.__name__)"
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == module


def test_functions_keep_their_names() -> None:
    import pypm.fx.explain
    import pypm.fx.suggest

    assert isinstance(pypm.fx.explain, FunctionType)
    assert isinstance(pypm.fx.suggest, FunctionType)


def test_an_unknown_name() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from pypm.fx.driver import nothing")
