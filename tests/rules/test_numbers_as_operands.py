"""Constants without dimensions, which bodies are given as numbers, where rules know tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import RuleSet
from pypm.fx import every, rewrite
from pypm.rules import (
    attention,
    epilogue,
    experts,
    loops,
    norm,
    quantization,
    rotary,
    tiles,
)
from tests.rules.capture import fired
from tests.rules.loops import L
from tests.small_gpu import as_on_a_small_gpu

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")

BF16: Final = torch.bfloat16
STEPS: Final = L


def of(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def number(value: complex = 0.5, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full([], value, dtype=dtype)


def lstm(bias: bool, first: Callable[[], Any] | None = None) -> Callable[..., Tensor]:
    def function(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
        c, states = h if first is None else first(), []
        for t in range(STEPS):
            y = torch.addmm(number(), x[t], w) if bias else x[t] @ w
            i, f, g, o = (y + h @ u).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states)

    return function


def gru(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(STEPS):
        r, z, n = torch.addmm(number(), x[t], w).chunk(3, -1)
        r2, z2, n2 = (h @ u).chunk(3, -1)
        z, n = (z + z2).sigmoid(), (n + (r + r2).sigmoid() * n2).tanh()
        h = (1 - z) * n + z * h
        states.append(h)
    return torch.stack(states)


def rnn(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(STEPS):
        h = (torch.addmm(number(), x[t], w) + h @ u).tanh()
        states.append(h)
    return torch.stack(states)


def loop(factor: Any, summand: Any, state: Any) -> Callable[..., Tensor]:
    """Steps h = a h + b, of which some of a, b and the first h are numbers, and others are None."""

    def function(x: Tensor) -> Tensor:
        h, states = x[0] if state is None else state, []
        for t in range(STEPS):
            h = (x[t] if factor is None else factor) * h + (x[t] if summand is None else summand)
            states.append(h)
        return torch.stack(states)

    return function


def rms(x: Tensor, w: Any, after: Any = None) -> Tensor:
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    return y if after is None else y + after


def quantized(x: Tensor, w: Any) -> Tensor:
    z = rms(x, w)
    return (z / (z.abs().amax(-1, True) / 127)).round().clamp(-127, 127).to(torch.int8)


def turned(x: Tensor) -> Tensor:
    return torch.cat((-x[..., 4:], x[..., :4]), -1)


def pairs(x: Tensor, cos: Any, sin: Any) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def both(turn: Callable[[Tensor], Tensor], q: Tensor) -> tuple[Tensor, Tensor]:
    return turn(q), turn(q.cos())


def attended(x: Tensor, mask: Any) -> Tensor:
    return torch.softmax(x @ x.mT * 0.3 + mask, -1) @ x


IN: Final = of(6, 8)
CELL: Final = (of(STEPS, 2, 3), of(3, 16), of(4, 16), of(2, 4))
Z: Final = of(3, 8).to(torch.complex64)
PROGRAMS: Final[dict[str, tuple[RuleSet, list[str] | None, Any, tuple[Tensor, ...]]]] = {
    "bias of a product, activated": (
        epilogue.RULES, [],
        lambda x, w: torch.relu(torch.addmm(number(dtype=BF16), x, w)),
        (of(6, 8, dtype=BF16), of(8, 8, dtype=BF16)),
    ),
    "bias of a product with a residual": (
        epilogue.RULES, [],
        lambda x, w: torch.addmm(number(dtype=BF16), x, w) + x,
        (of(6, 8, dtype=BF16), of(8, 8, dtype=BF16)),
    ),
    "residual": (
        epilogue.RULES, None,
        lambda x, w: x @ w + number(dtype=BF16),
        (of(6, 8, dtype=BF16), of(8, 8, dtype=BF16)),
    ),
    "bias of a product and what follows": (
        tiles.RULES, None,
        lambda x, w: torch.relu(torch.addmm(number(dtype=BF16), x, w)) * number(dtype=BF16),
        (of(6, 8, dtype=BF16), of(8, 8, dtype=BF16)),
    ),
    "first cell state of an LSTM": (loops.RULES, ["lstm_layer"], lstm(False, lambda: 0.0), CELL),
    "another first cell state": (loops.RULES, ["lstm_layer"], lstm(False, number), CELL),
    "bias of an LSTM": (loops.RULES, [], lstm(True), CELL),
    "bias of a GRU": (loops.RULES, [], gru, (CELL[0], of(3, 12), of(4, 12), CELL[3])),
    "bias of an RNN": (loops.RULES, [], rnn, (CELL[0], of(3, 4), of(4, 4), CELL[3])),
    "factor of a loop": (loops.RULES, None, loop(0.5, None, None), (of(STEPS, 4),)),
    "summand of a loop": (loops.RULES, None, loop(None, 0.5, None), (of(STEPS, 4),)),
    "first state of a loop": (loops.RULES, None, loop(None, None, 0.0), (of(STEPS, 4),)),
    "weight of a norm": (norm.RULES, None, lambda x: rms(x, 0.5), (IN,)),
    "bias of a norm": (norm.RULES, None, lambda x, w: rms(x, w, number()), (IN, of(8))),
    "weight of a layer norm": (
        norm.RULES, None,
        lambda x: (x - x.mean(-1, True)) / torch.sqrt(x.var(-1, False, keepdim=True) + 1e-5) * 0.5,
        (IN,),
    ),
    "weight of an instance norm": (
        norm.RULES, [],
        lambda x: F.instance_norm(x, weight=number(), bias=number()),
        (of(2, 1, 5),),
    ),
    "sum in a norm": (norm.RULES, None, lambda x, w: rms(x + number(), w), (IN, of(8))),
    "weight of a quantized norm": (
        quantization.RULES, None, lambda x, y: quantized(x + y, 0.5), (IN, IN.cos())
    ),
    "sum in a quantized norm": (
        quantization.RULES, None, lambda x, w: quantized(x + number(), w), (IN, of(8))
    ),
    "cosine": (
        rotary.RULES, None, lambda x, sin: both(lambda y: y * 0.5 + turned(y) * sin, x), (IN, of(8))
    ),
    "sine": (
        rotary.RULES, None, lambda x, cos: both(lambda y: y * cos + turned(y) * 0.5, x), (IN, of(8))
    ),
    "cosine and sine": (
        rotary.RULES, None, lambda x: both(lambda y: y * 0.5 + turned(y) * 0.5, x), (IN,)
    ),
    "cosine of pairs": (
        rotary.RULES, None, lambda x, s: both(lambda y: pairs(y, 0.5, s), x), (IN, of(4))
    ),
    "sine of pairs": (
        rotary.RULES, None, lambda x, c: both(lambda y: pairs(y, c, 0.5), x), (IN, of(4))
    ),
    "mask": (attention.RULES, None, lambda x: attended(x, number()), (of(2, 2, 6, 8),)),
    "mask of blocks": (
        attention.RULES, None,
        lambda x, m: attended(x, torch.where(m, number(0.0), number(-torch.inf))),
        (of(2, 2, 6, 8), torch.ones(6, 6, dtype=torch.bool)),
    ),
    "condition of a mask": (
        attention.RULES, [],
        lambda x: torch.softmax((x @ x.mT).masked_fill(number(True, torch.bool), -1e9), -1) @ x,
        (of(2, 2, 6, 8),),
    ),
    "condition of a mask that keeps": (
        attention.RULES, [],
        lambda x: torch.softmax(torch.where(number(True, torch.bool), x @ x.mT, -1e9), -1) @ x,
        (of(2, 2, 6, 8),),
    ),
    "bias of experts": (
        experts.RULES, None,
        lambda x, w, i: torch.baddbmm(number(), x.unsqueeze(1), w[i]),
        (IN[:3], of(3, 8, 5), torch.tensor([0, 2, 1])),
    ),
}  # fmt: skip
"""Rules, a program, and its inputs; and the rules that are applied, or None for any."""
WHOLE: Final = ("weight of an instance norm",)
"""Programs that are traced before torch decomposes their operators."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epilogue, "has_fast_bfloat16", lambda: True)
    for module in (quantization, rotary):
        monkeypatch.setattr(module, "FEW", 0)
    rules, expected, function, args = PROGRAMS[name]
    captured = make_fx(function, tracing_mode="fake", pre_dispatch=name in WHOLE)(*args)
    tolerance = 4e-2 if args[0].dtype == BF16 else 1e-5
    for device in (nullcontext, as_on_a_small_gpu):
        if device is as_on_a_small_gpu and rules is loops.RULES and expected:
            expected = []  # layers are for CPUs
        gm = copy.deepcopy(captured)
        with device():
            report = rewrite(gm, rules, choose=every)
        assert expected is None or fired(report) == expected, (device, str(report))
        torch.testing.assert_close(gm(*args), function(*args), rtol=tolerance, atol=tolerance)
