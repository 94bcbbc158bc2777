"""Hardware as data: rates of products, of other work, and of memory; with their source."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Final

import torch

from pypm.diagnostics import Diagnostic, PyPMError, did_you_mean

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
        given = _read(Path(path))
        return hardware_of(given, str(path))

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
    entries = _read(_SHIPPED)["hardware"]
    assert isinstance(entries, list)
    found = [hardware_of(each, _SHIPPED.name) for each in entries]
    return {each.name: each for each in found}


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _bad(str(path), f"cannot be read: {error}") from None


_TEXTS: Final = ("name", "source")


def hardware_of(given: Mapping[str, object], file: str) -> Hardware:
    """Return the hardware with some fields, which a file had.

    Raises PyPMError for fields that are missing, unknown or wrong.
    """
    known = {each.name: each for each in fields(Hardware)}
    for name, each in known.items():
        if name not in given and each.default is MISSING:
            raise _bad(file, f"lacks the field `{name}`")
    for name in given:
        if name not in known:
            raise _bad(file, f"has an unknown field `{name}`", did_you_mean(name, known))
    checked: dict[str, object] = {}
    for name, value in given.items():
        if name in _TEXTS:
            if not isinstance(value, str) or not value.strip():
                raise _bad(file, f"has a field `{name}` that is not a text: {value!r}")
            checked[name] = value
        elif name == "matrix":
            checked[name] = _rates(value, file)
        elif name == "levels":
            checked[name] = _levels(value, file)
        else:
            checked[name] = _positive(value, name, file)
    return Hardware(**checked)  # type: ignore[arg-type]


def _rates(value: object, file: str) -> dict[str, float]:
    if not isinstance(value, Mapping) or not value:
        raise _bad(file, f"has a field `matrix` that is not a table of rates: {value!r}")
    for name in value:
        if name not in DTYPES:
            raise _bad(file, f"has an unknown field `matrix.{name}`", did_you_mean(name, DTYPES))
    return {name: _positive(rate, f"matrix.{name}", file) for name, rate in value.items()}


def _levels(value: object, file: str) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, Sequence) or not all(_is_pair(each) for each in value):
        raise _bad(file, f"has a field `levels` that is not a list of pairs: {value!r}")
    pairs = [
        (_positive(size, "levels", file), _positive(rate, "levels", file)) for size, rate in value
    ]
    if pairs != sorted(pairs):
        raise _bad(file, "has a field `levels` whose sizes do not rise")
    return tuple(pairs)


def _is_pair(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2


def _positive(value: object, name: str, file: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:  # type: ignore[operator, arg-type]
        raise _bad(file, f"has a field `{name}` that is not a positive number: {value!r}")
    return float(value)  # type: ignore[arg-type]


def _bad(file: str, problem: str, help: str = "") -> PyPMError:
    return PyPMError(
        Diagnostic(
            f"the hardware file `{file}` {problem}",
            help=help or "`pypm/roofline/hardware.toml` has examples",
        )
    )
