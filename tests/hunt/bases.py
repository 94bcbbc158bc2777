"""Graphs that a rule is meant for: samples of its pattern, and functions written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.rules import Rule
from pypm.tools.verification.sampling.sketches import Unsampled
from pypm.tools.verification.trial import Checks, Spec, Trial
from tests.fx.small_rules import TIDY
from tests.hunt.rules import EXACT_RULES, OWN, OWN_EXAMPLES
from tests.rules import test_quantization
from tests.rules.random_graphs import NAMES, Program, inputs
from tests.rules.shipped import SHIPPED

__all__ = ["BITWISE", "RULES", "STEPS", "base_of"]

RULES: Final[dict[str, Rule]] = {**SHIPPED, **{rule.name: rule for rule in TIDY}, **OWN}
"""Every shipped rule, those that tidy up, and the hunt's own."""
BITWISE: Final = frozenset(rule.name for rule in TIDY) | EXACT_RULES
"""Rules that keep every bit."""

Function: TypeAlias = Callable[..., Any]
Example: TypeAlias = tuple[Function, Sequence[Tensor]]


SIZE: Final = ContextVar[int | None]("SIZE", default=None)
"""The size of every small dimension, where what belongs to another dimension is to fit as well."""


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    size = SIZE.get()
    sizes = [n if size is None or n == 1 or n > 8 else size for n in shape]
    return torch.randn(*sizes, dtype=torch.float64).to(dtype)


# --- functions by hand --------------------------------------------------------------------------


def turned(draw: Random, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first = half + draw.choice([0, 0, 0, 1, -1])
    ways: list[Callable[[], Sequence[Tensor]]] = [
        lambda: x.chunk(2, -1),
        lambda: x.split(half, -1),
        lambda: torch.split(x, [first, x.shape[-1] - first], -1),
        lambda: (x[..., :half], x[..., half:]),
        lambda: (x.narrow(-1, 0, half), x.narrow(-1, half, half)),
        lambda: x.unflatten(-1, (2, half)).unbind(-2),
    ]
    if draw.random() < 0.2:
        (a, b), c, s = x.unflatten(-1, (half, 2)).unbind(-1), cos[..., ::2], sin[..., ::2]
        y = draw.choice([torch.empty_like, torch.zeros_like])(x)
        places = draw.choice([(0, 1), (0, 1), (1, 0), (1, 1)])
        y[..., places[0] :: 2] = a * c - b * s
        y[..., places[1] :: 2] = a * s + b * c
        return y
    if draw.random() < 0.25:
        pairs = x.unflatten(-1, (half, 2))
        a, b = draw.choice([(pairs[..., 0], pairs[..., 1]), pairs.unbind(-1)])
        return x * cos + torch.stack((-b, a), -1).flatten(-2) * sin
    a, b = draw.choice(ways)()[:2]
    return x * cos + torch.cat((-b, a), -1) * sin


def rotary_of_both(draw: Random) -> Example:
    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
        state = draw.getstate()
        first = turned(draw, q, cos, sin)
        draw.setstate(state)
        return [first, turned(draw, k, cos, sin)]

    return function, (normal(2, 3, 4, 8), normal(2, 1, 4, 8), normal(4, 8), normal(4, 8))


def attention(draw: Random) -> Example:
    scale, low = (
        draw.choice([0.5, 0.3, 2.0]),
        draw.choice([-math.inf, -math.inf, -1e9, -1e9, -1e5, -3e38, -1e30, 0.0]),
    )
    offset = draw.choice([0.0, 0.0, 0.0, 0.0, 0.0, -1e5, 1e4, 3.0])
    kind, dtype = (
        draw.choice([*range(8), 5, 5]),
        draw.choice([torch.int64, torch.int32, torch.uint8, torch.uint8]),
    )
    counts, subtracts = draw.random() < 0.5, draw.random() < 0.5
    n = draw.choice([3, 4, 4, 300])
    first = int(math.isfinite(low) and draw.random() < 0.7)  # so many rows see no key

    adds = draw.choice([None, None, None, 0, 1])

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bits: Tensor) -> Tensor:
        if adds is None:
            s = q @ k.transpose(-2, -1)
        else:  # flat in batch and heads
            x, y = (each.flatten(0, 1) for each in (q, k))
            s = torch.baddbmm(mask.expand(len(x), n, n), x, y.mT, beta=adds, alpha=scale)
            s = s.unflatten(0, q.shape[:2])
        s = s + offset if offset else s
        s = s * scale if kind % 2 else s / scale
        if kind in {1, 2, 7}:
            s = s + mask
        if kind in {3, 4, 7}:
            s = s.masked_fill(bits | (torch.arange(n)[:, None] < first), low)
        elif kind == 5:
            places = torch.arange(n, dtype=dtype) if counts else torch.arange(n).to(dtype)
            i, j = places[:, None], places[None]
            if subtracts:  # of types without signs, the difference wraps
                s = s.masked_fill(j - i >= 1, low)
            else:
                s = torch.where(j + first <= i, s, low)
        elif kind == 6:
            s = s.masked_fill(bits, low)
            s = s - s if counts else s + s
        return F.softmax(s, -1) @ v

    bits = torch.rand(n, n) < 0.3
    heads = 1 if n > 4 else 2
    return function, (*(normal(1, heads, n, 4) for _ in range(3)), normal(n, n), bits)


