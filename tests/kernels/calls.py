"""Random calls of each operator of `torch.ops.pypm`, with the values that they owe."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from pypm.events import operator as steps
from pypm.events.program import printed
from pypm.kernels import (
    grouped_linear,
    gru,
    linear,
    linear_attention,
    lstm,
    quantized_norm,
    recurrence,
    rnn,
    rotary,
    row_linear,
    scan,
    wkv,
)
from pypm.kernels.attention import block_sparse, decoding, programs
from pypm.kernels.attention import reference as dense_attention
from pypm.kernels.paged import operator as paged
from pypm.kernels.support.registration import declaration
from pypm.tiles import operator as tiles
from pypm.torch_internals import OPDEFS
from tests.events.steps import made as made_step

__all__ = ["CALLS", "SMALL", "TOLERANCES", "Call", "Draw", "declared_operators", "exact", "table"]

TOLERANCES: Final = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 0.1}
SMALL: Final = 2**15
"""Elements up to which a kernel in C++ computes in one thread, as in `operators.h`."""
SIZES: Final = (1, 2, 3, 4, 5, 7)
Arguments = tuple[Any, ...]


def declared_operators() -> set[str]:
    """Return the names of all operators that the kernels define."""
    return {name.removeprefix("pypm::") for name in OPDEFS if name.startswith("pypm::")}


@dataclass
class Draw:
    """Random sizes and numbers; a size is 0 as often as `empty` says."""

    seed: str
    empty: float = 0.0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.generator = torch.Generator().manual_seed(self.random.randrange(2**32))

    def sizes(self, count: int) -> list[int]:
        chosen = self.random.choices(SIZES, k=count)
        return [0 if self.random.random() < self.empty else n for n in chosen]

    def normal(self, *shape: int) -> Tensor:
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return x.to(self.dtype)

    def factors(self, *shape: int) -> Tensor:
        return self.normal(*shape).sigmoid()

    def ids(self, count: int, most: int) -> Tensor:
        return torch.randint(-most, most, (count,), generator=self.generator)

    def maybe(self, x: Any) -> Any:
        return x if self.random.random() < 0.6 else None


@dataclass(frozen=True)
class Call:
    """How an operator is called, and the function that computes the same in any type."""

    operator: Callable[..., Any]
    arguments: Callable[[Draw], Arguments]
    reference: Callable[..., Any]
    compiles: bool = False
    """True if each new shape and layout is compiled, for seconds."""


def exact(call: Call, arguments: Arguments) -> Any:
    """Return the values that a call owes, computed in float64."""
    return call.reference(
        *tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, arguments)
    )


def _recurrence(at: Draw) -> Arguments:
    steps, *rows = at.sizes(at.random.randint(1, 4))
    a, b = at.factors(steps, *rows), at.normal(steps, *rows)
    return a, b, at.normal(*rows), at.random.random() < 0.5


def _scan(at: Draw) -> Arguments:
    steps, batch, rows, n = at.sizes(4)
    a, b = at.factors(steps, batch, rows, n), at.normal(steps, batch, rows, n)
    return a, b, at.normal(steps, batch, n), at.normal(batch, rows, n)


def _wkv(at: Draw) -> Arguments:
    batch, steps, channels = at.sizes(3)
    keys, values = at.normal(batch, steps, channels), at.normal(batch, steps, channels)
    states = at.normal(batch, channels), at.factors(batch, channels), at.normal(batch, channels)
    return -at.factors(channels), at.normal(channels), keys, values, *states


def _wkv_backward(at: Draw) -> Arguments:
    given = _wkv(at)
    return *given, *(at.normal(*x.shape) for x in (given[2], *given[4:]))


def _linear_attention(at: Draw) -> Arguments:
    steps, rows, n, m = at.sizes(4)
    keyed, valued = (steps, rows, n), (steps, rows, m)
    removed = at.maybe(at.normal(*keyed))
    rates = None if removed is None else at.maybe(at.factors(*valued))
    queries, state = at.maybe(at.normal(*keyed)), at.normal(rows, n, m)
    return at.factors(*keyed), at.normal(*keyed), at.normal(*valued), queries, removed, rates, state


def _linear_attention_backward(at: Draw) -> Arguments:
    given = _linear_attention(at)
    (steps, rows, m), queries, state = given[2].shape, given[3], given[-1]
    arriving = at.normal(0 if queries is None else steps, rows, m)
    return (*given, arriving, at.normal(*state.shape))


def _cell(gates: int, biases: int, states: int) -> Callable[[Draw], Arguments]:
    def drawn(at: Draw) -> Arguments:
        steps, batch, size, hidden = (max(1, n) for n in at.sizes(4))  # torch has no empty layers
        weights = at.normal(gates * hidden, size), at.normal(gates * hidden, hidden)
        others = [at.normal(gates * hidden) for _ in range(biases)]
        return (
            at.normal(steps, batch, size),
            *weights,
            *others,
            *(at.normal(batch, hidden) for _ in range(states)),
        )

    return drawn


def _cell_backward(drawn: Callable[[Draw], Arguments], cells: int) -> Callable[[Draw], Arguments]:
    def arguments(at: Draw) -> Arguments:
        given = drawn(at)
        states = (given[0].shape[0], *given[-1].shape)
        last = [at.normal(*given[-1].shape) for _ in range(cells)]
        return *given, at.normal(*states), at.normal(*states), *last

    return arguments


def _plain(at: Draw) -> Arguments:
    steps, batch, hidden = at.sizes(3)
    return (
        at.normal(steps, batch, hidden),
        at.normal(hidden, hidden),
        at.normal(batch, hidden),
        at.random.choice([False, True]),
    )


def _plain_backward(at: Draw) -> Arguments:
    x, u, h, relu = _plain(at)
    return u, h, x, at.normal(*x.shape), relu


def _rotary(at: Draw) -> Arguments:
    *outer, half = at.sizes(at.random.randint(1, 4))
    shape = (*outer, 2 * half + at.random.choice([0, 0, 3]))
    angles = [at.random.choice([n, 1]) for n in outer[at.random.randint(0, len(outer)) :]]
    xs = [at.normal(*shape) for _ in range(at.random.randint(1, 2))]
    cos, sin = at.normal(*angles, 2 * half), at.normal(*angles, 2 * half)
    return xs, cos, sin, at.random.random() < 0.5


def _rows(at: Draw) -> tuple[list[int], int]:
    *outer, columns = at.sizes(at.random.randint(1, 3))
    return outer, columns


def _quantized_norm(at: Draw) -> Arguments:
    outer, columns = _rows(at)
    columns = max(1, columns)
    x, y = at.normal(*outer, columns), at.normal(*outer, columns)
    return x, y, at.maybe(at.normal(columns)), 0.1, 127.0, 1e-5, -128.0, 127.0


TILES: Final = """\
x: bf16[M, K]
w: bf16[K, N]
s: fp32[M, 1]
m: i1[1, N]
out: fp32[M, N]
tile i: 64 of M, j: 16 of N
acc = 0.0[i, j]
for k: 16 of K
  a = x[i, k]
  b = w[k, j]
  acc = dot(a, b, acc)
