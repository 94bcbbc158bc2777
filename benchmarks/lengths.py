"""One compilation for many lengths: `python -m benchmarks.lengths [MODEL ...]`.

Models of two layers at real width are compiled once for sequences of 16 to 2,048 tokens, and called
with 128: as `torch.compile` makes them alone, and with the default choice. Six lengths are timed.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

import torch

from benchmarks.choice import COMPILED, DEFAULT, uncached
from benchmarks.models.wide import Point
from benchmarks.results import Results, option
from pypm.integrations import inductor
from pypm.rules import inference
from pypm.timing import interleave

MODELS: Final = ("bert", "gpt2", "llama-gqa")
LENGTHS: Final = (128, 16, 64, 512, 1024, 2048)
"""The first is that of the call that is compiled for."""


def times_of(model: str, dtype: str, seconds: float) -> tuple[dict[int, float], list[str]]:
    """Return the speeds over `torch.compile` alone at each length, and the rules of rewrites."""
    torch._dynamo.reset()
    hook = inductor.Pass(inference.RULES)
    inputs = {n: Point(model, dtype, 1, n).inputs() for n in LENGTHS}
    for x in inputs[LENGTHS[0]].values():
        torch._dynamo.mark_dynamic(x, 1, min=min(LENGTHS), max=max(LENGTHS))
    compiled = {}
    for name, options in ((COMPILED, None), (DEFAULT, hook.options())):
        torch.manual_seed(0)
        built = Point(model, dtype, 1, max(LENGTHS)).build("eager")
        compiled[name] = torch.compile(built, options=options)
        compiled[name](**inputs[LENGTHS[0]])
    speeds = {}
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for length, given in inputs.items():

            def calls(given: dict[str, Any] = given) -> dict[str, Any]:
                return {name: lambda run=run: run(**given) for name, run in compiled.items()}

            times = interleave(calls(), seconds=seconds, rounds=400)
            speeds[length] = times.speedup(COMPILED, DEFAULT)
    return speeds, [*dict.fromkeys(each.rule for each in hook.report().rewrites)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help=", ".join(MODELS))
    parser.add_argument("--seconds", type=float, default=4.0, help="for the rounds of one length")
    option(parser)
    given = parser.parse_args()
    least = 1.0
    with uncached(), torch.no_grad():
        results = Results(given.output)
        columns = [f"{length:,} tokens" for length in sorted(LENGTHS)]
        results.table("model", *columns, "rules", name="lengths")
        for model in given.models:
            for dtype in ("float32", "bfloat16"):
                speeds, rules = times_of(model, dtype, given.seconds)
                row = [speeds[length] for length in sorted(LENGTHS)]
                least = min(least, *row)
                results.row(f"{model}, {dtype}", *row, ", ".join(rules) or "-")
    results.figure("least", least)
    return 0


if __name__ == "__main__":
    sys.exit(main())