def grouped(draw: Random, masked: bool = True) -> Example:
    """Attention whose heads share keys in groups, or have their own and see all."""
    groups, scale = draw.choice([1, 2, 4]), draw.choice([0.5, 0.3, 2.0, -0.5])
    kind = draw.randrange(3) if masked and groups < 4 else 0

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bits: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(4 // groups, 1) if groups < 4 else x for x in (k, v))
        s = q @ k.transpose(-2, -1) * scale
        s = (s, s + mask, s.masked_fill(bits, -1e9))[kind]
        return F.softmax(s, -1) @ v

    shapes = (2, 4, 3, 8), (2, groups, 5, 8), (2, groups, 5, 8), draw.choice([(3, 5), (2, 1, 3, 5)])
    return function, (*(normal(*shape) for shape in shapes), torch.rand(3, 5) < 0.3)


def with_sinks(draw: Random) -> Example:
    """Attention in which a score of no key takes a part of the weights, spelled in some way."""
    groups, is_first = draw.choice([1, 2, 4]), draw.random() < 0.3
    kind, is_lowered = draw.randrange(3), draw.random() < 0.5

    def function(
        q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, mask: Tensor, bits: Tensor
    ) -> Tensor:
        k, v = (x.repeat_interleave(4 // groups, 1) if groups < 4 else x for x in (k, v))
        s = q @ k.transpose(-2, -1) * 0.5
        s = (s, s + mask, s.masked_fill(bits, -1e9))[kind]
        parts = [s, sinks.reshape(1, -1, 1, 1).expand(2, -1, 3, -1)]
        x = torch.cat(parts[::-1] if is_first else parts, -1)
        x = x - x.amax(-1, keepdim=True) if is_lowered else x
        w = torch.softmax(x, -1)
        return (w[..., 1:] if is_first else w[..., :-1]) @ v

    shapes = (2, 4, 3, 8), (2, groups, 5, 8), (2, groups, 5, 8), (4,), (3, 5)
    return function, (*(normal(*shape) for shape in shapes), torch.rand(3, 5) < 0.3)


COUNTED: Final = (torch.float64, torch.int64, torch.uint8)
"""Types of what is subtracted from scores."""


def scored(draw: Random, *, called: bool = False) -> Example:
    """Attention whose scores are changed and hidden by what their places are, and by vectors."""
    rows, keys = draw.choice([(5, 5), (4, 7), (1, 6), (3, 3)])
    low = draw.choice([-1e9, torch.finfo(torch.float32).min, -1e30, -1e4, -50.0])
    state = draw.getstate()

    def function(x: Tensor, y: Tensor, z: Tensor, d: Tensor, p: Tensor) -> Tensor:
        draw.setstate(state)
        q, k = torch.arange(rows)[:, None], torch.arange(keys)[None]
        h = torch.arange(2)[:, None, None]
        conditions: list[Callable[[], Tensor]] = [
            lambda: k <= q + draw.choice([-1, 0, 0, keys - rows]),
            lambda: (q - k).abs() < draw.choice([1, 2, 3]),
            lambda: q - k < 2,
            lambda: (q - k) % 2 == 0,
            lambda: torch.div(q, 2, rounding_mode="floor") == k // 2,
            lambda: k < draw.choice([0, 2, 9]),
            lambda: q - k < h + 1,
            lambda: d[:, None, :rows, None] == d[:, None, None, :keys],
            lambda: p[:, None, None, :keys],
            lambda: torch.ones(rows, keys, dtype=torch.bool).tril(draw.choice([-1, 0, 1])),
        ]

        def seen() -> Tensor:
            found = draw.choice(conditions)()
            while draw.random() < 0.5:
                other = draw.choice(conditions)()
                found = found & other if draw.random() < 0.7 else found | ~other
            return found

        steps: list[Callable[[Tensor], Tensor]] = [
            lambda s: s.masked_fill(~seen(), low),
            lambda s: torch.where(seen(), s, low),
            lambda s: s + torch.where(seen(), 0.0, low),
            lambda s: s + torch.zeros(rows, keys).masked_fill(k > q, low),
            lambda s: torch.tanh(s / 2.0) * draw.choice([2.0, 2.0, -3.0]),
            lambda s: s + torch.pow(2.0, -h.double()) * (k - q),
            lambda s: s * draw.choice([0.5, 2.0, -1.0]),
            lambda s: s - d[:, None, None, :keys].to(draw.choice(COUNTED)),
        ]
        if called:
            mask = seen()
            given = mask if draw.random() < 0.5 else torch.where(mask, 0.0, low).double()
            return F.scaled_dot_product_attention(x, y, z, given)
        s = x @ y.transpose(-2, -1)
        for _ in range(draw.choice([1, 2, 2, 3])):
            s = draw.choice(steps)(s)
        return torch.softmax(s, -1) @ z

    sizes = (2, 2, rows, 4), (2, 2, keys, 4), (2, 2, keys, 4)
    vectors = torch.randint(0, 3, (2, 9)), torch.rand(2, 9) < 0.7
    return function, (*(normal(*size) for size in sizes), *vectors)


def differential(draw: Random, *, stacked: bool = False) -> Example:
    """The weights of one softmax less a share of those of another, which may be a part of it."""
    way, kind = draw.randrange(3), draw.choice([0, 1, 2, 5])
    share = draw.choice([(1,), (2, 1, 1), (2, 2, 4, 1), (1, 4, 1), (4, 1), (4, 5)])
    width, low = draw.choice([4, 8, 6]), draw.choice([-math.inf, -1e9])
    other, is_summed = draw.choice([0.5, 0.3, -2.0]), draw.random() < 0.1

    def weights(q: Tensor, k: Tensor, scale: float, mask: Tensor, bits: Tensor) -> Tensor:
        s = q @ k.transpose(-2, -1) * scale
        if kind:
            s = s + mask if kind == 1 else s.masked_fill(bits[: kind - 1], low)
        return F.softmax(s, -1)

    def function(
        q: Tensor, k: Tensor, v: Tensor, share: Tensor, mask: Tensor, bits: Tensor
    ) -> Tensor:
        if not stacked:
            (q, r), (k, m) = q.chunk(2, 1), k.chunk(2, 1)
            a, b = weights(q, k, 0.5, mask, bits), weights(r, m, other, mask, bits)
        elif way == 0:
            a, b = weights(q, k, 0.5, mask, bits).chunk(2, 1)
        else:
            w = weights(q, k, 0.5, mask, bits)
            a, b = w.unflatten(1, (2, 2)).unbind(way)
        return (a + share * b if is_summed else a - b * share) @ v

    shapes = (2, 4, 4, 8), (2, 4, 5, 8), (2, 2, 5, width), share, (4, 5)
    return function, (*(normal(*shape) for shape in shapes), torch.rand(4, 5) < 0.3)


def of_two_widths(draw: Random, *, called: bool = False) -> Example:
    """Attention whose values are narrower or wider than its keys, or neither."""
    kind, scale = draw.randrange(4), draw.choice([0.5, 2.0, -0.5])
    keys, values = draw.choice([(8, 4), (8, 4), (4, 6), (4, 4), (3, 1)])
    low = draw.choice([-math.inf, -1e9])

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bits: Tensor) -> Tensor:
        if called:
            given = (None, None, mask, bits)[kind]
            return F.scaled_dot_product_attention(q, k, v, given, is_causal=kind == 1, scale=scale)
        s = q @ k.transpose(-2, -1) * scale
        if kind:
            bits = torch.ones_like(bits).triu(1) if kind == 1 else bits
            s = s + mask if kind == 2 else s.masked_fill(bits, low)
        return F.softmax(s, -1) @ v

    shapes = (2, 2, 4, keys), (2, 2, 5, keys), (2, 2, 5, values), (4, 5)
    return function, (*(normal(*shape) for shape in shapes), torch.rand(4, 5) < 0.4)


def called(draw: Random, masked: bool = True) -> Example:
    """A call of the fused kernel, which ends the process for some samples without elements."""
    kind, scale = draw.randrange(4) if masked else 0, draw.choice([None, 0.5, 2.0])

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bits: Tensor) -> Tensor:
        given = (None, None, mask, bits)[kind]
        return F.scaled_dot_product_attention(q, k, v, given, is_causal=kind == 1, scale=scale)

    keys = draw.choice([3, 4, 9])
    shapes = (
        (2, 3, 4, 8),
        (2, 3, keys, 8),
        (2, 3, keys, 8),
        draw.choice([(4, keys), (2, 1, 4, keys)]),
    )
    return function, (*(normal(*shape) for shape in shapes), torch.rand(4, keys) < 0.7)


def program(draw: Random) -> Example:
    seed = draw.randrange(10**9)
    return Program(seed), inputs(seed)


def epilogue(draw: Random, *, batched: bool = False, residuals: float = 0.4) -> Example:
    last = draw.choice([F.gelu, F.relu, F.silu, torch.tanh])
    residual = draw.random() < residuals

    def function(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        z = torch.bmm(x, y) if batched else F.linear(x, w)
        if residual:
            return z + x
        return last(z) * 2

    dtype = torch.bfloat16
    shapes = (3, 8, 16), (16, 16), (3, 16, 16)
    return function, [normal(*shape, dtype=dtype) for shape in shapes]


def linear(draw: Random, *, gated: bool = False) -> Example:
    last = draw.choice([F.gelu, F.relu, F.silu, torch.tanh])
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.bfloat16])

    def function(x: Tensor, w: Tensor, b: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return last(F.linear(x, w, b)) * (F.linear(x, v) if gated else y) + 1

    shapes = (3, 16), (16, 16), (16,), (3, 16), (16, 16)
    return function, [normal(*shape, dtype=dtype) for shape in shapes]


def trained(draw: Random, wanted: Sequence[int]) -> Example:
    """Attention and its gradients by the inputs of these numbers."""
    function, args = attention(draw)

    def both(arriving: Tensor, *args: Tensor) -> list[Tensor]:
        given = [x.detach().requires_grad_() if i in wanted else x for i, x in enumerate(args)]
        with torch.enable_grad():
            result = function(*given)
        return [result, *torch.autograd.grad(result, [given[i] for i in wanted], arriving)]

    return both, (normal(*args[0].shape), *args)


STEPS: Final = 5
"""Of recurrences; with all that pay, one graph would take as long as ten others."""


def unrolled(draw: Random, *, last: bool = False) -> Example:
    """A linear recurrence, step by step; `last` returns the last state alone."""
    if draw.random() < 0.4:
        return matrices(draw, last=last)
    steps = STEPS + draw.choice([0, 0, 1])
    way, order = draw.randrange(4), draw.random() < 0.5
    is_read, is_joined, kept = draw.random() < 0.3, draw.random() < 0.3, draw.random() < 0.3
    is_row, is_sum, is_product = (draw.random() < share for share in (0.5, 0.2, 0.2))
    batch, is_older = draw.choice([2, 2, steps]), draw.random() < 0.2

    def items(x: Tensor) -> Sequence[Tensor]:
        if kept:
            return [x[:, t : t + 1] for t in range(steps)] if way % 2 else x.split(1, 1)
        return x.unbind(1) if way % 2 else [x[:, t] for t in range(steps)]

    def function(a: Tensor, b: Tensor, c: Tensor, d: Tensor, h: Tensor) -> Any:
        h, results = h[:, None] if kept else h, []
        c = c[..., :3] if is_row else c
        for t, (x, y, z) in enumerate(zip(items(a), items(b), items(c), strict=True)):
            x = (a[0, 0], 0.5, x, x)[way]
            y, before = y * d[t] if is_product else y, h
            h = h + y if is_sum else x * h + y if order else y + h * x
            seen = before if is_older else h
            if is_read and is_row:
                results.append(torch.matmul(z.unsqueeze(-2), seen).squeeze(-2))
            elif is_read:
                results.append(torch.matmul(seen, z.unsqueeze(-1)).squeeze(-1))
            else:
                results.append(seen[:, None] if is_joined else seen)
        if last:
            return h
        gathered = torch.cat(results, 1) if is_joined or kept else torch.stack(results, way % 2)
        return [gathered, h] if way > 1 else gathered

    states = (batch, steps, 3, 4)
    of_all_rows = draw.choice([(steps, 3, 4), (steps, 4)])
    shapes = states, states, (batch, steps, 4), of_all_rows, (batch, 3, 4)
    return function, tuple(normal(*shape) for shape in shapes)


def matrices(draw: Random, *, last: bool = False) -> Example:
    """Linear attention, perhaps by the delta rule, step by step, over states [keys, values], mostly
    with a batch.
    """
    steps = STEPS + draw.choice([0, 0, 1])
    is_delta, returns_last, has_rate = (draw.random() < 0.5 for _ in range(3))
    way = draw.choice(["stack", "cat", "written"])
    fading, reading, adding = (draw.randrange(n) for n in (5, 4, 3))
    batch = draw.choice([(2,), (2,), (steps,), ()])
    dim = len(batch)
    letter = "b" * dim
    moment = draw.choice(["after", "after", "before", "boosted"])

    def read(x: Tensor, s: Tensor) -> Tensor:
        match reading:
            case 0:
                return (s * x[..., None]).sum(-2)
            case 1:
                return (x.unsqueeze(-2) @ s).squeeze(-2) if dim else x @ s
            case 2:
                turned = s.transpose(-1, -2)
                return (turned @ x.unsqueeze(-1))[..., 0] if dim else turned @ x
            case _:
                return torch.einsum(f"{letter}i,{letter}ij->{letter}j", x, s)

    def outer(k: Tensor, v: Tensor) -> Tensor:
        match adding:
            case 0:
                return k.unsqueeze(-1) * v.unsqueeze(-2)
            case 1:
                return k.unsqueeze(-1) @ v.unsqueeze(-2) if dim else torch.outer(k, v)
            case _:
                return torch.einsum(f"{letter}i,{letter}j->{letter}ij", k, v)

    def faded(a: Tensor, s: Tensor, t: int) -> Tensor:
        match fading:
            case 0:
                return s
            case 1:
                return 0.5 * s
            case 2:
                return s * a[..., 0].select(dim, t)[..., None, None]
            case 3:
                return a.select(dim, t).unsqueeze(-1) * s
            case _:
                return a.select(dim, t).exp().unsqueeze(-1) * s

    def function(a: Tensor, k: Tensor, v: Tensor, q: Tensor, r: Tensor, s: Tensor) -> Any:
        results, filled = [], v.new_zeros(*batch, steps, 4)
        boost = 0.5 if has_rate else a.select(dim, 0)[..., None]
        for t in range(steps):
            before, s = s, faded(a, s, t)
            added = v.select(v.dim() - 2, t)
            if is_delta:
                added = added - read(k.select(dim, t), s)
                added = r.select(dim, t)[..., None] * added if has_rate else added
            product = outer(k.select(dim, t), added)
            s = s + product
            seen = {"after": s, "before": before, "boosted": before + boost * product}[moment]
            result = read(q.select(dim, t), seen)
            results.append(result.unsqueeze(dim) if way == "cat" else result)
            if way == "written":
                filled.select(dim, t).copy_(result)
        if last:
            return s
        match way:
            case "written":
                gathered = filled
            case "cat":
                gathered = torch.cat(results, dim)
            case _:
                gathered = torch.stack(results, dim)
        return [gathered, s] if returns_last else gathered

    keys, values = (*batch, steps, 3), (*(batch if draw.random() < 0.8 else ()), steps, 4)
    shapes = keys, keys, values, keys, (*batch, steps), (*batch, 3, 4)
    return function, tuple(normal(*shape) for shape in shapes)


def cells(draw: Random, *, last: bool = False) -> Example:
    """An LSTM, step by step; `last` returns the last hidden state alone."""
    order, biases = draw.sample(range(4), 4), draw.randrange(3)
    is_layer, is_cat, reads_cell = (draw.random() < 0.5 for _ in range(3))

    def function(x: Tensor, w: Tensor, u: Tensor, b: Tensor, h: Tensor, c: Tensor) -> Any:
        states = []
        for t in range(x.shape[1]):
            if is_layer:
                sums = F.linear(x[:, t], w.t(), b if biases else None) + F.linear(h, u.t())
            else:
                sums = x[:, t] @ w + h @ u
            sums = sums + b if biases == 2 else sums
            i, f, g, o = (sums.chunk(4, 1)[n] for n in order)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h[:, None] if is_cat else h)
        if last:
            return [h, c] if reads_cell else h
        joined = torch.cat(states, 1) if is_cat else torch.stack(states, 1)
        return [joined, c] if reads_cell else joined

    shapes = (2, STEPS, 3), (3, 16), (4, 16), (16,), (2, 4), (2, 4)
    return function, tuple(normal(*shape) for shape in shapes)


