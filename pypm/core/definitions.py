"""Contexts of recursive patterns, and the arguments of their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pypm.core.patterns import (
    Definition,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


__all__ = ["Context", "arg", "args", "shown"]

Context: TypeAlias = tuple[Definition, ...]
"""A recursion context R: the enclosing recursive patterns, innermost first."""


def arg(parameters: Sequence[str], actuals: Sequence[str], name: str) -> str | None:
    """Return the actual paired with the first occurrence of a parameter, or None (section 2)."""
    for parameter, actual in zip(parameters, actuals, strict=False):
        if parameter == name:
            return actual
    return None


def args(definition: Definition, actuals: Sequence[str], names: Iterable[str]) -> frozenset[str]:
    """Return the actuals paired with those of the parameters `names` that have one."""
    found = (arg(definition.parameters, actuals, name) for name in names)
    return frozenset(actual for actual in found if actual is not None)


def shown(name: str) -> str:
    """Return a name as the user wrote it: names made by the elaborator end in `#` and a number."""
    return name.partition("#")[0] or name
