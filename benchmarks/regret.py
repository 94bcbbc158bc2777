"""What the default choice leaves: `python -m benchmarks.regret [POINT ...]`.

Whole models of two layers at real width, as `torch.compile` makes them alone, with the default
choice, with all legal rewrites, with those of each pack alone, and with attention by hand, where a
model has a build with SDPA. Versions in which the same rules were applied run the same code, and
are one. The regret of a point is the time with the default choice over that of the fastest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any, Final

import torch

from benchmarks.choice import COMPILED, DEFAULT, uncached
from benchmarks.choice_models import CACHE, DECODERS, LENGTHS, Use
from benchmarks.models.wide import Point
from benchmarks.results import Results, option
from pypm.fx import first
from pypm.integrations import inductor
from pypm.rules import inference
from pypm.timing import Times, interleave

MODELS: Final = ("bert", "gpt2", "llama-gqa", "mistral", "t5", "vit", "whisper-enc", "unet")
WITHOUT_TOKENS: Final = frozenset({"vit", "unet"})
ALL: Final = "all legal"
BY_HAND: Final = "by hand"


def uses(wanted: list[str]) -> Iterator[Use]:
    for dtype in ("float32", "bfloat16"):
        for model in MODELS:
            lengths = [0] if model in WITHOUT_TOKENS else LENGTHS
            found = [Use(Point(model, dtype, 1, length), False) for length in lengths]
            if model in DECODERS:
                found.append(Use(Point(model, dtype, 1, CACHE), True))
            yield from (use for use in found if not wanted or any(w in str(use) for w in wanted))


class Versions:
    """The versions of one point, compiled; each is called once."""

    def __init__(self, use: Use, attention: str) -> None:
        torch._dynamo.reset()
        self._use = use
        self.calls: dict[str, Any] = {}
        self.rules: dict[str, list[str]] = {}
        self._add(COMPILED, attention, None)
        self._add(DEFAULT, attention, inductor.Pass(inference.RULES))
        self._add(ALL, attention, inductor.Pass(inference.RULES, choose=first))
        for pack in inference.PACKS:
            if not {rule.name for rule in pack.RULES}.isdisjoint(self.rules[ALL]):
                name = pack.__name__.rpartition(".")[2]
                self._add(name, attention, inductor.Pass(pack.RULES, choose=first))
        if attention == "eager" and use.point.by_hand:
            self._add(BY_HAND, "sdpa", None)

    def _add(self, name: str, attention: str, hook: inductor.Pass | None) -> None:
        call = self._use.compiled(attention, hook)
        counts = [] if hook is None else sorted(each.rule for each in hook.report().rewrites)
        if name in (COMPILED, BY_HAND, DEFAULT) or counts not in self.rules.values():
            self.calls[name] = call
        self.rules[name] = counts

    def times(self, seconds: float) -> Times:
        return interleave(self.calls, seconds=seconds, rounds=400)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="*", help="parts of the names of points; all, if left out")
    parser.add_argument("--seconds", type=float, default=6.0, help="for the rounds of one point")
    option(parser)
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    with uncached():
        results = Results(given.output)
        columns = (f"{COMPILED}, ms", "default", "regret", "best", "rules")
        results.table("model", *columns, name="points")
        for use in uses(given.points):
            for attention in ("eager", "sdpa"):
                if attention == "sdpa" and not use.point.by_hand:
                    continue
                made = Versions(use, attention)
                times = made.times(given.seconds)
                speeds = {name: times.speedup(COMPILED, name) for name in made.calls}
                best, default = max(speeds, key=speeds.__getitem__), speeds[DEFAULT]
                regret = speeds[best] / default
                found.setdefault(f"{use.point.model}, {use.point.dtype}", []).append(
                    (default, regret)
                )
                rules = ", ".join(dict.fromkeys(made.rules[DEFAULT])) or "-"
                numbers = (1e3 * times.median(COMPILED), default, regret)
                results.row(f"{use}, {attention}", *numbers, f"{best} {speeds[best]:.2f}", rules)
    summarize(found, results)
    return 0


def summarize(found: Mapping[str, Sequence[tuple[float, float]]], results: Results) -> None:
    """Write the speeds and regrets of each model's points, and those of all."""
    caption = f"Speeds with the default choice over {COMPILED} alone, and its regret."
    columns = ("model", "points", "least", "largest", "largest regret")
    results.table(*columns, name="models", caption=caption)
    for name, pairs in found.items():
        gains, regrets = zip(*pairs, strict=True)
        results.row(name, len(pairs), min(gains), max(gains), max(regrets))
    gains, regrets = zip(*(pair for pairs in found.values() for pair in pairs), strict=True)
    results.figure("regret, geometric mean", geometric_mean(regrets))
    results.figure("regret, worst", max(regrets))
    results.figure("default over torch.compile alone, least", min(gains))


if __name__ == "__main__":
    sys.exit(main())
