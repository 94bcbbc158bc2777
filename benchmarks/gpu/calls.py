"""The host's time of calls on a GPU: `python -m benchmarks.gpu.calls`.

Operands are so small that computing hardly counts. Compiled graphs have `CALLS` calls, each of the
result of the one before; entering the graph is not counted, so that a line is one call in a model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.library import Library

from benchmarks.gpu.lines import OK, Lines, Row, run
from benchmarks.gpu.times import Both, gpu, in_one
from pypm.choice import gpu_times
from pypm.kernels.recurrence import linear_recurrence
from pypm.kernels.support.registration import custom_operator

CALLS: Final = 20
KERNEL, OWN = "a kernel of Inductor's, compiled", "an operator of PyPM's, compiled"

Step: TypeAlias = Callable[[Tensor], Tensor]


def empty(x: Tensor) -> Tensor:
    return torch.empty_like(x)


own = custom_operator("pypm_gpu::own", empty, outputs=empty)


@torch.library.custom_op("pypm_gpu::custom", mutates_args=())
def custom(x: Tensor) -> Tensor:
    return torch.empty_like(x)


custom.register_fake(empty)
LIBRARY: Final = Library("pypm_gpu", "FRAGMENT")
LIBRARY.define("raw(Tensor x) -> Tensor")
for key in ("CUDA", "CPU", "Meta"):
    LIBRARY.impl("raw", empty, key)


def steps() -> dict[str, tuple[Step, Tensor]]:
    """Return one call each, and its first operand."""
    x, weight = torch.randn(8, 8, device=gpu()), torch.eye(8, device=gpu())
    a, b = (torch.rand(4, 8, 8, device=gpu()) for _ in range(2))
    return {
        "an operator of `Library` without autograd": (torch.ops.pypm_gpu.raw, x),
        "`torch.library.custom_op`": (custom, x),
        OWN.removesuffix(", compiled"): (own, x),
        "`aten.mm`": (lambda y: y @ weight, x),
        "`pypm::linear_recurrence`, by Triton": (lambda y: linear_recurrence(a, b, y, False)[0], x),
    }


def chain(step: Step, x: Tensor) -> Tensor:
    for _ in range(CALLS):
        x = step(x)
    return x


def compiled(step: Step, x: Tensor) -> Row:
    torch._dynamo.reset()
    call: Any = torch.compile(partial(chain, step), dynamic=False)
    call(x)
    return of(in_one(call, x), gpu_times.entry(x.device), CALLS)


def eager(step: Step, x: Tensor) -> Row:
    return of(in_one(partial(chain, step), x), 0.0, CALLS)


def kernel(x: Tensor) -> Row:
    """Time a graph of one kernel of Inductor's."""
    torch._dynamo.reset()
    call: Any = torch.compile(lambda x: x.exp() + 1, dynamic=False)
    call(x)
    return of(in_one(call, x), gpu_times.entry(x.device), 1)


def of(found: Both, entry: float, count: int) -> Row:
    return [(1e3 * found.host - 1e6 * entry) / count, 1e3 * found.device / count, OK]


def calls(lines: Lines) -> None:
    lines.begin("call", "host, us", "device, us")
    lines.line(KERNEL, partial(kernel, torch.randn(8, 8, device=gpu())))
    for name, (step, x) in steps().items():
        lines.line(f"{name}, compiled", partial(compiled, step, x))
    for name, (step, x) in steps().items():
        lines.line(f"{name}, eager", partial(eager, step, x))
    found = {str(row[0]): row[1] for row in lines.rows() if isinstance(row[1], float)}
    if found.keys() >= {KERNEL, OWN}:
        lines.figure("an operator over a kernel of Inductor's", found[OWN] / found[KERNEL])


if __name__ == "__main__":
    run(calls, __doc__ or "")
