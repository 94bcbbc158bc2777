"""All that running a graph shows: values, memory, gradients, draws, effects and modes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from operator import attrgetter
from random import Random
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch._ops import HigherOrderOperator

from pypm.fx.values.symbolic import hint

__all__ = [
    "ASKED",
    "MODES",
    "NOTES",
    "Asked",
    "Derivative",
    "Make",
    "Outcome",
    "difference",
    "kept",
    "kept_modes",
    "long_strides",
    "observed",
    "plain",
    "seen_difference",
    "writable",
]

NOTES: Final[list[int]] = []
"""What the functions with an effect of `tests.hunt.strangers` were called with."""

Make: TypeAlias = Callable[[float], list[Tensor]]
"""Makes the inputs, each moved by so much relative to itself."""
Derivative: TypeAlias = Literal["", "parameters", "second", "tangents"]
"""What is differentiated besides what inputs need: parameters; the gradients of all, once more; or
the outputs, forward.
"""
MODES: Final = {"": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}


@dataclass(frozen=True)
class Asked:
    """How a graph is run, and what it is asked for."""

    derivative: Derivative = ""
    mode: str = ""
    """The name of the mode that switches gradients off, if one does."""


ASKED: Final = Asked()


@dataclass(frozen=True)
class Outcome:
    outputs: list[Any]
    inputs: list[Tensor]
    """As they are after the run, and behind them what the module holds."""
    shared: frozenset[tuple[int, int, int]]
    """Pairs among inputs, outputs and what the module holds that are in one storage, and how many
    bytes the second one begins behind the first.
    """
    parts: dict[tuple[int, int], Tensor]
    """For each of these pairs, the element of the first at which each of the second is, or -1."""
    tracked: list[bool]
    """Which outputs require a gradient, and behind them which inputs do after the run."""
    gradients: list[Tensor | None]
    """Behind the first ones, second ones; or tangents."""
    notes: list[int]
    drawn: Tensor
    """The state of the generator."""
    modes: tuple[bool, ...]


def observed(
    module: fx.GraphModule,
    make: Make,
    moved: float = 0.0,
    like: fx.GraphModule | None = None,
    rounded: Random | None = None,
    asked: Asked = ASKED,
) -> Outcome:
    """Run a graph on inputs made for it; raises what the graph raises.

    Of what the module holds, it looks at what another graph reads, if that is given. With `rounded`
    what is computed is off by roundings. Tangents are those of another run.
    """
    leaves = make(moved)
    inputs = [*leaves] if asked.mode else [*map(writable, leaves)]
    wanted = [x for x in leaves if x.requires_grad]
    NOTES.clear()
    run = module if rounded is None else _Rounded(module, rounded).run
    with kept(module, (like or module).graph) as attributes:
        trained = [x for x in attributes if x.requires_grad]
        torch.manual_seed(0)
        with _filled(), MODES[asked.mode]():
            outputs = list(_flat(run(*inputs)))
            drawn, modes = torch.get_rng_state(), _modes()
        tensors = [x for x in outputs if isinstance(x, Tensor)]
        tracked = [x.requires_grad for x in [*tensors, *inputs]]
        memory = [*inputs, *tensors, *attributes]
        shared = _shared(memory)
        parts = {(i, j): _part(memory[i], memory[j]) for i, j, _ in shared}
        gradients: list[Tensor | None] = []
        if wanted or asked.derivative == "parameters":
            twice = asked.derivative == "second"
            gradients = _gradients(tensors, wanted + trained, twice=twice)
        notes = list(NOTES)
        written = [x.detach().clone() for x in attributes]
    if asked.derivative == "tangents":
        with kept(module, (like or module).graph):
            gradients = _tangents(module, make(moved))
    return Outcome(
        [x.detach() if isinstance(x, Tensor) else x for x in outputs],
        [*(x.detach() for x in inputs), *written],
        shared, parts, tracked, gradients, notes, drawn, modes,
    )  # fmt: skip


@contextmanager
def _filled() -> Iterator[None]:
    """Memory that nobody has written yet is NaN, or the largest integer: the same in each run."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