def gated_cells(draw: Random, *, last: bool = False) -> Example:
    """A GRU, step by step; `last` returns the last hidden state alone."""
    order, of_states, biases = draw.sample(range(3), 3), draw.sample(range(3), 3), draw.randrange(3)
    is_layer, is_cat, is_apart, reads_state = (draw.random() < 0.5 for _ in range(4))
    way = draw.randrange(3)

    def function(x: Tensor, w: Tensor, u: Tensor, b: Tensor, h: Tensor) -> Any:
        states = []
        for t in range(x.shape[1]):
            if is_apart:
                i = [x[:, t] @ v for v in w.chunk(3, 1)]
            else:
                i = list((F.linear(x[:, t], w.t()) if is_layer else x[:, t] @ w).chunk(3, 1))
            k = F.linear(h, u.t(), b if biases else None).split(4, 1)
            i, k = [i[n] for n in order], [k[n] for n in of_states]
            sums = [i[n] + k[n] + b[:4] if biases == 2 else i[n] + k[n] for n in (0, 1)]
            r, z = (s.sigmoid() for s in sums)
            n = (i[2] + r * k[2]).tanh()
            h = ((1 - z) * n + z * h, z * h + n * (1 - z), n + z * (h - n))[way]
            states.append(h[:, None] if is_cat else h)
        if last:
            return h
        joined = torch.cat(states, 1) if is_cat else torch.stack(states, 1)
        return [joined, h] if reads_state else joined

    shapes = (2, STEPS, 3), (3, 12), (4, 12), (12,), (2, 4)
    return function, tuple(normal(*shape) for shape in shapes)


