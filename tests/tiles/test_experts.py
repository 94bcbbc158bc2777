"""Grouped experts: rows of any number for each expert, mutants, a build, and matches."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import find
from pypm.rules.experts import ExpertProduct
from pypm.tiles.build import built
from pypm.tiles.emit import Emitted, emitted
from pypm.tiles.emulator import Emulation, Fault, emulate
from pypm.tiles.families.experts import by_expert, experts_tiles
from pypm.tiles.partition import Rings, partitioned
from pypm.tiles.program import TileError
from pypm.tiles.reading import parsed
from pypm.tiles.reference import execute, whole
from tests.kernels.triton_checks import needs_triton
from tests.tiles.cases import TOLERANCES
from tests.tiles.test_rows import values_of

COUNTS = (0, 130, 1, 0, 200, 128, 0)
"""Rows of each expert."""


def drawn(counts: tuple[int, ...], n: int, k: int, turned: bool, seed: int) -> tuple[Tensor, ...]:
    """Sorted rows, matrices and ends, in bf16."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(counts), k, generator=chance)
    w = torch.randn(len(counts), *((n, k) if turned else (k, n)), generator=chance)
    ids = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return x.bfloat16(), w.bfloat16(), by_expert(ids, len(counts))[1]


def compared(out: Tensor, x: Tensor, w: Tensor, counts: tuple[int, ...], turned: bool) -> None:
    w = w.mT if turned else w
    parts = x.double().split([*counts])
    right = torch.cat([a @ b for a, b in zip(parts, w.double(), strict=True)])
    assert out.isfinite().all(), "a result is not stored"
    tolerance = TOLERANCES["bf16" if out.dtype == torch.bfloat16 else "fp16"]
    torch.testing.assert_close(out.double(), right, rtol=tolerance, atol=tolerance * 4)


def kernel_for(turned: bool, rings: Rings) -> Emitted:
    x, w, _ = drawn((1,), 8, 8, turned, 0)
    return emitted(partitioned(experts_tiles(x, w, turned).program, rings))


def grouped(
    counts: tuple[int, ...], n: int, k: int, seed: int, rings: Rings, turned: bool = True,
    dtype: torch.dtype = torch.bfloat16, changed: tuple[str, str] = ("", ""),
) -> Emulation:  # fmt: skip
    """Emulate experts, whose results must agree with float64; the text may be changed before."""
    x, w, ends = drawn(counts, n, k, turned, seed)
    x, w = x.to(dtype), w.to(dtype)
    made = emitted(partitioned(experts_tiles(x, w, turned).program, rings))
    old, new = changed
    assert old in made.text
    out = torch.full((x.shape[0], n), torch.nan, dtype=dtype)
    found = emulate(
        made, {"x": x, "w": w, "ends": ends, "out": out}, programs=seed % 3 + 1, seed=seed,
        lateness=(0.5, 0.9, 1.0)[seed % 3], text=made.text.replace(old, new),
    )  # fmt: skip
    compared(out, x, w, counts, turned)
    return found


def test_random_cases() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        counts = tuple(chance.choice((0, 0, 1, 63, 128, 129)) for _ in range(chance.randint(1, 6)))
        depth = chance.randint(1, 4)
        rings = Rings(depth, chance.randint(0, depth - 1), 2, chance.choice((1, 2, 4)))
        dtype = chance.choice((torch.bfloat16, torch.float16))
        n, k = chance.randint(1, 200), chance.randint(1, 200)
        grouped(counts, n, k, seed, rings, chance.random() < 0.5, dtype)


def test_the_program_is_the_product() -> None:
    for turned in (False, True):
        x, w, ends = drawn(COUNTS, 33, 70, turned, 0)
        program = experts_tiles(x, w, turned).program
        assert parsed(str(program)) == program
        out = torch.full((x.shape[0], 33), torch.nan, dtype=x.dtype)
        execute(program, {"x": x, "w": w, "ends": ends, "out": out})
        compared(out, x, w, COUNTS, turned)


@pytest.mark.parametrize("turned", [False, True])
def test_all_experts_at_once_give_what_each_in_its_turn_does(turned: bool) -> None:
    """Proofs take the one, torch runs the other."""
    for seed, counts in enumerate((COUNTS, (3,), (0, 0, 5, 0), (1, 2, 3, 4))):
        x, w, ends = drawn(counts, 9, 20, turned, seed)
        program, given = experts_tiles(x, w, turned).program, {"x": x, "w": w, "ends": ends}
        (in_turn,) = whole(program, given, torch.float64).values()
        (found,) = whole(program, given, torch.float64, at_once=True).values()
        torch.testing.assert_close(found, in_turn)
        compared(found.to(x.dtype), x, w, counts, turned)


