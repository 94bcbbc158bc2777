"""Loops that tracing unrolled, rolled up on a GPU: `python -m benchmarks.gpu.loops`.

`torch.compile` makes each loop of 128 steps alone, and with `pypm.rules.loops`. Times are those of
the device, float32; compiling is timed by the clock of the wall.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.choice import uncached
from benchmarks.gpu.lines import OK, Lines, Row, run
from benchmarks.gpu.times import both, gpu
from benchmarks.loops import LOOPS
from pypm.integrations import inductor
from pypm.rules import loops as rules

STEPS: Final = 128
ORDER: Final = ("recurrence", "selective scan", "RWKV-4", "gated delta rule", "linear attention")
"""The loops, those first that `torch.compile` alone compiles soonest."""
LEFT: Final = ("LSTM", "GRU", "RNN")


def compiled(loop: Callable[..., Tensor], args: list[Tensor], options: Any) -> tuple[Any, float]:
    """Return a compiled loop, called once, and the seconds that this took."""
    call: Any = torch.compile(loop, options=options, dynamic=False)
    began = time.perf_counter()
    call(*args)
    torch.cuda.synchronize()
    return call, time.perf_counter() - began


def rolled(name: str) -> Row:
    torch.manual_seed(0)
    torch._dynamo.reset()
    loop, inputs = LOOPS[name]
    args = [x.to(gpu()) for x in inputs(STEPS)]
    hook = inductor.Pass(rules.RULES, stage="pre_grad")
    ours, our_seconds = compiled(loop, args, hook.options())
    expected = loop(*args)
    torch.testing.assert_close(ours(*args), expected, atol=1e-3, rtol=1e-3)
    assert len(hook.report()), "no rule was applied"
    alone, seconds = compiled(loop, args, None)
    times = both({"alone": (alone, args), "rules": (ours, args), "eager": (loop, args)})
    device_ms = [each.device for each in times.values()]
    gain = times["alone"].larger / times["rules"].larger
    verdict = OK if gain >= 1 else "slower"
    return [seconds, our_seconds, *device_ms, gain, 1e3 * times["rules"].host, verdict]


def left(name: str) -> Row:
    """Compile a loop that the rules leave on GPUs."""
    loop, inputs = LOOPS[name]
    hook = inductor.Pass(rules.RULES, stage="pre_grad")
    compiled(loop, [x.to(gpu()) for x in inputs(16)], hook.options())
    assert not len(hook.report()), "a rule was applied"
    return [OK]


def loops(lines: Lines) -> None:
    with uncached():
        columns = (
            "compile, alone, s",
            "with the rules",
            "run, alone, ms",
            "with the rules",
            "eager",
        )
        lines.begin(f"loop of {STEPS} steps", *columns, "gain", "host, us")
        for name in ORDER:
            lines.line(name, partial(rolled, name))
            lines.least_and_largest(6, "gain")
        lines.begin("loop", name="left")
        for name in LEFT:
            lines.line(name, partial(left, name))
        lines.figure("left", sum(row[-1] == OK for row in lines.rows()))


if __name__ == "__main__":
    run(loops, __doc__ or "")