def plain_cells(draw: Random, *, last: bool = False) -> Example:
    """A plain recurrent layer, step by step; `last` returns the last hidden state alone."""
    form, results = draw.randrange(4), draw.randrange(4)
    is_first, is_relu, is_backwards = (draw.random() < 0.5 for _ in range(3))

    def function(x: Tensor, w: Tensor, u: Tensor, b: Tensor, h: Tensor) -> Any:
        states, order = [], range(x.shape[1])
        sums = F.linear(x, w, b)
        for t in reversed(order) if is_backwards else order:
            if form == 3:
                both = torch.cat([x[:, t], h] if is_first else [h, x[:, t]], 1)
                y = F.linear(both, torch.cat([w, u] if is_first else [u, w], 1), b)
            else:
                product = sums[:, t] if form == 2 else F.linear(x[:, t], w, b if form else None)
                y = product + F.linear(h, u, b) if is_first else F.linear(h, u) + product
            h = y.relu() if is_relu else y.tanh()
            states.append(h)
        if last:
            return h
        if results == 3:
            states = [F.linear(state, w.t()) for state in states]
        joined = torch.stack(states[:: -1 if results == 2 else 1], 1)
        return [joined, h] if results else joined

    shapes = (2, STEPS, 3), (4, 3), (4, 4), (4,), (2, 4)
    return function, tuple(normal(*shape) for shape in shapes)


