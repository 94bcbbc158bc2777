"""Attention by blocks through the whole path: `python -m benchmarks.attention [POINT ...]`.

Attention is written out: `torch.compile` makes it alone, and with the shipped rules and their
default choice; FlexAttention is called by hand, its blocks made by torch beforehand. One thread;
the ratios are medians of pairs of interleaved rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from benchmarks.results import Results, option
from pypm.integrations import inductor
from pypm.rules import inference
from pypm.tools import interleave

HEAD: Final = 64
HEADS: Final = 8
GROUPS: Final = 4
COMPILED, RULES, BY_HAND = "torch.compile", "with the rules", "flex by hand"
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Point(NamedTuple):
    """One variant at one length."""

    length: int
    steps: Callable[..., Tensor]
    """From the scaled scores, and tensors that it reads, to the argument of the softmax."""
    mask: Callable[..., Mask]
    """From those tensors to the mask of FlexAttention."""
    score: Callable[..., Score] | None = None
    """The same for its scores."""
    given: Callable[[int], tuple[Tensor, ...]] = lambda length: ()
    """From the length to those tensors."""


def places(x: Tensor) -> tuple[Tensor, Tensor]:
    count = torch.arange(x.shape[-1])
    return count[:, None], count[None]


def window(width: int) -> tuple[Callable[[Tensor], Tensor], Callable[[], Mask]]:
    """The window in the graph, and for FlexAttention."""

    def steps(x: Tensor) -> Tensor:
        q, k = places(x)
        return x.masked_fill(~((k <= q) & (q - k < width)), -torch.inf)

    return steps, lambda: lambda b, h, q, k: (k <= q) & (q - k < width)


def causal() -> Mask:
    return lambda b, h, q, k: k <= q


def alibi(x: Tensor, slopes: Tensor) -> Tensor:
    q, k = places(x)
    return (x + slopes[:, None, None] * (k - q)).masked_fill(k > q, -torch.inf)


def capped(x: Tensor) -> Tensor:
    q, k = places(x)
    return (50.0 * torch.tanh(x / 50.0)).masked_fill(k > q, -torch.inf)


def documents(x: Tensor, of: Tensor) -> Tensor:
    q, k = places(x)
    return x.masked_fill(~((k <= q) & (of[:, None, :, None] == of[:, None, None])), -1e9)


POINTS: Final = {
    **{
        f"window {width} of {length}": Point(length, *window(width))
        for width, length in ((256, 2048), (512, 4096), (512, 8192))
    },
    "ALiBi, causal, 1024": Point(
        1024,
        alibi,
        lambda slopes: causal(),
        lambda slopes: lambda s, b, h, q, k: s + slopes[h] * (k - q),
        lambda length: (torch.rand(HEADS),),
    ),
    "soft cap, causal, 1024": Point(
        1024, capped, causal, lambda: lambda s, *_: 50.0 * torch.tanh(s / 50.0)
    ),
    "eight documents of 2048": Point(
        2048,
        documents,
        lambda of: lambda b, h, q, k: (k <= q) & (of[b, q] == of[b, k]),
        None,
        lambda length: (torch.arange(length)[None] * 8 // length,),
    ),
}


def written_out(point: Point) -> Callable[..., Tensor]:
    """Return attention as models write it: keys repeated for each head."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> Tensor:
        repeats = q.shape[1] // k.shape[1]
        k, v = (x[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2) for x in (k, v))
        scores = q @ k.transpose(2, 3) * HEAD**-0.5
        return torch.softmax(point.steps(scores, *given), -1) @ v

    return attend


def by_hand(point: Point, given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """Return a call of FlexAttention, with its blocks."""
    n = point.length
    blocks: BlockMask = create_block_mask(point.mask(*given), None, None, n, n, device="cpu")
    score = None if point.score is None else point.score(*given)

    def attend(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True)

    return attend


@torch.no_grad()
def compare(results: Results, name: str, seconds: float) -> None:
    """Time one point, and add its row."""
    point = POINTS[name]
    torch.manual_seed(0)
    heads = (HEADS, GROUPS, GROUPS)
    qkv = [torch.randn(1, h, point.length, HEAD) for h in heads]
    given = point.given(point.length)
    hook = inductor.Pass(inference.RULES)
    versions = {
        COMPILED: (written_out(point), None),
        RULES: (written_out(point), hook.options()),
        BY_HAND: (by_hand(point, given), None),
    }
    calls, outputs, compiling = {}, {}, {}
    for version, (function, options) in versions.items():
        torch._dynamo.reset()
        compiled = torch.compile(function, options=options, dynamic=False)
        start = time.perf_counter()
        outputs[version] = compiled(*qkv, *given)
        compiling[version] = time.perf_counter() - start
        calls[version] = partial(compiled, *qkv, *given)
    for version, found in outputs.items():
        difference = (found - outputs[COMPILED]).abs().max().item()
        assert difference < 1e-4, f"{name}: {version} differs by {difference}"
    times = interleave(calls, seconds=seconds, rounds=30)
    rules = dict.fromkeys(record.rule for record in hook.report().rewrites)

    def ratio(one: str, other: str) -> float:
        ratios = sorted(times.ratios(one, other))
        return ratios[len(ratios) // 2]

    results.row(
        name,
        *(times.median(version) * 1e3 for version in (COMPILED, RULES, BY_HAND)),
        ratio(COMPILED, RULES),
        ratio(BY_HAND, RULES),
        ", ".join(rules) or "none",
        compiling[RULES] - compiling[COMPILED],
    )


def main() -> None:
    """Print the table of the points whose names hold one of the words that are asked for."""
    parser = argparse.ArgumentParser(description="Attention by blocks, through the whole path.")
    parser.add_argument("points", nargs="*", help="words in the names of points")
    parser.add_argument("--seconds", type=float, default=10.0, help="to time each point for")
    option(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(given.output)
    times = (f"{version}, ms" for version in (COMPILED, RULES, BY_HAND))
    results.table("float32", *times, "gain", "over flex", "rules", "compiles longer by, s")
    for name in POINTS:
        if not given.points or any(word in name for word in given.points):
            compare(results, name, given.seconds)


if __name__ == "__main__":
    main()
