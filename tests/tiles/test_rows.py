"""Tile programs of rows without products: values, mutants, builds, and matches of the packs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern
from pypm.fx import find
from pypm.rules.norm import AnyLayer, AnyRMS
from pypm.rules.quantization import SumInItsSteps
from pypm.rules.vocabulary.activations import Activation
from pypm.tiles.build import built
from pypm.tiles.emit import Emitted, emitted
from pypm.tiles.emulator import Fault, emulate
from pypm.tiles.families.rows import NormOf, Quantization, RowTiles, gated_tiles, norm_tiles
from pypm.tiles.partition import Rings, partitioned
from pypm.tiles.program import TileError
from pypm.tiles.reading import parsed
from pypm.tiles.reference import execute
from tests.kernels.triton_checks import needs_triton

TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-4}


def drawn(rows: int, columns: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Two matrices of rows with a mean, a weight and a bias."""
    chance = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(rows, columns, generator=chance) + 1.0 for _ in "xy")
    w, b = (torch.randn(columns, generator=chance) for _ in "wb")
    return [each.to(dtype) for each in (x, y, w, b)]


def exact_norm(
    x: Tensor, y: Tensor | None, w: Tensor | None, b: Tensor | None, norm: NormOf
) -> tuple[Tensor, Tensor]:
    """The norm in float64, and the sum."""
    total = x if y is None else x + y
    h = total.double()
    h = h - h.mean(-1, keepdim=True) if norm.is_centered else h
    found = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + norm.eps)
    found = found if w is None else found * (w.double() + norm.offset)
    return found if b is None else found + b.double(), total


def compared(found: Tensor, right: Tensor) -> None:
    assert found.isfinite().all(), "a result is not stored"
    worst = ((found.double() - right).abs() / (1 + right.abs())).max()
    assert worst <= TOLERANCES[found.dtype], f"off by {worst:.3g}"


def kernel_of(made: RowTiles) -> Emitted:
    return emitted(partitioned(made.program, made.rings))


def normed(
    given: Sequence[Tensor | None], norm: NormOf, seed: int = 0, programs: int = 1,
    changed: tuple[str, str] = ("", ""),
) -> None:  # fmt: skip
    """Emulate a norm, whose results must agree with float64; its text may be changed before."""
    x, y, w, b = given
    assert x is not None
    made = norm_tiles(x, y, w, b, norm)
    kernel, (old, new) = kernel_of(made), changed
    assert old in kernel.text
    results = [torch.full_like(x, torch.nan) for _ in made.program.results]
    operands = made.operands([each for each in given if each is not None], results)
    emulate(kernel, operands, seed=seed, programs=programs, text=kernel.text.replace(old, new))
    for found, right in zip(results, exact_norm(x, y, w, b, norm), strict=False):
        compared(found, right.double())


INT8 = Quantization("i8", 127.0, 1e-5, -128.0, 127.0)
FP8 = Quantization("fp8e4nv", 448.0, 1e-5, -448.0, 448.0)


def in_steps(
    made: RowTiles, given: Sequence[Tensor], right: Tensor, steps: Quantization, seed: int = 0,
    changed: tuple[str, str] = ("", ""),
) -> None:  # fmt: skip
    """Emulate a quantized result, of which `right` is the value in float64."""
    kernel, (old, new) = kernel_of(made), changed
    assert old in kernel.text
    dtype = torch.int8 if steps.dtype == "i8" else torch.float8_e4m3fn
    q = torch.full_like(right, 99.0).to(dtype)
    scale = torch.full((*right.shape[:-1], 1), torch.nan)
    results = [q, scale, *(torch.empty_like(given[0]) for _ in made.program.results[2:])]
    text = kernel.text.replace(old, new)
    emulate(kernel, made.operands(given, results), seed=seed, programs=2, text=text)
    by = right.abs().amax(-1, keepdim=True).clamp(min=steps.low) / steps.top
    assert ((scale.double() - by).abs() <= 1e-4 * by).all(), "the steps are wrong"
    number = (right / by).clamp(steps.least, steps.most)
    # fp8 has three bits after the leading one, and the least step is 2**-9
    room = 0.51 if steps.dtype == "i8" else number.abs() / 15 + 2**-9
    assert ((q.double() - number).abs() <= room).all(), "the numbers of steps are wrong"


