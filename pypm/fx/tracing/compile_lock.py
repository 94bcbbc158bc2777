"""One trace at a time: torch's tracers keep state that all threads share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pypm.torch_internals import is_dynamo_imported

__all__ = ["alone"]


def alone(by_dispatch: bool = True) -> AbstractContextManager[Any]:
    """Return the lock that `torch.compile` holds while it compiles: whoever has it traces alone.

    A trace that is not `by_dispatch`, but on proxies, shares its state with nothing but
    `torch.compile`, which takes seconds to import: until that is done there is no lock to hold.
    """
    if not by_dispatch and not is_dynamo_imported():
        return nullcontext()
    from pypm.torch_internals import compile_lock

    return compile_lock
