"""The quantizing norm: in Triton's interpreter, built for Hopper, on a GPU; its reference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels import quantized
from pypm.kernels.support import native, triton
from tests.kernels.triton_checks import built, launches, needs_triton

torch.set_num_threads(1)

BOUNDS: Final = {torch.float8_e4m3fn: (448.0, -448.0, 448.0), torch.int8: (127.0, -128.0, 127.0)}
COLUMNS: Final = 96


def inputs(dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, ...]:
    made = torch.Generator().manual_seed(0)
    shapes = ((2, 2, COLUMNS), (2, 2, COLUMNS), (COLUMNS,), (1,))
    x, y, w, scale = (torch.randn(*s, generator=made).to(device, dtype) for s in shapes)
    return x, y, w, scale.float().abs() / 64


def cases(device: str) -> Iterator[tuple[Any, ...]]:
    """Arguments of `launch` and `reference`: a scale of a row, of groups, of all, and one given."""
    for (dtype, (top, least, most)), kind in product(
        BOUNDS.items(), (torch.float32, torch.float16)
    ):
        x, y, w, scale = inputs(kind, device)
        x[0, 0] = 0  # the scale's lower bound matters
        for other, given, group in (
            (None, None, COLUMNS), (y, None, 32), (None, None, 0), (y, None, 0), (y, scale, COLUMNS)
        ):  # fmt: skip
            yield x, other, w, given, 1e-5, 0.0, kind, group, top, 1e-2, least, most, dtype


def compare(*args: Any) -> None:
    """Rounding decides between two neighbours: a few values may be the next one."""
    ours, theirs = quantized.launch(*args), quantized.reference(*args)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
    torch.testing.assert_close(ours[1:], theirs[1:], atol=1e-3, rtol=1e-3)
    q, r = (result[0].double() for result in (ours, theirs))
    assert ((q - r).abs() <= torch.clamp(r.abs() / 8, min=1.0)).all()
    assert ((q - r).abs() <= 1e-3 * r.abs() + 1e-3).double().mean() > 0.98


def check(device: str) -> None:
    for args in cases(device):
        compare(*args[:-1], computed(args[-1], device))
    check_nan(device, computed(torch.float8_e4m3fn, device))


def computed(dtype: torch.dtype, device: str) -> torch.dtype:
    """The type to quantize to: the interpreter halves float8 that rounds up to a power of two."""
    return torch.float32 if device == "cpu" and dtype.is_floating_point else dtype


def check_nan(device: str, dtype: torch.dtype) -> None:
    """NaN in a row is NaN in its scale, in the largest of all, and in what is quantized by it."""
    x = inputs(torch.float32, device)[0]
    x[1, 1, 5] = torch.nan
    for group in (COLUMNS, 0):
        q, scales, _ = quantized.launch(
            x, None, None, None, 1e-5, 0.0, torch.float32, group, 448.0, 1e-2, -448.0, 448.0, dtype
        )
        q = q.float()
        assert q[1, 1].isnan().all()
        assert scales.flatten()[-1].isnan()
        assert (q[0].isnan().any() == (group == 0)).item()


@pytest.mark.parametrize("columns", [1, 16, 37, COLUMNS])
@pytest.mark.parametrize("dtype", quantized.NATIVE, ids=str)
def test_in_cpp(dtype: torch.dtype, columns: int) -> None:
    """Weights that are given or not, from 0 or 1; zeros, infinity, NaN in a row and in a weight."""
    x, y, w, _ = inputs(dtype)
    x, y, w = x[..., :columns].clone(), y[..., :columns].clone(), w[:columns].clone()
    x[0, 0] = y[0, 0] = 0
    torch.set_num_threads(2)
    for row, value in ((None, 0.0), ((1, 1, 0), torch.nan), ((0, 1, 0), -torch.inf)):
        if row is not None:
            x[row] = value
        for weight, offset in ((w, 0.0), (w, 1.0), (None, 0.0)):
            repeated = [n.repeat(1, 300, 1) for n in (x, y)]
            args = (*repeated, weight, None, 1e-5, offset, dtype, columns, 127.0, 1e-2, -100.0,
                    120.0, torch.int8)  # fmt: skip
            assert quantized.unsupported_on_cpus(*args[:4], dtype, columns, torch.int8) is None
            same(quantized.quantized_norm(*args), quantized.reference(*args))
    w[-1] = torch.nan
    args = (x, y, w, None, 1e-5, 0.0, dtype, columns, 127.0, 1e-2, -127.0, 127.0, torch.int8)
    same(quantized.quantized_norm(*args), quantized.reference(*args))
    torch.set_num_threads(1)


def same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(mine, other, equal_nan=True, atol=1e-6, rtol=1e-6)
    away = (ours[0].int() - theirs[0].int()).abs()
    assert away.max() <= 1
    assert away.double().mean() < 1e-3


@pytest.mark.parametrize("change", ["type", "group", "scale", "float8", "middle", "compiler"])
def test_what_the_kernel_in_cpp_does_not_take(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, w, scale = inputs(torch.float16 if change == "type" else torch.float32)
    middle = torch.float16 if change == "middle" else x.dtype
    dtype = torch.float8_e4m3fn if change == "float8" else torch.int8
    group = 32 if change == "group" else COLUMNS
    if change == "compiler":
        monkeypatch.setattr(native, "library", lambda source: None)
    scale = scale if change == "scale" else None
    assert quantized.unsupported_on_cpus(x, y, w, scale, middle, group, dtype) is not None
    args = (x, y, w, scale, 1e-5, 0.0, middle, group, 127.0, 1e-2, -127.0, 127.0, dtype)
    for mine, other in zip(quantized.compute(*args), quantized.reference(*args), strict=True):
        assert torch.equal(mine, other)


test_in_the_interpreter, test_on_a_gpu = launches(
    check, cases, quantized.quantized_norm, quantized.launch
)


@needs_triton
@pytest.mark.parametrize("scale", [None, "*fp32"])
@pytest.mark.parametrize(("out", "rounds"), [("*fp8e4nv", False), ("*i8", True)])
@pytest.mark.parametrize("group", [128, 4096])
def test_builds_for_hopper(group: int, out: str, rounds: bool, scale: str | None) -> None:
    import triton.language as tl

    blocks = triton.blocks(4096)
    arguments = {
        **dict.fromkeys(("x", "y", "weight", "total"), "*bf16"),
        "scale": scale, "largest": None, "out": out, "scales": "*fp32", "columns": "i32",
        **dict.fromkeys(("eps", "offset", "top", "low", "least", "most"), "fp32"),
        "middle": tl.bfloat16, "rounds": rounds, "group": group, "block": blocks["block"],
    }  # fmt: skip
    built(quantized.kernel, arguments, blocks["num_warps"], in_registers=True)


@needs_triton
@pytest.mark.parametrize("y", [None, "*bf16"])
def test_the_passes_over_all_build_for_hopper(y: str | None) -> None:
    import triton.language as tl

    blocks = triton.blocks(4096)
    shared = {
        "y": y, **dict.fromkeys(("x", "weight", "total"), "*bf16"), "columns": "i32",
        **dict.fromkeys(("eps", "offset", "top", "low", "least", "most"), "fp32"),
        "middle": tl.bfloat16, "block": blocks["block"],
    }  # fmt: skip
    first = {name: shared[name] for name in quantized.largest_kernel.arg_names if name in shared}
    second = {**shared, "scale": None, "out": "*fp8e4nv", "scales": "*fp32", "rounds": False}
    for kernel, arguments in (
        (quantized.largest_kernel, {**first, "largest": "*i32"}),
        (quantized.kernel, {**second, "largest": "*fp32", "group": blocks["block"]}),
    ):
        built(kernel, arguments, blocks["num_warps"], in_registers=True)


# --- the operator --------------------------------------------------------------------------------


@pytest.mark.parametrize("args", list(cases("cpu")), ids=lambda args: f"{args[2].dtype} {args[-1]}")
def test_it_is_a_proper_operator(args: tuple[Any, ...]) -> None:
    torch.library.opcheck(quantized.quantized_norm, args)


def test_the_reference_is_what_it_says() -> None:
    x, y, w, _ = inputs(torch.float32)
    n = F.rms_norm(x + y, (COLUMNS,), w, 1e-5)
    (q, scales, total) = quantized.reference(
        x, y, w, None, 1e-5, 0.0, torch.float32, 32, 127.0, 0.0, -127.0, 127.0, torch.int8
    )
    assert torch.equal(total, x + y)
    groups = n.reshape(2, 2, 3, 32)
    torch.testing.assert_close(scales, groups.abs().amax(-1) / 127)
    back = q.reshape(groups.shape).float() * scales[..., None]
    assert ((back - groups).abs() <= 0.501 * scales[..., None]).all()


def test_the_reference_of_the_whole() -> None:
    x, _, w, _ = inputs(torch.float32)
    rest = (1e-5, 0.0, torch.float32, 0, 448.0, 0.0, -448.0, 448.0, torch.float8_e4m3fn)
    q, scales, _ = quantized.reference(x, None, w, None, *rest)
    n = F.rms_norm(x, (COLUMNS,), w, 1e-5)
    torch.testing.assert_close(scales, n.abs().amax().reshape(1) / 448)
    assert ((q.float() * scales - n).abs() <= n.abs() / 15 + scales / 512).all()


@pytest.mark.parametrize(
    ("group", "dtype", "reason"),
    [
        (96, torch.int8, "for GPUs"),
        (32, torch.float8_e4m3fn, "for GPUs"),
        (48, torch.int8, "power of two"),
        (64, torch.int8, "power of two"),
        (0, torch.int8, "for GPUs"),
        (32, torch.uint8, "has no torch.uint8"),
    ],
)
def test_where_it_applies(group: int, dtype: torch.dtype, reason: str) -> None:
    found = quantized.unsupported(group, dtype, torch.empty(2, COLUMNS))
    assert found is not None
    assert reason in found
