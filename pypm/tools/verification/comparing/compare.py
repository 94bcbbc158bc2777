"""Two graphs run on the same tensors: do they give the same, the same up to rounding, or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from pypm.core.rules import Exactness
from pypm.tools.verification.comparing.rounding import (
    InFloat64,
    constants,
    floating,
    is_same,
    judged,
    noise_of,
)
from pypm.tools.verification.comparing.verdicts import (
    WIDE,
    Agreement,
    Difference,
    Run,
    Unusable,
    Verdict,
    aliasing_differs,
    largest,
    metadata_differs,
    nonfinite_differs,
    reals,
    requirements_differ,
    running,
    same_zeros,
    writes_differ,
)

__all__ = ["compare"]

GRADIENTS: Final = 16.0
"""Roundings of the largest gradient that count as noise in every gradient."""


def compare(
    before: fx.GraphModule,
    after: fx.GraphModule,
    make: Callable[[], list[Tensor]],
    nonfinite: bool,
    gradients: bool,
    exactness: Exactness = "reassociated",
) -> Verdict:
    """Run both graphs on the tensors that `make` gives, and judge what the second returns.

    It is held to `exactness`, the rule's word, in its values; gradients may be reassociated.
    """
    trial = _Comparison(before, after, make, exactness)
    verdict = trial.judge(nonfinite)
    if gradients and isinstance(verdict, Agreement):
        return trial.judge_requirements() or trial.judge_gradients(verdict, nonfinite)
    return verdict


@dataclass
class _Comparison:
    before: fx.GraphModule
    after: fx.GraphModule
    make: Callable[[], list[Tensor]]
    exactness: Exactness

    def judge(self, nonfinite: bool) -> Verdict:
        ours, theirs = self.make(), self.make()
        try:
            expected = running(self.before)(ours)
        except Exception as error:  # whatever an operator says of these values
            return Unusable(str(error))
        try:
            actual = running(self.after)(theirs)
        except Exception as error:
            return Difference("crash", f"{type(error).__name__}: {error}")
        plain = (
            metadata_differs(expected, actual)
            or aliasing_differs(ours, expected, theirs, actual)
            or writes_differ(reals(ours), reals(theirs))
        )
        if plain is not None:
            return plain
        nonfinite = nonfinite or self.exactness == "bitwise"
        strange = nonfinite_differs(expected, actual, nonfinite, self._is_finite(ours))
        verdict = strange or self._values(reals(expected), reals(actual))
        if not isinstance(verdict, Agreement):
            return verdict
        if not same_zeros(expected, actual):
            verdict = replace(verdict, zeros=True)
        return self._overclaimed(verdict, reals(expected), reals(actual)) or verdict

    def _overclaimed(
        self, verdict: Agreement, expected: list[Tensor], actual: list[Tensor]
    ) -> Difference | None:
        """Return the difference that the rule's word on exactness excludes."""
        said = f"the rule says `{self.exactness}`"
        if self.exactness == "rounding":
            found = self._values(expected, actual, strict=True)
            if isinstance(found, Difference):
                return replace(found, kind="exactness", detail=f"{said}: {found.detail}")
        elif self.exactness == "bitwise" and verdict.zeros:
            return Difference("exactness", f"{said}: zeros have another sign")
        elif self.exactness == "bitwise":
            for one, two in zip(expected, actual, strict=True):
                if not is_same(one, two):
                    at = (one != two) & ~(one.isnan() & two.isnan())
                    detail = f"{two[at][0].item():.17g} instead of {one[at][0].item():.17g}"
                    return Difference("exactness", f"{said}: {detail}", verdict.error)
        return None

    def judge_requirements(self) -> Difference | None:
        """Return whether an output requires a gradient in one graph only, where one input requires
        it.
        """
        for at, like in enumerate(self.make()):
            if not (like.is_floating_point() or like.is_complex()):
                continue
            ours, theirs = self.make(), self.make()
            for inputs in (ours, theirs):
                inputs[at].requires_grad_()
            try:
                expected, actual = running(self.before)(ours), running(self.after)(theirs)
            except Exception:  # an operator without a gradient
                continue
            found = requirements_differ(expected, actual)
            if found is not None:
                return replace(found, detail=f"{found.detail} where input {at} does")
        return None

    def _values(
        self, expected: list[Tensor], actual: list[Tensor], strict: bool = False
    ) -> Agreement | Difference:
        dtypes = floating(self.before) | floating(self.after)
        if dtypes <= {WIDE}:
            return self._judged(expected, expected, actual, running(self.before), WIDE, strict)
        coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        truth = self._wide(self.before)
        reference = expected if truth is None else truth
        verdict = self._judged(reference, expected, actual, running(self.before), coarsest, strict)
        if isinstance(verdict, Difference) or truth is None:
            return verdict
        exact = self._wide(self.after)
        if exact is None:
            return verdict
        held = [WIDE, *constants(self.after)]
        rounded = max(held, key=lambda dtype: torch.finfo(dtype).eps)
        wide = self._judged(truth, truth, exact, InFloat64(self.before).run_on, rounded, strict)
        return wide if isinstance(wide, Difference) else verdict

    def _judged(
        self,
        truth: list[Tensor],
        expected: list[Tensor],
        actual: list[Tensor],
        run: Run,
        dtype: torch.dtype,
        strict: bool,
    ) -> Agreement | Difference:
        if all(map(is_same, expected, actual)):
            return Agreement()
        return judged(truth, expected, actual, noise_of(run, self.make(), dtype), dtype, strict)

    def _wide(self, module: fx.GraphModule) -> list[Tensor] | None:
        """Return the graph's outputs in float64 throughout, or None if its operators do not support
        that.
        """
        try:
            return reals(InFloat64(module).run_on(self.make()))
        except Exception:
            return None

    def _is_finite(self, inputs: Sequence[Tensor]) -> bool:
        """Return whether the inputs and the numbers in the graph are finite."""
        return _has_finite_numbers(self.before) and all(bool(x.isfinite().all()) for x in inputs)

    def judge_gradients(self, verdict: Agreement, nonfinite: bool) -> Verdict:
        ours, theirs = _tracked(self.make()), _tracked(self.make())
        try:
            expected = _gradients(running(self.before)(ours), ours)
        except Exception:
            return verdict
        try:
            actual = _gradients(running(self.after)(theirs), theirs)
        except Exception as error:
            return Difference("gradient", f"{type(error).__name__}: {error}")
        for at, (one, two) in enumerate(zip(expected, actual, strict=True)):
            if (one is None) != (two is None):
                return Difference("gradient", f"input {at} has a gradient on one side only")
        given, got = [_present(gradients) for gradients in (expected, actual)]
        if not given:
            return verdict
        strange = nonfinite_differs(given, got, nonfinite, self._is_finite(self.make()))
        if strange is not None:
            return replace(strange, kind="gradient")
        dtype = max((x.dtype for x in given), key=lambda t: torch.finfo(t).eps)

        def run(inputs: Sequence[Tensor]) -> list[Tensor]:
            tracked = _tracked(inputs)
            return _present(_gradients(running(self.before)(tracked), tracked))

        moved = max(noise_of(run, self.make(), dtype))
        most = max(map(largest, given))  # what cancels in one may be of the size of others
        noise = [moved + GRADIENTS * torch.finfo(dtype).eps * most] * len(given)
        found = judged(given, given, got, noise, dtype)
        if isinstance(found, Difference):
            return replace(found, kind="gradient")
        return verdict


def _has_finite_numbers(module: fx.GraphModule) -> bool:
    numbers: list[float] = []

    def collect(value: Argument) -> Argument:
        if isinstance(value, float):
            numbers.append(value)
        return value

    for node in module.graph.nodes:
        fx.node.map_aggregate((node.args, node.kwargs), collect)
    return all(map(math.isfinite, numbers))


def _tracked(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]


def _present(gradients: Sequence[Tensor | None]) -> list[Tensor]:
    return [gradient for gradient in gradients if gradient is not None]


def _gradients(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor | None]:
    total = torch.zeros((), dtype=WIDE)
    for output in reals(outputs):
        if output.requires_grad:
            weights = torch.linspace(0.5, 1.5, max(output.numel(), 1), dtype=WIDE)
            total = total + (output.to(WIDE) * weights[: output.numel()].view(output.shape)).sum()
    leaves = [x for x in inputs if x.requires_grad]
    if not total.requires_grad:
        return [None for _ in leaves]
    return list(torch.autograd.grad(total, leaves, allow_unused=True))