def averaged(draw: Random, *, last: bool) -> Example:
    """RWKV-4's time mixing, step by step; `last` returns the last states too."""
    is_apart, is_cat, is_written, is_wide, is_first = (draw.random() < 0.5 for _ in range(5))
    batch = draw.choice([2, 2, STEPS])
    of_states = draw.choice([(batch, 4), (batch, 4), (1, 4), (4,)])

    def function(decay: Tensor, boost: Tensor, k: Tensor, v: Tensor, *states: Tensor) -> Any:
        num, den, top = states
        results, written = [], torch.zeros_like(v)
        for t in range(STEPS):
            key, value = k[:, t], v[:, t]
            boosted = key + boost
            most = torch.maximum(top, key + boost if is_apart else boosted)
            old, new = (top - most).exp(), (boosted - most).exp()
            result = (old * num + new * value) / (old * den + new)
            decayed = top + decay
            most = torch.maximum(key, top + decay) if is_apart else torch.maximum(decayed, key)
            old, new = (decayed - most).exp(), (key - most).exp()
            num = new * value + old * num if is_first else old * num + new * value
            den, top = old * den + new, most
            result = result.to(torch.float32) if is_wide else result
            written = torch.select_scatter(written, result.to(v.dtype), 1, t)
            results.append(result.unsqueeze(1) if is_cat else result)
        joined = torch.cat(results, 1) if is_cat else torch.stack(results, 1)
        joined = written if is_written else joined
        return [joined, num, den, top] if last else joined

    shapes = (4,), (4,), (batch, STEPS, 4), (batch, STEPS, 4), *3 * (of_states,)
    args = [normal(*shape) for shape in shapes]
    args[-2] = args[-2].abs()  # sums of weights
    return function, args


