"""Sampled values of variables: tensors of guessed shapes and dtypes, constants, numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import CodeType
from typing import Final

import torch

from pypm.core.guards import Constant
from pypm.core.rules import Rule
from pypm.core.terms import UNDEFINED, Value, argument_name
from pypm.tools.verification.sampling.arguments import literal
from pypm.tools.verification.sampling.operator_choice import SIZE_ARGUMENTS, Habit, habits
from pypm.tools.verification.sampling.sketches import SketchSlot

__all__ = ["Guesses", "Leaf", "RuleHints", "Wishes", "dimensions", "hints_of", "resized"]


@dataclass(frozen=True)
class Wishes:
    """Preferences for a sampled term; its operators and guards may overrule them."""

    rank: int = 2
    sizes: tuple[int, ...] = (2, 3)
    dtype: torch.dtype = torch.float64
    layouts: tuple[int, ...] = (0,)
    seed: int = 0


@dataclass(frozen=True)
class Leaf:
    """The value of a variable: a tensor, a constant of the graph, a number, or nothing."""

    kind: str = "tensor"
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float64
    layout: int = 0
    number: Value = None

    def make(self, device: str = "cpu") -> Value:
        """A tensor of ones, or the number."""
        if self.kind == "number":
            return self.number
        ones = torch.ones(self.extent, dtype=self.dtype, device=device)
        return ones.as_strided(self.shape, self.strides)

    @property
    def extent(self) -> int:
        """Return how many elements the memory of the tensor has."""
        sizes = zip(self.shape, self.strides, strict=True)
        return 1 + sum(max(n - 1, 0) * stride for n, stride in sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        """Packed (0), with the last two dimensions swapped (1), with gaps (2), repeated (3), or
        with the second dimension last in memory (4), as channels are.
        """
        order = list(range(len(self.shape)))
        if self.layout == 1 and len(order) > 1:
            order[-2:] = order[:-3:-1]
        if self.layout == 4 and len(order) > 2:
            order.append(order.pop(1))
        step, strides = 2 if self.layout == 2 else 1, [0] * len(order)
        for dim in reversed(order):
            strides[dim] = step
            step *= max(self.shape[dim], 1)
        if self.layout == 3 and strides:
            strides[0] = 0
        return tuple(strides)


_NO_HABIT: Final = Habit()


class Guesses:
    """Leaves as wished for, as far as operators and guards do not say outright what they are."""

    def __init__(self, order: Sequence[SketchSlot], wishes: Wishes, hints: RuleHints) -> None:
        self.wishes = wishes
        self.hints = hints
        self.habits = _habits(order)
        asked = [slot.demands.get("dtype") for slot in order]
        self.dtype = next((d for d in asked if isinstance(d, torch.dtype)), wishes.dtype)
        self.size = next(_sizes(order), wishes.sizes[0])
        """The size of all dimensions until those that may differ do."""

    def leaf(self, slot: SketchSlot, random: Random, faith: float) -> Leaf:
        """A leaf as wished for, more or less; with the seed 0 exactly so."""
        demands = slot.demands
        if "value" in slot.asked:
            wanted = demands.get("value", UNDEFINED)
            number = literal(random, self.hints.numbers) if wanted is UNDEFINED else wanted
            return Leaf("number", number=number)
        asks = slot.asked & {"rank", "shape", "dtype", "device", "is_contiguous"}
        if not asks and random.random() < 0.25 * (1 - faith):
            number = None if random.random() < 0.3 else literal(random, self.hints.numbers)
            return Leaf("number", number=number)
        habit = self.habits.get(slot, _NO_HABIT) if random.random() < 0.9 else _NO_HABIT
        rank = self.wishes.rank if random.random() < faith else random.randint(0, 4)
        dtype = self.dtype if random.random() < faith + 0.2 else random.choice(self._dtypes)
        rank = rank if habit.rank is None else habit.rank
        dtype = habit.dtype or dtype
        size = self.size
        if faith < 0.5 and slot.asked & {"shape", "numel"}:
            size = random.choice([size, *self.hints.sizes])
        shape = (size,) * int(str(demands.get("rank", rank)))
        wanted = demands.get("shape")
        if isinstance(wanted, tuple):
            shape = tuple(int(n) for n in wanted)
        asked_for = demands.get("dtype")
        dtype = asked_for if isinstance(asked_for, torch.dtype) else dtype
        is_constant = "is_constant" in slot.asked and random.random() < 0.7
        return Leaf("constant" if is_constant else "tensor", shape, dtype)

    @property
    def _dtypes(self) -> list[torch.dtype]:
        plain = [torch.float64, torch.float32, torch.int64, torch.bool, torch.bfloat16]
        return [*self.hints.dtypes, *plain]

    def changed(self, slot: SketchSlot, leaf: Leaf, random: Random) -> Leaf:
        """Another leaf: of another rank or dtype, or another number."""
        new = self.leaf(slot, random, 0.3)
        if leaf.kind != new.kind or leaf.kind == "number":
            return new
        if random.random() < 0.5:
            return replace(leaf, shape=new.shape)
        return replace(leaf, dtype=new.dtype)


def _habits(order: Sequence[SketchSlot]) -> dict[SketchSlot, Habit]:
    """Return the habits of each slot, according to the operators that use it."""
    found: dict[SketchSlot, Habit] = {}
    for slot in reversed(order):
        if slot.operator is None:
            continue
        dims = slot.demands.get("dims")
        own = len(dims) if isinstance(dims, tuple) else found.get(slot, _NO_HABIT).rank
        for child, habit in zip(slot.below, habits(slot.operator, own), strict=False):
            found.setdefault(child, habit)
    return found


def _sizes(order: Sequence[SketchSlot]) -> Iterator[int]:
    """The sizes that arguments of operators give outright."""
    for slot in order:
        for name in SIZE_ARGUMENTS:
            yield from reversed(_tuple(slot.demands.get(argument_name(name))))


def _tuple(value: Value) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else ()


def dimensions(leaves: Mapping[SketchSlot, Leaf]) -> list[tuple[SketchSlot, int]]:
    """Every dimension of every leaf."""
    return [(slot, d) for slot, leaf in leaves.items() for d in range(len(leaf.shape))]


def resized(
    leaves: dict[SketchSlot, Leaf], dims: Sequence[tuple[SketchSlot, int]], size: int
) -> dict[SketchSlot, Leaf]:
    """The leaves with some dimensions of another size."""
    changed = dict(leaves)
    for slot, dim in dims:
        shape = list(changed[slot].shape)
        shape[dim] = size
        changed[slot] = replace(changed[slot], shape=tuple(shape))
    return changed


LARGEST: Final = 65
"""The largest size taken from a rule's own constants."""


