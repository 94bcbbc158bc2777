"""Pointwise programs after a product: their text, and what the emulator makes of them."""

from __future__ import annotations

from typing import Final

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pypm.kernels.support.pointwise import OPERATIONS, ROUNDINGS, PointwiseStep, parse, printed
from pypm.tiles.emulator import emulate
from pypm.tiles.partition import Rings
from pypm.tiles.reference import execute
from tests.tiles.cases import drawn, kernel

TEXT: Final = """\
x: fp16[M, K]
w: fp16[N, K]
row: fp32[1, N]
column: fp32[M, 1]
full: fp32[M, N]
one: fp32[1, 1]
bits: i1[M, N]
some: i1[1, N]
out: fp16[M, N]
tile i: 64 of M, j: 16 of N
acc = 0.0[i, j]
for k: 16 of K
  a = x[i, k]
  b = w[j, k]
  acc = dot(a, b.T, acc)
p = row[1, j]
q = column[i, 1]
r = full[i, j]
o = one[1, 1]
d = bits[i, j]
e = some[1, j]
y = map "PROGRAM" acc, p, q, r, o, d, e
out[i, j] = y
"""
PROGRAMS: Final = (
    "add(acc,s0);gelu(v0);add(v1,s2)",
    "mul(acc,s1);gelu_tanh(v0);mul(v1,0.5);sub(v2,s3)",
    "silu(acc);mul(v0,s2)",
    "where(m4,acc,-inf);where(m5,1.5,v0)",
    "gt(acc,0.0);or(v0,m4);not(v1);where(v2,s0,acc)",
    "relu(acc);add(v0,m4);maximum(v1,s1);minimum(v2,3.0)",
    "mul(acc,0.001);tanh(v0);mul(v1,1000.0)",
    "abs(acc);add(v0,0.5);log(v1);cos(v2);add(v3,2.0);div(v1,v4);rsqrt(v5);sin(v6)",
    "float16(s2);sub(s2,v0);mul(v1,1000.0);add(v2,acc)",
    "sub(acc,acc);div(v0,v0);relu(v1);maximum(v2,s1);minimum(v3,acc);tanh(v4);minimum(3.0,v5)",
)
GENTLE: Final = sorted(
    set(OPERATIONS)
    - {"cos", "div", "exp", "exp2", "log", "reciprocal", "rsqrt", "sin", "sqrt"}
    - set(ROUNDINGS)
)
"""Without those that make much of a rounded number's last bit."""


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Of up to nine steps, the last of which adds the product. None compares what is rounded, nor
    multiplies it by itself.
    """
    sides, bits = ["s0", "s1", "s2", "s3"], ["m4", "m5"]
    computed = ["acc"]
    constants = st.floats(-2, 2, width=16)
    steps: list[PointwiseStep] = []
    for i in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from(GENTLE))
        operation = OPERATIONS[name]
        exact = st.one_of(st.sampled_from([*sides, *bits]), constants)
        number = exact if operation.gives == "b" else st.sampled_from(computed) | exact
        kinds = {"n": number, "b": st.sampled_from([*sides, *bits])}
        arguments = [draw(kinds[kind]) for kind in operation.takes]
        if not any(isinstance(argument, str) for argument in arguments):
            arguments[0] = draw(st.sampled_from(sides if operation.takes[0] == "n" else bits))
        if name == "mul":
            arguments[0], arguments[1] = draw(st.sampled_from([*computed, *sides])), draw(exact)
        steps.append(PointwiseStep(name, tuple(arguments)))
        (computed if operation.gives == "n" else bits).append(f"v{i}")
    return printed([*steps, PointwiseStep("add", (f"v{len(steps) - 1}", "acc"))])


def check(program: str) -> None:
    made = kernel(TEXT.replace("PROGRAM", program), Rings(2, 1))
    operands = drawn(made.source.program, {"M": 5, "N": 20, "K": 16}, 0)
    emulate(made, operands)
    exact = {**operands, "out": torch.empty(5, 20, dtype=torch.float64)}
    execute(made.source.program, exact)
    rounded = exact["out"].half().double()
    tolerance = 2e-3 * max(1.0, exact["out"].abs().nan_to_num(posinf=0).max().item())
    torch.testing.assert_close(
        operands["out"].double(), rounded, atol=tolerance, rtol=2e-3, equal_nan=True
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_chosen_programs(program: str) -> None:
    check(program)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(program=programs())
def test_random_programs(program: str) -> None:
    check(program)


# --- texts ---------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(programs())
@example("where(m0,inf,-1e-08);mul(v0,nan)")
def test_what_is_printed_is_parsed(program: str) -> None:
    assert printed(parse(program)) == program


@pytest.mark.parametrize(
    "text",
    ["exec(acc)", "add(acc)", "add(acc,v0)", "relu(acc);add(v0,v1)", "relu(__import__)",
     "relu(acc", "relu(acc);", "relu(s01)", "relu(acc)\nimport os", "relu()"],
)  # fmt: skip
def test_what_is_no_program(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse(text)
