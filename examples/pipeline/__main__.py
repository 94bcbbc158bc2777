"""The pipeline example, `python -m examples.pipeline`: a GPT-2 whole, on 2 and on 4 processes.

It prints the cut, the simulated bubble, and the losses, which are equal but for rounding.
"""

from __future__ import annotations

import argparse
import warnings

from examples.pipeline.model import build, export
from examples.pipeline.training import Options, train, whole
from pypm.pipeline import launch, plan, schedule, simulate, stages


def main() -> None:
    """Train by the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.pipeline")
    for name in ("width", "layers", "words", "rows", "length", "microbatches", "steps"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Options, name))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    given = vars(parser.parse_args())
    ranks = given.pop("ranks")
    options = Options(**given)
    warnings.filterwarnings("ignore")
    program = export(build(options.width, options.layers, options.words), 1, options.length)
    print("whole:", *(f"{value:.6f}" for value in whole(options)))
    for count in ranks:
        chosen = schedule(options.schedule, stages=count)
        found = simulate(plan(chosen, stages=count, microbatches=options.microbatches))
        print(f"\n{stages(program, count=count)}\nbubble {found.bubble:.1%}")
        losses = max(launch(train, options, count, ranks=count), key=len)
        print(f"{count} processes:", *(f"{value:.6f}" for value in losses))


if __name__ == "__main__":
    main()
