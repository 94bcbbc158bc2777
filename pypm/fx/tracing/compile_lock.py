"""One trace at a time: torch's tracers keep state that all threads share."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

__all__ = ["alone"]

_DYNAMO: Final = "torch._dynamo.convert_frame"


def alone(by_dispatch: bool = True) -> AbstractContextManager[Any]:
    """Return the lock that `torch.compile` holds while it compiles: whoever has it traces alone.

    A trace that is not `by_dispatch`, but on proxies, shares its state with nothing but
    `torch.compile`, which takes seconds to import: until that is done there is no lock to hold.
    """
    if not by_dispatch and _DYNAMO not in sys.modules:
        return nullcontext()
    from torch._dynamo.convert_frame import compile_lock

    return compile_lock
