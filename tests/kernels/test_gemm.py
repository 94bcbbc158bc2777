"""The product with a generated epilogue: interpreted, built for Hopper, on a GPU; its programs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pypm.kernels import gemm
from pypm.kernels.support import pointwise
from pypm.kernels.support.pointwise import OPERATIONS, ROUNDINGS, PointwiseStep, parse, printed
from tests.kernels.triton_checks import agree, built, launches, needs_triton

torch.set_num_threads(1)

M, N, K = 37, 75, 50
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}

PROGRAMS: Final = (
    "",
    "add(acc,s0);gelu(v0);add(v1,s2)",
    "mul(acc,s1);gelu_tanh(v0);mul(v1,0.5);sub(v2,s3)",
    "silu(acc);mul(v0,s2)",
    "where(m4,acc,-inf);where(m5,1.5,v0)",
    "gt(acc,0.0);or(v0,m4);not(v1);where(v2,s0,acc)",
    "relu(acc);add(v0,m4);maximum(v1,s1);minimum(v2,3.0)",
    "tanh(acc);mul(v0,s1)",
    "mul(acc,0.001);tanh(v0);mul(v1,1000.0)",
    "abs(acc);add(v0,0.5);log(v1);cos(v2);add(v3,2.0);div(v1,v4);rsqrt(v5);sin(v6)",
    "add(s0,s1)",
    "float16(s2);sub(s2,v0);mul(v1,1000.0);add(v2,acc)",
)


def normal(*shape: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=made, dtype=torch.float64).to(device, dtype)


def inputs(
    dtype: torch.dtype, device: str, m: int = M, n: int = N, k: int = K
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Of size about one; side inputs of every shape, with and without packed rows, and of bits."""
    make = functools.partial(normal, dtype=dtype, device=device)
    a, b = make(m, k) / k**0.5, make(k, n)
    bits = make(m, n) < 0, make(1, n) < 0
    return a, b, [make(1, n), make(m, 1), make(n, m).t(), make(1, 1).float(), *bits]


def cases(device: str) -> Iterator[tuple[Any, ...]]:
    """Arguments of `launch`: every program; every tile; layouts; nothing."""
    for dtype in (torch.float32, torch.float16):
        a, b, sides = inputs(dtype, device)
        for program in PROGRAMS:
            yield a, b, sides, program, dtype
        for m, n, k in ((1, 1, 1), (20, 70, 130), (60, 130, 70), (150, 140, 0), (0, 5, 5)):
            yield *inputs(dtype, device, m, n, k), PROGRAMS[1], dtype
        yield b.t(), a.t(), [sides[0].t()], "relu(acc);add(v0,s0)", torch.float32
        yield a[::2, ::3], b[::3], [], "exp(acc)", dtype
        nan = torch.where(a > 0.2, torch.nan, a)
        program = "relu(acc);maximum(v0,s1);minimum(v1,acc);tanh(v2);minimum(3.0,v3)"
        yield nan[:, :8], b[:8], sides, program, dtype
    a, b, sides = inputs(torch.float16, device, 64 * gemm.GROUP + 70, 130, 8)  # two groups
    yield a, b, sides, PROGRAMS[2], torch.float16
    if device != "cpu":
        a, b, sides = inputs(torch.float16, device, 2100, 2100, 300)  # the largest tile
        yield a, b, sides, PROGRAMS[1], torch.float16
        a, b, sides = inputs(torch.bfloat16, device)
        yield a, b, sides, PROGRAMS[1], torch.bfloat16


def compare(a: Tensor, b: Tensor, sides: list[Tensor], program: str, dtype: torch.dtype) -> None:
    ours = gemm.launch(a, b, sides, program, dtype)
    exact = gemm.reference(a.double(), b.double(), sides, program, torch.float64)
    assert ours.is_contiguous()
    agree(ours, exact, dtype, TOLERANCES[max(dtype, a.dtype, key=TOLERANCES.__getitem__)])


# --- random programs -----------------------------------------------------------------------------

