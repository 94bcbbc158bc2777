"""Kernels in the emulator: random cases, the defects that others have met, and mutants."""

from __future__ import annotations

import random

import pytest
import torch

from pypm.tiles.emulator import Fault, emulate
from pypm.tiles.partition import Rings
from tests.tiles.cases import GATED, GEMM, SIDES, agrees, drawn, kernel, with_blocks

FAMILIES = (GEMM, GATED, SIDES)


RUNS = 10
"""Runs of each random kernel."""


def random_cases(seed: int) -> None:
    """One kernel, for several sizes."""
    chance = random.Random(seed)
    depth, groups = chance.randint(1, 5), chance.randint(1, 2)
    columns = chance.choice((32, 64))
    text = with_blocks(chance.choice(FAMILIES), 64 * groups, columns, chance.choice((32, 64)))
    text = text.replace("bf16", chance.choice(("bf16", "fp16")))
    rings = Rings(depth, chance.randint(0, depth - 1), groups, chance.choice((1, 2, 4)))
    for run in range(RUNS):
        longest = 130 if run else 400
        m, n, k = (chance.randint(1, longest) for _ in "MNK")
        sizes = (m, n, k if chance.random() < 0.95 else 0)
        agrees(text, rings, sizes, seed * RUNS + run, programs=chance.randint(1, 4))


@pytest.mark.parametrize("part", range(4))
def test_random_cases(part: int) -> None:
    """Any depth, also above the number of turns; none, one and many turns; ragged sizes."""
    for seed in range(part, 100, 4):
        random_cases(seed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(1, 11))
def test_many_random_cases(part: int) -> None:
    for seed in range(part * 1_000, part * 1_000 + 500):
        random_cases(seed)


# --- defects that users of other compilers have met on Hopper ------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("size", [0, 1, 64])
def test_no_hang_with_at_most_one_turn(depth: int, size: int) -> None:
    agrees(GEMM, Rings(depth, depth - 1), (64, 64, size), 0, programs=2)


@pytest.mark.parametrize("sizes", [(127, 63, 65), (1, 400, 129), (399, 1, 200)])
def test_no_hang_at_unaligned_sizes(sizes: tuple[int, int, int]) -> None:
    agrees(GEMM, Rings(3, 1, 2), sizes, 1)


def test_groups_that_share_an_operand_both_give_it_back() -> None:
    agrees(GEMM, Rings(2, 1, 2), (128, 64, 600), 2)
    with pytest.raises(Fault, match="race"):
        agrees(GEMM, Rings(2, 1, 2), (128, 64, 600), 2, changed=("count=2)", "count=1)"))


def test_the_first_copies_are_the_right_ones() -> None:
    """With more slots than turns, all copies are started before the first product."""
    for lateness in (0.0, 1.0):
        agrees(GEMM, Rings(5, 4, 2), (128, 64, 4 * 64), 3, lateness=lateness)


def test_phases_go_on_from_tile_to_tile() -> None:
    """Three turns a tile and two slots: each tile begins at another slot and phase."""
    agrees(GEMM, Rings(2, 1), (300, 200, 3 * 64), 4, programs=1)


@pytest.mark.parametrize("rings", [Rings(3, 0), Rings(2, 1, 2), Rings(4, 2)])
def test_two_products_of_a_turn_in_one_accumulator(rings: Rings) -> None:
    text = GATED.replace("  u = dot(a, c.T, u)", "  g = dot(a, c.T, g)")
    text = text.replace("u = 0.0[i, j]\n", "").replace(";mul(v0,s0)", "").replace("g, u", "g")
    made = kernel(text, rings)
    given = drawn(made.source.program, {"M": 70, "N": 50, "K": 300}, 0)
    emulate(made, given)
    wide = {name: x.double() for name, x in given.items()}
    exact = torch.nn.functional.silu(wide["x"] @ wide["gate"] + wide["x"] @ wide["up"].T)
    torch.testing.assert_close(wide["out"], exact, rtol=2e-2, atol=2e-2)


def test_more_programs_than_tiles() -> None:
    agrees(GEMM, Rings(3, 1), (64, 64, 64), 5, programs=4)


# --- the emulator itself -------------------------------------------------------------------------


def test_a_seed_decides_the_run() -> None:
    first, again, other = (agrees(GEMM, Rings(), (65, 65, 65), seed) for seed in (7, 7, 10))
    assert first == again
    assert first.digest == other.digest == kernel(GEMM, Rings()).digest
    assert first.log != other.log


MASK = ", mask=(across(j, 64, layout_j) < N), other=0"


