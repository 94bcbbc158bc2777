"""One trace at a time: torch's tracers keep state that all threads share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from pypm.torch_internals import is_dynamo_imported

__all__ = ["alone"]


def alone(by_dispatch: bool = True) -> AbstractContextManager[object]:
    """Return the lock that `torch.compile` holds while it compiles; its holder traces alone.

    Arguments:
        by_dispatch: False for a trace on proxies, which shares state with `torch.compile` alone.

    `torch.compile` takes seconds to import. As long as it is not imported, a trace on proxies
    needs no lock, and the result is a null context.
    """
    if not by_dispatch and not is_dynamo_imported():
        return nullcontext()
    from pypm.torch_internals import compile_lock

    return compile_lock
