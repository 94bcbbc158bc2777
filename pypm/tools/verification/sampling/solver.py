"""Shapes, dtypes, literals and layouts under which a drawn term computes and passes its guards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final

import torch

from pypm.core.guard_origins import origin_of
from pypm.core.guards import Attribute, AttributeTest, evaluate, holds
from pypm.core.operators import CONS, NIL, Operator
from pypm.core.terms import UNDEFINED, Terms, Value, argument_name
from pypm.core.traverse import expression_names, names
from pypm.fx import LITERAL
from pypm.fx.operators import corrections
from pypm.fx.operators.schemas import Overload
from pypm.match.explain.causes import guard_text
from pypm.tools.verification.sampling.arguments import is_of_pieces, value_of
from pypm.tools.verification.sampling.evaluation import (
    Computed,
    Evaluation,
    attributes_of,
    computed,
    value_in,
)
from pypm.tools.verification.sampling.inputs import (
    Guesses,
    Leaf,
    RuleHints,
    Wishes,
    dimensions,
    resized,
)
from pypm.tools.verification.sampling.operator_choice import applicable, complete
from pypm.tools.verification.sampling.sketches import Condition, Sketch, SketchSlot, Unsampled
from pypm.tools.verification.sampling.symbolic_graphs import pinned

__all__ = ["solve"]

REPAIRS: Final = 80
"""Leaves changed before a term is given up."""
LARGEST: Final = 2**16
"""The most elements of a tensor: a rule that asks for more is not tried."""
IMPOSSIBLE: Final = 2**40
"""The most elements of a tensor of which only the shape is computed."""
RESIZED: Final = 24
"""The most dimensions among which those are looked for that can change by themselves."""
TRIES: Final = 6
"""Arguments drawn for one call."""


class _Conflict(Exception):
    def __init__(self, slot: SketchSlot, reason: str) -> None:
        super().__init__(reason)
        self.slot = slot


def solve(sketch: Sketch, wishes: Wishes, hints: RuleHints) -> tuple[Computed, ...]:
    """Return each slot of a term with its value, those below first.

    Raises Unsampled.
    """
    random = Random(wishes.seed)
    order = complete(sketch, random)
    solver = _Solver(sketch, order, wishes, hints)
    leaves = solver.varied(solver.repaired(random), random)
    for leaf in leaves.values():
        if leaf.extent > LARGEST:
            raise Unsampled(f"a tensor of {leaf.extent} elements is too large to try")
    return solver.realize(leaves)


class _Solver:
    def __init__(
        self, sketch: Sketch, order: list[SketchSlot], wishes: Wishes, hints: RuleHints
    ) -> None:
        self.sketch = sketch
        self.order = order
        self.wishes = wishes
        _share_demands(sketch.conditions)
        self.guesses = Guesses(order, wishes, hints)
        self.ready: dict[SketchSlot, list[Condition]] = {}
        """The conditions that can be judged once a slot has its value."""
        self._realized: dict[tuple[Leaf | str, ...], tuple[Computed, ...] | _Conflict] = {}
        position = {slot: index for index, slot in enumerate(order)}
        for condition in sketch.conditions:
            about = [s for s in _terms_of(condition) if s in position]
            last = max(about, key=position.__getitem__, default=order[0])
            self.ready.setdefault(last, []).append(condition)

    # --- leaves ---

    def repaired(self, random: Random) -> dict[SketchSlot, Leaf]:
        """Leaves with which everything computes: where a call fails, one below it is changed."""
        met: Counter[str] = Counter()
        faith = 0.75 if self.wishes.seed else 1.0
        leaves = {
            slot: self.guesses.leaf(slot, random, faith) for slot in self.order if _is_leaf(slot)
        }
        for _ in range(REPAIRS):
            try:
                self.realize(leaves)
            except _Conflict as conflict:
                met[str(conflict)] += 1
                below = [leaf for leaf in _leaves_below(conflict.slot) if leaf in leaves]
                if not below:
                    break
                chosen = random.choice(below)
                leaves[chosen] = self.guesses.changed(chosen, leaves[chosen], random)
            else:
                return leaves
        [(reason, _)] = met.most_common(1)
        raise Unsampled(reason)

    def varied(self, leaves: dict[SketchSlot, Leaf], random: Random) -> dict[SketchSlot, Leaf]:
        """The leaves with sizes that differ where they may, some of them one, in other layouts."""
        for number, group in enumerate(self._groups(leaves)):
            size = self.wishes.sizes[(number + 1) % len(self.wishes.sizes)]
            leaves = self._kept(leaves, resized(leaves, group, size))
        for dim in dimensions(leaves) if self.wishes.seed else ():
            if random.random() < 0.12:
                leaves = self._kept(leaves, resized(leaves, [dim], 1))
        tensors = [slot for slot, leaf in leaves.items() if leaf.kind == "tensor"]
        for slot, layout in zip(tensors, self.wishes.layouts, strict=False):
            if layout:
                other = {**leaves, slot: replace(leaves[slot], layout=layout)}
                leaves = self._kept(leaves, other)
        return leaves

    def _kept(
        self, known: dict[SketchSlot, Leaf], other: dict[SketchSlot, Leaf]
    ) -> dict[SketchSlot, Leaf]:
        return other if self._works(other) else known

    def _groups(self, leaves: dict[SketchSlot, Leaf]) -> Iterator[list[tuple[SketchSlot, int]]]:
        """The dimensions that can only change together.

        For one dimension, those are what is left when all that need not change with it are
        taken away, one after the other, from all dimensions.
        """
        base = self.guesses.size
        other = base + 1 if base != 1 else 3
        left = [(s, d) for s, d in dimensions(leaves) if leaves[s].shape[d] == base]
        if len(left) > RESIZED:
            return
        if not self._works(resized(leaves, left, other)):
            if base <= 1:
                return
            fixed = pinned(self.realize(leaves))
            left = [dim for dim in left if dim not in fixed]
            if not self._works(resized(leaves, left, other)):
                return
        while left:
            first, *rest = left
            group = [first, *rest]
            for dim in rest:
                smaller = [d for d in group if d != dim]
                if self._works(resized(leaves, smaller, other)):
                    group = smaller
            yield group
            left = [dim for dim in left if dim not in group]

    def _works(self, leaves: dict[SketchSlot, Leaf]) -> bool:
        try:
            self.realize(leaves)
        except _Conflict:
            return False
        return True

    # --- terms ---

    def realize(self, leaves: Mapping[SketchSlot, Leaf]) -> tuple[Computed, ...]:
        """Every slot with its value. Raises _Conflict at the first that cannot have one."""
        # numbers by their texts: 1, 1.0 and True are equal
        key = tuple([leaf if leaf.kind != "number" else repr(leaf) for leaf in leaves.values()])
        found = self._realized.get(key)
        if found is None:
            try:
                found = self._compute(leaves)
            except _Conflict as conflict:
                found = conflict
            self._realized[key] = found
        if isinstance(found, _Conflict):
            raise found.with_traceback(None)
        return found

    def _compute(self, leaves: Mapping[SketchSlot, Leaf]) -> tuple[Computed, ...]:
        state = Evaluation({}, {}, Terms(), {})
        is_large = any(leaf.extent > LARGEST for leaf in leaves.values())
        device = "meta" if is_large else "cpu"
        for slot in self.order:
            if _is_leaf(slot):
                self._try_leaf(slot, leaves[slot], device, state)
            elif slot.operator in (CONS, NIL):
                cell = CONS if slot.children else NIL
                state.put(slot, cell, value_in(slot, state.values), {}, {})
            else:
                self._call(slot, state)
        return tuple(state.steps.values())

    def _try_leaf(self, slot: SketchSlot, leaf: Leaf, device: str, state: Evaluation) -> None:
        if leaf.extent > IMPOSSIBLE:
            raise _Conflict(slot, f"a tensor of rank {len(leaf.shape)} is too large to try")
        value = leaf.make(device)
        if leaf.kind == "number":
            state.put(slot, LITERAL, value, {"value": value}, {})
        else:
            name = Operator(f"leaf.{len(state.steps)}")
            state.put(slot, name, value, {}, {"is_constant": leaf.kind == "constant"})
        state.steps[slot] = Computed(slot, value, leaf)
        failing = self._failing(slot, state)
        if failing is not None:
            raise _Conflict(slot, failing)

    def _call(self, slot: SketchSlot, state: Evaluation) -> None:
        assert slot.operator is not None
        children = [state.values[child] for child in slot.below]
        refused = f"no arguments were found that `{slot.operator.name}` takes"
        if children and not any(isinstance(child, (torch.Tensor, tuple)) for child in children):
            raise _Conflict(slot, refused)
        found = list(applicable(slot, slot.operator, children))
        random = Random(f"{self.wishes.seed} {self.order.index(slot)}")
        for attempt in range(TRIES if found else 0):
            overload = found[0] if attempt == 0 and not self.wishes.seed else random.choice(found)
            arguments = self._arguments(slot, overload, children, state, random)
            step = computed(slot, overload, arguments, state.values)
            if step is None:
                continue
            state.add(step, attributes_of(overload, arguments, children))
            failing = self._failing(slot, state)
            if failing is None:
                return
            refused = failing
            state.drop(slot)
        raise _Conflict(slot, refused)

    def _arguments(
        self,
        slot: SketchSlot,
        overload: Overload,
        children: Sequence[Value],
        state: Evaluation,
        random: Random,
    ) -> dict[str, Value]:
        found: dict[str, Value] = {argument.name: UNDEFINED for argument in overload.slots}
        below = iter(slot.below)
        for argument in overload.slots:
            if argument.parameter.kind == "attribute":
                found[argument.name] = self._wanted(slot, argument.name, overload, state)
            else:
                found[argument.name] = next(below)
        for argument in sorted(overload.slots, key=is_of_pieces):
            if found[argument.name] is UNDEFINED:
                length = slot.lengths.get(argument.name)
                dim = found.get("dim", UNDEFINED)
                drawn = value_of(argument, overload, children, length, dim, random)
                found[argument.name] = drawn
        return found

    def _wanted(self, slot: SketchSlot, name: str, overload: Overload, state: Evaluation) -> Value:
        """Return the value of an argument that guards and equal constants demand."""
        demanded = slot.demands.get(argument_name(name), UNDEFINED)
        if demanded is not UNDEFINED:
            return demanded
        if corrections.RESIZERS.get(overload.packet_name) == name:
            return self._shape(slot, state)
        linked = slot.links.get((name, None))
        if linked is not None:
            return state.value_of(linked.find)
        places = sorted((i, s) for (n, i), s in slot.links.items() if n == name and i is not None)
        items = [state.value_of(s.find) for _, s in places]
        if items and len(items) == slot.lengths.get(name) and UNDEFINED not in items:
            return tuple(items)
        return UNDEFINED

    def _shape(self, slot: SketchSlot, state: Evaluation) -> Value:
        """The shape that a guard says outright."""
        for condition in self.ready.get(slot, ()):
            match origin_of(condition.guard):
                case AttributeTest(Attribute(name, "shape"), other, None) | AttributeTest(
                    other, Attribute(name, "shape"), None
                ) if condition.scope[name].find is slot and name not in expression_names(other):
                    return evaluate(other, state.lookup(condition.scope))
        return UNDEFINED

    def _failing(self, slot: SketchSlot, state: Evaluation) -> str | None:
        """The first guard that does not hold, in words, if there is one."""
        for condition in self.ready.get(slot, ()):
            if holds(condition.guard, state.lookup(condition.scope)) is not True:
                return f"no values were found of which `{guard_text(condition.guard)}` is true"
        return None


def _share_demands(conditions: Sequence[Condition]) -> None:
    """Give what is asked of one value's shape, rank or dtype to those that must have the same."""
    for condition in (*conditions, *reversed(conditions)):
        match origin_of(condition.guard):
            case AttributeTest(Attribute(left, one), Attribute(right, other), None) if (
                one == other and one in ("shape", "rank", "dtype")
            ):
                slots = [condition.scope[name].find for name in (left, right)]
                known = [slot.demands[one] for slot in slots if one in slot.demands]
                for slot in slots if known else ():
                    slot.demand(one, known[0])


def _is_leaf(slot: SketchSlot) -> bool:
    return slot.operator is None or slot.operator == LITERAL


def _leaves_below(slot: SketchSlot) -> list[SketchSlot]:
    if _is_leaf(slot):
        return [slot]
    return [leaf for child in slot.below for leaf in _leaves_below(child)]


def _terms_of(condition: Condition) -> Iterator[SketchSlot]:
    """The slots that a guard reads, through what constants are computed from."""
    todo = [(name, condition.scope) for name in names(condition.guard)]
    seen: set[SketchSlot] = set()
    while todo:
        name, scope = todo.pop()
        slot = scope[name].find
        if slot in seen:
            continue
        seen.add(slot)
        yield slot
        for expression, inner in slot.definitions[:1]:
            todo += [(n, inner) for n in expression_names(expression)]
