"""Configurations that are shipped: what the table says of them, and which is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pypm.tiles import configurations as module
from pypm.tiles import search
from pypm.tiles.build import Built, built
from pypm.tiles.configurations import TileConfiguration, configurations, configured
from pypm.tiles.partition import SHARED_MEMORY, Rings
from pypm.tiles.program import TileError, TileProgram
from pypm.tiles.reading import parsed
from pypm.tiles.search import kernel_in
from tests.kernels.triton_checks import needs_triton
from tests.tiles.cases import GATED, GEMM

SHIPPED = configurations()
SMALL = [at for at in SHIPPED if at.columns * at.products <= 64]


def name_of(at: TileConfiguration) -> str:
    return f"{at.products}-{at.rows}x{at.columns}-{at.depth}-{at.in_flight}"


@pytest.mark.parametrize("at", SHIPPED, ids=name_of)
def test_configurations_can_be_placed_with_as_many_slots_as_fit(at: TileConfiguration) -> None:
    assert at.spilled == 0
    assert at.shared <= kernel_in(at).source.shared <= SHARED_MEMORY
    if at.depth < search.DEEPEST:
        with pytest.raises(TileError, match="bytes of shared memory"):
            kernel_in(replace(at, depth=at.depth + 1))


@needs_triton
@pytest.mark.parametrize(
    "at",
    [pytest.param(at, marks=() if at in SMALL[:1] else pytest.mark.soak) for at in SHIPPED],
    ids=name_of,
)
def test_the_table_is_what_the_assembler_says(at: TileConfiguration) -> None:
    found = built(kernel_in(at))
    assert (found.registers, found.spilled, found.shared) == (at.registers, 0, at.shared)


def test_there_is_one_for_each_number_of_products() -> None:
    assert {at.products for at in SHIPPED} == {1, 2}
    assert len(SHIPPED) == len({*SHIPPED})


# --- the search ----------------------------------------------------------------------------------


def test_the_search_takes_the_most_slots_and_the_fewest_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Rings] = []

    def build(kernel: search.Emitted) -> Built:
        rings = kernel.source.rings
        asked.append(rings)
        spilled = 0 if rings.pieces > 1 else 8
        return Built(kernel.digest, "", 99, spilled, kernel.source.shared, rings.pieces == 2)

    monkeypatch.setattr(search, "built", build)
    monkeypatch.setattr(search, "SHAPES", ((1, 128, 256, 2), (2, 64, 64, 1)))
    found = [*search.found_by_compiling()]
    assert [(at.products, at.depth, at.in_flight, at.pieces) for at in found] == [
        (1, 4, 1, 4), (1, 4, 2, 4), (2, 6, 1, 4), (2, 6, 2, 4),
    ]  # fmt: skip
    assert {rings.pieces for rings in asked} == {1, 2, 4}
    assert {at.registers for at in found} == {99}


# --- the choice ----------------------------------------------------------------------------------


def blocks(text: str, m: int, n: int, k: int, multiprocessors: int = 132) -> tuple[int, int]:
    program, rings = configured(
        parsed(text), Rings(), {"1": 1, "M": m, "N": n, "K": k}, multiprocessors
    )
    rows, columns = program.grid
    products = len(program.before)
    assert rings in [at.rings for at in SHIPPED if at.products == products]
    return rows.block, columns.block


def test_large_sizes_have_large_tiles_and_small_ones_fill_the_machine() -> None:
    assert blocks(GEMM, 8192, 4096, 4096) == (128, 256)
    assert blocks(GATED, 8192, 14336, 4096) == (128, 128)
    for m, n in ((512, 4096), (1024, 1024), (128, 14336)):
        rows, columns = blocks(GEMM, m, n, 4096)
        assert -(-m // rows) * -(-n // columns) >= 132
        assert rows * columns < 128 * 256


def test_the_last_wave_counts() -> None:
    """133 tiles of 128 x 256 would take as long as 264 of them."""
    m, n = 128 * 19, 256 * 7
    assert blocks(GEMM, m, n, 4096) != (128, 256)
    assert blocks(GEMM, 128 * 12, 256 * 11, 4096) == (128, 256)


def test_other_programs_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(program: TileProgram) -> bool:
        sizes = {"1": 1, "M": 8192, "N": 8192, "K": 512}
        return configured(program, Rings(5), sizes, 132) == (program, Rings(5))

    assert not same(parsed(GEMM))
    assert same(parsed(GEMM.replace("  acc = dot", '  c = map "" a\n  acc = dot')))
    monkeypatch.setattr(module, "configurations", lambda: ())
    assert same(parsed(GEMM))
