"""Torch's schemas as core operators: packets, their overloads, and which arguments are children."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, Final, Literal, TypeAlias

import torch

from pypm.core.operators import REQUIRED, Form, Operator, Parameter, Signature
from pypm.core.terms import Value
from pypm.fx.operators import corrections, known_effects
from pypm.fx.operators.body_trace import call_packet
from pypm.torch_internals import (
    DispatchKey,
    FunctionSchema,
    OpOverload,
    OpOverloadPacket,
    find_schema_or_throw,
    parse_schema,
    symmetric_fallback,
)

__all__ = [
    "Meaning",
    "Overload",
    "Slot",
    "canonical_packet",
    "formed",
    "overload",
    "overloads",
    "packet",
    "packet_name",
    "stated",
]


@dataclass(frozen=True, slots=True)
class Slot:
    """One argument of a schema."""

    parameter: Parameter
    type: str
    """Torch's name of the type, without Optional: Tensor, number, int, List[int], ScalarType."""
    optional: bool
    length: int | None
    """The N of `int[N]`: how often a single number is repeated."""
    may_be_list: bool
    """True if it is one dimension where another overload has a list: then it is a list of one."""

    @property
    def name(self) -> str:
        return self.parameter.name


Meaning: TypeAlias = Callable[..., object]
"""A function of an operator's arguments, by name, that computes the same by functional collectives.
"""


@dataclass(frozen=True, eq=False)
class Overload:
    """One overload of a packet, and its effects on memory and randomness."""

    packet_name: str
    name: str
    slots: tuple[Slot, ...]
    tags: frozenset[str]
    written: tuple[int, ...]
    """The positions of the arguments that a call writes."""
    shared: tuple[int, ...]
    """The positions of the arguments whose memory the value shares, or may share."""
    is_view: bool
    """True if the value is a view of an argument, or may be: it costs nothing."""
    is_random: bool
    returns: tuple[str, ...]
    namespace: str
    op: OpOverload | None = None

    @property
    def operator(self) -> Operator:
        return packet(self.packet_name)

    @property
    def mutates(self) -> bool:
        return bool(self.written)

    @cached_property
    def has_effect(self) -> bool:
        """Return whether a call must stay even if nothing uses its value."""
        return (
            not self.returns
            or self.packet_name in known_effects.EFFECTS
            or self.namespace in known_effects.EFFECT_NAMESPACES
            or self.meaning is not None
        )

    @property
    def meaning(self) -> Meaning | None:
        """Return the function whose collectives it is declared to issue, or torch says that it
        issues; None if there is none.
        """
        return self.declared or (_of_torch(self.op) if self.namespace == "symm_mem" else None)

    @property
    def declared(self) -> Meaning | None:
        """Return the function that a user declared."""
        return getattr(self.op, _MEANING, None)

    def issue(self, meaning: Meaning) -> None:
        """Set the function of its arguments whose collectives it issues."""
        setattr(self.op, _MEANING, meaning)
        for known in ("has_effect", "only_computes"):
            vars(self).pop(known, None)

    @cached_property
    def only_computes(self) -> bool:
        """Return whether a call's arguments determine its value, and it has no effect."""
        is_stateful = self.packet_name in known_effects.STATEFUL_NORMS
        is_memory = self.packet_name in known_effects.UNINITIALISED
        return not (self.is_random or self.mutates or is_stateful or is_memory or self.has_effect)

    @cached_property
    def signature(self) -> Signature:
        return Signature(tuple(slot.parameter for slot in self.slots), self.name)

    @cached_property
    def by_name(self) -> Mapping[str, int]:
        """Return the positions of the slots, by every name under which they can be passed."""
        found = {slot.name: position for position, slot in enumerate(self.slots)}
        for position, slot in enumerate(self.slots):
            for name in corrections.SYNONYMS.get(slot.name, ()):
                found.setdefault(name, position)
        return found

    @cached_property
    def positional(self) -> int:
        """Return the number of arguments that can be positional."""
        return sum(not slot.parameter.keyword_only for slot in self.slots)

    @cached_property
    def stand_ins(self) -> dict[str, Value]:
        """Return the attributes that only other overloads have, with their defaults."""
        own = {slot.name for slot in self.slots}
        defaults = self.operator.attribute_defaults
        return {name: value for name, value in defaults.items() if name not in own}


_MEANING: Final = "__pypm_meaning__"


def _of_torch(op: OpOverload | None) -> Meaning | None:
    """Return the function by which torch computes what a fused operator does, or None."""
    if op is None or (fallback := symmetric_fallback(op._schema.name.partition("::")[2])) is None:
        return None

    def meaning(**given: Value) -> Value:
        positional = [given.pop(a.name) for a in op._schema.arguments if not a.kwarg_only]
        return fallback(*positional, **given)

    return meaning


