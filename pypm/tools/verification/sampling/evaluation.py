"""Calls made on tensors of ones, and the terms that they are, of which guards are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pypm.core.guards import Lookup, evaluate
from pypm.core.operators import CONS, NIL, Operator
from pypm.core.terms import UNDEFINED, Term, Terms, Value
from pypm.fx import LITERAL
from pypm.fx.operators.schemas import Overload
from pypm.fx.subject.calls import counted_from_zero, rank_of_dims
from pypm.fx.values.tensor_properties import TENSOR_PROPERTIES, literal_properties, tensor_property
from pypm.tools.verification.sampling.inputs import Leaf
from pypm.tools.verification.sampling.operator_choice import result_of
from pypm.tools.verification.sampling.sketches import SketchSlot

__all__ = ["Computed", "Evaluation", "attributes_of", "computed", "filled_in", "value_in"]


@dataclass(frozen=True)
class Computed:
    """A slot with its value: an input, or a call with its arguments."""

    slot: SketchSlot
    value: Value
    leaf: Leaf | None = None
    overload: Overload | None = None
    arguments: Mapping[str, Value] = field(default_factory=dict)
    """By name, with slots for the children."""


def value_in(slot: SketchSlot, values: Mapping[SketchSlot, Value]) -> Value:
    """Return the value of a slot; for a list, the tuple of its elements' values."""
    if slot.operator == NIL:
        return ()
    if slot.operator == CONS:
        head, tail = slot.below
        rest = value_in(tail, values)
        assert isinstance(rest, tuple)
        return (value_in(head, values), *rest)
    return values[slot]


def filled_in(
    arguments: Mapping[str, Value], values: Mapping[SketchSlot, Value]
) -> dict[str, Value]:
    """Return the arguments of a call, with the values of the slots in their places."""
    return {
        name: value_in(value.find, values) if isinstance(value, SketchSlot) else value
        for name, value in arguments.items()
    }


def computed(
    slot: SketchSlot,
    overload: Overload,
    arguments: Mapping[str, Value],
    values: Mapping[SketchSlot, Value],
) -> Computed | None:
    """The call, or None where torch refuses it."""
    given = filled_in(arguments, values)
    try:
        with torch.no_grad():
            value = result_of(overload, given)
    except Exception:  # whatever torch says of arguments drawn at random
        return None
    return Computed(slot, value, None, overload, arguments)


def attributes_of(
    overload: Overload, arguments: Mapping[str, Value], children: Sequence[Value]
) -> tuple[dict[str, Value], Value]:
    """The attributes of the term that the call is, dimensions counted from zero."""
    rank = rank_of_dims(overload.packet_name, children)
    found = dict(overload.stand_ins)
    for argument in overload.slots:
        if argument.parameter.kind == "attribute":
            value = arguments[argument.name]
            if argument.parameter.dimension and isinstance(rank, int):
                value = counted_from_zero(value, rank)
            found[argument.name] = value
    return found, None if rank is UNDEFINED else rank


@dataclass
class Evaluation:
    """The slots that have their values, each with its term."""

    steps: dict[SketchSlot, Computed]
    values: dict[SketchSlot, Value]
    terms: Terms
    known: dict[SketchSlot, Term]

    def add(self, step: Computed, attributes: tuple[dict[str, Value], Value]) -> None:
        assert step.slot.operator is not None
        assert step.overload is not None
        named, rank = attributes
        derived = {"tags": step.overload.tags, "dimension_rank": rank}
        self.put(step.slot, step.slot.operator, step.value, named, derived)
        self.steps[step.slot] = step

    def put(
        self,
        slot: SketchSlot,
        operator: Operator,
        value: Value,
        attributes: Mapping[str, Value],
        derived: Mapping[str, Value],
    ) -> None:
        self.values[slot] = value
        children = [] if operator == LITERAL else [self.known[child] for child in slot.below]
        derived = {**derived, **_derived(value)}
        self.known[slot] = self.terms.make(operator, children, attributes, derived)

    def drop(self, slot: SketchSlot) -> None:
        del self.steps[slot], self.values[slot], self.known[slot]

    def value_of(self, slot: SketchSlot) -> Value:
        """The term or constant that a slot stands for, or UNDEFINED."""
        if slot in self.known:
            return self.known[slot]
        for expression, scope in slot.definitions:
            value = evaluate(expression, self.lookup(scope))
            if value is not UNDEFINED:
                return value
        return slot.operator if slot.operator is not None else UNDEFINED

    def lookup(self, scope: Mapping[str, SketchSlot]) -> Lookup:
        return lambda name: self.value_of(scope[name].find)


def _derived(value: Value) -> Mapping[str, Value]:
    if isinstance(value, torch.Tensor):
        found = {name: tensor_property(value, name) for name in TENSOR_PROPERTIES}
        return {**found, "device": "cpu"}
    return {} if isinstance(value, tuple) else literal_properties(value)
