"""The quantizing activation: interpreted, built for Hopper, on a GPU; its reference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels import quantized_activation
from pypm.kernels.support import pointwise
from pypm.kernels.support.activations import ACTIVATIONS
from pypm.kernels.support.triton import LONGEST_ROW
from tests.kernels.test_quantized import BOUNDS, computed
from tests.kernels.triton_checks import built, launches, needs_triton

torch.set_num_threads(1)

COLUMNS: Final = 96


def halves(dtype: torch.dtype, device: str, columns: int = COLUMNS) -> tuple[Tensor, Tensor]:
    """Gate and up of one projection, [2, 2, columns]."""
    made = torch.Generator().manual_seed(columns)
    x = torch.randn(2, 2, 2 * columns, generator=made).mul(2).to(device, dtype)
    return x[..., :columns], x[..., columns:]


def cases(device: str) -> Iterator[tuple[Any, ...]]:
    """Arguments of `launch` and `reference`, of rows within a program's block and beyond it."""
    given = torch.tensor([0.02], device=device)
    for (dtype, (top, least, most)), kind in product(
        BOUNDS.items(), (torch.float32, torch.float16)
    ):
        gate, up = halves(kind, device)
        gate[0, 0] = 0  # the scale's lower bound matters
        rest = (top, 1e-2, least, most, dtype)
        for scale, group in ((None, COLUMNS), (None, 32), (given, COLUMNS)):
            yield gate, up, scale, "silu", kind, group, *rest
        yield gate, None, None, "gelu_tanh", kind, COLUMNS, *rest
    for activation in ACTIVATIONS:
        yield gate, up, None, activation, torch.float32, 16, *rest
    gate, up = halves(torch.float16, device, 1536)
    for scale, group in ((None, 1536), (None, 512), (given, 1536)):
        yield gate, up, scale, "silu", torch.float16, group, *rest
    gate, up = gate[..., :8], up[..., :8]
    yield gate.mT, up.mT, None, "silu", torch.float16, 2, *rest
    yield torch.empty(0, 512, device=device), None, None, "silu", torch.float32, 512, *rest


def compare(*args: Any) -> None:
    """Rounding decides between two neighbours: a few values may be the next one."""
    (q, scales), (r, expected) = (
        function(*args)
        for function in (quantized_activation.launch, quantized_activation.reference)
    )
    assert (q.dtype, q.shape, q.stride()) == (r.dtype, r.shape, r.stride())
    torch.testing.assert_close(scales, expected, atol=1e-3, rtol=1e-3)
    if q.numel():
        q, r = q.double(), r.double()
        assert ((q - r).abs() <= torch.clamp(r.abs() / 8, min=1.0)).all()
        assert ((q - r).abs() <= 1e-3 * r.abs() + 1e-3).double().mean() > 0.98


def check_nan(device: str, dtype: torch.dtype) -> None:
    """NaN in a group is NaN in its scale and values, and there alone."""
    gate, up = halves(torch.float32, device)
    up[1, 1, 5] = torch.nan
    q, scales = quantized_activation.launch(
        gate, up, None, "silu", torch.float32, 32, 448.0, 1e-2, -448.0, 448.0, dtype
    )
    assert scales[1, 1].isnan().tolist() == [True, False, False]
    assert q.float().isnan().sum() == q[1, 1, :32].float().isnan().sum() == 32


def check(device: str) -> None:
    for args in cases(device):
        compare(*args[:-1], computed(args[-1], device))
    check_nan(device, computed(torch.float8_e4m3fn, device))


test_in_the_interpreter, test_on_a_gpu = launches(
    check, cases, quantized_activation.quantized_activation, quantized_activation.launch
)


@needs_triton
@pytest.mark.parametrize(
    ("columns", "group", "scale"),
    [(14336, 14336, None), (14336, 128, None), (14336, 14336, "*fp32"), (LONGEST_ROW, 0, None)],
)
@pytest.mark.parametrize(("out", "rounds"), [("*fp8e4nv", False), ("*i8", True)])
def test_builds_for_hopper(
    columns: int, group: int, scale: str | None, out: str, rounds: bool
) -> None:
    import triton.language as tl

    sizes = quantized_activation.held(columns, group or columns, scale is not None)
    warps = sizes.pop("num_warps")
    arguments = {
        **dict.fromkeys(("gate", "up"), "*bf16"), "scale": scale, "out": out, "scales": "*fp32",
        **dict.fromkeys(("columns", "gate_stride", "up_stride"), "i32"),
        **dict.fromkeys(("top", "low", "least", "most"), "fp32"),
        "middle": tl.bfloat16, "rounds": rounds, **sizes,
        "activation": pointwise.activation("silu"),
    }  # fmt: skip
    built(quantized_activation.kernel, arguments, warps, in_registers=True)


# --- the operator --------------------------------------------------------------------------------


@pytest.mark.parametrize("args", list(cases("cpu")), ids=lambda args: f"{args[3]} {args[5]}")
def test_it_is_a_proper_operator(args: tuple[Any, ...]) -> None:
    torch.library.opcheck(quantized_activation.quantized_activation, args)


def test_the_reference_is_what_it_says() -> None:
    gate, up = halves(torch.float32, "cpu")
    rest = (torch.float32, 32, 127.0, 0.0, -127.0, 127.0, torch.int8)
    q, scales = quantized_activation.reference(gate, up, None, "silu", *rest)
    groups = (F.silu(gate) * up).reshape(2, 2, 3, 32)
    torch.testing.assert_close(scales, groups.abs().amax(-1) / 127)
    back = q.reshape(groups.shape).float() * scales[..., None]
    assert ((back - groups).abs() <= 0.501 * scales[..., None]).all()


@pytest.mark.parametrize(
    ("group", "dtype", "reason"),
    [
        (96, torch.int8, "for GPUs"),
        (32, torch.float8_e4m3fn, "for GPUs"),
        (48, torch.int8, "power of two"),
        (0, torch.int8, "groups of up to"),
        (32, torch.uint8, "has no torch.uint8"),
    ],
)
def test_where_it_applies(group: int, dtype: torch.dtype, reason: str) -> None:
    gate, up = halves(torch.float32, "cpu")
    found = quantized_activation.unsupported(group, dtype, gate, up, None)
    assert found is not None
    assert reason in found
    assert quantized_activation.unsupported(32, dtype, gate, up[..., :1], None) is not None
