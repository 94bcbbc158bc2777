"""Operators for operator variables, and the overloads that take given arguments."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final

import torch

from pypm.core.guards import holds
from pypm.core.operators import CONS, NIL, REQUIRED, Operator, Parameter
from pypm.core.terms import Value, argument_name
from pypm.core.traverse import names
from pypm.fx import GETITEM
from pypm.fx.operators.schemas import Overload, overloads, packet
from pypm.fx.operators.schemas import Slot as Argument
from pypm.tools.verification.sampling.sketches import Condition, Sketch, SketchSlot, Unsampled
from pypm.torch_internals import OpOverload, all_schemas

__all__ = [
    "CRASHING",
    "SIZE_ARGUMENTS",
    "Habit",
    "applicable",
    "complete",
    "habits",
    "operators_of",
    "result_of",
    "target",
]

_FAMILIAR: Final = """
    relu add neg mul sigmoid sub tanh div exp where maximum abs sqrt clamp gelu pow rsqrt lt eq
    _to_copy clone masked_fill lerp addcmul sum mean amax softmax
"""
FAMILIAR: Final = tuple(f"aten.{name}" for name in _FAMILIAR.split())
"""Operators that are tried before the others of their class."""


class _Item(Overload):
    @property
    def operator(self) -> Operator:
        return GETITEM


INDEXED: Final = "Tensor or List[Tensor]"
ITEM: Final = _Item(
    GETITEM.name,
    name="",
    slots=(
        Argument(Parameter("self"), INDEXED, False, None, False),
        Argument(Parameter("index", "attribute"), "int", False, None, False),
    ),
    tags=frozenset(),
    written=(),
    shared=(0,),
    is_view=True,
    is_random=False,
    returns=("Tensor",),
    namespace="",
)
"""`x[i]`, of which torch has no schema."""


@cache
def operators_of(tags: frozenset[str], children: int) -> tuple[Operator, ...]:
    """ATen's operators of some classes that can be called with so many tensors and nothing else."""
    listed = all_schemas()
    names = {s.name.replace("::", ".") for s in listed if s.name.startswith("aten::")}
    others = sorted(name for name in names if "._" not in name)
    found = []
    for name in (*FAMILIAR, *(n for n in others if n not in FAMILIAR)):
        if any(_is_plain(o, tags, children) for o in overloads(name)):
            found.append(packet(name))
    return tuple(found)


def _is_plain(candidate: Overload, tags: frozenset[str], children: int) -> bool:
    terms = [slot for slot in candidate.slots if slot.parameter.kind != "attribute"]
    needed = [slot for slot in candidate.slots if slot.parameter.kind == "attribute"]
    return (
        candidate.only_computes
        and candidate.returns == ("Tensor",)
        and tags <= candidate.tags
        and len(terms) == children
        and all(slot.type == "Tensor" for slot in terms)
        and all(slot.parameter.default is not REQUIRED or slot.optional for slot in needed)
    )


def applicable(slot: SketchSlot, operator: Operator, values: Sequence[Value]) -> Iterator[Overload]:
    """The overloads that take these children and can have the attributes asked for."""
    for candidate in (ITEM,) if operator == GETITEM else overloads(operator.name):
        terms = [s for s in candidate.slots if s.parameter.kind != "attribute"]
        if candidate.mutates or len(terms) != len(values) or not slot.tags <= candidate.tags:
            continue
        if not all(_takes(s.type, s.optional, v) for s, v in zip(terms, values, strict=True)):
            continue
        if _gives(slot, candidate):
            yield candidate


def _gives(slot: SketchSlot, candidate: Overload) -> bool:
    """Return whether each demanded value of an argument that this overload lacks is its default."""
    lacks = candidate.stand_ins
    return all(
        slot.demands[argument_name(name)] == default
        for name, default in lacks.items()
        if argument_name(name) in slot.demands
    )


def _takes(kind: str, optional: bool, value: Value) -> bool:
    if kind == INDEXED:
        return isinstance(value, tuple) or (isinstance(value, torch.Tensor) and value.dim() > 0)
    if value is None:
        return optional
    if isinstance(value, tuple):
        return kind.startswith("List")
    if isinstance(value, torch.Tensor):
        return kind == "Tensor"
    if isinstance(value, bool):
        return kind in ("bool", "number")
    if isinstance(value, int):
        return kind in ("int", "number", "float", "Tensor")
    return kind in ("float", "number", "Tensor")


def target(candidate: Overload) -> Callable[..., Value]:
    """The overload as torch calls it."""
    if candidate is ITEM:
        return python.getitem
    namespace, _, name = candidate.packet_name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    found: OpOverload = getattr(packet, candidate.name or "default")
    return found


