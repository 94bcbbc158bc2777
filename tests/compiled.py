"""Compilation by `torch.compile` in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor import config, cpu_vec_isa
from torch._inductor.codecache import FxGraphCache
from torch._inductor.compile_fx import compile_fx
from torch._inductor.cpu_vec_isa import valid_vec_isa_list
from torch._inductor.utils import clear_caches

from pypm.integrations.inductor import run_as_it_is


@contextmanager
def fresh_graphs() -> Iterator[None]:
    """No graph that was compiled before is found, inside of the block or after it.

    Unlike with torch's `fresh_cache`, kernels are found by their source, so equal ones of several
    tests are compiled once.
    """
    _forget()
    try:
        yield
    finally:
        _forget()


@contextmanager
def without_code(stage: str = "joint") -> Iterator[None]:
    """Graphs run as they are, but for stages from `post_grad` on: code takes seconds to compile.

    Used as a decorator too. Code of rewritten graphs is made and run where tests go without this.
    """
    skips = {} if stage.startswith("post_grad") else {"inner_compile": run_as_it_is}
    with patch("torch._inductor.compile_fx.compile_fx", partial(compile_fx, **skips)):
        yield


@contextmanager
def with_vectors() -> Iterator[None]:
    """Inductor's C++ has vectors in quick runs as well, which FlexAttention needs."""
    with (
        config.patch({"cpp.vec_isa_ok": True}),
        patch.object(cpu_vec_isa, "valid_vec_isa_list", valid_vec_isa_list.__wrapped__),
    ):
        yield


def _forget() -> None:
    torch._dynamo.reset()
    clear_caches()
    FxGraphCache.clear()
    AOTAutogradCache.clear()
