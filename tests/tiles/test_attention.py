"""Attention with score programs: values, schedules, mutants and builds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import find
from pypm.kernels.attention.programs import ScoreProgram
from pypm.kernels.attention.programs import reference as by_scores
from pypm.rules.attention.layouts import arranged, of_rank_four
from pypm.rules.attention.patterns import Attention
from pypm.rules.attention.scores.program import read_scores
from pypm.tiles.build import built
from pypm.tiles.emit import Emitted, emitted
from pypm.tiles.emulator import Emulation, Fault, emulate
from pypm.tiles.families.attention import AttentionTiles, attention_tiles
from pypm.tiles.families.scores import key_range
from pypm.tiles.partition import SHARED_MEMORY, Rings, partitioned
from pypm.tiles.program import LoopRange, TileAxis, TileError, TileProgram
from pypm.tiles.reading import parsed
from pypm.tiles.reference import execute
from tests.kernels.triton_checks import needs_triton

PROGRAMS = {
    "plain": "score = s; visible = True; hidden rows = none",
    "causal": "score = s; visible = k <= q; hidden rows = none",
    "window": "score = s; visible = (k <= q) & (q - k < 50); hidden rows = none",
    "capped": "score = 5.0 * tanh(s / 5.0); visible = k <= q; hidden rows = none",
    "alibi": "score = s + t0[h] * float(k - q); visible = k <= q; hidden rows = none",
    "documents": "score = s; visible = (t1[b, q] == t1[b, k]) & (k <= q); hidden rows = none",
    "padding": "score = s; visible = t2[b, k]; hidden rows = zero",
    "mean": "score = s; visible = t2[b, k]; hidden rows = mean",
    "added": "score = s + t3[h, q, k]; visible = True; hidden rows = none",
    "scaled": "score = where(t4[b, 0, q], s / 2.0, s); visible = q < k + 70; hidden rows = zero",
}
TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3}
PAIR = Rings(2, 1, 2)
"""Two groups, and products in flight between turns."""
AHEAD = Rings(2, 0, 2, ahead=1)
"""Two groups, and scores a turn ahead."""
Sizes = tuple[int, int, int, int, int]
"""Batches, groups, heads of each, queries and keys."""


def drawn(sizes: Sizes, width: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    """q, k, v, and the tensors that programs read."""
    b, g, r, s, t = sizes
    chance = torch.Generator().manual_seed(seed)
    q = torch.randn(b, s, g * r, width, generator=chance).to(dtype).transpose(1, 2)
    k, v = (torch.randn(b, g, t, width, generator=chance).to(dtype) for _ in "kv")
    slopes = torch.rand(g * r, generator=chance)
    documents = torch.randint(3, (b, max(s, t)), generator=chance).sort(1).values + (1 << 40)
    seen = torch.rand(b, t, generator=chance) > 0.3
    seen[0] = False
    added = torch.randn(g * r, s, t, generator=chance).to(dtype)
    some = torch.rand(b, 1, s, generator=chance) > 0.5
    return [q, k, v, slopes, documents, seen, added, some]


def with_rings(made: AttentionTiles, rings: Rings, keys: int = 64) -> tuple[TileProgram, Emitted]:
    """The kernel for other rings and blocks of keys; each group has 64 queries."""
    program, rows = made.program, 64 * rings.groups
    queries = TileAxis("i", rows, "S")
    visits = program.visits
    if visits is not None and visits.end is not None:
        visits = replace(visits, end=visits.end - 128 + rows)
    program = replace(
        program,
        grid=(queries, *program.grid[1:]),
        loop=TileAxis("t", keys, "T"),
        visits=visits,
    )
    return program, emitted(partitioned(program, rings))


def attended(name: str, sizes: Sizes, rings: Rings) -> tuple[TileProgram, Emitted]:
    q, k, v, *tensors = drawn(sizes, 64, torch.bfloat16, 0)
    made = attention_tiles(ScoreProgram.parse(PROGRAMS[name]), q, k, v, tensors, 0.125)
    return with_rings(made, rings)


def attends(
    name: str, sizes: Sizes, seed: int, rings: Rings = PAIR, *, width: int = 64,
    dtype: torch.dtype = torch.bfloat16, keys: int = 64, changed: tuple[str, str] = ("", ""),
    programs: int = 1,
) -> Emulation:  # fmt: skip
    """Emulate attention, whose result must agree with float64; its text may be changed before."""
    q, k, v, *tensors = drawn(sizes, width, dtype, seed)
    made = attention_tiles(ScoreProgram.parse(PROGRAMS[name]), q, k, v, tensors, 0.125)
    _, kernel = with_rings(made, rings, keys)
    out = torch.full_like(q, torch.nan)
    old, new = changed
    assert old in kernel.text
    found = emulate(
        kernel, made.operands(q, k, v, tensors, out), programs=programs, seed=seed,
        lateness=(0.5, 0.9, 1.0)[seed % 3], text=kernel.text.replace(old, new),
    )  # fmt: skip
    compared(out, exact(name, q, k, v, tensors))
    return found


def exact(name: str, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    wide = [x.double() if x.is_floating_point() else x for x in tensors]
    return by_scores(q.double(), k.double(), v.double(), wide, PROGRAMS[name], 0.125)


def compared(out: Tensor, right: Tensor) -> None:
    assert out.isfinite().all(), "a result is not stored"
    worst = ((out.double() - right).abs() / (1 + right.abs())).max()
    assert worst <= TOLERANCES[out.dtype], f"off by {worst:.3g}"


def random_case(seed: int) -> None:
    chance = random.Random(seed)
    width, keys = chance.choice((64, 128, 80)), chance.choice((32, 64, 128))
    depth, groups = chance.randint(1, 4 if width * keys <= 8192 else 2), chance.randint(1, 2)
    ahead = chance.randint(0, 1)
    in_flight = 0 if ahead else chance.randint(0, depth - 1)
    rings = Rings(depth, in_flight, groups, chance.choice((1, 2)), ahead)
    lengths = [chance.choice((1, 63, 64, 65, chance.randint(1, 160))) for _ in "qk"]
    sizes = (chance.randint(1, 2), chance.randint(1, 2), chance.randint(1, 3), *lengths)
    attends(
        chance.choice([*PROGRAMS]), sizes, seed, rings,
        width=width, keys=keys,
        dtype=chance.choice((torch.bfloat16, torch.float16)), programs=chance.randint(1, 3),
    )  # fmt: skip


@pytest.mark.parametrize("part", range(2))
def test_random_cases(part: int) -> None:
    """Any program, depth, head size and length; turns that the diagonal leaves out; shared keys."""
    for seed in range(part, 30, 2):
        random_case(seed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(1, 11))
def test_many_random_cases(part: int) -> None:
    for seed in range(part * 1_000, part * 1_000 + 300):
        random_case(seed)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_is_the_attention(name: str) -> None:
    q, k, v, *tensors = drawn((2, 2, 3, 70, 130), 64, torch.float16, 0)
    made = attention_tiles(ScoreProgram.parse(PROGRAMS[name]), q, k, v, tensors, 0.125)
    assert parsed(str(made.program)) == made.program
    out = torch.full_like(q, torch.nan)
    execute(made.program, made.operands(q, k, v, tensors, out))
    compared(out, exact(name, q, k, v, tensors))


@pytest.mark.parametrize("name", ["window", "added"])
@pytest.mark.parametrize("width", [16, 200, 256])
def test_the_narrowest_and_the_widest_heads(name: str, width: int) -> None:
    q, k, v, *tensors = drawn((1, 1, 1, 8, 8), width, torch.float16, 0)
    made = attention_tiles(ScoreProgram.parse(PROGRAMS[name]), q, k, v, tensors, 0.125)
    attends(name, (1, 1, 1, 150, 100), 0, made.rings, width=width, dtype=torch.float16)


def test_a_query_that_sees_no_key() -> None:
    """Zeros, also for "none", whatever torch gives; and the mean of all values if that is asked."""
    q, k, v, *tensors = drawn((2, 1, 1, 5, 9), 64, torch.float16, 0)
    for name, expected in (("padding", torch.zeros(64)), ("mean", v[0, 0].float().mean(0))):
        out = torch.full_like(q, torch.nan)
        made = attention_tiles(ScoreProgram.parse(PROGRAMS[name]), q, k, v, tensors, 0.125)
        emulate(with_rings(made, Rings(2, 1, 2))[1], made.operands(q, k, v, tensors, out))
        torch.testing.assert_close(out[0, 0, 3].float(), expected, rtol=2e-3, atol=2e-3)


def test_a_score_that_is_not_a_number_is_its_rows_alone() -> None:
    q, k, v, *tensors = drawn((1, 1, 1, 70, 70), 64, torch.bfloat16, 0)
    q[0, 0, 3] = torch.nan
    made = attention_tiles(ScoreProgram.parse(PROGRAMS["causal"]), q, k, v, tensors, 0.125)
    out = torch.full_like(q, torch.nan)
    emulate(with_rings(made, Rings(2, 1, 2))[1], made.operands(q, k, v, tensors, out))
    assert out[0, 0].isnan().any(-1).nonzero().flatten().tolist() == [3]


def test_scores_a_turn_ahead() -> None:
    program, _ = attended("causal", (1, 1, 1, 8, 8), AHEAD)
    steps = [type(step).__name__ for step in partitioned(program, AHEAD).turn]
    assert [name for name in steps if name != "Perform"] == [
        "Get", "Issue", "Get", "Issue", "Await", "Consumed", "Await", "Consumed",
    ]  # fmt: skip
    assert "get r1, 1 turn ahead\n    issue s" in str(partitioned(program, AHEAD))
    for rings in (replace(AHEAD, in_flight=1), replace(AHEAD, ahead=2)):
        with pytest.raises(TileError, match="no product can be issued"):
            partitioned(program, rings)
    read = str(program).replace("vs, o)\n", 'vs, o)\n  z = map "neg(acc)" o\n')
    with pytest.raises(TileError, match="no product can be issued"):
        partitioned(parsed(read), AHEAD)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("k <= q", LoopRange("i", None, 128)),
        ("k < q", LoopRange("i", None, 127)),
        ("q + 3 >= k", LoopRange("i", None, 131)),
        ("q > k - 5", LoopRange("i", None, 132)),
        ("(k <= q) & (q - k < 50)", LoopRange("i", -49, 128)),
        ("(k <= q) & (k >= q - 50) & (k <= q + 9)", LoopRange("i", -50, 128)),
        ("k == q + 2", LoopRange("i", 2, 130)),
        ("(k <= q) | (k < 4)", None),
        ("k + q < 9", None),
        ("k + k < q", None),
        ("k < 10", None),
        ("k * 2 <= q", None),
        ("not_(k <= q)", None),
        ("True", None),
    ],
)  # fmt: skip
def test_keys_that_a_tile_of_queries_may_see(visible: str, expected: LoopRange | None) -> None:
    program = ScoreProgram.parse(f"score = s; visible = {visible}; hidden rows = none")
    found = key_range(program.visible, "i", 128)
    assert found == expected
    if found is not None:  # no block outside of it has a visible key
        q, k = torch.arange(300)[:, None], torch.arange(200)
        seen = eval(visible, {"q": q, "k": k})
        for start in range(0, 300, 128):
            rows = seen[start : start + 128]
            kept = {*found.turns(start, 32, 200)}
            assert {n for n in range(7) if rows[:, n * 32 : n * 32 + 32].any()} <= kept


@pytest.mark.parametrize(
    ("score", "reason"),
    [("s % 2.0", "the scores apply `%`"), ("t0[k - q]", "at computed indices"),
     ("t1[b, q] * 2.0 + s", "has integers, which are only compared")],
)  # fmt: skip
def test_scores_without_a_tile_program(score: str, reason: str) -> None:
    q, k, v, *tensors = drawn((1, 1, 1, 8, 8), 64, torch.float16, 0)
    program = ScoreProgram.parse(f"score = {score}; visible = True; hidden rows = none")
    with pytest.raises(TileError, match=reason):
        attention_tiles(program, q, k, v, tensors, 1.0)
    plain = ScoreProgram.parse(PROGRAMS["plain"])
    with pytest.raises(TileError, match=r"the operands are torch\.float32"):
        attention_tiles(plain, q.float(), k, v, tensors, 1.0)
    with pytest.raises(TileError, match="other shapes"):
        attention_tiles(plain, q, k[..., :4], v, tensors, 1.0)


# --- regions -------------------------------------------------------------------------------------


def windowed(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    scores = torch.tanh(q @ k.mT * 0.02) * 5.0
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    hidden = (j > i) | (i - j > 40)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    far = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    scores = q @ k.mT * 0.125 + x[0, : q.shape[1], None, None] * far
    return scores.masked_fill(far > 0, -torch.inf).softmax(-1) @ v


def of_documents(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    same = (x > 0)[:, :, None] == (x > 0)[:, None]
    return (q @ k.mT * 0.125).masked_fill(~same[:, None], -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [windowed, biased, of_documents])
def test_the_kernel_of_a_match_gives_its_result(
    function: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    chance = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 3, 90, 64, generator=chance).to(dtype) for _ in "qkv"]
    given.append(torch.randn(2, 90, generator=chance).to(dtype))
    module = make_fx(function)(*given)
    (match, *_) = find(module, Attention)
    reading, bound = read_scores(match), match.bindings
    values: dict[object, Tensor] = {}

    class Recorded(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            values[n] = found = super().run_node(n)
            return found

    Recorded(module).run(*given)
    q, k, v = (values[x] for x in (bound["scores"].q, bound["scores"].k, bound["v"]))
    q, k, v, _ = arranged(q, k, v, bound["scores"].layout, bound["lv"])
    q, k, v = (of_rank_four(x, q, reading.value.sizes[:2]) for x in (q, k, v))
    tensors = [values[x] for x in reading.nodes]
    made = attention_tiles(reading.value.program, q, k, v, tensors, reading.value.scale)
    out = torch.full_like(q, torch.nan)
    kernel = emitted(partitioned(made.program, made.rings))
    emulate(kernel, made.operands(q, k, v, tensors, out))
    compared(out, function(*(x.double() for x in given)))


# --- mutants -------------------------------------------------------------------------------------

ONE = "mbarrier.init(r0_empty.index(n), count=1)"
WAIT = "s, o = warpgroup_mma_wait(0, deps=(s_next, o_next,))"
LAST = "        o = warpgroup_mma_wait(0, deps=(o_next,))\n"
CONSUMER = "\n\n@gluon.jit\ndef consumer"
VALUES = "mbarrier.arrive(r2_empty.index((turn + 1) % 2), count=1, pred=step >= 1)"
KEYS = "t = (first_turn + step) * 64\n            mbarrier.wait(r1_empty"

MUTANTS = {
    "queries over those in use": ("r0_empty.index(0), (round & 1) ^ 1)", "r0_empty.index(0), 1)"),
    "queries are not awaited": ("mbarrier.wait(r0_full.index(0), (round & 1))", "pass"),
    "queries are given back by one group": (ONE.replace("1)", "2)"), ONE),
    "queries are never given back": ("mbarrier.arrive(r0_empty.index(0), count=1)", "pass"),
    "tiles are not counted": (f"        round += 1\n{CONSUMER}", CONSUMER),
    "values are given back with the keys": (
        VALUES, "mbarrier.arrive(r2_empty.index(slot), count=1)"),
    "keys are given back while they are read": (
        WAIT, f"mbarrier.arrive(r1_empty.index(slot), count=1); {WAIT}"),
    "values are not awaited": ("mbarrier.wait(r2_full.index(slot), phase)", "pass"),
    "scores are read before they are there": (WAIT, WAIT.replace("0", "1")),
    "scores are added": ("layout_t), use_acc=False", "layout_t) + across(0, 64, layout_t)"),
    "the last values are not awaited": (LAST, "        o = o_next\n"),
    "the last values are not given back": ("pred=turns >= 1", "pred=False"),
    "no rescaling of the sum": ("l = map_l(l, f, u)", "l = map_l(l, f * 0.0 + 1.0, u)"),
    "no rescaling of the values": ("o = map_o(o, ", "o = map_o(o, 1.0 + 0.0 * "),
    "the largest score is not carried": ("            m = g\n", "            pass\n"),
    "the sum is the largest": ("gl.sum(p, 1)", "gl.reduce(p, 1, larger)"),
    "the largest is the sum": ("gl.reduce(w, 1, larger)", "gl.sum(w, 1)"),
    "the diagonal is left out": ("gl.maximum(i + 128, 0)", "gl.maximum(i, 0)"),
    "groups end at their own diagonal": (
        "+= group * 64\n", "+= group * 64\n        turns = gl.cdiv(i + 64, 64)\n"),
    "keys of the next turn": (KEYS, KEYS.replace("+ step", "+ step + 1")),
    "heads of the same keys are one": ("r = tiles_left % R", "r = 0"),
    "the wrong number of heads": ("tiles_left = tiles_left // R", "tiles_left = tiles_left // G"),
    "the other group's queries": ("qs_ring.index(0 * 2 + group)", "qs_ring.index(1 - group)"),
}  # fmt: skip


SCORES = "s = warpgroup_mma_wait(1, deps=(s_next,))\n"
GIVEN = "mbarrier.arrive(r1_empty.index(slot_next), count=1)\n"
NEXT = "mbarrier.wait(r1_full.index(slot_next), phase_next)"
INDENT = " " * 16
DONE = "o = warpgroup_mma_wait(0, deps=(o_next,))\n"
VALUE = "mbarrier.arrive(r2_empty.index(slot), count=1)\n"
LATE = "turn // 2 & 1\n            t = (first_turn + (turns - 1))"
END = "            turn += 1\n        mbarrier"
OF_SCORES_AHEAD = {
    "the last turn is another one": ("range(turns - 1)", "range(turns)"),
    "the last turn begins elsewhere": (LATE, LATE.replace("- 1", "- 2")),
    "the first turn without a loop": ("if turns > 0:", "if True:"),
    "the next keys are not awaited": (NEXT, "pass"),
    "the phase of this turn": (NEXT, NEXT.replace("phase_next", "phase")),
    "the keys of this turn": ("ks_ring.index(slot_next)", "ks_ring.index(slot)"),
    "the next scores are not awaited": (SCORES, SCORES.replace("1", "2")),
    "the next scores are these": (SCORES, SCORES.replace("s =", "s_done =")),
    # the keys of the next turn may be given back so early: values are copied before their slot is
    "values are given back before": (f"{DONE}{INDENT}{VALUE}", f"{VALUE}{INDENT}{DONE}"),
    "the keys of this turn are given back": (GIVEN, GIVEN.replace("slot_next", "slot")),
    "the last turn is not counted": (END, END.replace("turn += 1", "pass")),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SCORES_AHEAD)
def test_mutants_of_scores_ahead_are_found(name: str) -> None:
    for seed in range(3):
        with pytest.raises((Fault, AssertionError)) as raised:
            attends("window", (1, 1, 1, 400, 250), seed, AHEAD, changed=OF_SCORES_AHEAD[name])
        assert "in kernel.text" not in str(raised.value)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    """Each by every one of three seeds, which run jobs early, late and as late as possible."""
    for seed in range(3):
        with pytest.raises((Fault, AssertionError)) as raised:
            attends("causal", (1, 1, 2, 330, 330), seed, changed=MUTANTS[name])
        assert "in kernel.text" not in str(raised.value)


# --- builds --------------------------------------------------------------------------------------


def check_build(name: str, width: int, dtype: torch.dtype) -> None:
    q, k, v, *tensors = drawn((1, 1, 1, 8, 8), width, dtype, 0)
    made = attention_tiles(ScoreProgram.parse(PROGRAMS[name]), q, k, v, tensors, 0.125)
    kernel = emitted(partitioned(made.program, made.rings))
    found = built(kernel)
    run = attends(name, (1, 1, 1, 70, 70), 0, made.rings, width=width, dtype=dtype)
    assert found.digest == run.digest
    assert ".target sm_90a" in found.ptx
    assert found.spilled == 0
    assert not found.is_serialized
    assert found.shared <= kernel.source.shared <= SHARED_MEMORY


@needs_triton
@pytest.mark.parametrize(
    ("name", "width", "dtype"), [("documents", 64, torch.bfloat16), ("alibi", 128, torch.float16)]
)
def test_built_for_hopper(name: str, width: int, dtype: torch.dtype) -> None:
    check_build(name, width, dtype)


@needs_triton
@pytest.mark.soak
def test_products_that_do_not_fit_are_known_to_be_serialized() -> None:
    assert "; serialized" in str(built(attended("causal", (1, 1, 1, 8, 8), PAIR)[1]))
