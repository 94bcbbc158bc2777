"""What a model calls, family by family, counted by hooks: of PyPM this knows nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["FAMILIES", "layers_there"]

FAMILIES: Final = ("norm", "activation", "gated", "rotary")
NORMS: Final = ("RMSNorm", "LayerNorm", "GroupNorm")
ACTIVATIONS: Final = ("gelu", "silu", "swish")
"""What names of modules have in them, in small letters; `Hardswish` is another function."""
GATES: Final = ({"gate_proj", "up_proj"}, {"gate_up_proj"}, {"wi_0", "wi_1"})
"""What the layers of a gated product are called."""
ROTARY: Final = "apply_rotary_pos_emb"
"""What models of transformers call for a query and a key."""


class _Activated(TorchFunctionMode):
    """Counts calls of activations that torch has as functions."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func in (F.gelu, F.silu)
        return func(*args, **(kwargs or {}))


def layers_there(model: nn.Module, given: dict[str, Tensor]) -> Counter[str]:
    """How many layers of each family one run of a model calls.

    Norms are modules, activations functions of torch's and modules that call none, gates the
    modules around them, rotary embeddings pairs of query and key.
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
        stack.enter_context(_counted(sys.modules[type(model).__module__], ROTARY, found))
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
    if any(gate <= {child for child, _ in module.named_children()} for gate in GATES):
        yield "gated"


@contextmanager
def _counted(where: Any, name: str, found: Counter[str]) -> Iterator[None]:
    function: Callable[..., Any] | None = getattr(where, name, None)
    if function is None:
        yield
        return

    def counted(*args: Any, **kwargs: Any) -> Any:
        found["rotary"] += 1
        return function(*args, **kwargs)

    with patch.object(where, name, counted):
        yield
