"""Samples of sizes and numbers, and plain numbers that are samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from pypm.laws.forms.polynomials import Poly

__all__ = ["SAMPLES", "SMALL", "as_symbols", "symbol_of"]

SAMPLES: Final = (
    (1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097, 1103, 1109, 1117),
    (1511, 1523, 1531, 1543, 1549, 1553, 1559, 1567, 1571, 1579, 1583, 1597, 1601, 1607, 1609),
)
"""Samples of sizes: different primes, for each of two runs."""
SMALL: Final = 3, 2
"""Samples of a size that is small."""
_SYMBOLS: Final[ContextVar[Mapping[float, Poly] | None]] = ContextVar("symbols", default=None)


@contextmanager
def as_symbols(known: Mapping[float, Poly]) -> Iterator[None]:
    """Take plain numbers for symbols, each for the one whose sample it is."""
    token = _SYMBOLS.set(known)
    try:
        yield
    finally:
        _SYMBOLS.reset(token)


def symbol_of(value: float) -> Poly | None:
    """Return the symbol for which a plain number is taken, if it is for one."""
    known = _SYMBOLS.get()
    return known.get(value) if known else None