def gate_of(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x.double()) * y.double()


@pytest.mark.parametrize("steps", [INT8, FP8])
def test_random_quantized_rows(steps: Quantization) -> None:
    chance = random.Random(steps.dtype)
    for seed in range(25):
        columns = chance.choice((1, 31, 32, 64, chance.randint(1, 3000)))
        x, y, w, _ = drawn(chance.randint(1, 20), columns, torch.bfloat16, seed)
        x[0] = 0.0
        in_steps(gated_tiles(x, y, "silu", steps), [x, y], gate_of(x, y), steps, seed)
        norm = NormOf(1e-5)
        right, _ = exact_norm(x, y, w, None, norm)
        in_steps(norm_tiles(x, y, w, None, norm, steps), [x, y, w], right, steps, seed)


@pytest.mark.parametrize("dtype", [*TOLERANCES])
def test_gated_rows(dtype: torch.dtype) -> None:
    x, y, *_ = drawn(7, 77, dtype, 0)
    for up, right in ((y, gate_of(x, y)), (None, F.silu(x.double()))):
        made, out = gated_tiles(x, up, "silu"), torch.full_like(x, torch.nan)
        operands = made.operands([x] if up is None else [x, up], [out])
        emulate(kernel_of(made), operands)
        compared(out, right)
        execute(made.program, {**operands, "out": out.fill_(torch.nan)})
        compared(out, right)


def test_numbers_of_steps_are_rounded_half_to_even_and_saturate() -> None:
    x = torch.tensor([[0.5, 1.5, -0.5, -2.5, 126.5, -300.0, 300.0, 127.0]])
    wide = Quantization("i8", 127.0, 127.0, -1000.0, 1000.0)
    made = gated_tiles(x, None, "number", wide)
    q, scale = torch.zeros(1, 8, dtype=torch.int8), torch.zeros(1, 1)
    for run in (execute, lambda program, given: emulate(kernel_of(made), given)):
        run(made.program, made.operands([x[:, :5].repeat(1, 2)[:, :8]], [q, scale]))
        assert q[0, :5].tolist() == [0, 2, 0, -2, 126]
        run(made.program, made.operands([x * 127.0 / 300.0], [q, scale]))
        assert q[0, 5:7].tolist() == [-127, 127]


def random_case(seed: int) -> None:
    chance = random.Random(seed)
    columns = chance.choice((1, 31, 32, 33, 64, chance.randint(1, 3000)))
    dtype = chance.choice([*TOLERANCES])
    x, *others = drawn(chance.randint(1, 20), columns, dtype, seed)
    given = [x, *(each if chance.random() < 0.6 else None for each in others)]
    norm = NormOf(1e-5, chance.choice((0.0, 1.0)), chance.random() < 0.5)
    normed(given, norm, seed, chance.randint(1, 3))


@pytest.mark.parametrize("part", range(2))
def test_random_norms(part: int) -> None:
    for seed in range(part, 100, 2):
        random_case(seed)


@pytest.mark.parametrize("columns", [40, 64])
def test_the_program_is_the_norm(columns: int) -> None:
    given = drawn(5, columns, torch.float16, 0)
    norm = NormOf(1e-5, 1.0, True)
    made = norm_tiles(*given, norm)
    assert parsed(str(made.program)) == made.program
    results = [torch.full_like(given[0], torch.nan) for _ in "ot"]
    execute(made.program, made.operands(given, results))
    for found, right in zip(results, exact_norm(*given, norm), strict=True):
        compared(found, right.double())


def test_there_is_no_producer() -> None:
    made = norm_tiles(*drawn(5, 40, torch.float16, 0), NormOf(1e-5))
    source = partitioned(made.program, made.rings)
    assert "no producer: nothing is multiplied" in str(source)
    assert source.arefs == ()
    with pytest.raises(TileError, match="4 rows cannot be divided between 2 groups"):
        partitioned(made.program, Rings(groups=2))
    with pytest.raises(TileError, match="needs all columns, which are in 2 pieces"):
        partitioned(made.program, Rings(pieces=2))


