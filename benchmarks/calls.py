"""What a call costs inside of a compiled graph: `python -m benchmarks.calls [OPERATOR ...]`.

A graph of `CALLS` calls, each of the result of the one before, is compiled by Inductor. Operands
are so small that computing hardly counts, and a call of `aten.mm` stands beside. Times are those of
the thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeAlias
from unittest import mock

import torch
import torch._inductor.lowering
from torch import Tensor
from torch._inductor.compile_fx import compile_fx
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.choice import uncached
from benchmarks.results import Results, option
from benchmarks.timing import interleave
from pypm.kernels.attention.decoding import attention_over_cache
from pypm.kernels.quantized_norm import quantized_norm
from pypm.kernels.rotary import rotary
from pypm.kernels.row_linear import row_linear
from pypm.kernels.support import registration
from pypm.kernels.support.registration import custom_operator

CALLS: Final = 50
PRODUCT, ALONE = "`aten.mm`", "`empty_like` as an operator"

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
        ALONE: (alone, x),
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


def compiled(step: Step, x: Tensor, *, has_twins: bool) -> Callable[[], Any]:
    """Return the call of a compiled chain; without twins, code calls operators by their names."""
    table = torch._inductor.lowering.user_lowerings
    graph = make_fx(partial(chain, step))(x)
    with ExitStack() as stack:
        if not has_twins:
            stack.enter_context(mock.patch.object(registration, "lower_as"))
            stack.enter_context(mock.patch.dict(table, clear=True))
        inner: Any = compile_fx(graph, [x])
    call = partial(inner, x)
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
        if name in (PRODUCT, ALONE) or any(o in name for o in given.operators or [""])
    }
    torch.set_num_threads(1)
    with uncached(), torch.no_grad():
        calls = {
            (name, has_twins): compiled(*made, has_twins=has_twins)
            for name, made in wanted.items()
            for has_twins in (False, True)
        }
        contenders = {
            f"{name}{has_twins}": partial(lambda call: call, call)
            for (name, has_twins), call in calls.items()
        }
        times = interleave(contenders, seconds=given.seconds, rounds=2000, check=lambda *_: None)
    us = {each: 1e6 * times[f"{each[0]}{each[1]}"].median / CALLS for each in calls}
    results = Results(given.output)
    results.table("operator", "by its name, us", "by its twin, us", name="calls")
    for name in wanted:
        results.row(name, us[name, False], us[name, True])
    results.figure("more than a product", us[ALONE, True] - us[PRODUCT, True])


if __name__ == "__main__":
    main()
