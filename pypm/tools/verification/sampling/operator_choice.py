"""Operators for operator variables, and the overloads that take given arguments."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import torch

from pypm.core.operators import REQUIRED, Operator, Parameter
from pypm.core.terms import argument_name
from pypm.fx import GETITEM
from pypm.fx.operators.schemas import Overload, overloads, packet
from pypm.fx.operators.schemas import Slot as Argument
from pypm.tools.verification.sampling.operator_habits import CRASHING
from pypm.tools.verification.sampling.sketches import Slot
from pypm.torch_internals import OpOverload, all_schemas

__all__ = ["applicable", "operators_of", "result_of", "target"]

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


def applicable(slot: Slot, operator: Operator, values: Sequence[object]) -> Iterator[Overload]:
    """The overloads that take these children and can have the attributes asked for."""
    for candidate in (ITEM,) if operator == GETITEM else overloads(operator.name):
        terms = [s for s in candidate.slots if s.parameter.kind != "attribute"]
        if candidate.mutates or len(terms) != len(values) or not slot.tags <= candidate.tags:
            continue
        if not all(_takes(s.type, s.optional, v) for s, v in zip(terms, values, strict=True)):
            continue
        if _gives(slot, candidate):
            yield candidate


def _gives(slot: Slot, candidate: Overload) -> bool:
    """Return whether each demanded value of an argument that this overload lacks is its default."""
    lacks = candidate.stand_ins
    return all(
        slot.demands[argument_name(name)] == default
        for name, default in lacks.items()
        if argument_name(name) in slot.demands
    )


def _takes(kind: str, optional: bool, value: object) -> bool:
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


def target(candidate: Overload) -> Callable[..., object]:
    """The overload as torch calls it."""
    if candidate is ITEM:
        return python.getitem
    namespace, _, name = candidate.packet_name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    found: OpOverload = getattr(packet, candidate.name or "default")
    return found


def result_of(candidate: Overload, arguments: Mapping[str, object]) -> object:
    """Return the result of a call, several outputs as a tuple. Raises what torch raises."""
    if candidate.packet_name in CRASHING:
        raise ValueError(f"{candidate.packet_name} ends the process for some arguments")
    call = target(candidate)
    is_item = candidate is ITEM
    value = call(arguments["self"], arguments["index"]) if is_item else call(**arguments)
    return tuple(value) if isinstance(value, (tuple, list)) else value