def test_results_are_stored_up_to_the_end_of_their_expert() -> None:
    """A copy would store the whole tile, so that threads store rows by themselves."""
    source = kernel_for(True, Rings(3, 1, 2)).source
    assert source.stores
    assert not source.staged


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("end at ends", "end at w", "`w` has no ends of segments"),
        ("ends: i32", "ends: i64", "`ends` has no ends of segments"),
        ("rows i of", "rows k of", "no rows `k` of the grid have segments"),
        ("e: 1 of E", "e: 2 of E", "`ends` has no ends of segments"),
    ],
)
def test_segments_without_a_meaning(old: str, new: str, message: str) -> None:
    x, w, _ = drawn((1,), 8, 8, True, 0)
    text = str(experts_tiles(x, w, True).program)
    assert old in text
    with pytest.raises(TileError) as raised:
        parsed(text.replace(old, new))
    assert message in raised.value.diagnostic.message


def test_experts_without_a_tile_program() -> None:
    x, w, _ = drawn((1,), 8, 9, True, 0)
    with pytest.raises(TileError, match=r"the operands are torch\.float32"):
        experts_tiles(x.float(), w, True)
    with pytest.raises(TileError, match="do not fit"):
        experts_tiles(x, w, False)


MUTANTS = {
    "rows of the next expert are stored": (
        "(down(i, 64, layout_j) < i_end)", "(down(i, 64, layout_j) < M)"),
    "the expert of the tile before": ("if (i_left >= 0) &", "if (i_left >= -1) &"),
    "the last part of an expert": ("gl.cdiv(e_last - e_first, 128)", "(e_last - e_first) // 128"),
    "the first expert for all": ("                e = n\n", "                e = 0\n"),
    "experts begin at the same row": ("e_first = e_last", "e_first = 0"),
    "tiles of experts are not counted": ("i_left = i_left - e_count", "i_left = i_left - 1"),
    "a tile for each 128 rows": ("(gl.cdiv(M, 128) + E) * ", "gl.cdiv(M, 128) * "),
    "groups begin at the same row": ("i += group * 64", "i += 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    for seed in range(3):
        with pytest.raises((Fault, AssertionError)) as raised:
            grouped(COUNTS, 140, 150, seed, Rings(3, 1, 2), changed=MUTANTS[name])
        assert "in made.text" not in str(raised.value)


@needs_triton
def test_built_for_hopper() -> None:
    x, w, _ = drawn((1,), 8, 8, True, 0)
    made = experts_tiles(x, w, True)
    kernel = emitted(partitioned(made.program, made.rings))
    found = built(kernel)
    assert found.digest == grouped((5,), 9, 70, 0, made.rings).digest
    assert found.spilled == 0
    assert not found.is_serialized
    assert found.shared <= kernel.source.shared


@pytest.mark.parametrize("turned", [False, True])
def test_the_kernel_of_a_match_gives_its_result(turned: bool) -> None:
    def layer(x: Tensor, w: Tensor, ids: Tensor) -> Tensor:
        chosen = w[ids]
        return torch.bmm(x[:, None], chosen.mT if turned else chosen)[:, 0]

    (x, w, _), ids = drawn((40, 0, 0, 0), 24, 16, turned, 0), torch.arange(40) * 7 % 5 % 4
    given = [x, w, ids]
    module = make_fx(layer)(*given)
    (match, *_) = find(module, ExpertProduct)
    bound, values = match.bindings, values_of(module, given)
    assert not bound["of_columns"]
    assert bound["is_transposed"] == turned
    order, ends = by_expert(values[bound["ids"]], w.shape[0])
    rows = values[bound["x"]].reshape(40, -1)[order]
    made, out = experts_tiles(rows, w, turned), torch.full((40, 24), torch.nan, dtype=x.dtype)
    operands = {"x": rows, "w": values[bound["w"]], "ends": ends, "out": out}
    emulate(emitted(partitioned(made.program, made.rings)), operands)
    found = torch.empty_like(out)
    found[order] = out
    torch.testing.assert_close(found, layer(*given), rtol=2e-2, atol=8e-2)