@dataclass(frozen=True)
class RuleHints:
    """Hints from a rule's own constants."""

    numbers: tuple[Value, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers that can be sizes of small tensors."""
        return tuple(n for n in self.numbers if isinstance(n, int) and 1 < n <= LARGEST)


def hints_of(rule: Rule) -> RuleHints:
    """The numbers and dtypes that a rule's pattern, guards and body mention."""
    found = [*_constants([*rule.roots, rule.guard])]
    code = getattr(rule.replacement, "__code__", None)
    if isinstance(code, CodeType):
        found += code.co_consts
    numbers: dict[Value, None] = {}
    for value in found:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers |= dict.fromkeys((value, value + 1, value - 1, value * 2))
    dtypes = dict.fromkeys(value for value in found if isinstance(value, torch.dtype))
    return RuleHints(tuple(numbers), tuple(dtypes))


def _constants(parts: list[Value]) -> Iterator[Value]:
    """Yield every constant in or below parts of patterns and guards, in order."""
    todo, seen = parts[::-1], set[int]()
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Constant):
            yield from part.value if isinstance(part.value, tuple) else (part.value,)
        elif isinstance(part, tuple):
            todo += reversed(part)
        elif type(part).__module__ in _PARTS:
            names = getattr(type(part), "__slots__", ())
            todo += [getattr(part, name) for name in reversed(names)]


_PARTS: Final = frozenset({"pypm.core.patterns", "pypm.core.guards"})
