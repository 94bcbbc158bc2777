"""Tile programs as text and value, the check of their meaning, and the reference by torch."""

from __future__ import annotations

import ast
import re

import pytest
import torch

from pypm.tiles.meaning import RESERVED, dims_of, meaning
from pypm.tiles.partition import Rings
from pypm.tiles.plain.kernel import plain
from pypm.tiles.program import DTYPES, TileError, printed
from pypm.tiles.reading import parsed
from pypm.tiles.reference import execute, sizes_of
from tests.tiles.cases import GATED, GEMM, SIDES, drawn, expected, kernel, with_blocks
from tests.tiles.test_attention import attended

FAMILIES = {"gemm": GEMM, "gated": GATED, "sides": SIDES}


@pytest.mark.parametrize("text", FAMILIES.values(), ids=FAMILIES)
def test_text_and_value_are_one(text: str) -> None:
    program = parsed(text)
    assert printed(program) == str(program) == text
    assert parsed(printed(program)) == program


@pytest.mark.parametrize("text", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (70, 33, 20), (64, 64, 0), (129, 65, 130)])
def test_the_reference_is_torch(text: str, sizes: tuple[int, int, int]) -> None:
    program = parsed(with_blocks(text, 64, 32, 16))
    given = drawn(program, dict(zip("MNK", sizes, strict=True)), 0)
    wide = {**given, **{n: torch.full(given[n].shape, torch.nan).double() for n in program.results}}
    execute(program, wide)
    for name, exact in expected(text, given).items():
        torch.testing.assert_close(wide[name], exact)


def test_operands_that_disagree_about_a_size() -> None:
    program = parsed(GEMM)
    given = drawn(program, {"M": 2, "N": 3, "K": 4}, 0)
    with pytest.raises(ValueError, match="the size N is 3, and 4 of bias"):
        sizes_of(program, {**given, "bias": torch.zeros(1, 4)})


def test_the_axes_of_what_is_carried() -> None:
    assert meaning(parsed(GATED))["u"] == ("i", "j")
    assert meaning(parsed(GEMM))["s"] == ("1", "j")


def test_the_axes_of_pointwise_programs() -> None:
    row, column, full = ("1", "j"), ("i", "1"), ("i", "j")
    assert dims_of("", [row]) == row
    assert dims_of("mul(acc,2.0)", [row, full]) == row  # reads no more
    assert dims_of("mul(acc,s0);exp(v0)", [row, column]) == full
    with pytest.raises(ValueError, match="do not broadcast"):
        dims_of("add(acc,s0)", [full, ("i", "k")])
    with pytest.raises(ValueError, match="reads s1, which is no argument"):
        dims_of("add(acc,s1)", [full, full])


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("x: bf16", "x: float", "`float` is no type of elements", 1),
        ("x: bf16", "gl: bf16", "the name `gl` is taken", 1),
        ("x: bf16[M, K]", "x: bf16[m, K]", "`m` is no name of a size", 5),
        ("bias: bf16", "for: bf16", "the name `for` is taken", 3),
        ("tile i", "tiles i", "has a line `tile`", 5),
        ("for k: 64 of K", "for k 64 of K", "has a line `for`", 7),
        ("  b = w[j, k]", "  b = w(j, k)", "no statement of a tile program", 9),
        ("  b = w[j, k]", "  b = v[j, k]", "there is no operand `v`", 9),
        ("  b = w[j, k]", "  b = w[j, q]", "there is no axis `q`", 9),
        ("  b = w[j, k]", "  b = w[k, j]", "`w` has the sizes [N, K]", 9),
        ("b.T", "b", "the axes of the product do not fit", 10),
        ("dot(a, b.T, acc)", "dot(a, c.T, acc)", "the tile `c` is not known here", 10),
        ("w: bf16", "w: fp16", "two tiles of bf16, or two of fp16", 10),
        ("x: bf16[M, K]\nw: bf16", "x: fp32[M, K]\nw: fp32", "two tiles of bf16", 10),
        ("y = map", "acc = map", "the name `acc` is taken", 12),
        ("y = map", "i = map", "the name `i` is taken", 12),
        ("silu(v0)", "silu(v3)", "v3 is not computed yet", 12),
        ("silu(v0)", "wave(v0)", "no step of a program: wave(v0)", 12),
        ("= y", "= s", "the stored tile has the axes [1, j]", 13),
        ("out[i, j] = y\n", "", "the program stores no result", 5),
        ("= y", "= b", "`b` is known in the loop alone", 13),
        ("s = bias[1, j]", "s = x[i, k]", "the axis `k` is known in the loop alone", 11),
    ],
)
def test_a_mistake_is_shown_at_its_line(old: str, new: str, message: str, line: int) -> None:
    assert old in GEMM
    with pytest.raises(TileError) as raised:
        parsed(GEMM.replace(old, new))
    found = raised.value.diagnostic
    assert message in found.message
    assert found.span is not None
    assert found.span.line == line
    assert found.help
    assert found.span.source_line in str(raised.value)


def test_what_a_loop_carries_keeps_its_axes() -> None:
    text = GEMM.replace("  acc = dot(a, b.T, acc)", "  acc = x[i, k]")
    with pytest.raises(TileError, match="`acc` had other axes"):
        parsed(text)


LOCAL = re.compile(r"acc|[abtxyz]|high|layout|low|series|start|[vsm]\d+|[A-Z]+|.*_.*")
"""Names in functions of their own."""


def test_names_of_the_kernel_are_not_those_of_its_program() -> None:
    """Whatever the text binds is reserved, has an underscore, or is a name of the program."""
    everything: set[str] = set()
    made = kernel(SIDES.replace("bf16", "fp16"), Rings(3, 1, 2, 2))
    causal = attended("causal", (1, 1, 1, 9, 9), Rings(2, 1))[1]
    for each in (made, causal, plain(made.source)):
        bound: set[str] = set()
        for node in ast.walk(ast.parse(each.text)):
            match node:
                case ast.Name(name, ast.Store()) | ast.arg(name) | ast.FunctionDef(name):
                    bound.add(name)
                case ast.ImportFrom(names=names) | ast.Import(names=names):
                    bound |= {found.asname or found.name for found in names}
        known = {*meaning(each.source.program), *each.source.program.axes} | RESERVED
        assert {name for name in bound if not LOCAL.fullmatch(name)} <= known
        everything |= bound
    of_programs = {"cast", "dot", "max", "place", "size", "sum"}
    assert everything >= RESERVED - {"float", "range"} - of_programs


def test_types_are_those_of_triton() -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == {
        "bf16": 2, "fp16": 2, "fp32": 4, "fp8e4nv": 1, "i1": 1, "i8": 1, "i32": 4, "i64": 8,
    }  # fmt: skip