def test_what_lies_beyond_an_operand_is_never_read() -> None:
    """A load that a wrong mask lets through faults, although its value would not be stored."""
    with pytest.raises(Fault, match="a load beyond the end of its tensor"):
        agrees(GEMM, Rings(), (64, 65, 64), 0, changed=(MASK, ""))


def test_operands_with_strides() -> None:
    made = kernel(SIDES, Rings())
    given = drawn(made.source.program, {"M": 65, "N": 66, "K": 64}, 0)
    emulate(made, given)
    plain = given["out"].clone()
    apart = {**given, "mask": given["mask"].T.contiguous().T}
    apart["rest"] = torch.stack([given["rest"], given["rest"]], dim=1)[:, 0]
    emulate(made, {**apart, "out": given["out"].fill_(0)})
    torch.testing.assert_close(given["out"], plain, rtol=0, atol=0)


def test_a_deadlock_names_who_waits_for_which_barrier() -> None:
    with pytest.raises(Fault, match="producer1 at slot 0 of r0_empty") as raised:
        agrees(GEMM, Rings(), (64, 64, 64), 0, changed=("phase ^ 1", "phase"))
    assert "consumer0 at slot 0 of r0_full" in str(raised.value)


# --- mutants -------------------------------------------------------------------------------------

PUT = "mbarrier.wait(r0_empty.index(slot), phase ^ 1)"
GET = "mbarrier.wait(r0_full.index(slot), phase)"
GIVEN = "mbarrier.arrive(r0_empty.index((turn + 2) % 3), count=1, pred=step >= 1)"
LAST = "warpgroup_mma_wait(0, deps=(acc_next,))"
TURN = "turn % 3\n            phase = turn // 3 & 1\n            k ="
STORE = "        tma.store_wait(0)\n        sync()\n"

MUTANTS = {
    "put does not wait": (PUT, "pass"),
    "put waits for the other parity": ("phase ^ 1", "phase"),
    "get does not wait": (GET, "pass"),
    "get waits for the other parity": ("full.index(slot), phase)", "full.index(slot), phase ^ 1)"),
    "half of the bytes are expected": ("_full.index(slot), 24576)", "_full.index(slot), 12288)"),
    "more bytes are expected": ("_full.index(slot), 24576)", "_full.index(slot), 24592)"),
    "a product more in flight": ("_done = warpgroup_mma_wait(0", "_done = warpgroup_mma_wait(1"),
    "consumed before its product ends": (GIVEN, "mbarrier.arrive(r0_empty.index(slot), count=1)"),
    "never consumed": (GIVEN, "pass"),
    "consumed before there was a turn": (", pred=step >= 1", ""),
    "not consumed after the loop": ("pred=gl.cdiv(K, 64) >= 1", "pred=False"),
    "the last product is not awaited": (f"        acc = {LAST}", "        acc = acc_next"),
    "empty counts one group of two": ("count=2)", "count=1)"),
    "full counts the groups": ("full.index(n), count=1)", "full.index(n), count=2)"),
    "the producer counts turns anew": (TURN, TURN.replace("turn", "step")),
    "the phase is that of the turn": ("phase = turn // 3 & 1", "phase = turn & 1"),
    "a slot less": ("slot = turn % 3", "slot = turn % 2"),
    "a result over one that is not stored yet": (STORE, "        sync()\n"),
    "the end before the last store": ("    tma.store_wait(0)\n\n\n", "\n\n\n"),
    "no fence before a store": ("        fence_async_shared()\n", ""),
    "the rows of the other group": ("slot * 2 + group", "slot * 2 + 1 - group"),
    "both groups store from one place": ("out_stage.index(group)", "out_stage.index(0)"),
    "the weight is not turned": (".permute((1, 0))", ""),
    "two copies into one slot": ("a_ring.index(slot * 2 + 1)", "a_ring.index(slot * 2 + 0)"),
    "the last tiles are left out": ("gl.cdiv(N, 64)", "(N // 64)"),
    "the last turn is left out": ("range(gl.cdiv(K, 64))", "range(K // 64)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    """Each by every one of three seeds, which run jobs early, late and as late as possible."""
    for seed in range(3):
        with pytest.raises((Fault, AssertionError)) as raised:
            agrees(GEMM, Rings(3, 1, 2), (200, 150, 300), seed, changed=MUTANTS[name])
        assert "in made.text" not in str(raised.value)
    # found by seed 0 in another family, whose loads are in three rings
    if MUTANTS[name][0] in kernel(GATED, Rings(3, 1, 2)).text:
        with pytest.raises((Fault, AssertionError)):
            agrees(GATED, Rings(3, 1, 2), (200, 150, 300), 0, changed=MUTANTS[name])
