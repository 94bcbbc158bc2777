"""Steps bound for persistent kernels of Triton on a CPU: decoder layers, and MLP blocks."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.events.blocks import mlp_graph
from pypm.events.decoder import MatrixOperand, NormOperands, decoder_graph
from pypm.events.finer import finer
from pypm.events.operator import reference
from pypm.events.program import printed
from pypm.events.triton.tables import BoundStep, bound
from pypm.events.triton.text import PersistentKernel, emitted
from tests.events.steps import Made, made

__all__ = ["TOLERANCES", "check_decoder", "check_mlp", "decoder", "kernel_of", "mlp"]

TOLERANCES: Final = {torch.float32: 2e-5, torch.bfloat16: 6e-2}
POSITION: Final = 70
WIDTH, HIDDEN = 72, 100
EPSILON: Final = 0.2
"""So large that a norm without half of it is another one."""


@cache
def step_made(gated: bool, layers: int) -> Made:
    return made(gated, layers)


@cache
def kernel_of(
    gated: bool, dtype: torch.dtype, layers: int = 1, columns: int = 16
) -> PersistentKernel:
    return emitted(finer(decoder_graph(step_made(gated, layers).step), columns), dtype)


def decoder(
    batch: int, dtype: torch.dtype, *, gated: bool = True, layers: int = 1, programs: int = 3
) -> BoundStep:
    """Layers like Llama's, or GPT-2's, over caches filled to a position."""
    x, tensors = step_made(gated, layers).operands(batch, POSITION, dtype)
    operands = [x[:, 0], *(each.clone() for each in tensors)]  # clones begin at aligned addresses
    return bound(kernel_of(gated, dtype, layers), operands, programs)


def check_decoder(step: BoundStep, *, gated: bool = True, layers: int = 1) -> None:
    """Compare results, new keys and new values with float64."""
    wide = [x.double() if x.is_floating_point() else x for x in step.operands]
    text = printed(step_made(gated, layers).step)
    exact, *news = reference(wide[0][:, None], wide[1:], text)
    check(step, step.out, exact[:, 0])
    for ours, theirs in zip(step.news(), news, strict=True):
        check(step, torch.stack(ours), theirs.flatten(2))


def check(step: BoundStep, ours: Tensor, exact: Tensor) -> None:
    tolerance = TOLERANCES[step.kernel.dtype]
    torch.testing.assert_close(ours.double().view_as(exact), exact, rtol=tolerance, atol=tolerance)


@cache
def mlp_kernel(dtype: torch.dtype) -> PersistentKernel:
    norm = NormOperands("rounded rms", 1, None, EPSILON / 2, 0.0, added=5)
    gate, up, down = (
        MatrixOperand(place, None, True, size, columns)
        for place, size, columns in ((2, WIDTH, HIDDEN), (3, WIDTH, HIDDEN), (4, HIDDEN, WIDTH))
    )
    return emitted(mlp_graph(norm, gate, up, "silu", down), dtype)


def mlp(batch: int, dtype: torch.dtype, programs: int = 3) -> BoundStep:
    random = torch.Generator().manual_seed(batch)
    shapes = ((batch, WIDTH), (WIDTH,), (HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
    operands = [
        (torch.randn(s, generator=random) * (s[-1] ** -0.5 if n > 1 else 1)).to(dtype)
        for n, s in enumerate(shapes)
    ]
    return bound(mlp_kernel(dtype), [*operands, torch.tensor([EPSILON / 2])], programs)


def check_mlp(step: BoundStep) -> None:
    x, norm, gate, up, down, _ = (each.double() for each in step.operands)
    y = F.rms_norm(x, (WIDTH,), norm, EPSILON)
    check(step, step.out, x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down))