def _find(name: str) -> OpOverloadPacket | None:
    namespace, _, bare = name.partition(".")
    found = getattr(getattr(torch.ops, namespace), bare, None)
    return found if isinstance(found, OpOverloadPacket) else None


def canonical_packet(name: str) -> str:
    """Return the packet for torch's documented aliases of it (`aten.multiply`)."""
    return corrections.ALIASES.get(name, name)


@cache
def packet(name: str) -> Operator:
    """Return the operator of an overload packet, such as `aten.add`.

    Raises AttributeError if torch has no such packet.
    """
    if _find(name) is None:
        raise AttributeError(name)
    # Packets that only ever write are met in functionalized form, so patterns may call them.
    callable_ones = [o for o in overloads(name) if _is_functional(o)] or overloads(name)
    tags = [o.tags for o in callable_ones]
    found = Operator(
        name,
        tuple(o.signature for o in sorted(callable_ones, key=_rank)),
        frozenset.intersection(*tags) if tags else frozenset(),
        corrections.COMMUTATIVE.get(name),
    )
    mirror = corrections.MIRRORS.get(name)
    mirrored = replace(found, name=mirror) if mirror else None
    run = partial(call_packet, name)
    return replace(found, mirror=mirrored, form=_form(name), run=run)


def stated(schema: str) -> Operator:
    """Return the operator of a schema in torch's syntax; torch need not have registered it.

    Raises RuntimeError, of torch, if the text is no schema.
    """
    parsed = parse_schema(schema)
    name = parsed.name.replace("::", ".")
    slots = _slots(parsed, frozenset())
    signature = Signature(tuple(slot.parameter for slot in slots), parsed.overload_name)
    return Operator(name, (signature,), run=partial(call_packet, name))


def _form(name: str) -> Form | None:
    """Return the `Form` of a packet whose calls are calls of another one, or None."""
    if name not in corrections.FORMS:
        return None
    other, called, exchanged, given = corrections.FORMS[name]
    found = _by_name(other)[called].signature
    return Form(packet(other), found, exchanged, tuple(given.items()))


def formed(found: Overload, values: list[Any]) -> tuple[Overload, list[Any]]:
    """Return an overload and the values of its slots in canonical form."""
    form = found.operator.form
    if form is None:
        return found, values
    named = {slot.name: value for slot, value in zip(found.slots, values, strict=True)}
    given = form.arguments(named, lambda value: value)
    other = _by_name(form.operator.name)[form.signature.name]
    return other, [given.get(slot.name, slot.parameter.default) for slot in other.slots]


def _is_functional(candidate: Overload) -> bool:
    """Return whether a pattern can mean the overload: it returns a tensor and writes to none."""
    return not candidate.mutates and any("Tensor" in kind for kind in candidate.returns)


def _rank(candidate: Overload) -> tuple[bool, bool]:
    """Return a sort key: the default overload, then those of tensors, then those of numbers."""
    has_number = any(s.type == "number" and s.parameter.kind == "term" for s in candidate.slots)
    return (candidate.name != "", has_number)


@cache
def overloads(name: str) -> tuple[Overload, ...]:
    """Return the overloads of a packet that do not write to an `out` argument, in torch's order."""
    found = _find(name)
    if found is None:
        return ()
    ops = [getattr(found, overload_name) for overload_name in found._overload_names]
    kept = [op for op in ops if _is_dispatched(op) and not _writes_out(op)]
    siblings = frozenset(
        (position, argument.name, _bare(str(argument.type)))
        for op in kept
        for position, argument in enumerate(op._schema.arguments)
    )
    return tuple(_overload(op, siblings) for op in kept)


_Siblings: TypeAlias = frozenset[tuple[int, str, str]]
"""Position, name and type of every argument of every overload of a packet."""


def overload(op: OpOverload) -> Overload:
    """Return the `Overload` of a call target."""
    found = _by_name(packet_name(op)).get(_overload_name(op))
    return _overload(op, frozenset()) if found is None else found


@cache
def _by_name(name: str) -> dict[str, Overload]:
    return {o.name: o for o in overloads(name)}


def packet_name(op: OpOverload | OpOverloadPacket) -> str:
    """Return the dotted name of a packet: `aten.add`."""
    qualified: str = op._qualified_op_name if isinstance(op, OpOverloadPacket) else op._schema.name
    return qualified.replace("::", ".")


def _overload_name(op: OpOverload) -> str:
    name: str = op._schema.overload_name
    return name


