"""What a call costs inside of a compiled graph: `python -m benchmarks.calls [OPERATOR ...]`.

A graph of `CALLS` calls, each of the result of the one before, is compiled by Inductor. Operands
are so small that computing hardly counts, and a call of `aten.mm` stands beside. Times are those of
the thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

import torch
from torch import Tensor

from benchmarks.choice import uncached
from benchmarks.results import Results, option
from benchmarks.timing import interleave
from pypm.kernels.attention.decoding import attention_over_cache
from pypm.kernels.quantized_norm import quantized_norm
from pypm.kernels.rotary import rotary
from pypm.kernels.row_linear import row_linear
from pypm.kernels.support.registration import custom_operator

CALLS: Final = 50
PRODUCT: Final = "`aten.mm`"

Step: TypeAlias = Callable[[Tensor], Tensor]
"""One call, from the result of the call before."""


def empty(x: Tensor) -> Tensor:
    return torch.empty_like(x)


alone = custom_operator("pypm_benchmarks::alone", empty, outputs=empty)


def steps() -> Mapping[str, tuple[Step, Tensor]]:
    """Return, for each operator, a call and its first operand."""
    x, weight, cache = torch.randn(1, 16), torch.eye(16), torch.randn(1, 1, 16, 16)
    angles = torch.randn(1, 16)
    numbers = (1e-6, 127.0, 1e-5, -128.0, 127.0)
    return {
        PRODUCT: (lambda y: torch.mm(y, weight), x),
        "`empty_like` as an operator": (alone, x),
        "`pypm::row_linear`": (lambda y: row_linear(y, weight, None), x),
        "`pypm::rotary`": (lambda y: rotary([y], angles, angles, False)[0], x),
        "`pypm::quantized_norm`": (lambda y: quantized_norm(y, y, None, *numbers)[2], x),
        "`pypm::attention_over_cache`": (
            lambda y: attention_over_cache(y, cache, cache, None, 0.25, True),
            cache[:, :, :1].clone(),
        ),
    }


def chain(step: Step, x: Tensor) -> Tensor:
    for _ in range(CALLS):
        x = step(x)
    return x


def compiled(step: Step, x: Tensor) -> Callable[[], Tensor]:
    torch._dynamo.reset()
    call = partial(torch.compile(partial(chain, step), dynamic=False), x)
    call()
    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="parts of names; all, if left out")
    parser.add_argument("--seconds", type=float, default=5.0, help="for all rounds")
    option(parser)
    given = parser.parse_args()
    wanted = {
        name: made
        for name, made in steps().items()
        if name == PRODUCT or not given.operators or any(o in name for o in given.operators)
    }
    torch.set_num_threads(1)
    with uncached(), torch.no_grad():
        calls = {name: compiled(*made) for name, made in wanted.items()}
        contenders = {name: partial(lambda call: call, call) for name, call in calls.items()}
        times = interleave(contenders, seconds=given.seconds, rounds=2000, check=lambda *_: None)
    results = Results(given.output)
    results.table("operator", "us a call", f"more than {PRODUCT}, us", name="calls")
    us = {name: 1e6 * each.median / CALLS for name, each in times.items()}
    for name, each in us.items():
        results.row(name, each, each - us[PRODUCT])


if __name__ == "__main__":
    main()
