"""Two graphs run on the same tensors: do they give the same, the same up to rounding, or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, fx

from pypm.fx.view import metadata
from pypm.tools.verification.graphs import CONSTANT
from pypm.tools.verification.tensors import filled

__all__ = ["Agreement", "Difference", "Unusable", "Verdict", "compare"]


@dataclass(frozen=True)
class Agreement:
    """The same values: bit for bit where the error is 0.

    `error` is the largest one relative to the output's largest value, `tolerance` what would have
    been allowed: how far the result moves when inputs move by a rounding.
    """

    error: float = 0.0
    tolerance: float = 0.0


@dataclass(frozen=True)
class Difference:
    """Something that the two do not have in common."""

    kind: str
    """value, nonfinite, dtype, shape, strides, aliasing, write, gradient or crash."""
    detail: str
    error: float = 0.0
    tolerance: float = 0.0


@dataclass(frozen=True)
class Unusable:
    """The graph that is replaced cannot be run on these tensors."""

    reason: str


Verdict: TypeAlias = Agreement | Difference | Unusable

WIDE: Final = torch.float64
FACTOR: Final = {torch.float64: 64.0, torch.float32: 64.0}
"""Roundings allowed, in units of the measured noise; 8 in the narrower types."""
GRADIENTS: Final = 16.0
"""Roundings of the largest gradient that count as noise in every gradient."""


def compare(
    before: fx.GraphModule,
    after: fx.GraphModule,
    kind: str,
    seed: int,
    nonfinite: bool,
    gradients: bool,
) -> Verdict:
    """Run both graphs on tensors of a kind and judge what the second gives."""
    likes = [metadata(node) for node in before.graph.find_nodes(op="placeholder")]
    trial = _Trial(before, after, lambda: filled(kind, likes, seed))
    verdict = trial.judge(nonfinite)
    if gradients and isinstance(verdict, Agreement):
        return trial.judge_gradients(verdict)
    return verdict


Run: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass
class _Trial:
    before: fx.GraphModule
    after: fx.GraphModule
    make: Callable[[], list[Tensor]]

    def judge(self, nonfinite: bool) -> Verdict:
        ours, theirs = self.make(), self.make()
        try:
            expected = _run(self.before)(ours)
        except Exception as error:  # whatever an operator says of these values
            return Unusable(str(error))
        try:
            actual = _run(self.after)(theirs)
        except Exception as error:
            return Difference("crash", f"{type(error).__name__}: {error}")
        plain = (
            _metadata_differs(expected, actual)
            or _aliasing_differs(ours, expected, theirs, actual)
            or _writes_differ(ours, theirs)
        )
        if plain is not None:
            return plain
        finite = all(bool(x.isfinite().all()) for x in ours)
        strange = _nonfinite_differs(expected, actual, nonfinite, finite)
        if strange is not None:
            return strange
        return self._values(expected, actual)

    def _values(self, expected: list[Tensor], actual: list[Tensor]) -> Verdict:
        dtypes = _floating(self.before) | _floating(self.after)
        if dtypes <= {WIDE}:
            return self._judged(expected, expected, actual, _run(self.before), WIDE)
        coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        truth = self._wide(self.before)
        reference = expected if truth is None else truth
        verdict = self._judged(reference, expected, actual, _run(self.before), coarsest)
        if isinstance(verdict, Difference) or truth is None:
            return verdict
        exact = self._wide(self.after)
        if exact is None:
            return verdict
        constants = [WIDE, *_constants(self.after)]
        rounded = max(constants, key=lambda dtype: torch.finfo(dtype).eps)
        wide = self._judged(truth, truth, exact, _Wide(self.before).run_on, rounded)
        return wide if isinstance(wide, Difference) else verdict

    def _judged(
        self,
        truth: list[Tensor],
        expected: list[Tensor],
        actual: list[Tensor],
        run: Run,
        dtype: torch.dtype,
    ) -> Agreement | Difference:
        if all(map(_is_same, expected, actual)):
            return Agreement()
        return _judged(truth, expected, actual, self._noise(run, self.make(), dtype), dtype)

    def _wide(self, module: fx.GraphModule) -> list[Tensor] | None:
        """What the graph gives in float64 throughout, if its operators have that."""
        try:
            return _Wide(module).run_on(self.make())
        except Exception:
            return None

    def _noise(self, run: Run, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """How far each output moves when the inputs move by a rounding of that type.

        Where everything cancels, whatever the inputs are: a rounding of them, which a kernel that
        rounds in between may leave.
        """
        eps = torch.finfo(dtype).eps
        wide = [x.to(WIDE) if x.is_floating_point() else x for x in inputs]
        known = run(inputs)
        noise = [torch.zeros((), dtype=WIDE) for _ in known]
        for seed in range(2):
            generator = torch.Generator().manual_seed(seed)
            moved = [
                (x + x * eps * _signs(x, generator)).to(old.dtype) if x.is_floating_point() else x
                for x, old in zip(wide, inputs, strict=True)
            ]
            again = run([_like(x, old) for x, old in zip(moved, inputs, strict=True)])
            for at, (one, two) in enumerate(zip(known, again, strict=True)):
                noise[at] = torch.maximum(noise[at], _largest(one.to(WIDE) - two.to(WIDE)))
        floating = [x for x in wide if x.is_floating_point()]
        given = max(map(_largest, floating), default=torch.zeros((), dtype=WIDE))
        return [
            moved if moved or _largest(one.to(WIDE)) else given * eps
            for moved, one in zip(noise, known, strict=True)
        ]

    def judge_gradients(self, verdict: Agreement) -> Verdict:
        ours, theirs = _tracked(self.make()), _tracked(self.make())
        try:
            expected = _gradients(_run(self.before)(ours), ours)
        except Exception:
            return verdict
        try:
            actual = _gradients(_run(self.after)(theirs), theirs)
        except Exception as error:
            return Difference("gradient", f"{type(error).__name__}: {error}")
        for at, (one, two) in enumerate(zip(expected, actual, strict=True)):
            if (one is None) != (two is None):
                return Difference("gradient", f"input {at} has a gradient on one side only")
        given, got = [_present(gradients) for gradients in (expected, actual)]
        if not given:
            return verdict
        dtype = max((x.dtype for x in given), key=lambda t: torch.finfo(t).eps)

        def run(inputs: Sequence[Tensor]) -> list[Tensor]:
            tracked = _tracked(inputs)
            return _present(_gradients(_run(self.before)(tracked), tracked))

        moved = max(self._noise(run, self.make(), dtype))
        largest = max(map(_largest, given))  # what cancels in one may be of the size of others
        noise = [moved + GRADIENTS * torch.finfo(dtype).eps * largest] * len(given)
        found = _judged(given, given, got, noise, dtype)
        if isinstance(found, Difference):
            return Difference("gradient", found.detail, found.error, found.tolerance)
        return verdict


def _run(module: fx.GraphModule) -> Run:
    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        return list(_tensors(module(*inputs)))

    return run


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _like(value: Tensor, old: Tensor) -> Tensor:
    """A value in the layout of another tensor of its shape."""
    if value.stride() == old.stride() or 0 in old.stride():
        return value
    return torch.empty_strided(old.shape, old.stride(), dtype=old.dtype).copy_(value)


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, like.shape, generator=generator).to(WIDE) * 2 - 1


def _largest(value: Tensor) -> Tensor:
    finite = value.abs().to(WIDE)
    finite = finite[finite.isfinite()]
    return finite.max() if finite.numel() else torch.zeros((), dtype=WIDE)


# --- what is not about values --------------------------------------------------------------------


def _metadata_differs(expected: list[Tensor], actual: list[Tensor]) -> Difference | None:
    if len(expected) != len(actual):
        return Difference("shape", f"{len(actual)} outputs instead of {len(expected)}")
    for one, two in zip(expected, actual, strict=True):
        if one.dtype != two.dtype:
            return Difference("dtype", f"{two.dtype} instead of {one.dtype}")
        if one.shape != two.shape:
            return Difference("shape", f"{tuple(two.shape)} instead of {tuple(one.shape)}")
        if _seen_strides(one) != _seen_strides(two):
            return Difference("strides", f"{two.stride()} instead of {one.stride()}")
    return None


def _seen_strides(value: Tensor) -> list[int]:
    if not value.numel():
        return []
    return [s for n, s in zip(value.shape, value.stride(), strict=True) if n > 1]


def _aliasing_differs(
    ours: list[Tensor], expected: list[Tensor], theirs: list[Tensor], actual: list[Tensor]
) -> Difference | None:
    one, two = _shared([*ours, *expected], len(ours)), _shared([*theirs, *actual], len(ours))
    for pair in sorted(one ^ two):
        what = "shares memory with" if pair in two else "no longer shares memory with"
        names = [f"input {i}" if i < len(ours) else f"output {i - len(ours)}" for i in pair]
        return Difference("aliasing", f"{names[1]} {what} {names[0]}")
    return None


def _shared(values: list[Tensor], inputs: int) -> set[tuple[int, int]]:
    return {
        (i, j)
        for (i, one), (j, two) in combinations(enumerate(values), 2)
        if j >= inputs and one.numel() and two.numel() and _storage(one) == _storage(two)
    }


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _writes_differ(ours: list[Tensor], theirs: list[Tensor]) -> Difference | None:
    for at, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        if not torch.equal(one.nan_to_num(), two.nan_to_num()):
            return Difference("write", f"input {at} is written to")
    return None


def _nonfinite_differs(
    expected: list[Tensor], actual: list[Tensor], nonfinite: bool, finite_inputs: bool
) -> Difference | None:
    for one, two in zip(expected, actual, strict=True):
        if not one.is_floating_point():
            continue
        gone = one.isfinite() & ~two.isfinite()
        if finite_inputs and bool(gone.any()):
            return Difference("value", f"{_first(two, gone)} instead of {_first(one, gone)}")
        other = one.nan_to_num() != two.nan_to_num()
        strange = gone | (~one.isfinite() & (two.isfinite() | (one.isnan() != two.isnan()) | other))
        if nonfinite and bool(strange.any()):
            detail = f"{_first(two, strange)} instead of {_first(one, strange)}"
            return Difference("nonfinite", detail)
    return None


def _first(values: Tensor, where: Tensor) -> float:
    return float(values[where].flatten()[0])


# --- values --------------------------------------------------------------------------------------


def _judged(
    truth: Sequence[Tensor],
    expected: Sequence[Tensor],
    actual: Sequence[Tensor],
    noise: Sequence[Tensor],
    dtype: torch.dtype,
) -> Agreement | Difference:
    """Whether the error is one of rounding: no more than the noise, or than `expected` has."""
    worst = Agreement()
    for true, one, two, moved in zip(truth, expected, actual, noise, strict=True):
        if not one.is_floating_point():
            if not torch.equal(one, two):
                at = one != two
                return Difference("value", f"{two[at][0].item()} instead of {one[at][0].item()}")
            continue
        if _is_same(one, two):
            continue
        scale = _largest(true)
        error = _largest(two.to(WIDE) - true.to(WIDE))
        own = _largest(one.to(WIDE) - true.to(WIDE))
        allowed = FACTOR.get(dtype, 8.0) * (moved + torch.finfo(dtype).eps * scale) + 2 * own
        unit = max(float(scale), 1e-300)
        apart = float(_largest(two.to(WIDE) - one.to(WIDE))) / unit
        if float(error) > float(allowed):
            at = (two.to(WIDE) - true.to(WIDE)).abs().nan_to_num().flatten().argmax()
            detail = f"{two.flatten()[at].item():.9g} instead of {true.flatten()[at].item():.9g}"
            return Difference("value", detail, float(error) / unit, float(allowed) / unit)
        if apart > worst.error:
            worst = Agreement(apart, float(allowed) / unit)
    return worst


def _is_same(one: Tensor, two: Tensor) -> bool:
    return torch.equal(one, two) or torch.equal(one.nan_to_num(), two.nan_to_num())


def _floating(module: fx.GraphModule) -> set[torch.dtype]:
    values = [v for node in module.graph.nodes for v in _tensors(metadata(node))]
    return {v.dtype for v in values if v.is_floating_point()}


def _constants(module: fx.GraphModule) -> list[torch.dtype]:
    """The dtypes in which a replacement holds numbers, rounded to them."""
    names = [str(node.target) for node in module.graph.find_nodes(op="get_attr")]
    values = [getattr(module, name) for name in names if not name.startswith(CONSTANT)]
    return [v.dtype for v in _tensors(values) if v.is_floating_point()]


class _Wide(fx.Interpreter):
    """Runs a graph with every floating-point value in float64."""

    def run_on(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        wide = [x.to(WIDE) if x.is_floating_point() else x for x in inputs]
        return list(_tensors(self.run(*wide)))

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor) and result.is_floating_point():
            return result.to(WIDE)
        return result

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args = tuple(_widened(value) for value in args)
        kwargs = {name: _widened(value) for name, value in kwargs.items()}
        return super().call_function(target, args, kwargs)


def _widened(value: Any) -> Any:
    is_floating = isinstance(value, torch.dtype) and value.is_floating_point
    return WIDE if is_floating else value


# --- gradients -----------------------------------------------------------------------------------


def _tracked(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]


def _present(gradients: Sequence[Tensor | None]) -> list[Tensor]:
    return [gradient for gradient in gradients if gradient is not None]


def _gradients(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor | None]:
    total = torch.zeros((), dtype=WIDE)
    for output in outputs:
        if output.requires_grad:
            weights = torch.linspace(0.5, 1.5, max(output.numel(), 1), dtype=WIDE)
            total = total + (output.to(WIDE) * weights[: output.numel()].view(output.shape)).sum()
    leaves = [x for x in inputs if x.requires_grad]
    if not total.requires_grad:
        return [None for _ in leaves]
    return list(torch.autograd.grad(total, leaves, allow_unused=True))
