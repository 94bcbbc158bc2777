"""Settings of Python itself: stack for deep recursion, and no search for garbage."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import wraps
from typing import Final, ParamSpec, TypeVar

__all__ = ["with_room", "with_stack_room", "without_collecting"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_FRAMES: Final = 400_000
_BYTES: Final = 1 << 29
"""Stack size in bytes of address space; memory is allocated only as far as the stack is used."""
_LOCK: Final = threading.Lock()


def with_room(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Run a function again if it raises RecursionError, in a thread with a large stack.

    The function must not have changed anything by then, and must not depend on its thread.
    """

    @wraps(function)
    def run(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        try:
            return function(*arguments, **keywords)
        except RecursionError:
            if threading.current_thread().name == _NAME:
                raise
            return _again(lambda: function(*arguments, **keywords))

    return run


_NAME: Final = "pypm-with-room"


def _again(call: Callable[[], _Result]) -> _Result:
    context = copy_context()
    results: list[_Result] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(context.run(call))
        except BaseException as error:
            errors.append(error)

    with _LOCK:
        limit, size = sys.getrecursionlimit(), threading.stack_size(_BYTES)
        sys.setrecursionlimit(_FRAMES)
        try:
            thread = threading.Thread(target=target, name=_NAME)
            thread.start()
            thread.join()
        finally:
            threading.stack_size(size)
            sys.setrecursionlimit(limit)
    for error in errors:
        raise error
    return results[0]


_Called = TypeVar("_Called", bound=Callable[..., object])


def with_stack_room(function: _Called) -> _Called:
    """Run a function, and all that it calls, in one piece of Python's stack.

    CPython keeps frames in pieces of 16 KiB. If a call crosses the end of one, the next is
    allocated, and freed on return, each time: deep inside `torch.compile` a pass took three times
    as long. A frame that asks for 133 KiB gets a piece of 256 KiB, whose rest serves the frames
    above it.
    """
    code = function.__code__
    function.__code__ = code.replace(co_stacksize=17_000)
    return function


@contextmanager
def without_collecting() -> Iterator[None]:
    """Collect no cycles inside the block, which must not leave many behind.

    Each full collection looks at all objects of the process. After `import torch` these are so many
    that compiling the shipped rules, which makes many objects that stay, took 2.5 times as long.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