def routed(
    draw: Random, *, widths: tuple[int, int] = (5, 7), dtype: torch.dtype = torch.float64
) -> Example:
    """Rows times one of several matrices each, which a gather takes; ids count from either end."""
    experts, rows, chosen = draw.choice([4, 6, 8]), draw.choice([1, 4, 6]), draw.choice([1, 2])
    is_column, is_turned, is_flat = (draw.random() < 0.5 for _ in range(3))
    width, out = widths
    sizes = (out, width) if is_column != is_turned else (width, out)

    def function(x: Tensor, w: Tensor, b: Tensor, ids: Tensor) -> Tensor:
        places = ids.reshape(-1) if is_flat else ids
        x = x[:, None].expand(-1, chosen, -1)
        x = x.reshape(-1, width) if is_flat else x
        matrices = w[places].transpose(-2, -1) if is_turned else w[places]
        if is_column:
            y = (matrices @ x.unsqueeze(-1)).squeeze(-1)
        else:
            y = (x.unsqueeze(-2) @ matrices).squeeze(-2)
        return (y + b[places]).relu()

    kind = draw.choice([torch.int64, torch.int32])
    ids = torch.randint(-experts, experts, (rows, chosen), dtype=kind)
    shapes = (rows, width), (experts, *sizes), (experts, out)
    return function, (*(normal(*shape, dtype=dtype) for shape in shapes), ids)


