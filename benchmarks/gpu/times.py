"""Times of calls on a GPU as the default choice takes them: those of the device and of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from pypm.choice.gpu_times import timed

__all__ = ["SECONDS", "Both", "Version", "both", "gpu", "in_one", "moved", "rates"]

SECONDS: Final = 0.4
"""The time of a comparison on a CPU, of which a GPU takes a tenth."""
DEVICE: Final = "cuda"
LARGEST: Final = 8192
"""Rows and columns of the product and the copy by which bounds are computed."""
Version: TypeAlias = tuple[Callable[..., Any], Sequence[Any]]
"""A function and its arguments."""


@dataclass(frozen=True)
class Both:
    """Milliseconds of one call."""

    device: float
    host: float

    @property
    def larger(self) -> float:
        """Return the time of a call among many like it."""
        return max(self.device, self.host)


def gpu() -> torch.device:
    """Return the GPU on which parts run."""
    return torch.device(DEVICE)


def both(versions: Mapping[str, Version], seconds: float = SECONDS) -> dict[str, Both]:
    """Return the times of calls by the names of versions, which are timed in turn.

    Large arguments are copied, so that no cache holds those of all calls.
    """
    for function, args in versions.values():
        function(*args)
    made = {name: (_called(function), args) for name, (function, args) in versions.items()}
    on_device, on_host = timed(made, gpu(), seconds)
    return {n: Both(1e3 * on_device.median(n), 1e3 * on_host.median(n)) for n in versions}


def _called(function: Callable[..., Any]) -> Callable[[Sequence[Any]], object]:
    return lambda args: function(*args)


def in_one(function: Callable[..., Any], *args: Any) -> Both:
    """Return the times of one call."""
    return both({"": (function, args)})[""]


def rates() -> tuple[float, float]:
    """Return operations and bytes in a millisecond, of a product of cuBLAS and of a copy."""
    n = LARGEST
    x = torch.randn(n, n, device=gpu(), dtype=torch.bfloat16)
    y, out = torch.empty_like(x), torch.empty_like(x)
    product = in_one(lambda x: torch.mm(x, x, out=out), x).device
    copy = in_one(y.copy_, x).device
    return 2 * n**3 / product, 2 * moved([x]) / copy


def moved(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors together."""
    return sum(x.nbytes for x in tensors)