def _is_dispatched(op: OpOverload) -> bool:
    """Return whether the dispatcher has the overload: TorchScript's on Python numbers are not
    calls.
    """
    try:
        find_schema_or_throw(op._schema.name, op._schema.overload_name)
    except RuntimeError:
        return False
    return not any(str(a.real_type).startswith("Dimname") for a in op._schema.arguments)


def _writes_out(op: OpOverload) -> bool:
    return any(argument.is_out for argument in op._schema.arguments)


def _overload(op: OpOverload, siblings: _Siblings) -> Overload:
    schema = op._schema
    name = packet_name(op)
    written = _written(op, name)
    tags = {tag.name for tag in op.tags}
    is_random = "nondeterministic_seeded" in tags or name in known_effects.DRAWING
    if name in corrections.POINTWISE or f"{name}.{schema.overload_name}" in corrections.POINTWISE:
        tags.add("pointwise")
    if written or is_random:
        tags.discard("pointwise")
    slots = tuple(_slots(schema, siblings))
    return Overload(
        packet_name=name,
        name=schema.overload_name,
        slots=slots,
        tags=frozenset(tags),
        written=written,
        shared=_shared(op, name),
        is_view=_aliases_an_input(op) or name in known_effects.VIEWS,
        is_random=is_random,
        returns=tuple(str(r.type) for r in schema.returns),
        namespace=name.partition(".")[0],
        op=op,
    )


def _written(op: OpOverload, name: str) -> tuple[int, ...]:
    """Return the arguments that a call writes: the marked ones; if there are none, and torch's name
    says that it writes, all tensors.

    Schemas of `inductor.resize_storage_bytes_` and of collectives in place mark nothing.
    """
    arguments = op._schema.arguments
    marked = tuple(i for i, argument in enumerate(arguments) if argument.is_write)
    is_in_place = name.endswith("_") and not name.endswith("__")
    if marked or not (is_in_place or name in known_effects.UNMARKED_WRITES):
        return marked
    return tuple(i for i, argument in enumerate(arguments) if "Tensor" in str(argument.type))


def _aliases_an_input(op: OpOverload) -> bool:
    infos = [returned.alias_info for returned in op._schema.returns]
    return any(info is not None and not info.is_write for info in infos)


def _shared(op: OpOverload, name: str) -> tuple[int, ...]:
    """Return the arguments whose memory the value may share: the marked ones, or all if unsure.

    Torch checks schemas when operators with kernels run, but not those of composite operators.
    """
    schema = op._schema
    marked = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info is not None)
    if any(r.alias_info is not None for r in schema.returns):
        return marked
    if not _is_dispatched(op):
        return tuple(range(len(schema.arguments)))
    is_composite = op.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
    may_share = name in known_effects.VIEWS or name in known_effects.MAY_BE_GIVEN
    if may_share or (is_composite and name not in known_effects.FRESH):
        return tuple(range(len(schema.arguments)))
    return ()


_NUMBERS: Final = frozenset({"number", "float", "int", "complex"})


def _bare(kind: str) -> str:
    return kind[len("Optional[") : -1] if kind.startswith("Optional[") else kind


def _slots(schema: FunctionSchema, siblings: _Siblings) -> Iterator[Slot]:
    for position, argument in enumerate(schema.arguments):
        real = str(argument.real_type)
        bare = _bare(real)
        here = (position, argument.name)
        is_sibling = bare in _NUMBERS and (*here, "Tensor") in siblings
        kind: Literal["term", "list", "attribute"] = "attribute"
        if bare == "Tensor" or is_sibling:
            kind = "term"
        elif bare in {"List[Tensor]", "List[Optional[Tensor]]"}:
            kind = "list"
        is_dim = argument.name in corrections.DIM_NAMES and bare in {"int", "List[int]"}
        may_be_list = is_dim and bare == "int" and (*here, "List[int]") in siblings
        default: object = REQUIRED
        if argument.has_default_value():
            default = _default(argument.default_value, bare)
        parameter = Parameter(argument.name, kind, default, argument.kwarg_only, is_dim)
        yield Slot(parameter, bare, bare != real, getattr(argument, "N", None), may_be_list)


_DTYPES: Final = {4: torch.int64, 6: torch.float32, 11: torch.bool}
"""Scalar types that are defaults in schemas, by their numbers in C++."""
_MEMORY_FORMATS: Final = {0: torch.contiguous_format, 1: torch.preserve_format}
"""Memory formats, by their numbers in C++."""


def _default(value: Value, bare: str) -> Value:
    if bare == "ScalarType" and isinstance(value, int):
        return _DTYPES.get(value, value)
    if bare == "MemoryFormat" and isinstance(value, int):
        return _MEMORY_FORMATS.get(value, value)
    if isinstance(value, list):
        return tuple(value)
    if bare == "float" and isinstance(value, int):
        return float(value)
    return value
