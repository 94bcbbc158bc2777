"""Triton's kernels on a GPU, and without one: in its interpreter, and built for Hopper."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.kernels.support.hopper import assembled

__all__ = ["agree", "built", "launches", "needs_triton", "spilled", "take_numbers_as_masks"]

needs_triton: Final = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
needs_gpu: Final = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

Cases = Callable[[str], Iterator[Sequence[Any]]]
"""Arguments of an operator, on a device."""


def launches(
    check: Callable[[str], None], cases: Cases, operator: Any, launch: Callable[..., Any]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Two tests: `check("cpu")` in Triton's interpreter, and `check("cuda")` on a GPU.

    `check` is a function of a test module that compares the kernel with its reference on a device.
    On a GPU the operator has to give what `launch` gives, bit by bit, for all cases.
    """

    @needs_triton
    def in_the_interpreter(interpreter: Executor) -> None:
        interpreter.submit(check, "cpu").result()

    @needs_gpu
    def on_a_gpu() -> None:
        check("cuda")
        for case in cases("cuda"):
            torch.testing.assert_close(
                operator(*case), launch(*case), rtol=0, atol=0, equal_nan=True
            )

    return in_the_interpreter, on_a_gpu


def agree(ours: Tensor, exact: Tensor, dtype: torch.dtype, tolerance: float) -> None:
    """A result has its type, and is as near to the exact one as the tolerance says."""
    assert (ours.dtype, ours.shape) == (dtype, exact.shape)
    torch.testing.assert_close(
        ours.double(), exact.double(), atol=tolerance, rtol=tolerance, equal_nan=True
    )


def take_numbers_as_masks() -> None:
    """Make masks truths: comparisons of numbers are int32 in Triton 3.9, and then refused."""
    if importlib.util.find_spec("triton") is None:
        return
    import numpy
    from triton.runtime import interpreter

    accesses = interpreter._interpreter

    def truths(access: Callable[..., Any], place: int) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            return access(*args[:place], numpy.asarray(args[place], dtype=bool), *args[place + 1 :])

        return run

    accesses.load, accesses.store = truths(accesses.load, 1), truths(accesses.store, 2)


def built(
    kernel: Any, arguments: Mapping[str, Any], warps: int, *, in_registers: bool = False,
    stages: int = 3, aligned: bool = False, **named: str,
) -> str:  # fmt: skip
    """The kernel in PTX, built for compute capability 9.0, down to the binary.

    `arguments` has a type of Triton's for what is passed, or several for a tuple, and the value of
    what is constant; `named` has the constants that are strings. A kernel may have to hold all
    values in registers. If `aligned`, 16 divides all addresses and integers.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {n: a for n, a in arguments.items() if isinstance(a, (str, tuple))}
    constants = {n: a for n, a in arguments.items() if n not in types} | named
    signature = {n: types.get(n, "constexpr") for n in kernel.arg_names}
    places = aligned_places(signature.values()) if aligned else ()
    attributes = {place: [["tt.divisibility", 16]] for place in places}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    target, options = GPUTarget("cuda", 90, 32), {"num_warps": warps, "num_stages": stages}
    asm: Mapping[str, Any] = triton.compile(source, target, options=options).asm
    ptx: str = asm["ptx"]
    assert asm["cubin"]
    assert ".target sm_90" in ptx
    assert not in_registers or "ld.local" not in ptx
    return ptx


def aligned_places(types: Iterable[str | tuple[str, ...]]) -> Iterator[tuple[int, ...]]:
    """Places of tensors and integers among the arguments of a kernel, also in tuples."""
    for i, kind in enumerate(types):
        if isinstance(kind, tuple):
            yield from ((i, j) for j in range(len(kind)))
        elif kind.startswith(("*", "i")):
            yield (i,)


def spilled(ptx: str) -> int:
    """The bytes of registers that do not fit, of a kernel that was `built`."""
    return assembled(ptx).spilled
