"""Errors of rounding: how large they may be, measured by moving the inputs a little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, fx
from torch.fx.node import Argument, Target

from pypm.fx import metadata
from pypm.tools.verification.comparing.verdicts import (
    WIDE,
    Agreement,
    Difference,
    Run,
    largest,
    reals,
    tensors_in,
)
from pypm.tools.verification.sampling.graphs import CONSTANT

__all__ = ["InFloat64", "constants", "floating", "is_same", "judged", "noise_of"]

FACTOR: Final = {torch.float64: 64.0, torch.float32: 64.0}
"""Roundings allowed, in units of the measured noise; 8 in the narrower types."""
ROUNDINGS: Final = 2.0
"""The same for a rule that says `rounding`, beside the error of the original itself."""


def judged(
    truth: Sequence[Tensor],
    expected: Sequence[Tensor],
    actual: Sequence[Tensor],
    noise: Sequence[Tensor],
    dtype: torch.dtype,
    strict: bool = False,
) -> Agreement | Difference:
    """Return an `Agreement` if the error is at most the noise or the error of `expected`.

    Strictly, it is at most the error of `expected` and two roundings.
    """
    factor, share = (ROUNDINGS, 1.0) if strict else (FACTOR.get(dtype, 8.0), 2.0)
    worst = Agreement()
    for true, one, two, moved in zip(truth, expected, actual, noise, strict=True):
        if not one.is_floating_point():
            if not torch.equal(one, two):
                at = one != two
                return Difference("value", f"{two[at][0].item()} instead of {one[at][0].item()}")
            continue
        if is_same(one, two):
            continue
        scale = largest(true)
        error = largest(two.to(WIDE) - true.to(WIDE))
        own = largest(one.to(WIDE) - true.to(WIDE))
        allowed = factor * (moved + torch.finfo(dtype).eps * scale) + share * own
        unit = max(float(scale), 1e-300)
        apart = float(largest(two.to(WIDE) - one.to(WIDE))) / unit
        if float(error) > float(allowed):
            at = (two.to(WIDE) - true.to(WIDE)).abs().nan_to_num().flatten().argmax()
            detail = f"{two.flatten()[at].item():.9g} instead of {true.flatten()[at].item():.9g}"
            where = f" ({str(one.dtype).removeprefix('torch.')}{list(one.shape)})"
            return Difference("value", detail + where, float(error) / unit, float(allowed) / unit)
        if apart > worst.error:
            worst = Agreement(apart, float(allowed) / unit)
    return worst


def is_same(one: Tensor, two: Tensor) -> bool:
    """Return whether values are equal, NaNs included; zeros may differ in sign."""
    return torch.equal(one, two) or (
        torch.equal(one.isnan(), two.isnan()) and torch.equal(one.nan_to_num(), two.nan_to_num())
    )


def noise_of(run: Run, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return how far each output moves when the inputs move by a rounding of that type.

    Where everything cancels, whatever the inputs are: a rounding of them, which a kernel that
    rounds in between may leave.
    """
    eps = torch.finfo(dtype).eps
    known = reals(run(inputs))
    noise = [torch.zeros((), dtype=WIDE) for _ in known]
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        again = reals(run([_like(_moved(x, eps, generator), x) for x in inputs]))
        for at, (one, two) in enumerate(zip(known, again, strict=True)):
            noise[at] = torch.maximum(noise[at], largest(one.to(WIDE) - two.to(WIDE)))
    rounded = [x for x in reals(inputs) if x.is_floating_point()]
    given = max(map(largest, rounded), default=torch.zeros((), dtype=WIDE))
    return [
        moved if moved or largest(one) else given * eps
        for moved, one in zip(noise, known, strict=True)
    ]


def _moved(value: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    """A value with every number a rounding larger or smaller."""
    if value.is_complex():
        parts = torch.view_as_real(value).contiguous()
        return torch.view_as_complex(_moved(parts, eps, generator))
    if not value.is_floating_point():
        return value
    wide = value.to(WIDE)
    signs = torch.randint(0, 2, value.shape, generator=generator).to(WIDE) * 2 - 1
    return (wide + wide * eps * signs).to(value.dtype)


def _like(value: Tensor, old: Tensor) -> Tensor:
    """A value in the layout of another tensor of its shape."""
    if value.stride() == old.stride() or 0 in old.stride():
        return value
    return torch.empty_strided(old.shape, old.stride(), dtype=old.dtype).copy_(value)


def floating(module: fx.GraphModule) -> set[torch.dtype]:
    """The types of real numbers in which a graph computes."""
    values = [v for node in module.graph.nodes for v in tensors_in(metadata(node))]
    return {v.dtype.to_real() for v in values if v.is_floating_point() or v.is_complex()}


def constants(module: fx.GraphModule) -> list[torch.dtype]:
    """The dtypes in which a replacement holds numbers, rounded to them."""
    names = [str(node.target) for node in module.graph.find_nodes(op="get_attr")]
    values = [getattr(module, name) for name in names if not name.startswith(CONSTANT)]
    return [v.dtype for v in tensors_in(values) if v.is_floating_point()]


class InFloat64(fx.Interpreter):
    """Runs a graph with every floating-point value in float64."""

    def run_on(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors_in(self.run(*map(_widened, inputs))))

    def run_node(self, n: fx.Node) -> fx.node.Argument:
        return _widened(super().run_node(n))

    def call_function(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> fx.node.Argument:
        args = tuple(_widened(value) for value in args)
        kwargs = {name: _widened(value) for name, value in kwargs.items()}
        found: fx.node.Argument = super().call_function(target, args, kwargs)
        return found


def _widened(value: Argument) -> Argument:
    """A dtype or a tensor in float64, or in pairs of it."""
    if isinstance(value, Tensor):
        wide = _wide(value.dtype)
        return value if wide == value.dtype else value.to(wide)
    return _wide(value) if isinstance(value, torch.dtype) else value


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else WIDE if dtype.is_floating_point else dtype