p = s[i, 1]
q = m[1, j]
y = map "add(acc,s0);where(m1,v0,-1.0)" acc, p, q
out[i, j] = y
"""


def _tiles(at: Draw) -> Arguments:
    m, n, k = at.sizes(3)
    given = [at.normal(m, k), at.normal(k, n), at.normal(m, 1), at.normal(1, n) > 0]
    return given, TILES, [2, 1, 1, 1]


def _experts(at: Draw) -> Arguments:
    rows, size, out, matrices = at.sizes(4)
    matrices = max(1, matrices)
    return at.normal(rows, size), at.normal(matrices, size, out), at.ids(rows, matrices)


def _experts_outer(at: Draw) -> Arguments:
    rows, size, out, matrices = at.sizes(4)
    matrices = max(1, matrices)
    return at.normal(rows, size), at.normal(rows, out), at.ids(rows, matrices), matrices


def _outer(x: Tensor, y: Tensor, ids: Tensor, count: int) -> Tensor:
    sums = x.new_zeros(count, x.shape[1], y.shape[1])
    for i in range(max(len(x), len(y), len(ids))):
        sums[ids[i]] += x[i, :, None] * y[i]
    return sums


def _linear(at: Draw) -> Arguments:
    n, size, out = at.sizes(3)
    other = at.maybe(at.normal(n, out))
    activation = "none" if other is not None else at.random.choice(list(linear.ONEDNN))
    return at.normal(n, size), at.normal(out, size), at.maybe(at.normal(out)), other, activation


def _row_linear(at: Draw) -> Arguments:
    outer, size = _rows(at)
    out = at.random.choice([0, 3, 16, 21])
    size *= at.random.choice([1, 33])
    return at.normal(*outer, size), at.normal(out, size), at.maybe(at.normal(out))


def _widened(at: Draw) -> Arguments:
    outer, size = _rows(at)
    (out,) = at.sizes(1)
    bias = at.maybe(at.normal(at.random.choice([1, out])))
    return at.normal(*outer, size), at.normal(out, size), bias, at.random.random() < 0.5


def _step(at: Draw) -> Arguments:
    step = made_step(at.random.random() < 0.5, layers=1)
    x, tensors = step.operands(at.random.randint(1, 5), at.random.randrange(99), at.dtype)
    return x, tensors, printed(step.step)


def _cache(at: Draw) -> Arguments:
    batch, groups, share, queries, keys = at.sizes(5)
    size, width = (max(1, n) for n in at.sizes(2))
    heads, groups = max(1, groups) * share, max(1, groups)
    sizes = [at.random.choice([1, n]) for n in (batch, heads, queries)]
    mask = at.maybe(at.normal(*sizes, keys))
    q, k = at.normal(batch, heads, queries, size), at.normal(batch, groups, keys, size)
    return q, k, at.normal(batch, groups, keys, width), mask, 0.5, False


def _cache_reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, rounds: bool
) -> Tensor:
    if not k.shape[2]:
        return q.new_zeros(*q.shape[:3], v.shape[3])
    return dense_attention(q, k, v, mask, scale=scale)


def _block_sparse(at: Draw) -> Arguments:
    q, k = at.normal(1, 2, 70, 16), at.normal(1, 1, 70, 16)
    program = "score = s + t0[h]; visible = k <= q; hidden rows = none"
    return q, k, at.normal(1, 1, 70, 16), [at.normal(2)], program, 0.25


def _plan(at: Draw) -> Arguments:
    sequences, columns = (max(1, n) for n in at.sizes(2))
    table = torch.randint(0, 6, (sequences, columns), generator=at.generator)
    lengths = torch.randint(0, 2 * columns + 1, (sequences,), generator=at.generator)
    return table, lengths, 6, 2


def _pages(at: Draw) -> Arguments:
    table, lengths, pages, page_size = _plan(at)
    tensors = paged.plan(table, lengths, pages=pages, page_size=page_size, workers=1).tensors()
    q = at.normal(len(table), 4, 8)
    return q, at.normal(pages, 2, 2, 8), at.normal(pages, 2, 2, 4), *tensors, 0.5


CALLS: Final[Mapping[str, Call]] = {
    "linear_recurrence": Call(
        recurrence.linear_recurrence,
        _recurrence,
        recurrence.reference,
    ),
    "scan": Call(scan.scan, _scan, scan.reference),
    "wkv": Call(wkv.wkv, _wkv, wkv.reference),
    "wkv_backward": Call(wkv.wkv_backward, _wkv_backward, wkv.backward_compute),
    "linear_attention": Call(
        linear_attention.linear_attention, _linear_attention, linear_attention.reference
    ),
    "linear_attention_backward": Call(
        linear_attention.linear_attention_backward,
        _linear_attention_backward,
        linear_attention.backward_compute,
    ),
    "gru": Call(gru.gru, _cell(3, 2, 1), gru.reference),
    "gru_backward": Call(
        gru.gru_backward, _cell_backward(_cell(3, 2, 1), 0), gru.backward_compute
    ),
    "rnn": Call(rnn.rnn, _plain, rnn.reference),
    "rnn_backward": Call(rnn.rnn_backward, _plain_backward, rnn.backward_compute),
    "lstm": Call(lstm.lstm, _cell(4, 1, 2), lstm.compute),
    "lstm_backward": Call(
        lstm.lstm_backward, _cell_backward(_cell(4, 1, 2), 1), lstm.backward_compute
    ),
    "rotary": Call(rotary.rotary, _rotary, rotary.reference),
    "quantized_norm": Call(
        quantized_norm.quantized_norm, _quantized_norm, quantized_norm.reference
    ),
    "grouped_linear": Call(grouped_linear.grouped_linear, _experts, grouped_linear.reference),
    "grouped_outer": Call(grouped_linear.grouped_outer, _experts_outer, _outer),
    "linear_pointwise": Call(linear.linear_pointwise, _linear, linear.reference),
    "row_linear": Call(row_linear.row_linear, _row_linear, row_linear.reference),
    "linear_in_float32": Call(linear.linear_in_float32, _widened, linear.widened),
    "attention_over_cache": Call(decoding.attention_over_cache, _cache, _cache_reference),
    "block_sparse_attention": Call(
        block_sparse.block_sparse_attention, _block_sparse, programs.reference, compiles=True
    ),
    "tile_kernel": Call(tiles.tile_kernel, _tiles, tiles.reference),
    "paged_attention": Call(paged.attend, _pages, paged.reference),
    "paged_plan": Call(paged.planned, _plan, paged.plan_of_table),
    "decoder_step": Call(steps.decoder_step, _step, steps.reference),
}  # fmt: skip
"""A call of every operator, by its name; a new operator needs one."""


def table() -> str:
    """Return the operators with their declarations, as docs/kernels.md lists them."""
    lines = ["| operator | operands |", "| --- | --- |"]
    for name in sorted(CALLS):
        texts = declaration(CALLS[name].operator).texts
        shown = [
            f"`{argument}: {', '.join(text) if isinstance(text, tuple) else text}`"
            for argument, text in texts.items()
        ]
        cell = ", ".join(shown).replace("|", "\\|")
        lines.append(f"| `{name}` | {cell} |")
    return "\n".join(lines)