def result_of(candidate: Overload, arguments: Mapping[str, Value]) -> Value:
    """Return the result of a call, several outputs as a tuple. Raises what torch raises."""
    if candidate.packet_name in CRASHING:
        raise ValueError(f"{candidate.packet_name} ends the process for some arguments")
    call = target(candidate)
    is_item = candidate is ITEM
    value = call(arguments["self"], arguments["index"]) if is_item else call(**arguments)
    return tuple(value) if isinstance(value, (tuple, list)) else value


@dataclass(frozen=True)
class Habit:
    """Typical properties of one argument of an operator; None for a property without a habit."""

    rank: int | None = None
    dtype: torch.dtype | None = None


def habits(operator: Operator, rank: int | None) -> tuple[Habit, ...]:
    """Return the habits of an operator's children, for a value of this rank (None: unknown)."""
    ranks = RANKS.get(operator.name)
    if ranks is not None:
        return tuple(map(Habit, ranks))
    keeps = operator.name in KEEPING or "pointwise" in operator.tags
    children = operator.signatures[0].children if operator.signatures else ()
    return tuple(
        Habit(rank if keeps and p.name in ("self", "input", "a") else None, DTYPES.get(p.name))
        for p in children
    )


_KEEPING: Final = """
    permute transpose clone contiguous detach alias dropout softmax _softmax log_softmax
    _log_softmax slice to _to_copy type_as add sub mul div mT
"""
KEEPING: Final = frozenset(f"aten.{name}" for name in _KEEPING.split())
"""Operators that keep the rank of their first argument, beside those on elements."""
RANKS: Final[Mapping[str, tuple[int | None, ...]]] = {
    "aten.addmm": (1, 2, 2),
    "aten.baddbmm": (3, 3, 3),
    "aten.bmm": (3, 3),
    "aten.conv1d": (3, 3, 1),
    "aten.conv2d": (4, 4, 1),
    "aten.conv3d": (5, 5, 1),
    "aten.conv_transpose1d": (3, 3, 1),
    "aten.conv_transpose2d": (4, 4, 1),
    "aten.conv_transpose3d": (5, 5, 1),
    "aten.convolution": (4, 4, 1),
    "aten.dot": (1, 1),
    "aten.instance_norm": (3, 1, 1),
    "aten.layer_norm": (None, 1, 1),
    "aten.linear": (None, 2, 1),
    "aten.mm": (2, 2),
    "aten.mv": (2, 1),
    "aten.native_layer_norm": (None, 1, 1),
    "aten.rms_norm": (None, 1),
    "aten.t": (2,),
}
CRASHING: Final = frozenset({"aten._scaled_dot_product_flash_attention_for_cpu"})
"""Operators in which torch divides by zero for some arguments, as empty tensors: that ends the
process, so they are not sampled.
"""
SIZE_ARGUMENTS: Final = ("normalized_shape",)
"""Arguments that say sizes of the first operand."""
DTYPES: Final[Mapping[str, torch.dtype]] = {
    "condition": torch.bool,
    "index": torch.int64,
    "indices": torch.int64,
    "mask": torch.bool,
}
"""By the name of the parameter."""


def complete(sketch: Sketch, random: Random) -> list[SketchSlot]:
    """Choose operators and lengths of lists where they are variables; gives the slots in order."""
    for slot in sketch.slots():
        if slot.operator is None and slot.function is not None:
            variable = slot.function.find
            if variable.operator is None:
                tags = frozenset(slot.tags | variable.tags)
                found = [
                    operator
                    for operator in operators_of(tags, len(slot.children))
                    if _may_be(variable, operator, sketch.conditions)
                ]
                if not found:
                    raise Unsampled
                familiar = found[: 10 if random.random() < 0.6 else None]
                variable.operator = random.choice(familiar)
            slot.operator = variable.operator
    for slot in sketch.slots():
        if slot.operator is None and _is_list(slot, sketch.slots()):
            cell = SketchSlot()
            cell.apply(NIL, None, ())
            for _ in range(random.choice((1, 0, 2))):
                longer = SketchSlot()
                longer.apply(CONS, None, (SketchSlot(), cell))
                cell = longer
            slot.unite(cell)
    return sketch.slots()


def _may_be(variable: SketchSlot, operator: Operator, conditions: Sequence[Condition]) -> bool:
    """Return whether the guards about an operator variable alone hold of an operator."""
    return all(
        holds(condition.guard, lambda _: operator) is True
        for condition in conditions
        if {condition.scope[name].find for name in names(condition.guard)} == {variable}
    )


def _is_list(slot: SketchSlot, slots: Sequence[SketchSlot]) -> bool:
    for user in slots:
        if slot not in user.below or user.operator is None:
            continue
        at = user.below.index(slot)
        if user.operator == CONS:
            return at == 1
        kinds = {s.children[at].kind for s in user.operator.signatures if at < len(s.children)}
        if kinds == {"list"}:
            return True
    return False
