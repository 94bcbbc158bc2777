"""The pass that divides a program between producer and consumers, and what it refuses."""

from __future__ import annotations

import pytest

from pypm.tiles.arguments import Descriptor
from pypm.tiles.partition import SHARED_MEMORY, Await, Consumed, Get, Issue, Rings, partitioned
from pypm.tiles.program import TileError
from pypm.tiles.reading import parsed
from tests.tiles.cases import GATED, GEMM, kernel, with_blocks


def test_a_ring_for_loads_with_the_same_readers() -> None:
    (ring,) = partitioned(parsed(GEMM), Rings()).arefs
    assert [load.name for load in ring.loads] == ["a", "b"]
    assert ring.size == 2 * (128 * 64 + 64 * 64)
    rings = partitioned(parsed(GATED), Rings()).arefs
    assert [[load.name for load in ring.loads] for ring in rings] == [["a"], ["b"], ["c"]]


def test_the_steps_with_products_in_flight() -> None:
    assert (
        str(partitioned(parsed(GATED), Rings(3, 1, 2)))
        == """\
2 groups, 1 in flight, 115,856 bytes shared
aref r0: a; 3 slots of 16,384 bytes
aref r1: b; 3 slots of 8,192 bytes
aref r2: c; 3 slots of 8,192 bytes
producer:
  for each turn:
    put r0
      a = x[i, k]
    put r1
      b = gate[k, j]
    put r2
      c = up[j, k]
consumers:
  g = 0.0[i, j]
  u = 0.0[i, j]
  for each turn:
    get r0
    get r1
    await g, u; 0 left in flight
    consumed r0, 1 turns behind
    consumed r1, 1 turns behind
    consumed r2, 1 turns behind
    issue g = dot(a, b, g)
    get r2
    issue u = dot(a, c.T, u)
  await g, u; 0 left in flight
  consumed r0, 1 turns behind
  consumed r1, 1 turns behind
  consumed r2, 1 turns behind
  y = map "silu(acc);mul(v0,s0)" g, u
  out[i, j] = y
"""
    )


@pytest.mark.parametrize("in_flight", range(4))
def test_products_in_flight(in_flight: int) -> None:
    """Two products a turn; a slot is given back when both products that read it have ended."""
    found = partitioned(parsed(GATED), Rings(4, in_flight))
    kinds = [type(step) for step in found.turn]
    (waited,) = [step for step in found.turn if isinstance(step, Await)]
    assert waited.left == 2 * max(0, in_flight - 1)
    assert all(s.behind == in_flight for s in found.turn if isinstance(s, Consumed))
    assert (kinds.index(Await) < kinds.index(Issue)) == (in_flight > 0)
    assert kinds.count(Get) == kinds.count(Consumed) == 3
    drained = [step for step in found.after if isinstance(step, Consumed)]
    assert [s.behind for s in drained] == [n for n in range(in_flight, 0, -1) for _ in range(3)]


def test_two_products_that_accumulate_in_one() -> None:
    text = GATED.replace("  u = dot(a, c.T, u)", "  g = dot(a, c.T, g)")
    text = text.replace("u = 0.0[i, j]\n", "").replace(";mul(v0,s0)", "").replace("g, u", "g")
    (waited, *_) = [s for s in partitioned(parsed(text), Rings(3, 2)).turn if isinstance(s, Await)]
    assert waited.names == ("g",)
    assert waited.left == 2


def test_groups_have_their_own_rows_and_share_the_columns() -> None:
    made = kernel(GEMM, Rings(3, 1, 2, 2))
    boxes = {a.name: a.box for a in made.arguments if isinstance(a, Descriptor)}
    assert boxes == {"a_desc": (64, 64), "b_desc": (64, 64), "out_desc": (64, 32)}


@pytest.mark.parametrize(
    ("text", "rings", "message"),
    [
        (GEMM, Rings(3, 3), "3 products cannot be in flight with 3 slots"),
        (GEMM, Rings(1, 1), "1 products cannot be in flight with 1 slots"),
        (GEMM, Rings(0, 0), "0 products cannot be in flight with 0 slots"),
        (GEMM, Rings(3, 0, ahead=1), "no product can be issued 1 turns ahead"),
        (GEMM, Rings(3, 1, 3), "128 rows cannot be divided between 3 groups"),
        (GEMM, Rings(3, 1, 0), "128 rows cannot be divided between 0 groups"),
        (GEMM, Rings(3, 1, 1, 3), "64 columns cannot be stored in 3 pieces"),
        (with_blocks(GEMM, 384, 64, 64), Rings(3, 1, 2), "384 rows cannot be divided"),
        (with_blocks(GEMM, 128, 96, 64), Rings(), "no instruction multiplies"),
        (GEMM, Rings(3, 1, 1, 16), "64 columns cannot be stored in 16 pieces"),
        (with_blocks(GEMM, 128, 264, 64), Rings(), "no instruction multiplies"),
        (with_blocks(GEMM, 128, 64, 24), Rings(), "no instruction multiplies"),
        (with_blocks(GEMM, 128, 256, 64), Rings(3, 1, 1), "a thread accumulates 256 numbers"),
        (with_blocks(GEMM, 128, 256, 64), Rings(4, 1, 2), "needs 263,232 bytes of shared memory"),
        (GEMM.replace("tile i: 128 of M, ", "tile "), Rings(), "there is no axis `i`"),
    ],
)  # fmt: skip
def test_refusals_of_rings_and_shapes(text: str, rings: Rings, message: str) -> None:
    with pytest.raises(TileError) as raised:
        partitioned(parsed(text), rings)
    assert message in raised.value.diagnostic.message
    assert raised.value.diagnostic.help


def test_the_most_shared_memory() -> None:
    wide = with_blocks(GEMM, 128, 256, 64)
    found = partitioned(parsed(wide), Rings(4, 1, 2, 4))
    assert found.shared <= SHARED_MEMORY
    with pytest.raises(TileError, match=r"rings: r0: 4 slots of 49,152 bytes"):
        partitioned(parsed(wide), Rings(4, 1, 2, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  acc = dot(a, b.T, acc)", "  acc = dot(a, b.T, acc)\n  c = x[i, k]", "no product reads"),
        ("  a = x[i, k]\n", "  c = x[i, k]\n  a = x[i, k]\n", "no product reads `c`"),
        ("b.T, acc)\n", 'b.T, acc)\n  out[i, j] = acc\n', "the loop stores to `out`"),
        ("b.T, acc)\n", 'b.T, acc)\n  e = sum(a)\n', "`a` is read from a ring by `e = sum(a)`"),
        ("acc = 0.0[i, j]", "acc = 0.0[i, j]\nout[i, j] = acc", "at the wrong side of the loop"),
        ("  acc = dot", "  d = dot", "the product `d` is added to `acc`"),
        ("s = bias[1, j]", "s = bias[1, j]\nz = 1.0[i, j]", "at the wrong side of the loop"),
        ("  acc = dot(a, b.T, acc)\n", "", "no product reads `a`"),
    ],
)  # fmt: skip
def test_refusals_of_statements(old: str, new: str, message: str) -> None:
    assert old in GEMM
    with pytest.raises(TileError) as raised:
        partitioned(parsed(GEMM.replace(old, new)), Rings())
    assert message in raised.value.diagnostic.message
