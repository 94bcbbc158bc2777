"""The attention kernel: what it computes, and where it says that it does not apply."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pypm.kernels.attention import attention, reference, unsupported

torch.set_num_threads(1)

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("scale", [None, 1.0, 0.3, -0.3, 0.0])
@pytest.mark.parametrize("mask", [None, (1, 1, 5, 7), (2, 1, 1, 7), (1, 4, 5, 7), (2, 4, 5, 7)])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_it_is_its_reference(
    groups: int, mask: tuple[int, ...] | None, scale: float | None, dtype: torch.dtype
) -> None:
    q, k, v = (
        normal(2, heads, length, 8, dtype=dtype, seed=seed)
        for seed, (heads, length) in enumerate(((4, 5), (groups, 7), (groups, 7)))
    )
    m = None if mask is None else normal(*mask, dtype=dtype, seed=3)
    assert unsupported(q, k, v, m) is None
    ours, theirs = attention(q, k, v, m, scale=scale), reference(q, k, v, m, scale=scale)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    torch.testing.assert_close(ours, theirs, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


def test_a_float32_mask_goes_with_bfloat16() -> None:
    q, k, v = (normal(1, 2, 5, 8, dtype=torch.bfloat16, seed=s) for s in range(3))
    m = normal(1, 1, 5, 5, dtype=torch.float32, seed=3)
    assert unsupported(q, k, v, m) is None
    wide = reference(q.float(), k.float(), v.float(), m)
    torch.testing.assert_close(attention(q, k, v, m).float(), wide, atol=2e-2, rtol=2e-2)


Q, K = (2, 4, 5, 8), (2, 2, 7, 8)


@pytest.mark.parametrize(
    ("shapes", "dtypes", "mask", "reason"),
    [
        ((Q, K, K), "ddd", None, None),
        ((Q, K, K), "ddd", ((1, 1, 1, 1), "d"), None),
        ((Q, K, K), "fff", ((2, 4, 5, 7), "f"), None),
        ((Q[1:], K[1:], K[1:]), "ddd", None, "four dimensions"),
        ((Q, K, (2, 2, 6, 8)), "ddd", None, "sizes do not agree"),
        ((Q, (1, 2, 7, 8), (1, 2, 7, 8)), "ddd", None, "sizes do not agree"),
        ((Q, (2, 2, 7, 9), (2, 2, 7, 9)), "ddd", None, "sizes do not agree"),
        ((Q, K, (2, 2, 7, 9)), "ddd", None, "values of the width of the keys"),
        ((Q, K, K), "ddf", None, "one floating-point type"),
        ((Q, K, K), "fdd", None, "one floating-point type"),
        ((Q, K, K), "iii", None, "one floating-point type"),
        ((Q, (2, 3, 7, 8), (2, 3, 7, 8)), "ddd", None, "divide into groups"),
        ((Q, K, K), "ddd", ((5, 7), "b"), "a mask of torch.bool"),
        ((Q, K, K), "ddd", ((1, 1, 5, 7), "i"), "a mask of torch.int64"),
        ((Q, K, K), "fff", ((1, 1, 5, 7), "d"), "a mask of torch.float64"),
        ((Q, K, K), "ddd", ((2, 2, 5, 7), "d"), "does not broadcast"),
        ((Q, K, K), "ddd", ((1, 1, 7, 5), "d"), "does not broadcast"),
        (((1, *Q[1:]), (1, *K[1:]), (1, *K[1:])), "ddd", ((2, 1, 5, 7), "d"), "does not broadcast"),
    ],
)
def test_where_it_applies(shapes, dtypes, mask, reason) -> None:
    types = {"d": torch.float64, "f": torch.float32, "i": torch.int64, "b": torch.bool}
    q, k, v = (torch.zeros(s, dtype=types[t]) for s, t in zip(shapes, dtypes, strict=True))
    m = None if mask is None else torch.zeros(mask[0], dtype=types[mask[1]])
    found = unsupported(q, k, v, m)
    assert found is None if reason is None else found is not None and reason in found
    if reason is None:
        attention(q, k, v, m)