EXACT: Final = frozenset({
    "abs", "amax", "amin", "bernoulli", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "clone",
    "constant_pad_nd", "contiguous", "copy", "dropout", "fill", "flip", "floor", "full_like",
    "gather", "index", "masked_fill", "max", "maximum", "min", "minimum", "neg", "ones_like", "pad",
    "relu", "repeat", "roll", "round", "sign", "stack", "where", "zeros_like",
})  # fmt: skip
"""Operators that round nothing, by name."""
CASTS: Final = frozenset({
    "to", "_to_copy", "type_as", "convert_element_type", "bfloat16", "double", "float", "half",
})  # fmt: skip
"""Operators that round only where the result holds fewer digits."""


class _Rounded(fx.Interpreter):
    """Moves what operators compute by a rounding, up or down or not at all."""

    def __init__(self, module: fx.GraphModule, draw: Random) -> None:
        super().__init__(module)
        self.draw = draw

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return _Rounded(value, self.draw).run if isinstance(value, fx.GraphModule) else value

    def run_node(self, n: fx.Node) -> Any:
        given = [x for node in n.all_input_nodes for x in _flat(self.env[node])]
        result = super().run_node(n)
        if not n.op.startswith("call_") or isinstance(n.target, HigherOrderOperator):
            return result
        packet = getattr(n.target, "overloadpacket", n.target)
        tensors = [x for x in given if isinstance(x, Tensor)]
        name = getattr(packet, "__name__", packet)
        if name in EXACT or not tensors or (name in CASTS and _holds(result, tensors[0])):
            return result
        if type(result) in (tuple, list):
            return type(result)(self.moved(x, tensors) for x in result)
        return self.moved(result, tensors)

    def moved(self, value: Any, given: Sequence[Tensor]) -> Any:
        """The value, or another one where it is new and may have been rounded."""
        if not isinstance(value, Tensor) or not _rounds(value):
            return value
        memory = value.untyped_storage()._cdata
        if any(x.untyped_storage()._cdata == memory for x in given):
            return value
        eps = torch.finfo(value.dtype).eps
        made = torch.Generator().manual_seed(self.draw.randrange(2**31))
        steps = torch.randint(-1, 2, value.shape, generator=made).double()
        wide = value.to(torch.complex128 if value.is_complex() else torch.float64)
        return (wide * (1 + eps * steps)).to(value.dtype)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _modes() -> tuple[bool, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
    )


@contextmanager
def kept(module: nn.Module, graph: fx.Graph) -> Iterator[list[Tensor]]:
    """The tensors that a graph takes from its module. They are kept as they are, and modes too."""
    names = sorted({str(node.target) for node in graph.find_nodes(op="get_attr")})
    found = [attrgetter(name)(module) for name in names]
    held = [x for value in found for x in _held(value)]
    values = [x.detach().clone() for x in held]
    try:
        with kept_modes():
            yield held
    finally:
        for x, value in zip(held, values, strict=True):
            x.data.copy_(value)


