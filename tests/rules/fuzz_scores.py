"""Random scores of attention, by blocks and in eager: `python -m tests.rules.fuzz_scores N [SEED]`.

A case is attention whose scores are scaled, capped, biased and hidden by random expressions over
places and data. Its graph is rewritten by `attention_by_blocks`, and once more by `sdpa`, and
compared with itself; the operator is its reference, and in one of `COMPILED` cases FlexAttention.
The blocks of the program are compared with all of their elements. In some cases rows of the queries
are very large; there, rows are compared in which one score that is seen is higher than all that is
filled in.
"""

from __future__ import annotations

import copy
import math
import operator
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import monotonic, time_ns
from typing import Final
from unittest import mock

import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.rules import Rule
from pypm.fx import INDUCTOR, Report, every, rewrite
from pypm.kernels.attention.blocks import EMPTY, FULL, PARTIAL, decide
from pypm.kernels.attention.expressions import evaluate
from pypm.kernels.attention.programs import ScoreProgram
from pypm.rules.attention import block_sparse, sdpa
from tests.rules.test_block_attention import AsReference

COMPILED: Final = 1000
BATCH: Final = 100
TOLERANCE: Final = 5e-5
DENSE: Final = 3e-3
"""Eager rounds scores to which numbers up to -1e3 are added; the kernel leaves such numbers out."""
LOWS: Final = (-math.inf, torch.finfo(torch.float32).min, -1e30, -1e9, -1e6, -1e4)
HIDING: Final = -1e6
"""From here downwards, a number that is filled in or added hides a key."""
SIZES: Final = (1e5, 1e9, 1e20, 1e30, 1e35)
ONE_HOT: Final = 200.0
"""If the scores of a row are so far apart, the best one has all the weight."""
INTEGERS: Final = (torch.int64, torch.int64, torch.int32, torch.uint8, torch.int8)
COMPARISONS: Final = (
    *(operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.eq, operator.ne),
)
JOINED: Final[Sequence[Callable[[Tensor, Tensor], Tensor]]] = (
    *(operator.and_, torch.logical_and, operator.xor),
    lambda one, other: one | ~other,
    lambda one, other: torch.where(other, one, one & other),
    lambda one, other: torch.where(other, one, True),
)
ARITHMETIC: Final = (operator.add, operator.sub, operator.mul, torch.minimum, torch.maximum)


@dataclass
class Sizes:
    """Sizes of the scores, and of the vectors that hold more than they read."""

    batch: int
    heads: int
    rows: int
    keys: int
    longest: int = field(init=False)

    def __post_init__(self) -> None:
        self.longest = max(self.rows, self.keys) + 3