GENTLE: Final = sorted(
    set(OPERATIONS)
    - {"cos", "div", "exp", "exp2", "log", "reciprocal", "rsqrt", "sin", "sqrt"}
    - set(ROUNDINGS)
)
"""Without those that make much of a rounded number's last bit."""


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Of up to eight steps. None compares what is rounded, nor multiplies it by itself."""
    given, bits = ["s0", "s1", "s2", "s3"], ["m4", "m5"]
    computed = ["acc"]
    constants = st.floats(-2, 2, width=16)
    steps: list[PointwiseStep] = []
    for i in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from(GENTLE))
        operation = OPERATIONS[name]
        exact = st.one_of(st.sampled_from([*given, *bits]), constants)
        number = exact if operation.gives == "b" else st.sampled_from(computed) | exact
        kinds = {"n": number, "b": st.sampled_from([*given, *bits])}
        arguments = [draw(kinds[kind]) for kind in operation.takes]
        if name == "mul":
            arguments[1] = draw(exact)
        steps.append(PointwiseStep(name, tuple(arguments)))
        (computed if operation.gives == "n" else bits).append(f"v{i}")
    return printed(steps)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(program=programs())
def random_programs(device: str, program: str) -> None:
    a, b, sides = inputs(torch.float32, device, 5, 20, 16)
    ours = gemm.launch(a, b, sides, program, torch.float32)
    exact = gemm.reference(a.double(), b.double(), sides, program, torch.float64)
    tolerance = 1e-5 * max(1.0, exact.abs().amax().item())
    torch.testing.assert_close(ours.double(), exact, atol=tolerance, rtol=0)


def check(device: str) -> None:
    for case in cases(device):
        compare(*case)
    random_programs(device)


test_in_the_interpreter, test_on_a_gpu = launches(check, cases, gemm.gemm_epilogue, gemm.launch)


# --- Hopper -------------------------------------------------------------------------------------


def arguments(
    program: str, forms: tuple[str, ...], at: gemm.ProductTile, dtype: str
) -> dict[str, Any]:
    bits = {int(name[1:]) for step in parse(program) for name in map(str, step.arguments)
            if name[0] == "m"}  # fmt: skip
    return {
        **dict.fromkeys(("a", "b", "out"), dtype),
        "sides": tuple("*i1" if i in bits else dtype for i in range(len(forms))),
        "steps": ("i32",) * (2 * len(forms)),
        **dict.fromkeys(("m", "n", "k", "a_row", "a_column", "b_row", "b_column"), "i32"),
        "epilogue": pointwise.generated(program, forms), "group": gemm.GROUP,
        "tile_m": at.m, "tile_n": at.n, "tile_k": at.k,
    }  # fmt: skip


@needs_triton
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [((1, 4096), "*fp16"), ((64, 4096), "*bf16"), ((4096, 4096), "*bf16"), ((64, 64), "*fp32")],
)
def test_builds_for_hopper(sizes: tuple[int, int], dtype: str) -> None:
    program, forms = PROGRAMS[1], ("row", "column", "full")
    at = gemm.tile(*sizes, 4 if dtype == "*fp32" else 2)
    given = arguments(program, forms, at, dtype)
    ptx = built(gemm.kernel, given, at.warps, precision="ieee")
    tensor_cores = "wgmma.mma_async" if at.m >= 64 else "mma.sync"
    assert (tensor_cores in ptx) == (dtype != "*fp32")


@needs_triton
def test_every_operation_builds_for_hopper() -> None:
    steps = [PointwiseStep("number", (0.0,))]
    for name, operation in OPERATIONS.items():
        total = f"v{len(steps) - 1}"
        steps.append(
            PointwiseStep(name, tuple({"n": "acc", "b": "m0"}[kind] for kind in operation.takes))
        )
        steps.append(PointwiseStep("add", (total, f"v{len(steps) - 1}")))
    given = arguments(printed(steps), ("full",), gemm.ProductTile(16, 32, 32, 4, 3), "*fp16")
    built(gemm.kernel, given, 4, precision="ieee")


# --- the operator --------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS[:3])
def test_it_is_a_proper_operator(program: str) -> None:
    a, b, sides = inputs(torch.float64, "cpu", 3, 5, 4)
    sides = [side.double() if side.is_floating_point() else side for side in sides]
    torch.library.opcheck(gemm.gemm_epilogue, (a, b, sides, program, a.dtype))
    leaves = [x.requires_grad_() for x in (a, b, *sides[:4])]

    def call(a: Tensor, b: Tensor, *floats: Tensor) -> Tensor:
        return gemm.gemm_epilogue(a, b, [*floats, *sides[4:]], program, a.dtype)

    assert torch.autograd.gradcheck(call, tuple(leaves))


def test_the_reference_rounds_once() -> None:
    a, b, (row, *_) = inputs(torch.bfloat16, "cpu")
    ours = gemm.gemm_epilogue(a, b, [row], "add(acc,s0);silu(v0)", a.dtype)
    wide = F.silu(a.float() @ b.float() + row.float())
    assert torch.equal(ours, wide.bfloat16())


@pytest.mark.parametrize(
    ("dtype", "side", "reason"),
    [
        (torch.float32, torch.float32, "for GPUs"),
        (torch.float32, torch.bool, "for GPUs"),
        (torch.float64, torch.float32, "not in torch.float64"),
        (torch.int32, torch.int32, "not in torch.int32"),
        (torch.float32, torch.int64, "for GPUs"),
    ],
)
def test_where_it_applies(dtype: torch.dtype, side: torch.dtype, reason: str) -> None:
    x = torch.zeros(2, 2, dtype=dtype)
    assert reason in str(gemm.unsupported(x, x, [x.to(side)]))
    assert "several devices" in str(gemm.unsupported(x, x, [x.to("meta")]))


def test_a_side_input_of_another_shape() -> None:
    a, b, _ = inputs(torch.float32, "cpu")
    with pytest.raises(ValueError, match="2 x 75 of a product 37 x 75"):
        gemm.launch(a, b, [torch.zeros(2, N)], "add(acc,s0)", a.dtype)


# --- programs ------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(programs())
@example("where(m0,inf,-1e-08);mul(v0,nan)")
def test_what_is_printed_is_parsed(program: str) -> None:
    assert printed(parse(program)) == program


@pytest.mark.parametrize(
    "text",
    [
        "exec(acc)",
        "add(acc)",
        "add(acc,v0)",
        "relu(acc);add(v0,v1)",
        "relu(__import__)",
        "relu(acc",
        "relu(acc);",
        "relu(s01)",
        "relu(acc)\nimport os",
        "relu()",
    ],
)
def test_what_is_no_program(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse(text)
