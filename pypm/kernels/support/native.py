"""Kernels in C++: compiled for the machine at hand, kept on disk.

`torch.utils.cpp_extension` needs ninja, and torch's own headers compile for half a minute. A kernel
here includes `operators.h`, and with it torch's stable interface, which compiles in seconds; its
library registers operators. Kernels of others may have a plain interface, for `ctypes`.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import tempfile
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

import torch
from torch import Tensor

from pypm import kept_files
from pypm.torch_internals import FakeTensor, OpOverload, cache_dir

__all__ = [
    "arguments",
    "compiled",
    "kept_file",
    "library",
    "operator",
    "unsupported",
]

HEADERS: Final = Path(__file__).parent
"""Files that several kernels include."""
TORCH: Final = Path(torch.__file__).parent
FLAGS: Final = (
    *("-O3", "-march=native", "-shared", "-fPIC", f"-I{HEADERS}", f"-I{TORCH / 'include'}"),
    # sums may be reordered, so that loops become vectors; NaN and infinity stay what they are
    *("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno"),
)

LINKED: Final = (f"-L{TORCH / 'lib'}", "-ltorch_cpu")
NAMESPACE, DEFINED = "pypm", "PYPM_DEFINED"
"""Namespace in which Python defines operators, and the variable that tells a library of it."""

Argument: TypeAlias = ctypes.c_void_p | ctypes.c_int64 | ctypes.c_double


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """Return the library of a C++ file as `compiled` does, or None where that raises: then warn,
    once for each reason.
    """
    try:
        return compiled(source)
    except OSError as error:
        _warn(error)
        return None


def compiled(source: Path) -> ctypes.CDLL:
    """Return the library of a C++ file, compiled at its first use on a machine.

    The compiler is the command in the variable CXX, which may have options, or `c++`. The library
    is kept as `kept_file` says; one that is damaged or cannot be loaded is made anew. Raises
    OSError where the compiler is missing, or with what it says if it fails.
    """
    compiler, kept = _compiler(), kept_file(source)
    # the checksum, behind the end of the library, is nothing to the loader
    if kept_files.read(kept) is not None:
        with suppress(OSError):
            return _loaded(kept)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, kept.name)
        _output([*compiler, *FLAGS, str(source), "-o", str(made), *LINKED])
        kept_files.write(kept, made.read_bytes())
        return _loaded(made if kept_files.read(kept) is None else kept)


def _loaded(file: Path) -> ctypes.CDLL:
    """Load a library, which leaves definitions of operators to Python."""
    os.environ[DEFINED] = NAMESPACE
    try:
        return ctypes.CDLL(str(file))
    finally:
        del os.environ[DEFINED]


def kept_file(source: Path) -> Path:
    """Return the file in which `compiled` keeps the library of a C++ file.

    It is in Inductor's cache, by the source, the headers beside it and beside this module, the
    version of torch, the command, and all that the compiler predefines: its version, and the
    instructions of the processor. Raises OSError where the compiler is missing.
    """
    compiler = _compiler()
    macros = _macros(tuple(compiler))
    headers = {*HEADERS.glob("*.h"), *source.parent.glob("*.h")}
    texts = [each.read_bytes() for each in (source, *sorted(headers))]
    known = (texts, compiler, FLAGS, torch.__version__, macros)
    key = sha256(repr(known).encode()).hexdigest()
    return Path(cache_dir(), "pypm", "native", f"{source.stem}-{key[:16]}.so")


def operator(source: Path, name: str) -> OpOverload:
    """Return an operator that the library of a C++ file registers.

    Raises OSError as `compiled` does, and AttributeError where the library has no such operator.
    """
    if library(source) is None:
        compiled(source)
    found: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return found


def unsupported(
    source: Path, types: Collection[torch.dtype], *operands: Tensor | None
) -> str | None:
    """Return why the kernel of a C++ file, for operands of one of some types, does not take these;
    or None. The types are torch's.

    Without their data, as in a trace, a compiler that answers is enough: the library is compiled
    when the kernel is called, and what is never applied is never compiled.
    """
    given = [x for x in operands if x is not None]
    found = {x.dtype for x in given}
    if len(found) != 1 or not found <= {*types}:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in types)
        return f"the kernel in C++ is for {' and '.join(names.rsplit(', ', 1))}"
    is_traced = any(isinstance(x, FakeTensor) for x in given)
    if any(x.device.type != "cpu" for x in given) or not (
        _has_compiler() if is_traced else library(source)
    ):
        return "the kernel in C++ is for CPUs, and needs a compiler"
    return None


def _has_compiler() -> bool:
    """Return whether the compiler runs; else warn, as `library` does."""
    try:
        _macros(tuple(_compiler()))
    except OSError as error:
        _warn(error)
        return False
    return True


@cache
def _macros(compiler: tuple[str, ...]) -> bytes:
    """Return all that a compiler predefines for this processor. Raises OSError if it fails."""
    return _output([*compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull])


def _warn(error: OSError) -> None:
    kept_files.warn_once(f"kernels in C++ are computed by torch's operators instead: {error}")


def _compiler() -> list[str]:
    given = os.environ.get("CXX", "")
    try:
        return shlex.split(given) or ["c++"]
    except ValueError as error:
        raise OSError(f"the variable CXX is no command, {given!r}: {error}") from None


def _output(command: list[str]) -> bytes:
    text = shlex.join(command)
    try:
        ended = subprocess.run(command, check=False, capture_output=True)
    except OSError as error:
        raise OSError(f"`{text}` cannot be run: {error.strerror}") from None
    if ended.returncode:
        raise OSError(f"`{text}` fails:\n{ended.stderr.decode(errors='replace').strip()}")
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
