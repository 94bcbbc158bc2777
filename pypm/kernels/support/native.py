"""Kernels in C++ with a plain interface: compiled for the machine at hand, kept on disk.

`torch.utils.cpp_extension` is for operators that use torch's headers, needs ninja, and compiles
for half a minute. A kernel that only reads and writes memory compiles in a second.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

import torch
from torch import Tensor

from pypm.torch_internals import cache_dir

__all__ = ["SMALL", "arguments", "compiled", "in_parts", "in_threads", "library"]

SMALL: Final = 2**15
"""Elements of a tensor up to which one thread computes all."""

HEADERS: Final = Path(__file__).parent
"""Files that several kernels include."""
FLAGS: Final = (
    *("-O3", "-march=native", "-shared", "-fPIC", f"-I{HEADERS}"),
    # sums may be reordered, so that loops become vectors; NaN and infinity stay what they are
    *("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno"),
)

Argument: TypeAlias = ctypes.c_void_p | ctypes.c_int64 | ctypes.c_double


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """Return the library of a C++ file as `compiled` does, or None where that raises."""
    try:
        return compiled(source)
    except OSError:
        return None


def compiled(source: Path) -> ctypes.CDLL:
    """Return the library of a C++ file, compiled at its first use on a machine.

    The library is kept in Inductor's cache, by the source, the headers beside this module, and all
    that the compiler predefines: its version, and the instructions of the processor. Raises OSError
    where no compiler is found, by the variable CXX or as `c++`, or with what it says if it fails.
    """
    compiler = os.environ.get("CXX", "c++")
    macros = _output([compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull])
    texts = [each.read_bytes() for each in (source, *sorted(HEADERS.glob("*.h")))]
    key = sha256(repr((texts, FLAGS, macros)).encode()).hexdigest()
    kept = Path(cache_dir(), "pypm", "native", f"{source.stem}-{key[:16]}.so")
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder, kept.name)
            _output([compiler, *FLAGS, str(source), "-o", str(made)])
            made.replace(kept)
    return ctypes.CDLL(str(kept))


def _output(command: list[str]) -> bytes:
    ended = subprocess.run(command, check=False, capture_output=True)
    if ended.returncode:
        raise OSError(f"`{command[0]}` fails:\n{ended.stderr.decode(errors='replace').strip()}")
    return ended.stdout


def arguments(values: Iterable[Tensor | float]) -> list[Argument]:
    """Return tensors as addresses, integers as int64, and other numbers as double.

    The caller keeps the tensors alive.
    """
    return [_argument(value) for value in values]


def _argument(value: Tensor | float) -> Argument:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_int64(value) if isinstance(value, int) else ctypes.c_double(value)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="pypm")


def in_threads(work: Callable[[int], None], workers: int) -> None:
    """Call `work` with each number below `workers`; in threads if there are several.

    Calls into a library run at the same time, since ctypes releases the interpreter's lock.
    """
    if workers <= 1:
        for worker in range(workers):
            work(worker)
        return
    for _ in _pool().map(work, range(workers)):
        pass


def in_parts(work: Callable[[int, int], None], count: int, elements: int | None = None) -> None:
    """Call `work(first, after)` for parts of the numbers below `count`.

    In as many threads as torch computes on, but in one if up to `SMALL` elements are computed.
    """
    is_small = elements is not None and elements <= SMALL
    workers = min(1 if is_small else torch.get_num_threads(), count)

    def part(worker: int) -> None:
        work(count * worker // workers, count * (worker + 1) // workers)

    in_threads(part, workers)