def _held(value: object) -> Iterator[Tensor]:
    """A tensor; or those of a body that the graph runs, without those that a rewrite put there."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        for name, x in (*value.named_parameters(), *value.named_buffers()):
            if not name.startswith("_pypm_constant"):
                yield x


@contextmanager
def kept_modes() -> Iterator[None]:
    """Whatever a graph does to modes and the generator, they are then as before.

    A graph that fails in inference mode never leaves it: what it entered is forgotten with the
    error, or when garbage is collected, and brings back the keys by which torch dispatched when it
    was entered.
    """
    inferring = torch.is_inference_mode_enabled()
    grad, cast = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    state = torch.get_rng_state()
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    level = torch._C._functorch.maybe_current_level()
    try:
        with torch._C._ForceDispatchKeyGuard(included, excluded):
            yield
    finally:
        while torch._C._functorch.maybe_current_level() != level:  # of a graph that failed
            torch._C._exit_dual_level(level=0)
            torch._C._functorch._jvp_decrement_nesting()
        if torch.is_inference_mode_enabled() != inferring:
            gc.collect()
        torch._C._set_grad_enabled(grad)
        torch.set_autocast_enabled("cpu", cast)
        torch.set_rng_state(state)


def _gradients(
    outputs: Sequence[Tensor], wanted: Sequence[Tensor], *, twice: bool = False
) -> list[Tensor | None]:
    # A view made with gradients off requires one, but none can be taken of it.
    with_grad = [x for x in outputs if x.grad_fn or (x.requires_grad and not x._is_view())]
    if not with_grad:
        return [None] * (2 * len(wanted) if twice else len(wanted))
    weights = [
        torch.linspace(0.5, 1.5, max(x.numel(), 1), dtype=torch.float64)[: x.numel()]
        .view(x.shape).to(x.dtype)
        for x in with_grad
    ]  # fmt: skip
    torch._C._set_grad_enabled(True)
    found = torch.autograd.grad(with_grad, wanted, weights, allow_unused=True, create_graph=twice)
    first = [None if x is None else x.detach() for x in found]
    if not twice:
        return [*first]
    second = _gradients([x for x in found if x is not None and x.requires_grad], wanted)
    # A formula may return zeros where another one returns none.
    return first + [None if x is None or not x.any() else x for x in second]


def _tangents(module: fx.GraphModule, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """How each output with fractions moves if each such input moves by 1 and a half of itself."""
    places = [at for at, x in enumerate(inputs) if _rounds(x)]

    def floating(*moved: Tensor) -> list[Tensor]:
        given = [*inputs]
        for at, x in zip(places, moved, strict=True):
            given[at] = x.clone()  # torch refuses some writes to an input that has a tangent
        return [x.clone() for x in _flat(module(*given)) if isinstance(x, Tensor) and _rounds(x)]

    given = tuple(inputs[at].detach() for at in places)
    torch.manual_seed(0)
    _, found = torch.func.jvp(floating, given, tuple(1 + 0.5 * x for x in given))
    return [*found]


def _shared(values: Sequence[Tensor]) -> frozenset[tuple[int, int, int]]:
    places = [x.untyped_storage().data_ptr() if x.numel() else -1 - i for i, x in enumerate(values)]
    return frozenset(
        (i, j, values[j].data_ptr() - values[i].data_ptr())
        for j, place in enumerate(places)
        for i in range(j)
        if places[i] == place
    )


def writable(leaf: Tensor) -> Tensor:
    """A copy of a leaf that needs a gradient, since torch refuses to write it."""
    return leaf.clone() if leaf.requires_grad else leaf


def _part(one: Tensor, other: Tensor) -> Tensor:
    known, order = _places(one).sort(stable=True)
    wanted = _places(other)
    at = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
    return torch.where(known[at] == wanted, order[at], -1)


def _places(x: Tensor) -> Tensor:
    """The address of each element."""
    found = torch.tensor(x.data_ptr())
    for size, stride in zip(x.shape, x.stride(), strict=True):
        found = found[..., None] + torch.arange(size) * (stride * x.element_size())
    return found.flatten()


# --- comparing -----------------------------------------------------------------------------------

FREE: Final = {torch.float64: 1e-11, torch.float32: 1e-5}
"""Of the largest number of a tensor; in narrower types 2e-2. More only where the results move by
more when inputs move by a rounding."""
ROUNDINGS: Final = 256
INSIDE: Final = 8
"""How much more a value may be off than by one rounding of each value that it is computed from."""


def difference(
    before: fx.GraphModule,
    expected: Outcome,
    actual: Outcome,
    make: Make,
    rounding: torch.dtype | None,
    of_gradients: torch.dtype | None = None,
    *,
    asked: Asked = ASKED,
    by_strides: bool = True,
) -> str:
    """What is not the same, or nothing. Numbers are, to the last bit or as `rounding` rounds;
    gradients, of which sums may be made in another order, as `of_gradients` or `rounding` does.
    """
    compare = _Comparison(before, make, rounding, asked)
    sums = _Comparison(before, make, of_gradients or rounding, asked)
    return (
        seen_difference(before, expected, actual, by_strides=by_strides)
        or compare.values("output", expected.outputs, actual.outputs)
        or compare.values("input", expected.inputs, actual.inputs)
        or sums.values("gradient", expected.gradients, _used(expected, actual))
        or compare.draws(expected.drawn, actual.drawn)
    )


def _used(expected: Outcome, actual: Outcome) -> list[Tensor | None]:
    """The gradients without zeros in place of none: one call for several results has some of each
    input, though nothing uses the result that is computed from it.
    """
    pairs = zip(expected.gradients, actual.gradients, strict=True)
    return [
        None if one is None and two is not None and not two.any() else two for one, two in pairs
    ]


def seen_difference(
    before: fx.GraphModule, expected: Outcome, actual: Outcome, *, by_strides: bool = True
) -> str:
    """What differs besides numbers; strides and distances in memory only `by_strides`."""
    if len(expected.outputs) != len(actual.outputs):
        return f"{len(actual.outputs)} outputs, not {len(expected.outputs)}"
    for at, (one, two) in enumerate(zip(expected.outputs, actual.outputs, strict=True)):
        if not isinstance(one, Tensor) or not isinstance(two, Tensor):
            if type(one) is not type(two) or one != two:
                return f"output {at} is {two}, not {one}"
        elif (one.dtype, one.shape) != (two.dtype, two.shape):
            return f"output {at} is {two.dtype} {[*two.shape]}, not {one.dtype} {[*one.shape]}"
        elif by_strides and long_strides(one) != long_strides(two) and _is_as_said(before, at, one):
            return f"output {at} has strides {two.stride()}, not {one.stride()}"
    if expected.parts.keys() != actual.parts.keys() or (
        by_strides and expected.shared != actual.shared
    ):
        return f"memory is shared by {sorted(actual.shared)}, not {sorted(expected.shared)}"
    for pair, part in expected.parts.items():
        if not torch.equal(part, actual.parts[pair]):
            return f"of {pair}, other parts share memory"
    if expected.tracked != actual.tracked:
        return f"outputs and inputs require gradients as {actual.tracked}, not {expected.tracked}"
    if expected.notes != actual.notes:
        return f"effects {actual.notes}, not {expected.notes}"
    if expected.modes != actual.modes:
        return f"modes are left as {actual.modes}, not {expected.modes}"
    return ""


def _is_as_said(module: fx.GraphModule, at: int, output: Tensor) -> bool:
    """Whether an output has the strides that its graph says.

    Of a sum of an expanded tensor and another of symbolic sizes, torch says others than it makes.
    """
    nodes = [*_flat(module.graph.output_node().args)]
    said = nodes[at].meta.get("val") if at < len(nodes) and isinstance(nodes[at], fx.Node) else None
    if not isinstance(said, Tensor) or any(hint(n) is None for n in said.stride()):
        return True
    kept = zip(output.shape, output.stride(), said.stride(), strict=True)
    return all(made == hint(told) for size, made, told in kept if size > 1)


def long_strides(value: Tensor) -> list[int]:
    """The strides of the dimensions that have more than one element."""
    if not value.numel():
        return []
    return [s for n, s in zip(value.shape, value.stride(), strict=True) if n > 1]


@dataclass(frozen=True)
class _Comparison:
    before: fx.GraphModule
    make: Make
    rounding: torch.dtype | None
    asked: Asked = ASKED

    def values(self, what: str, expected: Sequence[Any], actual: Sequence[Any]) -> str:
        if [x is None for x in expected] != [x is None for x in actual]:
            return f"some {what} is there on one side only"
        for at, (one, two) in enumerate(zip(expected, actual, strict=True)):
            if isinstance(one, Tensor):
                one, two = plain(one), plain(two)
                if not _same_bits(one, two) and (problem := self._differs(what, at, one, two)):
                    return f"{what} {at}: {problem}"
        return ""

    def draws(self, expected: Tensor, actual: Tensor) -> str:
        """`rrelu` draws for negative numbers alone: roundings may change how many there are."""
        if torch.equal(expected, actual):
            return ""
        options = {"asked": replace(self.asked, derivative="")}
        runs = (
            observed(self.before, self.make, rounded=Random(seed), **options) for seed in range(16)
        )
        if self.rounding is not None and any(not torch.equal(run.drawn, expected) for run in runs):
            return ""
        return "another number of draws"

    def _differs(self, what: str, at: int, one: Tensor, two: Tensor) -> str:
        if self.rounding is None:
            return _first(one, two)
        other = _kinds(one) != _kinds(two)
        if bool(other.any()):
            if bool((other & ~self._swings(what, at, one)).any()):
                return _first(one, two)
            two = torch.where(other, one, two)
        error = _largest(two - one)
        if error > self._free(one) and error > self._noise(what, at, one):
            return f"off by {error:.2g} of {_largest(one):.2g}: {_first(one, two)}"
        return ""

    def _swings(self, what: str, at: int, known: Tensor) -> Tensor:
        """Which numbers become finite, infinite or NaN, or are no longer, by some roundings."""
        swings = torch.zeros_like(known, dtype=torch.bool)
        for again in self._rounded(what, at, 16):
            swings |= _kinds(again) != _kinds(known)
        return swings

    def _free(self, known: Tensor) -> float:
        """What a value may be off by, as inputs are near 1."""
        assert self.rounding is not None
        if not _rounds(known):
            return 0.0
        share = FREE.get(self.rounding, 2e-2)
        return share * _largest(known) + ROUNDINGS * torch.finfo(self.rounding).eps

    def _noise(self, what: str, at: int, known: Tensor) -> float:
        """How far roundings may move a value: one that is rounded to integers, by a step."""
        assert self.rounding is not None
        eps = torch.finfo(self.rounding).eps
        inside = max(_largest(again - known) for again in self._rounded(what, at, 8))
        if not _rounds(known):
            sizes = (1, 8, ROUNDINGS)
            return max(inside, *(self._moved(what, at, known, size * eps) for size in sizes))
        by_roundings = max(self._moved(what, at, known, size * eps) for size in (1, 8))
        far = FREE.get(self.rounding, 0.0)  # past what a large constant in between swallows
        return max(INSIDE * inside, ROUNDINGS * by_roundings, self._moved(what, at, known, far))

    def _moved(self, what: str, at: int, known: Tensor, share: float) -> float:
        """How far a value moves when inputs move by a share of themselves."""
        moved = (self._value(what, at, moved=moved) for moved in (share, -share))
        return max(_largest(again - known) for again in moved)

    def _rounded(self, what: str, at: int, count: int) -> Iterator[Tensor]:
        """The value, as often as wanted, with other roundings inside of the graph."""
        for seed in range(count):
            yield self._value(what, at, rounded=Random(seed))

    def _value(self, what: str, at: int, **options: Any) -> Tensor:
        asked = self.asked if what == "gradient" else replace(self.asked, derivative="")
        again = observed(self.before, self.make, asked=asked, **options)
        values = {"output": again.outputs, "input": again.inputs}.get(what, again.gradients)
        value = values[at]
        assert isinstance(value, Tensor)
        return plain(value)


def _rounds(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _kinds(value: Tensor) -> Tensor:
    """0 for what is finite, and a number for NaN and each infinity."""
    if value.is_complex():
        return value.isnan() + 2 * value.isinf()
    return value.isnan() + 2 * value.isposinf() + 3 * value.isneginf()


def _holds(value: Tensor, other: Tensor) -> bool:
    """Whether the type of a value holds every digit of another."""
    if not _rounds(value) or not _rounds(other):
        return True
    return torch.finfo(value.dtype).eps <= torch.finfo(other.dtype).eps


def plain(value: Tensor) -> Tensor:
    """Of a type that everything can be asked of; small floats are widened, bits are integers."""
    if value.dtype == torch.bool:
        return value.to(torch.int8)
    if value.dtype == torch.complex32:
        return value.to(torch.complex64)
    return value.float() if "float8" in str(value.dtype) else value


def _same_bits(one: Tensor, two: Tensor) -> bool:
    if torch.equal(one, two):
        zero = one == 0
        if one.is_complex() or not one.is_floating_point() or not bool(zero.any()):
            return True
        return torch.equal(one[zero].signbit(), two[zero].signbit())
    return (
        (one.is_floating_point() or one.is_complex())
        and torch.equal(_parts(one).isnan(), _parts(two).isnan())
        and torch.equal(one.nan_to_num(), two.nan_to_num())
    )


def _parts(value: Tensor) -> Tensor:
    """Real and imaginary parts beside each other; other numbers as they are."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _first(one: Tensor, two: Tensor) -> str:
    at = (one != two) & ~(one.isnan() & two.isnan()) if one.dtype.is_floating_point else one != two
    if not bool(at.any()):
        return "other bits"
    return f"{two[at].flatten()[0].item()} instead of {one[at].flatten()[0].item()}"


def _largest(value: Tensor) -> float:
    sizes = value.abs().double()
    sizes = sizes[sizes.isfinite()]
    return float(sizes.max()) if sizes.numel() else 0.0
