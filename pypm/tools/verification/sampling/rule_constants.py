"""Hints from a rule's own constants: sizes, literals and dtypes worth trying."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Final

import torch

from pypm.core.guards import Constant
from pypm.core.rules import Rule
from pypm.core.terms import Value

__all__ = ["Hints", "hints_of"]

LARGEST: Final = 65
"""The largest size taken from a rule's own constants."""


@dataclass(frozen=True)
class Hints:
    """Hints from a rule's own constants."""

    numbers: tuple[Value, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers that can be sizes of small tensors."""
        return tuple(n for n in self.numbers if isinstance(n, int) and 1 < n <= LARGEST)


def hints_of(rule: Rule) -> Hints:
    """The numbers and dtypes that a rule's pattern, guards and body mention."""
    found: list[object] = []
    for root in rule.roots:
        _collect(root, found, set())
    _collect(rule.guard, found, set())
    code = getattr(rule.replacement, "__code__", None)
    if isinstance(code, CodeType):
        found += code.co_consts
    numbers: dict[object, None] = {}
    for value in found:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers |= dict.fromkeys((value, value + 1, value - 1, value * 2))
    dtypes = dict.fromkeys(value for value in found if isinstance(value, torch.dtype))
    return Hints(tuple(numbers), tuple(dtypes))


def _collect(part: object, found: list[object], seen: set[int]) -> None:
    """Every constant below a part of a pattern."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, Constant):
        found += part.value if isinstance(part.value, tuple) else (part.value,)
    elif isinstance(part, tuple):
        for inner in part:
            _collect(inner, found, seen)
    elif type(part).__module__ in _PARTS:
        for name in getattr(type(part), "__slots__", ()):
            _collect(getattr(part, name), found, seen)


_PARTS: Final = frozenset({"pypm.core.patterns", "pypm.core.guards"})
