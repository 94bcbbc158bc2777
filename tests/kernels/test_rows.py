"""Attention of a few rows in C++, compiled for processors with other registers and instructions."""

from __future__ import annotations

import ctypes
import itertools
import platform
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels.attention import attention_over_cache, decoding
from pypm.kernels.attention.decoding import visible
from pypm.kernels.support import native

NEEDS = {"native": "", "x86-64-v4": "avx512vl", "x86-64-v3": "avx2", "x86-64": "sse2"}
"""Kinds of processors, and an instruction set that shows that this is one."""
LIBRARIES: dict[str, ctypes.CDLL] = {}
"""Libraries by the namespace of their operators, which each can define once."""
TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 6e-3}


def compiled(monkeypatch: pytest.MonkeyPatch, kind: str, source: Path = decoding.SOURCE) -> None:
    """Let the kernels of a file be compiled for this kind of processor, as `native` ones are."""
    if kind == "native":
        return
    known = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not known.exists():
        pytest.skip("no processor of this family")
    if NEEDS[kind] not in known.read_text():
        pytest.skip(f"this processor has no {NEEDS[kind]}")
    namespace = f"pypm_{kind}_{source.stem}".replace("-", "_")
    flags = [f"-march={kind}" if flag == "-march=native" else flag for flag in native.FLAGS]
    monkeypatch.setattr(native, "FLAGS", (*flags, f"-DPYPM_NAMESPACE={namespace}"))
    library = LIBRARIES.get(namespace) or native.library.__wrapped__(source)
    assert library is not None
    LIBRARIES[namespace] = library
    monkeypatch.setattr(native, "NAMESPACE", namespace)
    monkeypatch.setattr(native, "library", lambda _: library)


def normal(*sizes: int, dtype: torch.dtype) -> Tensor:
    made = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=made, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", NEEDS)
def test_any_number_of_rows_keys_and_elements(
    monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype
) -> None:
    compiled(monkeypatch, kind)
    tolerance = TOLERANCES[dtype]
    sizes = itertools.product((1, 2, 3, 4, 7), (1, 20, 72, 128), (1, 16, 130, 261))
    for rows, size, keys in sizes:
        q = normal(1, 2 * rows, 1, size, dtype=dtype)
        k, v = (normal(1, 2, keys, size, dtype=dtype) + i for i in range(2))
        mask = normal(1, 2 * rows, 1, keys, dtype=dtype)
        expected = F.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), mask.double(), scale=0.2, enable_gqa=True
        )
        found = attention_over_cache(q, k, v, mask, 0.2, True)
        torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", NEEDS)
def test_spans_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype
) -> None:
    """Keys outside of the spans are NaN, and not read; all inside count."""
    compiled(monkeypatch, kind)
    draw = torch.Generator().manual_seed(0)
    for case in range(200):
        heads, queries = (int(torch.randint(1, 4, (), generator=draw)) for _ in range(2))
        keys = int(torch.randint(1, 400, (), generator=draw))
        first, after = sorted(int(torch.randint(0, keys + 1, (), generator=draw)) for _ in range(2))
        hidden = torch.ones(1, heads, queries, keys, dtype=torch.bool)
        hidden[..., first:after] = torch.rand(heads, queries, after - first, generator=draw) < 0.3
        sees_none = case % 3 == 0 or after == first
        hidden[..., first : after and first + 1] &= sees_none  # else each row sees a key
        mask = torch.randn(hidden.shape, generator=draw)
        mask[hidden] = -torch.inf if sees_none else (-1e9, torch.finfo(dtype).min)[case % 3 - 1]
        mask = mask.to(dtype) if case % 2 else mask
        mask = mask[:, :1].expand(-1, heads, -1, -1) if case % 5 == 0 else mask
        (span,) = visible(mask, 1)
        low, high = decoding.aligned(span, keys)
        q, k, v = (normal(1, heads, n, 5, dtype=dtype) for n in (queries, keys, keys))
        expected = decoding._products(*(x.double() for x in (q, k, v, mask)), 0.3, False)
        expected[(mask == -torch.inf).all(-1).expand(1, heads, queries)] = 0
        for x in (k, v):
            x[:, :, :low] = x[:, :, high:] = torch.nan
        found = attention_over_cache(q, k, v, mask, 0.3, False)
        torch.testing.assert_close(found.double(), expected, atol=6e-3, rtol=6e-3)


def test_where_nothing_is_hidden_from() -> None:
    assert visible(torch.full((1, 1, 2, 40), -torch.inf), 1) == [(0, 40)]