def test_rows_without_a_tile_program() -> None:
    x, y, w, b = drawn(2, 40, torch.float16, 0)
    for given, reason in [
        ((x.double(), None, w, b), r"an operand is torch\.float64"),
        ((x, y[:1], w, b), "the addends have different shapes"),
        ((x, y, w[:1], b), r"`w` has the shape \[1\], and not \[40\]"),
        ((x.repeat(1, 300), None, None, None), "a row has 12,000 elements"),
    ]:
        with pytest.raises(TileError, match=reason):
            norm_tiles(*given, NormOf(1e-5))


def test_rows_are_packed_and_aligned() -> None:
    """A kernel accesses 16 bytes at once: other strides are refused, not read wrongly."""
    x, *_ = drawn(4, 40, torch.float16, 0)
    made = norm_tiles(x, None, None, None, NormOf(1e-5))
    apart = torch.zeros(4, 41, dtype=torch.float16)[:, :40]
    with pytest.raises(ValueError, match="a stride of `x` is no multiple of 8 elements"):
        emulate(kernel_of(made), {"x": apart, "out": x})
    with pytest.raises(ValueError, match="of a row of `x` are not behind one another"):
        emulate(kernel_of(made), {"x": x.T.contiguous().T, "out": x})


# --- mutants -------------------------------------------------------------------------------------

COLUMNS, ROWS = "(across(j, 512, layout_j) < 300)", "(down(i, 4, layout_j) < M)"
MUTANTS = {
    "the next row is read": (f"mask={ROWS} & {COLUMNS}, other=0", f"mask={ROWS}, other=0"),
    "rows beyond the end are read": (f"mask={ROWS} & {COLUMNS}, o", f"mask={COLUMNS}, o"),
    "rows beyond the end are stored": (f"mask={ROWS} & {COLUMNS})", f"mask={COLUMNS})"),
    "the next row is stored": (f"mask={ROWS} & {COLUMNS})", f"mask={ROWS})"),
    "the last rows are left out": ("gl.cdiv(M, 4)", "(M // 4)"),
    "tiles overlap": ("i = tile * 4", "i = tile * 2"),
    "the mean counts what is beyond the end": ("sq = map_sq(d1)", "sq = map_sq(d)"),
    "the sum is the largest": ("gl.sum(h, 1)", "gl.reduce(h, 1, larger)"),
    "the other stride": ("down(i, 4, layout_j).to(gl.int64) * ", "down(i, 4, layout_j) * 2 * "),
    "one program has all tiles": ("gl.num_programs(0)", "gl.num_programs(0) + 1"),
}  # fmt: skip


