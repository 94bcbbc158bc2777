"""Shipped rules, checked by `verify`: none is called wrong."""

import importlib

import torch
import torch.nn.functional as F

from pypm.rules.loops import wkv
from pypm.rules.loops.recurrences import FEW
from pypm.tools import (
    Bitwise,
    FewSolved,
    NeverFired,
    Refused,
    Unexercised,
    UpToRounding,
    verify,
)
from tests.rules import test_quantization, test_tiled_experts, test_tiled_rows
from tests.rules.shipped import SHIPPED


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def both_turned(q: torch.Tensor, k: torch.Tensor, *angles: torch.Tensor) -> list[torch.Tensor]:
    return [turned(x, *angles) for x in (q, k)]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v


HEADS = [torch.randn(2, 3, 4, 8, dtype=torch.float64) for _ in range(3)]


def routed(x, w, ids):
    return torch.bmm(w[ids], x.unsqueeze(-1)).squeeze(-1)


def attend_by_difference(q, k, v):
    a, b = torch.softmax(q @ k.mT, -1).chunk(2, 1)
    return (a - b * 0.5) @ v


def attend_beside_sinks(q, k, v, sinks):
    column = sinks[:, None, None].expand(*q.shape[:-1], 1)
    joined = torch.cat([q @ k.transpose(-2, -1), column], -1)
    return torch.softmax(joined, -1)[..., :-1] @ v


def unrolled(a, b, h):
    states = []
    for t in range(len(a)):
        h = a[t] * h + b[t]
        states.append(h)
    return torch.stack(states)


def last_of_unrolled(a, b, h):
    for t in range(len(a)):
        h = a[t] * h + b[t]
    return h


def states_of_cells(x, w, u, h, c):
    states = []
    for step in x:
        i, f, g, o = (step @ w + h @ u).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return states


def cells(*args):
    return torch.stack(states_of_cells(*args))


def last_of_cells(*args):
    return states_of_cells(*args)[-1]


def gru_states(x, w, u, h):
    states = []
    for step in x:
        i, k = (step @ w).chunk(3, 1), (h @ u).chunk(3, 1)
        z = (i[1] + k[1]).sigmoid()
        h = (1 - z) * (i[2] + (i[0] + k[0]).sigmoid() * k[2]).tanh() + z * h
        states.append(h)
    return states


def gru_cells(*args):
    return torch.stack(gru_states(*args))


def last_of_gru_cells(*args):
    return gru_states(*args)[-1]


def rnn_states(x, w, u, h):
    states = []
    for step in x:
        h = (step @ w + h @ u).tanh()
        states.append(h)
    return states


def rnn_cells(*args):
    return torch.stack(rnn_states(*args))


def last_of_rnn_cells(*args):
    return rnn_states(*args)[-1]


RNN_CELLS = [torch.randn(n) for n in ((16, 2, 3), (3, 4), (4, 4), (2, 4))]
GRU_CELLS = [torch.randn(n) for n in ((16, 2, 3), (3, 12), (4, 12), (2, 4))]
CELLS = [torch.randn(n) for n in ((16, 2, 3), (3, 16), (4, 16), (2, 4), (2, 4))]


def averages_and_states(decay, boost, keys, values, num, den, top):
    results = []
    for key, value in zip(keys, values, strict=True):
        most = torch.maximum(top, key + boost)
        old, new = (top - most).exp(), (key + boost - most).exp()
        results.append((old * num + new * value) / (old * den + new))
        most = torch.maximum(top + decay, key)
        old, new = (top + decay - most).exp(), (key - most).exp()
        num, den, top = old * num + new * value, old * den + new, most
    return torch.stack(results), num, den, top


def averages(*args):
    return averages_and_states(*args)[0]


AVERAGED = [torch.randn(n) for n in (3, 3, (wkv.FEW, 3), (wkv.FEW, 3), 3)]
AVERAGED += [torch.rand(3), torch.randn(3)]
STEPS = [torch.randn(n, 3) for n in (FEW, FEW)] + [torch.randn(3)]


EXAMPLES = {
    "loop": [(unrolled, STEPS)],
    "last_state": [(last_of_unrolled, STEPS)],
    "averages_and_states": [(averages_and_states, AVERAGED)],
    "averages": [(averages, AVERAGED)],
    "lstm_layer": [(cells, CELLS)],
    "last_of_lstm": [(last_of_cells, CELLS)],
    "gru_layer": [(gru_cells, GRU_CELLS)],
    "last_of_gru": [(last_of_gru_cells, GRU_CELLS)],
    "rnn_layer": [(rnn_cells, RNN_CELLS)],
    "last_of_rnn": [(last_of_rnn_cells, RNN_CELLS)],
    "grouped_experts": [(routed, [torch.randn(5, 3), torch.randn(4, 6, 3), torch.arange(5) % 4])],
    "sdpa": [(attend, HEADS)],
    "stacked_differential_attention": [
        (attend_by_difference, [torch.randn(2, heads, 5, 8) for heads in (4, 4, 2)])
    ],
    "sdpa_with_sinks": [(attend_beside_sinks, [*HEADS, torch.randn(3)])],
    **test_quantization.EXAMPLES,
    **{
        rule: [(function, module.inputs())]
        for module in (test_tiled_experts, test_tiled_rows)
        for function, rule in module.FIRES.values()
    },
    "linear_of_few_rows": [(F.linear, [torch.randn(n) for n in ((2, 512), (512, 512), 512)])],
    "rotary_of_both": [
        (both_turned, [torch.randn(1, 8, 64, 128).to(kind) for _ in range(4)])
        for kind in (torch.float32, torch.bfloat16)
    ],
}
"""Of rules that ask for more than samples of their patterns have, such as halves of one value."""
SEEDS = {"attention": 2, "attention_of_fixed_queries": 7}
"""Of rules so large that few samples can be made: where one of 20 is rewritten."""
SAMPLES = {
    "add_rms_norm_quantized": 12,
    "attention": 15,
    "attention_of_fixed_queries": 12,
    "called_sdpa_of_two_widths": 12,
    "differential_attention": 12,
}
"""Of these, as many as have one on which the rule is tried; of others 4."""


LARGE = {
    *("sdpa_of_two_widths", "differential_attention"),
    *("attention_by_products", "attention_by_blocks", "decoding", "decoding_without_mask"),
    *("attention", "attention_of_fixed_queries"),
    *("last_state", "averages_and_states", "lstm_layer", "last_of_lstm", "gru_layer"),
}
"""Rules that quick runs leave out: each takes seconds, and others have patterns of its kind."""


def names(*packs: str) -> list[str]:
    """The rules of some packs, each a module of `pypm.rules`."""
    modules = [importlib.import_module(f"pypm.rules.{pack}") for pack in packs]
    return [rule.name for module in modules for rule in module.RULES]


def check(name: str, samples: int | None = None) -> None:
    """Check a rule on its examples and on a few samples."""
    samples = SAMPLES.get(name, 4) if samples is None else samples
    examples, seed = EXAMPLES.get(name, []), SEEDS.get(name, 0)
    verification = verify(
        SHIPPED[name], samples=samples, seed=seed, nonfinite=False, examples=examples
    )
    for finding in verification.findings:
        match finding:
            case NeverFired(_, reasons):  # its kernel is not on this machine, or in this dialect
                tried = [reason for reason in reasons if not reason.startswith("not made: ")]
                assert tried
                assert all(reason.startswith(("declined: ", "alone: ")) for reason in tried)
            case _:
                fine = (Bitwise, UpToRounding, FewSolved, Unexercised, Refused)
                assert isinstance(finding, fine), finding