class Scores:
    """Steps on scores that a random generator draws, as a function of tensors."""

    def __init__(self, draw: Random, sizes: Sizes) -> None:
        self.draw, self.sizes = draw, sizes
        self.low = draw.choice(LOWS)
        self.documents = draw.choice(INTEGERS)
        self.data: tuple[Tensor, ...] = ()
        self.places: tuple[Tensor, ...] = ()
        self.large: list[int] = []
        """Rows of very large queries."""
        self.seen_by: list[Tensor] = []
        """What masks let through that fill in, or add, a number that hides keys."""
        self.adds = False
        """True if such numbers are added."""
        self.last = torch.empty(0)
        """The scores of which a softmax is taken."""

    def inputs(self) -> list[Tensor]:
        of, made = self.sizes, torch.Generator().manual_seed(self.draw.randrange(2**31))
        normal = partial(torch.randn, generator=made)
        return [
            normal(of.batch, of.heads, of.rows, 4),
            normal(of.batch, of.heads, of.keys, 4),
            normal(of.batch, of.heads, of.keys, 4),
            torch.randint(0, 3, (of.batch, of.longest), generator=made).to(self.documents),
            torch.rand(of.batch, of.longest, generator=made) < 0.7,
            torch.randint(1, 5, (of.heads,), generator=made),
            normal(of.heads, of.rows, of.keys),
            normal(2 * of.longest + 1),
        ]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *data: Tensor) -> Tensor:
        self.data, self.places = data, self.made_places()
        x = q @ k.transpose(-2, -1)
        if self.draw.random() < 0.7:
            x = x * 0.5
        for _ in range(self.draw.choice([1, 1, 2, 2, 3, 4])):
            x = self.draw.choice(self.steps())(x)
        self.last = x
        return torch.softmax(x, -1) @ v

    def hiding(self, *, data: bool = True, adds: bool = False) -> Tensor:
        """Return where a mask is that hides keys by `low`."""
        found = self.seen(data=data)
        if self.low <= HIDING:
            self.seen_by.append(found)
            self.adds |= adds
        return found

    def known(self, args: Sequence[Tensor], state: object) -> Tensor:
        """Return the rows of which values are known: all, but for some of large queries.

        `state` is that of the generator before the graph was made.
        """
        self.draw.setstate(state)  # type: ignore[arg-type]
        self.seen_by, self.adds = [], False
        self.attend(*args[:3], *args[3:])
        x, of = self.last, self.sizes
        seen = torch.ones_like(x, dtype=torch.bool)
        for each in self.seen_by:
            seen = seen & each
        top = torch.cat(
            [x.masked_fill(~seen, -math.inf), torch.full_like(x[..., :1], -math.inf)], -1
        )
        best, second = top.topk(2).values.unbind(-1)
        hidden = x.masked_fill(seen, -math.inf).amax(-1)
        gap = best - torch.maximum(hidden, second)
        is_clear = (gap > ONE_HOT) & (gap > 1e-4 * best.abs()) & (best < math.inf)
        is_covered = ~seen.any(-1) & (not self.adds)
        large = torch.zeros(of.rows, dtype=torch.bool).index_fill(
            0, torch.tensor(self.large).long(), True
        )
        return ~large | is_clear | is_covered

    def steps(self) -> list[Callable[[Tensor], Tensor]]:
        draw, low = self.draw, self.low
        return [
            lambda x: x.masked_fill(~self.hiding(), low),
            lambda x: x.masked_fill(self.hiding().logical_not(), low),
            lambda x: torch.where(self.hiding(), x, low),
            lambda x: x + torch.where(self.hiding(adds=True), 0.0, low),
            lambda x: (
                x
                + torch.zeros(x.shape[-2:]).masked_fill(
                    ~self.hiding(data=False, adds=True)[0, 0], low
                )
            ),
            lambda x: x + (1.0 - self.hiding(adds=True).float()) * low if math.isfinite(low) else x,
            lambda x: torch.tanh(x / 3.0) * draw.choice([3.0, 3.0, -2.0]),
            lambda x: x * draw.choice([0.5, 2.0, -1.0]) / draw.choice([1.0, 4.0]),
            lambda x: x + self.bias(),
            lambda x: x - self.bias(),
            lambda x: x + draw.choice([3.0, -1e3]),
        ]

    def bias(self) -> Tensor:
        draw, (documents, padding, widths, table, distances) = self.draw, self.data
        of, (b, h, q, k) = self.sizes, self.places
        slopes = torch.pow(2.0, -(h + 1).float())
        return draw.choice(
            [
                lambda: slopes * (k - q),
                lambda: slopes * k,
                lambda: 0.1 * self.index(data=False).float(),
                lambda: table[None],
                lambda: table[:, :1, :][None] * 0.5,
                lambda: distances[(k - q).clamp(-of.longest, of.longest)[0, 0] + of.longest],
                lambda: torch.where(self.seen(), table, 0.0),
                lambda: documents[:, None, None, : of.keys] * 0.1,
                lambda: -padding[:, None, None, : of.keys].float(),
                lambda: widths[:, None, None] * 0.25,
            ]
        )()

    def made_places(self) -> tuple[Tensor, ...]:
        """Return indices of batch, head, query and key, which broadcast together."""
        of, draw = self.sizes, self.draw
        dtype = draw.choice([torch.int64, torch.int64, torch.int32])
        b, h = torch.arange(of.batch), torch.arange(of.heads)
        past = draw.choice([0, 0, of.keys - of.rows, 2])
        q = draw.choice(
            [
                lambda: torch.arange(of.rows, dtype=dtype) + past,
                lambda: torch.arange(of.longest, dtype=dtype)[1 : of.rows + 1],
                lambda: torch.arange(0, 2 * of.rows, 2),
            ]
        )()
        k = torch.arange(of.keys, dtype=dtype)
        if draw.random() < 0.3:
            k = k.reshape(-1, 1).squeeze(-1) + 0
        return b[:, None, None, None], h[:, None, None], q[:, None][None, None], k[None, None, None]

    def index(self, *, data: bool = True, depth: int = 2) -> Tensor:
        draw, (b, h, q, k) = self.draw, self.places
        documents, _, widths, *_ = self.data
        of = self.sizes
        if depth == 0 or draw.random() < 0.3:
            leaves = [q, k, q, k, h, q - k]
            if data:
                leaves += [
                    documents[:, None, : of.rows, None],
                    documents[:, None, None, : of.keys],
                    widths[:, None, None],
                    b,
                ]
            return draw.choice(leaves)
        inner = self.index(data=data, depth=depth - 1)
        return draw.choice(
            [
                lambda: draw.choice(ARITHMETIC)(inner, self.index(data=data, depth=depth - 1)),
                lambda: inner // draw.choice([2, 3]),
                lambda: torch.div(inner, 2, rounding_mode="floor"),
                lambda: inner % draw.choice([2, 3]),
                inner.abs,
                lambda: inner.clamp(min=draw.choice([-1, 0, 2]), max=5),
                lambda: inner + draw.choice([-3, -1, 2, 7]),
                lambda: inner * draw.choice([-1, 2]),
                lambda: -inner,
                lambda: inner.to(draw.choice([torch.int64, torch.int32, torch.float32])).long(),
            ]
        )()

    def seen(self, *, data: bool = True) -> Tensor:
        """Truth values [1 or B, 1 or H, S or 1, T or 1], or with fewer dimensions in front."""
        draw, of = self.draw, self.sizes
        _, _, q, k = self.places
        documents, padding, widths, table, _ = self.data
        choices: list[Callable[[], Tensor]] = [
            lambda: k <= q,
            lambda: (q - k).abs() < draw.choice([1, 2, 4]),
            lambda: (k <= q) & (q - k < draw.choice([2, 3])),
            lambda: q // 3 == k // 3,
            lambda: (k < draw.choice([0, 1, 4])) | (k <= q),
            lambda: torch.ones(of.rows, of.keys, dtype=torch.bool).tril(draw.choice([-1, 0, 2])),
            lambda: torch.ones(of.rows, of.keys).triu(draw.choice([-2, 0, 1])) == 0,
            lambda: draw.choice(COMPARISONS)(
                self.index(data=data), draw.choice([0, 1, self.index(data=data)])
            ),
        ]
        if data:
            choices += [
                lambda: documents[:, None, : of.rows, None] == documents[:, None, None, : of.keys],
                lambda: padding[:, None, None, : of.keys],
                lambda: padding[:, 1 : of.keys + 1][:, None, None] != 0,
                lambda: q - k < widths[:, None, None],
                lambda: table[None] > 0.25,
            ]
        found = draw.choice(choices)()
        while draw.random() < 0.4:
            other = draw.choice(choices)()
            found = draw.choice(JOINED)(found, other)
        while found.dim() < 4:
            found = found[None]
        ways: list[Callable[[], Tensor]] = [
            lambda: found,
            found.contiguous,
            lambda: found.expand(of.batch, of.heads, of.rows, of.keys),
            lambda: found.transpose(-2, -1).contiguous().mT,
            lambda: found.flatten(-2).unflatten(-1, found.shape[-2:]),
            lambda: found.long() > 0,
        ]
        return draw.choice(ways)()


