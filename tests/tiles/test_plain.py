"""Plain kernels of tile programs: values in Triton's interpreter, and builds for Hopper.

Values are of float16 and float32, since the interpreter computes bfloat16 wrongly.
"""

from __future__ import annotations

from concurrent.futures import Executor

import pytest
import torch
from torch import Tensor

from pypm.kernels.attention.programs import ScoreProgram
from pypm.tiles.families.attention import attention_tiles
from pypm.tiles.families.experts import experts_tiles
from pypm.tiles.families.rows import NormOf, gated_tiles, norm_tiles
from pypm.tiles.partition import SHARED_MEMORY, Rings, Specialized, partitioned
from pypm.tiles.plain.kernel import plain
from pypm.tiles.plain.launch import plain_built, plain_launched
from tests.kernels.triton_checks import needs_triton
from tests.tiles import test_attention, test_experts, test_rows
from tests.tiles.cases import GATED, GEMM, SIDES, TOLERANCES, drawn, expected, kernel, with_blocks

# --- values --------------------------------------------------------------------------------------


def compared(found: Tensor, exact: Tensor) -> None:
    assert found.isfinite().all(), "a result is not stored"
    worst = ((found.double() - exact).abs() / (1 + exact.abs())).max()
    assert worst <= TOLERANCES["fp16"], f"off by {worst:.3g}"


def check_products(text: str) -> None:
    """A program for each tile, and two for all; descriptors that are given, and made there."""
    text = text.replace("bf16", "fp16")
    source = kernel(text, Rings(3, 1, 2, 1)).source
    for by_triton, programs in ((False, None), (False, 2), (True, 2)):
        given = drawn(source.program, {"M": 130, "N": 72, "K": 72}, 0)
        plain_launched(plain(source, by_triton=by_triton), given, programs=programs)
        for name, exact in expected(text, given).items():
            compared(given[name], exact)


def check_attention(name: str) -> None:
    """One query is not a number, which is its row's result, unless no key is visible to it."""
    q, k, v, *tensors = test_attention.drawn((1, 1, 2, 70, 40), 16, torch.float16, 0)
    q[0, 1, 3] = torch.nan
    program = ScoreProgram.parse(test_attention.PROGRAMS[name])
    made = attention_tiles(program, q, k, v, tensors, 0.125)
    _, emitted = test_attention.with_rings(made, Rings(2, 0, 1), 32)
    out = torch.full_like(q, 9.0)
    plain_launched(plain(emitted.source), made.operands(q, k, v, tensors, out), programs=3)
    exact = test_attention.exact(name, q, k, v, tensors)
    assert torch.equal(out.isnan(), exact.isnan())
    compared(out.nan_to_num(), exact.nan_to_num())


def check_experts(turned: bool) -> None:
    x, w, ends = test_experts.drawn(test_experts.COUNTS, 40, 72, turned, 0)
    x, w = x.half(), w.half()
    made = experts_tiles(x, w, turned)
    out = torch.full((x.shape[0], 40), torch.nan, dtype=torch.float16)
    operands = {"x": x, "w": w, "ends": ends, "out": out}
    plain_launched(plain(partitioned(made.program, made.rings)), operands, programs=5)
    test_experts.compared(out, x, w, test_experts.COUNTS, turned)


def check_rows(columns: int) -> None:
    x, y, w, b = test_rows.drawn(5, columns, torch.float32, 0)
    norm = NormOf(1e-5, 1.0, True)
    made = norm_tiles(x, y, w, b, norm)
    results = [torch.full_like(x, torch.nan) for _ in made.program.results]
    source = partitioned(made.program, made.rings)
    plain_launched(plain(source), made.operands([x, y, w, b], results))
    for found, right in zip(results, test_rows.exact_norm(x, y, w, b, norm), strict=True):
        test_rows.compared(found, right.double())


def check_quantized_rows() -> None:
    """Nearest numbers of steps; a row with NaN has NaN as its step."""
    x, y, _, _ = test_rows.drawn(5, 70, torch.float32, 0)
    x[3, 40] = torch.nan
    made = gated_tiles(x, y, "silu", test_rows.INT8)
    q, scale = torch.full_like(x, 99.0).to(torch.int8), torch.full((5, 1), 9.0)
    source = partitioned(made.program, made.rings)
    plain_launched(plain(source), made.operands([x, y], [q, scale]))
    right = test_rows.gate_of(x, y)
    by = right.abs().amax(-1, keepdim=True) / 127
    assert scale.isnan().flatten().tolist() == [False, False, False, True, False]
    good = [0, 1, 2, 4]
    assert ((scale.double() - by).abs() <= 1e-4 * by)[good].all()
    assert ((q.double() - right / by).abs() <= 0.51)[good].all()


@needs_triton
def test_values_in_the_interpreter(interpreter: Executor) -> None:
    jobs = [interpreter.submit(check_products, text) for text in (GEMM, GATED, SIDES)]
    names = ("window", "alibi", "documents", "mean")
    jobs += [interpreter.submit(check_attention, name) for name in names]
    jobs += [interpreter.submit(check_experts, turned) for turned in (False, True)]
    jobs += [interpreter.submit(check_rows, columns) for columns in (31, 300)]
    jobs.append(interpreter.submit(check_quantized_rows))
    for job in jobs:
        job.result()


def test_strides_that_a_kernel_does_not_take() -> None:
    x, y, _, _ = test_rows.drawn(5, 64, torch.float32, 0)
    made = gated_tiles(x, y, "silu")
    kernel = plain(partitioned(made.program, made.rings))
    operands = made.operands([x, y], [torch.empty_like(x)])
    with pytest.raises(ValueError, match="the elements of a row of `x` are not behind one another"):
        plain_launched(kernel, {**operands, "x": x.T.contiguous().T})
    with pytest.raises(ValueError, match="a stride of `x` is no multiple of 4 elements"):
        plain_launched(kernel, {**operands, "x": torch.empty(5, 66)[:, :64]})


# --- builds --------------------------------------------------------------------------------------


def sources() -> dict[str, Specialized]:
    q, k, v, *tensors = test_attention.drawn((1, 1, 1, 8, 8), 128, torch.bfloat16, 0)
    program = ScoreProgram.parse(test_attention.PROGRAMS["documents"])
    attention = attention_tiles(program, q, k, v, tensors, 0.125)
    x, w, _ = test_experts.drawn((1,), 8, 8, True, 0)
    x4, y4, w4, b4 = test_rows.drawn(1, 4096, torch.bfloat16, 0)
    rows = norm_tiles(x4, y4, w4, b4, NormOf(1e-5), test_rows.FP8)
    made = {"attention": attention, "experts": experts_tiles(x, w, True), "rows": rows}
    return {
        "product": kernel(with_blocks(GEMM, 128, 256, 64), Rings(4, 1, 2, 4)).source,
        "gated": kernel(GATED, Rings(3, 1, 2)).source,
        **{name: partitioned(each.program, each.rings) for name, each in made.items()},
    }


@needs_triton
def test_built_for_hopper() -> None:
    for name, source in sources().items():
        found = plain_built(plain(source))
        assert ".target sm_90a" in found.ptx
        assert "setmaxnreg" not in found.ptx
        assert (found.spilled, found.is_serialized) == (0, False), name
        assert found.shared <= SHARED_MEMORY
        assert ("wgmma" in found.ptx) == (name != "rows")


@needs_triton
def test_triton_specializes_products_by_itself() -> None:
    found = plain_built(plain(sources()["gated"], by_triton=True))
    assert "setmaxnreg" in found.ptx
    assert found.spilled == 0
