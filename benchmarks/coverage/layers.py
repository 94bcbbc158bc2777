"""What a model calls, family by family, counted by hooks: of PyPM this knows nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["FAMILIES", "layers_there"]

FAMILIES: Final = ("norm", "activation")
NORMS: Final = ("RMSNorm", "LayerNorm", "GroupNorm")
ACTIVATIONS: Final = ("gelu", "silu", "swish")
"""What names of modules have in them, in small letters; `Hardswish` is another function."""


class _Activated(TorchFunctionMode):
    """Counts calls of activations that torch has as functions."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func in (F.gelu, F.silu)
        return func(*args, **(kwargs or {}))


def layers_there(model: nn.Module, given: dict[str, Tensor]) -> Counter[str]:
    """How many layers of each family one run of a model calls.

    Norms are modules, activations functions of torch's and modules that call none.
    """
    found: Counter[str] = Counter()
    before: list[int] = []

    def entered(module: nn.Module, _: Any) -> None:
        before.append(activated.calls)

    def left(module: nn.Module, _: Any, __: Any) -> None:
        families = set(_families(module))
        if before.pop() != activated.calls:
            families.discard("activation")
        found.update(families)

    with ExitStack() as stack, torch.no_grad():
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(entered).remove)
            stack.callback(module.register_forward_hook(left).remove)
        activated = stack.enter_context(_Activated())
        model(**given)
    found["activation"] += activated.calls
    return found


def _families(module: nn.Module) -> Iterator[str]:
    name = type(module).__name__
    if any(norm in name for norm in NORMS):
        yield "norm"
    if any(part in name.lower() for part in ACTIVATIONS) and "hard" not in name.lower():
        yield "activation"