@dataclass
class Case:
    """A random graph of attention."""

    gm: fx.GraphModule
    args: list[Tensor]
    known: Tensor
    """The rows of which values are known."""
    is_low: bool
    """True if the graph is decomposed."""

    def rewritten(self, rule: Rule) -> tuple[fx.GraphModule, Report]:
        """Return the graph that a rule makes, and its report."""
        gm = copy.deepcopy(self.gm)
        with mock.patch.multiple(block_sparse, FEWEST=0, FEW_SCORES=0, MOST=1.0):
            return gm, rewrite(gm, rule, dialect=INDUCTOR if self.is_low else None, choose=every)


def case_of(seed: int) -> Case:
    draw, sizes = Random(seed), Random(-seed)
    rows, keys = draw.choice([(5, 5), (4, 7), (1, 6), (3, 3), (7, 2), (6, 1), (1, 1), (9, 12)])
    if seed % COMPILED == 0:
        rows, keys = draw.choice([(70, 70), (130, 80), (65, 200)])
    scores = Scores(draw, Sizes(draw.choice([1, 2]), draw.choice([1, 2, 3]), rows, keys))
    args, is_low = scores.inputs(), draw.random() < 0.5
    if sizes.random() < 0.4:
        scores.large = [row for row in range(rows) if sizes.random() < 0.5]
        args[0][..., scores.large, :] *= sizes.choice(SIZES)
    table = select_decomp_table() if is_low else None
    state = draw.getstate()
    gm = make_fx(scores.attend, table, tracing_mode="fake", pre_dispatch=not is_low)(*args)
    return Case(gm, args, scores.known(args, state), is_low)


def check(seed: int) -> str:
    """Rewrite a random graph and compare it with itself; return "a program" or the reason for none.

    Raises AssertionError if a value or a block is wrong.
    """
    case = case_of(seed)
    expected = case.gm(*case.args)
    check_dense(case, expected, seed)
    gm, report = case.rewritten(block_sparse.attention_by_blocks)
    if not len(report):
        reasons = [r.reason for r in report.refusals if r.kind == "declined"]
        return reasons[0] if reasons else "no match"
    (call,) = (n for n in gm.graph.nodes if "block_sparse_attention" in str(n.target))
    q, k = (n.meta["val"] for n in call.args[:2])
    run = Seeing(gm)
    found = run.run(*case.args)
    program = ScoreProgram.parse(call.args[4])
    check_values(found, expected, case.known, program, seed)
    check_blocks(program, (*q.shape[:3], k.shape[2]), run.tensors, Random(seed))
    if seed % COMPILED == 0:
        check_values(gm(*case.args), expected, case.known, program, seed)
        return "a program, compiled"
    return "a program"


