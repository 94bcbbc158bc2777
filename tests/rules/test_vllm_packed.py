"""Fusions for vLLM that write NVFP4: spellings, near misses, values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pypm.rules import vllm
from tests import vllm_operators
from tests.rules.vllm_spellings import (
    SILUS,
    SUMS,
    TOKENS,
    C,
    Spelling,
    called,
    called_with_bases,
    check,
    norm_ir,
    rewritten,
    silu_called,
    static_called,
    sum_ir,
)

KERNEL = C.scaled_fp4_quant.out
SUM, SILU, ATTENTION = (
    "vllm.flashinfer_fused_add_rms_norm_nvfp4_quant",
    "_C.silu_and_mul_nvfp4_quant",
    "vllm.unified_attention_with_output",
)


def memory(x: Tensor, padding: int = 0, is_swizzled: bool = True) -> tuple[Tensor, Tensor]:
    """What vLLM allocates for the packed values of x, and for their scales."""
    columns = x.shape[1] + padding
    packed = torch.empty((x.shape[0], columns // 2), dtype=torch.uint8)
    if not is_swizzled:
        return packed, torch.empty((x.shape[0], columns // 16), dtype=torch.uint8)
    rows = -(-x.shape[0] // 128) * 128
    return packed, torch.empty((rows, -(-columns // 64)), dtype=torch.int32)


def packed(x: Tensor, scale: Tensor, padding: int = 0, is_swizzled: bool = True) -> Any:
    output, scales = memory(x, padding, is_swizzled)
    return called(
        KERNEL, input=x, input_scale=scale, is_sf_swizzled_layout=is_swizzled, output=output,
        output_scale=scales,
    )[1:]  # fmt: skip


def packed_with_bases(x: Tensor, scale: Tensor) -> Any:
    output, scales = memory(x)
    written = {"output": output, "output_scale": scales}
    return called_with_bases(
        KERNEL, written, input=x, input_scale=scale, is_sf_swizzled_layout=True
    )[1:]


@pytest.mark.parametrize("quantize", [packed, packed_with_bases])
@pytest.mark.parametrize("both", SUMS)
def test_norm_of_a_sum(both: Spelling, quantize: Spelling) -> None:
    def spelled(x, r, w, scale):
        n, total = both(x, r, w)
        return *quantize(n, scale), total

    check(spelled, "x r w factor", SUM)


def test_scales_in_the_order_of_rows() -> None:
    def spelled(x, r, w, scale):
        n, total = sum_ir(x, r, w)
        return *packed(n, scale, is_swizzled=False), total

    check(spelled, "x r w factor", SUM)


@pytest.mark.parametrize("quantize", [packed, packed_with_bases])
@pytest.mark.parametrize("silu", SILUS)
def test_silu(silu: Spelling, quantize: Spelling) -> None:
    check(lambda x, scale: tuple(quantize(silu(x), scale)), "x factor", SILU)


def attention(q: Tensor, shape: Any = None, rows: tuple[int, ...] = (TOKENS, 64)) -> Tensor:
    made = called(
        torch.ops.vllm.unified_attention_with_output, query=q, key=q, value=q,
        output=torch.empty(shape or q.shape, dtype=q.dtype), layer_name="model.layers.0",
        output_scale=None, output_block_scale=None, kv_cache_dummy_dep=None,
    )  # fmt: skip
    return made[1].reshape(*(q.shape[0] if n == TOKENS else n for n in rows))


@pytest.mark.parametrize("quantize", [packed, packed_with_bases])
def test_attention(quantize: Spelling) -> None:
    def spelled(q, scale):
        return tuple(quantize(attention(q), scale))

    check(spelled, "heads factor", ATTENTION, vllm.ATTENTION)
    assert len(rewritten(spelled, "heads factor")[1]) == 0


def silu_rounded(x: Tensor) -> Tensor:
    gate, up = x.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).bfloat16()


def batched(x: Tensor, scale: Tensor) -> Any:
    output, scales = memory(x)
    return called(
        KERNEL, input=x.view(1, -1, 32), input_scale=scale, is_sf_swizzled_layout=True,
        output=output, output_scale=scales,
    )[1:]  # fmt: skip


def read_twice(y: Tensor, scale: Tensor) -> Any:
    return *packed(y, scale), y * 2


MISSES: dict[str, tuple[Spelling, str]] = {
    "padded rows": (lambda x, s: tuple(packed(silu_called(x), s, padding=64)), "x factor"),
    "padded rows of a norm": (
        lambda x, r, w, s: (*packed((y := sum_ir(x, r, w))[0], s, padding=64), y[1]),
        "x r w factor"),
    "padded rows of attention": (
        lambda q, s: tuple(packed(attention(q), s, padding=64)), "heads factor"),
    "a scale for values of two heads": (
        lambda q, s: tuple(packed(attention(q.view(q.shape[0], 8, 8)), s)), "heads factor"),
    "rows of another batch": (lambda x, s: tuple(batched(silu_called(x), s)), "x factor"),
    "heads of attention in groups": (
        lambda q, s: static_called(attention(q, (q.shape[0], 2, 2, 16)), s), "heads scale"),
    "parts of rows of attention": (
        lambda q, s: static_called(attention(q, rows=(-1, 32)), s), "heads scale"),
    "heads of attention": (
        lambda q, s: static_called(attention(q, rows=(TOKENS, 8, 8)), s), "heads scale"),
    "an activation of another type": (
        lambda x, s: tuple(packed(silu_rounded(x.half()), s)), "x factor"),
    "a norm without a sum": (lambda x, w, s: tuple(packed(norm_ir(x, w), s)), "x w factor"),
    "an activation that is read elsewhere": (
        lambda x, s: read_twice(silu_called(x), s), "x factor"),
    "scales of an activation in the order of rows": (
        lambda x, s: tuple(packed(silu_called(x), s, is_swizzled=False)), "x factor"),
    "scales of attention in the order of rows": (
        lambda q, s: tuple(packed(attention(q), s, is_swizzled=False)), "heads factor"),
    "a norm of 32 bits": (
        lambda x, r, w, s: (*packed((y := sum_ir(x.float(), r.float(), w.float()))[0], s), y[1]),
        "x r w factor"),
    "an activation of 32 bits": (
        lambda x, s: tuple(packed(silu_called(x.float()), s)), "x factor"),
    "a rounded activation": (
        lambda x, s: tuple(packed(silu_called(x.float()).bfloat16(), s)), "x factor"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses(name: str) -> None:
    _, report = rewritten(*MISSES[name], [vllm.RULES, vllm.ATTENTION])
    assert len(report) == 0, str(report)


def test_the_stand_in_computes_nvfp4() -> None:
    """Packed values times their scales are the nearest of E2M1 to what was packed."""
    torch.manual_seed(0)
    x, scale = torch.randn(5, 64, dtype=torch.bfloat16), torch.tensor([100.0])
    values, scales = C.scaled_fp4_quant(x, scale, True)
    steps = scales.view(vllm_operators.TYPE)[:5, :4].float() / scale
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    places = torch.stack((values & 15, values >> 4), -1).flatten(1).int()
    found = grid[places & 7] * (1 - 2 * (places >> 3))
    error = (found.view(5, 4, 16) * steps[..., None] - x.float().view(5, 4, 16)).abs()
    assert (error <= steps[..., None] * 1.01).all()