NUMBERS = "y + 12582912.0 - 12582912.0"
OF_STEPS = {
    "numbers are cut off": (NUMBERS, "y"),
    "the steps are those of the sum": ("gl.reduce(size1, 1, larger)", "gl.sum(size1, 1)"),
    "the steps are those of positive numbers": ("gl.reduce(size1,", "gl.reduce(y,"),
    "no least step": ("least = map_least(big)", "least = big"),
    "the steps of the first row": ("(scale_ptr + down(i, 4", "(scale_ptr + down(0, 4"),
    "rows beyond the end have steps": (", mask=(down(i, 4, layout_j) < M))", ")"),
    "numbers are not limited": ("q3 = map_q3(q2)", "q3 = q2 * 2.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_STEPS)
def test_mutants_of_steps_are_found(name: str) -> None:
    for seed in range(3):
        x, y, *_ = drawn(9, 300, torch.bfloat16, seed)
        x[0] = 0.0
        given = [x, -y]
        made = gated_tiles(*given, "silu", INT8)
        with pytest.raises((Fault, AssertionError)) as raised:
            in_steps(made, given, gate_of(*given), INT8, seed, OF_STEPS[name])
        assert "in kernel.text" not in str(raised.value)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    for seed in range(3):
        given = drawn(9, 300, torch.float16, seed)
        with pytest.raises((Fault, AssertionError)) as raised:
            normed(given, NormOf(1e-5, 0.0, True), seed, 2, MUTANTS[name])
        assert "in kernel.text" not in str(raised.value)


# --- builds --------------------------------------------------------------------------------------


def check_build(made: RowTiles) -> None:
    found = built(kernel_of(made))
    assert ".target sm_90a" in found.ptx
    assert found.spilled == 0
    assert found.shared <= kernel_of(made).source.shared
    assert "ld.global.v4" in found.ptx  # 16 bytes at once
    assert "wgmma" not in found.ptx


@needs_triton
def test_norms_are_built_for_hopper() -> None:
    check_build(norm_tiles(*drawn(1, 1000, torch.bfloat16, 0), NormOf(1e-5, 1.0, True)))


@needs_triton
@pytest.mark.parametrize("steps", [INT8, FP8])
def test_quantized_rows_are_built_for_hopper(steps: Quantization) -> None:
    x, y, w, _ = drawn(1, 4096, torch.bfloat16, 0)
    check_build(norm_tiles(x, y, w, None, NormOf(1e-5), steps))
    check_build(gated_tiles(x, y, "silu", steps))


# --- matches -------------------------------------------------------------------------------------


def rms(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * (1 + w)


def layer(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    d = x.float() - x.float().mean(-1, keepdim=True)
    return (d / torch.sqrt(d.square().mean(-1, keepdim=True) + 1e-6) * w + b).to(x.dtype)


def values_of(module: fx.GraphModule, given: Sequence[Tensor]) -> dict[object, Tensor]:
    """The values of all nodes."""
    values: dict[object, Tensor] = {}

    class Recorded(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            values[n] = found = super().run_node(n)
            return found

    Recorded(module).run(*given)
    return values


@pytest.mark.parametrize("function", [rms, layer])
def test_the_kernel_of_a_matched_norm_gives_its_result(function: Callable[..., Tensor]) -> None:
    given = [x.reshape(2, 3, 40) if x.dim() > 1 else x for x in drawn(6, 40, torch.bfloat16, 0)]
    module = make_fx(function)(*given)
    (match, *_) = find(module, AnyLayer if function is layer else AnyRMS)
    bound, values = match.bindings, values_of(module, given)
    x, w = values[bound["x"]], values[bound["w"]]
    b = values[bound["b"]] if function is layer else None
    norm = NormOf(bound["eps"], bound["offset"], function is layer)
    made, out = norm_tiles(x, None, w, b, norm), torch.full_like(x, torch.nan)
    emulate(kernel_of(made), made.operands([x, w] if b is None else [x, w, b], [out]))
    torch.testing.assert_close(out, function(*given), rtol=2e-2, atol=2e-2)


def quantized(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total = x + y
    h = total.float()
    n = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * w).to(x.dtype)
    scale = n.float().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127.0
    return (n / scale).round().clamp(-128, 127).to(torch.int8), scale, total


def test_the_kernel_of_a_matched_quantization_gives_its_result() -> None:
    given = drawn(6, 40, torch.bfloat16, 0)
    module = make_fx(quantized)(*given)
    (match,) = find(module, SumInItsSteps)
    bound, values = match.bindings, values_of(module, given)
    x, y, w = (values[bound[name]] for name in "xyw")
    scheme = bound["scheme"]
    steps = Quantization("i8", scheme.top, scheme.low, scheme.least, scheme.most)
    made = norm_tiles(x, y, w, None, NormOf(bound["eps"], bound["offset"]), steps)
    q, scale, total = torch.zeros(6, 40, dtype=torch.int8), torch.zeros(6, 1), torch.zeros_like(x)
    emulate(kernel_of(made), made.operands([x, y, w], [q, scale, total]))
    right = quantized(*given)
    assert ((q.int() - right[0].int()).abs() <= 1).all()  # the norm itself is not rounded before
    torch.testing.assert_close(scale, right[1], rtol=1e-2, atol=0)
    torch.testing.assert_close(total, right[2], rtol=0, atol=0)


@pattern
def Gated(x, y, activation):
    return Activation(x, activation) * y


def test_the_kernel_of_a_matched_gate_gives_its_result() -> None:
    given = drawn(6, 40, torch.bfloat16, 0)
    module = make_fx(lambda x, y, w, b: F.silu(x) * y)(*given)
    (match,) = find(module, Gated)
    bound, values = match.bindings, values_of(module, given)
    x, y = values[bound["x"]], values[bound["y"]]
    made, out = gated_tiles(x, y, bound["activation"]), torch.full_like(x, torch.nan)
    emulate(kernel_of(made), made.operands([x, y], [out]))
    compared(out, gate_of(given[0], given[1]))
