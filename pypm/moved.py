"""Modules that were documented under other names, which go on working for one release."""

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Final

__all__ = ["MOVED", "install", "names_of"]

MOVED: Final = {
    "pypm.fx.dialect": "pypm.fx",
    "pypm.fx.driver": "pypm.fx",
    "pypm.fx.explain": "pypm.fx",
    "pypm.fx.operators": "pypm.fx",
    "pypm.fx.program": "pypm.fx",
    "pypm.fx.report": "pypm.fx",
    "pypm.fx.suggest": "pypm.fx",
    "pypm.fx.view": "pypm.fx",
    "pypm.kernels.gpu": "pypm.kernels.support.triton",
}
"""Old modules, and the modules that have their documented names now."""


def names_of(old: str) -> Callable[[str], object]:
    """Return the `__getattr__` of an old module, which warns and looks into the new one."""
    new = MOVED[old]

    def attribute(name: str) -> object:
        if name.startswith("__") or name not in import_module(new).__all__:
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        message = f"`{old}` is going away: import `{name}` from `{new}`"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(import_module(new), name)

    return attribute


def install(package: str) -> None:
    """Let the modules that were in a package, and are there no more, be imported.

    An attribute of the package stays what it is: `pypm.fx.explain` is the function.
    """
    for old in MOVED:
        parent, _, last = old.rpartition(".")
        if parent == package and old not in sys.modules:
            module = ModuleType(old, f"See `{MOVED[old]}`.")
            vars(module)["__getattr__"] = names_of(old)
            sys.modules[old] = module
            vars(sys.modules[package]).setdefault(last, module)
