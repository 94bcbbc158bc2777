"""Hints from a rule's own constants: sizes, literals and dtypes worth trying."""

from __future__ import annotations

from collections.abc import Iterator
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
    found = [*_constants([*rule.roots, rule.guard])]
    code = getattr(rule.replacement, "__code__", None)
    if isinstance(code, CodeType):
        found += code.co_consts
    numbers: dict[object, None] = {}
    for value in found:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers |= dict.fromkeys((value, value + 1, value - 1, value * 2))
    dtypes = dict.fromkeys(value for value in found if isinstance(value, torch.dtype))
    return Hints(tuple(numbers), tuple(dtypes))


def _constants(parts: list[object]) -> Iterator[object]:
    """Yield every constant in or below parts of patterns and guards, in order."""
    todo, seen = parts[::-1], set[int]()
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Constant):
            yield from part.value if isinstance(part.value, tuple) else (part.value,)
        elif isinstance(part, tuple):
            todo += reversed(part)
        elif type(part).__module__ in _PARTS:
            names = getattr(type(part), "__slots__", ())
            todo += [getattr(part, name) for name in reversed(names)]


_PARTS: Final = frozenset({"pypm.core.patterns", "pypm.core.guards"})
