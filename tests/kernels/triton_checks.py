"""Triton's kernels without a GPU: in its interpreter, and built ahead of time for Hopper."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch

ROOT: Final = Path(__file__).resolve().parents[2]

needs_triton: Final = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
needs_gpu: Final = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def interpret(module: str) -> None:
    """Run `main()` of a test module in a process whose kernels are interpreted.

    Triton decides when it is imported. What bfloat16 it makes is cut off, not rounded, and its
    `tl.dot` of bfloat16 is wrong.
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    program = f"from {module} import main; main()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        check=False, cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def built(kernel: Any, arguments: Mapping[str, Any], warps: int) -> Mapping[str, Any]:
    """The kernel for compute capability 9.0, by stage.

    `arguments` has a type of Triton's for what is passed, and the value of what is constant.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {n: a if isinstance(a, str) else "constexpr" for n, a in arguments.items()}
    constants = {n: a for n, a in arguments.items() if not isinstance(a, str)}
    source = ASTSource(fn=kernel, signature=types, constexprs=constants)
    target = GPUTarget("cuda", 90, 32)
    asm: Mapping[str, Any] = triton.compile(source, target, options={"num_warps": warps}).asm
    return asm