def in_groups(draw: Random) -> Example:
    """Torch's product in groups, of rows that are sorted by what they belong to."""
    is_turned, rows = draw.random() < 0.5, draw.choice([1, 6, 40])

    def function(x: Tensor, w: Tensor, ids: Tensor) -> Tensor:
        counts = (ids[:, None] % 3 == torch.arange(3)).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        return torch._grouped_mm(x, w.transpose(1, 2) if is_turned else w, ends) * 2

    sizes = (24, 16) if is_turned else (16, 24)
    given = [normal(*shape, dtype=torch.bfloat16) for shape in ((rows, 16), (3, *sizes))]
    return function, (*given, torch.randint(3, (rows,)))


def attention_in_tiles(draw: Random, *, called: bool = False) -> Example:
    """Attention in bfloat16 whose scores are hidden, capped or added to; keys may be shared.

    Values are not negative: eager rounds weights, and sums that cancel would show nothing else.
    """
    kind, groups, rows = draw.randrange(6), draw.choice([1, 2, 4]), draw.choice([6, 6, 4])
    low, scale = draw.choice([-math.inf, -1e9]), draw.choice([0.25, 0.5])

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bits: Tensor) -> Tensor:
        v = v.abs()
        if called:
            given = (None, None, mask, bits)[kind % 4]
            return F.scaled_dot_product_attention(
                q, k, v, given, is_causal=kind == 1, scale=scale, enable_gqa=groups < 4
            )
        k, v = (x.repeat_interleave(4 // groups, 1) if groups < 4 else x for x in (k, v))
        i, j = torch.arange(rows)[:, None], torch.arange(6)
        s = q @ k.transpose(-2, -1) * scale
        if kind == 1:
            s = torch.where(j <= i, s, low)
        elif kind == 2:
            s = s + mask
        elif kind == 3:
            s = s.masked_fill(bits, low)
        elif kind == 4:
            s = torch.tanh(s / 2.0) * 2.0
        elif kind == 5:
            s = torch.where((i - j).abs() < 3, s + mask, low)
        return F.softmax(s, -1) @ v

    shapes = (2, 4, rows, 16), (2, groups, 6, 16), (2, groups, 6, 16), (rows, 6)
    bits = torch.rand(rows, 6) < 0.3
    return function, (*(normal(*shape, dtype=torch.bfloat16) for shape in shapes), bits)


def rows_in_tiles(draw: Random, *, sums: bool, steps: bool) -> Example:
    """A norm of a sum, or an activation with a gate or without, maybe quantized by row."""
    is_centered, is_fp8, is_gated = (draw.random() < 0.5 for _ in range(3))
    last = draw.choice([F.gelu, F.silu])

    def function(x: Tensor, y: Tensor, w: Tensor) -> list[Tensor]:
        z = x + y
        n = F.layer_norm(z, (32,), w, w) if is_centered else F.rms_norm(z, (32,), w, 1e-6)
        if not sums:
            n = last(x) * y if is_gated else last(x)
        if not steps:
            return [n, z]
        top, kind = (448.0, torch.float8_e4m3fn) if is_fp8 else (127.0, torch.int8)
        s = n.float().abs().amax(-1, keepdim=True).clamp(min=1e-4) / top
        q = n.float() / s
        q = q if is_fp8 else q.round()
        return [q.clamp(-top, top).to(kind).float() * s, z]

    shapes = (3, 4, 32), (3, 4, 32), (32,)
    return function, [normal(*shape, dtype=torch.bfloat16) for shape in shapes]


def quantized_by_rows(draw: Random) -> Example:
    return draw.choice(test_quantization.ALL), test_quantization.inputs()


EXAMPLES: Final[dict[str, Callable[[Random], Example]]] = {
    "rotary_of_both": rotary_of_both,
    "add_rms_norm_quantized": quantized_by_rows,
    "grouped_experts": routed,
    "product_in_float32": epilogue,
    "linear_residual": partial(epilogue, residuals=1.0),
    "batched_product_in_float32": partial(epilogue, batched=True),
    "linear_of_few_rows": linear,
    "product_and_epilogue": linear,
    "gated_products": partial(linear, gated=True),
    "attention": partial(trained, wanted=(0, 1, 2)),
    "attention_of_fixed_queries": partial(trained, wanted=(1, 2)),
    "attention_by_fixed_weights": partial(trained, wanted=(2,)),
    "loop": unrolled,
    "last_state": partial(unrolled, last=True),
    "averages_and_states": partial(averaged, last=True),
    "averages": partial(averaged, last=False),
    "lstm_layer": cells,
    "last_of_lstm": partial(cells, last=True),
    "gru_layer": gated_cells,
    "last_of_gru": partial(gated_cells, last=True),
    "rnn_layer": plain_cells,
    "last_of_rnn": partial(plain_cells, last=True),
    "attention_by_products": grouped,
    "called_attention_by_products": called,
    "decoding": grouped,
    "decoding_without_mask": partial(grouped, masked=False),
    "called_decoding": called,
    "called_decoding_without_mask": partial(called, masked=False),
    "sdpa_with_sinks": with_sinks,
    "sdpa_of_two_widths": of_two_widths,
    "differential_attention": differential,
    "stacked_differential_attention": partial(differential, stacked=True),
    "called_sdpa_of_two_widths": partial(of_two_widths, called=True),
    "attention_by_blocks": scored,
    "called_attention_by_blocks": partial(scored, called=True),
    "tiled_attention": attention_in_tiles,
    "called_tiled_attention": partial(attention_in_tiles, called=True),
    "tiled_norm": partial(rows_in_tiles, sums=True, steps=False),
    "tiled_norm_in_steps": partial(rows_in_tiles, sums=True, steps=True),
    "tiled_activation_in_steps": partial(rows_in_tiles, sums=False, steps=True),
    "tiled_experts": partial(routed, widths=(16, 24), dtype=torch.bfloat16),
    "called_tiled_experts": in_groups,
    **OWN_EXAMPLES,
}
"""By the rule they are meant for; attention has them besides its samples."""


# --- graphs -------------------------------------------------------------------------------------

BASES: Final = 40
"""Graphs that are made for each rule, and then mutated in ever other ways."""
BASES_BY_HAND: Final = 120
"""The same of functions written by hand, which choose among more forms."""
_MADE: Final[dict[tuple[str, int], fx.GraphModule]] = {}
_TRIALS: Final[dict[str, Trial]] = {}


def base_of(name: str, draw: Random) -> fx.GraphModule:
    """A graph that the rule matches, mostly."""
    number = draw.randrange(BASES_BY_HAND if name in EXAMPLES else BASES)
    found = _MADE.get((name, number))
    if found is None:
        found = _MADE[name, number] = _made(name, Random(f"{number} of {name}"))
    return found


def _made(name: str, draw: Random) -> fx.GraphModule:
    torch.manual_seed(draw.randrange(2**31))
    if name == "sdpa":
        example = draw.choice([attention, attention, program])(draw)
        return _traced(*example, functions=draw.random() < 0.3)
    if name in EXAMPLES:
        if draw.random() < 0.15:
            with suppress(IndexError, RuntimeError, ValueError):  # it needs other sizes
                return copy_context().run(_of_one_size, name, draw)
        return _traced(*EXAMPLES[name](draw), functions=False)
    while True:
        found = _sampled(name, draw)
        if found is not None:
            return found


def _of_one_size(name: str, draw: Random) -> fx.GraphModule:
    SIZE.set(draw.choice([2, 4, STEPS]))
    return _traced(*EXAMPLES[name](draw), functions=False)


def _sampled(name: str, draw: Random) -> fx.GraphModule | None:
    trial = _TRIALS.get(name)
    if trial is None:
        trial = _TRIALS[name] = Trial(RULES[name], Checks())
    try:
        return trial.sample(Spec.drawn(draw))[0]
    except Unsampled:
        return None


def _traced(function: Function, args: Sequence[Tensor], *, functions: bool) -> fx.GraphModule:
    if functions:
        names = [*NAMES][: len(args)]
        text = ", ".join(names)
        module = fx.symbolic_trace(eval(f"lambda {text}: f({text})", {"f": function}))
        for node, value in zip(module.graph.find_nodes(op="placeholder"), args, strict=True):
            node.meta["val"] = value
        return module
    early = getattr(function, "__name__", "") != "both"  # gradients are taken below autograd
    return make_fx(function, tracing_mode="fake", pre_dispatch=early)(*args)
