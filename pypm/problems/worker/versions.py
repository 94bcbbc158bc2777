"""Functions of a computation: the reference, compiled, rewritten by rules, and a solution's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pypm.problems.memory import Input

if TYPE_CHECKING:
    from pypm.integrations.inductor import Pass

__all__ = ["Compiled", "Function", "WideFunction", "function_of", "loaded"]

Function = Callable[..., object]


def loaded(path: Path, module: str) -> dict[str, object]:
    """Run a Python file as a module of a name, and return what it defines.

    Raises whatever the file raises.
    """
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    spec.loader.exec_module(made)
    return vars(made)


def function_of(namespace: dict[str, object], name: str) -> Function:
    """Return a function of a module. Raises AttributeError if there is none."""
    found = namespace.get(name)
    if not callable(found):
        raise AttributeError(f"there is no function `{name}`")
    return found


class WideFunction:
    """A function as it is in float64: its outputs are rounded to their types once."""

    def __init__(self, function: Function, dtypes: Sequence[str]) -> None:
        self._function = function
        self._dtypes: list[torch.dtype] = [getattr(torch, name) for name in dtypes]

    def __call__(self, *arguments: Input) -> object:
        result = self._function(*map(_widened, arguments))
        found = [*result.values()] if isinstance(result, dict) else result
        listed = [*found] if isinstance(found, (tuple, list)) else [found]
        pairs = zip(listed, self._dtypes, strict=True)
        return [each.to(dtype) if isinstance(each, Tensor) else each for each, dtype in pairs]


def _widened(value: Input) -> Input:
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return value.double() if is_float and isinstance(value, Tensor) else value


class Compiled:
    """A function as `torch.compile` makes it, for fixed sizes; rules rewrite its graphs."""

    def __init__(self, function: Function, rules: Sequence[str] | None) -> None:
        """Take a function, and the names of rules as for the command, or None for none."""
        torch.compiler.reset()
        self._pass = None if rules is None else _pass_of(rules)
        options = None if self._pass is None else self._pass.options()
        self._call: Function = torch.compile(function, options=options, dynamic=False)

    def __call__(self, *arguments: Input) -> object:
        return self._call(*arguments)

    def first(self, *arguments: Input) -> list[str]:
        """Compile by a first call, and return the names of the rules that were applied."""
        if self._pass is None:
            self._call(*arguments)
            return []
        from pypm.integrations.inductor import uncached

        with uncached():  # from a cache, it is not known which rules were applied
            self._call(*arguments)
        return list(dict.fromkeys(each.rule for each in self._pass.report().rewrites))


def _pass_of(rules: Sequence[str]) -> Pass:
    from pypm.integrations.inductor import Pass
    from pypm.integrations.rule_files import load_rules

    return Pass(load_rules(rules))