def check_dense(case: Case, expected: Tensor, seed: int) -> None:
    """Compare a graph with what `sdpa` makes of it; a row that is NaN in eager may be 0."""
    gm, report = case.rewritten(sdpa)
    if len(report):
        rows = case.known.expand(expected.shape[:-1])
        torch.testing.assert_close(
            gm(*case.args)[rows].nan_to_num(),
            expected[rows].nan_to_num(),
            atol=DENSE,
            rtol=DENSE,
            msg=lambda text: f"seed {seed}, by sdpa: {text}",
        )


class Seeing(AsReference):
    """Runs a graph with the operator's reference, and keeps the tensors that its program reads."""

    tensors: Sequence[Tensor] = ()

    def call_function(self, target: object, args: object, kwargs: object) -> object:
        if "block_sparse_attention" in str(target) and isinstance(args, tuple):
            self.tensors = args[3]
        return super().call_function(target, args, kwargs)


def check_values(
    found: Tensor, expected: Tensor, known: Tensor, program: ScoreProgram, seed: int
) -> None:
    """Raise AssertionError unless known values agree; a row that is NaN by -inf is 0."""
    rows = known.expand(expected.shape[:-1])
    found, expected = found[rows], expected[rows]
    hidden = expected.isnan()
    if program.hidden == "zero":
        assert bool((found[hidden] == 0).all()), f"seed {seed}: a hidden row is not 0; {program}"
        found, expected = found[~hidden], expected[~hidden]
    torch.testing.assert_close(
        found,
        expected,
        atol=TOLERANCE,
        rtol=TOLERANCE,
        check_stride=False,
        msg=lambda text: f"seed {seed}: {text}\n{program}",
    )


def check_blocks(
    program: ScoreProgram,
    sizes: tuple[int, int, int, int],
    tensors: Sequence[Tensor],
    draw: Random,
) -> None:
    """Compare the blocks of a program with all of their elements."""
    block = draw.choice([(2, 2), (1, 3), (4, 2), (64, 64)])
    places = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    seen = evaluate(program.visible, dict(zip("bhqk", places, strict=True)), tensors)
    seen = torch.as_tensor(seen).bool().expand(sizes)
    blocks = decide(program.visible, sizes, block, tensors)
    kinds = blocks.kinds.expand(*sizes[:2], *blocks.kinds.shape[2:])
    for i in range(kinds.shape[2]):
        for j in range(kinds.shape[3]):
            rows, columns = (
                slice(n * step, (n + 1) * step) for n, step in zip((i, j), block, strict=True)
            )
            part = seen[..., rows, columns].flatten(2)
            wanted = torch.where(part.all(-1), FULL, torch.where(part.any(-1), PARTIAL, EMPTY))
            assert torch.equal(kinds[..., i, j].long(), wanted), (str(program), block, i, j)
    hidden = ~seen.any(-1, keepdim=True)
    none = torch.zeros((), dtype=torch.bool)
    found = (none if blocks.hidden is None else blocks.hidden).expand_as(hidden)
    assert torch.equal(found, hidden), f"{program}: hidden rows"
    assert program.hidden != "none" or not bool(hidden.any()), f"{program}: a hidden row"


def batch(seed: int, count: int) -> tuple[Counter[str], list[str]]:
    """Check cases in turn; return how many there were of each kind, and what was wrong."""
    torch.set_num_threads(1)
    counted, wrong = Counter[str](), []
    for each in range(seed, seed + count):
        try:
            counted[check(each)] += 1
        except Exception as error:  # to go on, and name the seed
            wrong.append(f"seed {each}: {type(error).__name__}: {error}")
    return counted, wrong


def main(cases: int = 20_000, seed: int | None = None) -> int:
    seed = time_ns() % 10**9 if seed is None else seed
    print(f"{cases:,} score programs, seed {seed}", flush=True)
    began = shown = monotonic()
    counted, wrong = Counter[str](), list[str]()
    starts = range(seed, seed + cases, BATCH)
    sizes = [min(BATCH, seed + cases - start) for start in starts]
    with ProcessPoolExecutor(int(os.environ.get("WORKERS", os.cpu_count() or 1))) as pool:
        for some, broken in pool.map(batch, starts, sizes):
            counted += some
            wrong += broken
            for line in broken:
                print(line, flush=True)
            if monotonic() - shown > 60:
                shown = monotonic()
                print(
                    f"{counted.total():,} cases, {counted.total() / (shown - began):.1f}/s",
                    flush=True,
                )
    for reason, count in counted.most_common():
        print(f"  {count:,}: {reason}")
    print(f"{len(wrong)} of {cases:,} wrong, {monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
