"""Hardware as data: rates of products, of other work, and of memory; with their source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Final

import torch

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fields import Fields, Plain, read_toml

__all__ = ["DTYPES", "Hardware", "hardware", "hardware_of"]

DTYPES: Final = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8")
"""The types of matrix products that hardware has rates for, the widest first."""
_WIDTH: Final = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}
_SHIPPED: Final = Path(__file__).with_name("hardware.toml")


@dataclass(frozen=True, slots=True)
class Hardware:
    """Peak rates of a device. Those of matrix products are dense, not for 2:4 sparsity."""

    name: str
    source: str
    """The document or the probe that the figures are from."""
    matrix: Mapping[str, float]
    """FLOP/s of matrix products by the type of their operands: names of `DTYPES`."""
    vector: float
    """FLOP/s of other work in float32."""
    memory_bandwidth: float
    """Byte/s between memory and cores, reads and writes together."""
    memory: float
    """Bytes of memory."""
    cache: float
    """Bytes of the last cache that all cores share."""
    levels: tuple[tuple[float, float], ...] = field(default=())
    """Pairs (bytes, byte/s) in rising order of bytes: working sets of that size and larger ones
    move at most at that rate. Without levels, everything moves at `memory_bandwidth`, as after the
    caches were flushed.
    """

    @staticmethod
    def from_file(path: str | Path) -> Hardware:
        """Return the hardware that a TOML file describes by the fields of this class.

        Raises PyPMError if the file cannot be read, a field is missing or unknown, or has a value
        of the wrong kind or sign.
        """
        return _hardware(read_toml(Path(path), help=_EXAMPLES))

    def rate(self, dtype: str) -> float:
        """Return the FLOP/s of the fastest unit for products whose operands fit in a type.

        A wider type serves as well as the type itself. Products in float32 may use TF32 or
        bfloat16 where `torch.set_float32_matmul_precision` allows it. A type without a rate gets
        the highest of all.
        """
        if dtype not in DTYPES:
            return max(self.matrix.values())
        width = _WIDTH.get(dtype, 1)
        served = [d for d in DTYPES if d == dtype or _WIDTH.get(d, 1) > width]
        if dtype == "float32":
            served += _LOOSE[torch.get_float32_matmul_precision()]
        rates = [self.matrix[d] for d in served if d in self.matrix]
        return max(rates or self.matrix.values())

    def bandwidth(self, moved: float) -> float:
        """Return the highest byte/s at which a region can move that many bytes in all."""
        if not self.levels:
            return self.memory_bandwidth
        at_least = [rate for size, rate in self.levels if size <= moved]
        return min(at_least or [self.levels[0][1]])


_LOOSE: Final = {"highest": (), "high": ("tf32",), "medium": ("tf32", "bfloat16")}


def hardware(name: str) -> Hardware:
    """Return the shipped hardware of a name, or of the only name that begins so, in any case.

    Raises PyPMError for any other name, with the nearest ones.

    >>> hardware("h100").name
    'H100 SXM'
    """
    known = _shipped()
    low = name.strip().lower()
    found = [each for each in known if each.lower().startswith(low)] if low else []
    exact = [each for each in found if each.lower() == low]
    if len(exact or found) == 1:
        return known[(exact or found)[0]]
    lowered = {each.lower(): each for each in known}
    close = get_close_matches(low, lowered, n=3, cutoff=0.4)
    near = found or [lowered[each] for each in close] or list(known)
    problem = "several kinds of hardware begin with" if found else "there is no hardware named"
    raise PyPMError(
        Diagnostic(
            f"{problem} `{name}`",
            help=f"name one of {', '.join(f'`{each}`' for each in near)}, or a TOML file that "
            "describes your own, as `pypm/roofline/hardware.toml` does",
        )
    )


@cache
def _shipped() -> dict[str, Hardware]:
    entries = read_toml(_SHIPPED).value["hardware"]
    assert isinstance(entries, list)
    found = [hardware_of(each, _SHIPPED.name) for each in entries]
    return {each.name: each for each in found}


_EXAMPLES: Final = "`pypm/roofline/hardware.toml` has examples"


def hardware_of(given: Plain, file: str) -> Hardware:
    """Return the hardware with some fields, which a file had.

    Raises PyPMError for fields that are missing, unknown or wrong.
    """
    return _hardware(Fields(given, file, help=_EXAMPLES))


def _hardware(table: Fields) -> Hardware:
    table.only(each.name for each in fields(Hardware))
    matrix = table.below("matrix")
    if not matrix.value:
        raise table.error("the field `matrix` is missing, or has no rates")
    matrix.only(DTYPES)
    return Hardware(
        table.text("name"),
        table.text("source"),
        {name: matrix.positive(name) for name in matrix.value},
        table.positive("vector"),
        table.positive("memory_bandwidth"),
        table.positive("memory"),
        table.positive("cache"),
        _levels(table),
    )


def _levels(table: Fields) -> tuple[tuple[float, float], ...]:
    """Return pairs of a size and a rate, whose sizes rise."""
    given = table.value.get("levels", [])
    if not isinstance(given, (list, tuple)) or not all(map(_is_pair, given)):
        raise table.wrong("levels", "a list of pairs of positive numbers")
    pairs = [(float(size), float(rate)) for size, rate in given]
    if pairs != sorted(pairs):
        raise table.error("the field `levels` has sizes that do not rise", "", "levels")
    return tuple(pairs)


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(type(x) in (int, float) and math.isfinite(x) and x > 0 for x in value)
    )
