"""Arguments of meanings up to the names of symbols: calls that are alike need one proof."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

import torch

from pypm.core.records import Record, fields_of
from pypm.core.terms import UNDEFINED, exact
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.forms.polynomials import Factor, Kept, Poly, rational
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.numbers import Real, Size, form_of
from pypm.laws.patterns.hidden import Group, Hidden
from pypm.laws.sizes import World

__all__ = ["FREE", "Signature", "instance", "signature", "signed"]

Signature: TypeAlias = tuple[Hashable, ...]
FREE: Final = ("free",)
"""An argument that the pattern binds."""


@dataclass
class _Renaming:
    names: dict[Factor, str] = field(default_factory=dict)
    groups: dict[Group, int] = field(default_factory=dict)

    def of(self, value: Given) -> Hashable:
        match value:
            case Formula() if isinstance(value.value, tuple):
                return ("tuple", *(self.tensor(v.shape, v.kind, None) for v in value.value))
            case Formula(name="number"):
                constant = value.tensor.rational
                return ("literal", constant)
            case Formula():
                dtype = value.attributes.get("dtype") if value.name == "read" else None
                return self.tensor(value.tensor.shape, value.tensor.kind, dtype)
            case Real():
                constant = value.form.constant
                return (
                    ("number",)
                    if constant is None
                    else ("constant", exact(float(constant)), float(constant))
                )
            case Size():
                return ("size", self.form(value.form))
            case Hidden(name, group):
                number = self.groups.setdefault(group, len(self.groups))
                return ("hidden", name, number, group.by, *map(self.of, group.tensors))
            case Record():
                fields = fields_of(value)
                return ("record", tuple(fields), *map(self.of, fields.values()))
            case tuple() | list():
                return ("tuple", *map(self.of, value))
            case None | bool() | int() | float() | str():
                return ("constant", exact(value), value)
            case torch.dtype():
                return ("constant", value, value)
        if value is UNDEFINED:
            return FREE
        raise NoMeaning(f"an argument {type(value).__name__}")

    def tensor(self, shape: Sequence[Given], kind: str, dtype: torch.dtype | None) -> Hashable:
        return ("tensor", tuple(self.form(form_of(n)) for n in shape), kind, dtype)

    def form(self, form: Poly) -> Hashable:
        terms = []
        for monomial, coefficient in form.key:
            parts = []
            for of, exponent in monomial:
                if of[0] != "size":
                    raise NoMeaning("a size that is computed from numbers")
                name = self.names.setdefault(of, f"n{len(self.names) + 1}")
                if exponent.denominator != 1 or exponent < 0:
                    raise NoMeaning("a size that is a quotient")
                parts.append((name, int(exponent)))
            is_whole = coefficient.denominator == 1
            terms.append((tuple(parts), int(coefficient) if is_whole else coefficient))
        return tuple(terms)


def signature(values: Sequence[Given]) -> Signature:
    """Return the kinds and shapes of arguments, with canonical names of sizes.

    `UNDEFINED` stands for an argument that the pattern binds. Raises NoMeaning for a value that is
    neither a tensor nor a number, constant, tuple or record.
    """
    return signed(values)[0]


def signed(values: Sequence[Given]) -> tuple[Signature, dict[str, Factor]]:
    """Return a signature, and the sizes that its names of sizes stand for. Raises NoMeaning."""
    renaming = _Renaming()
    found = _kept(tuple(renaming.of(value) for value in values))
    return found, {name: of for of, name in renaming.names.items()}


@lru_cache(2**14)
def _kept(given: Signature) -> Signature:
    """Return a signature as one that computes its hash once, mostly one for all that are equal."""
    return Kept(given)


def instance(given: Signature, formulas: Formulas) -> list[Given]:
    """Return new arguments with a signature."""
    made: dict[Hashable, Given] = {}
    return [_instance(part, formulas, made) for part in given]


def _instance(part: Given, formulas: Formulas, made: dict[Hashable, Given]) -> Given:
    match part:
        case ("tensor", shape, kind, dtype):
            sizes = [_size(form, formulas.world, made) for form in shape]
            found = formulas.read(sizes, kind)
            if dtype is not None:
                found.attributes["dtype"] = dtype  # type: ignore[index]
            return found
        case ("literal", constant):
            value = formulas.world.real() if constant is None else Fraction(constant)
            found = formulas.number(value)
            found.attributes["given"] = value  # type: ignore[index]
            return found
        case ("number",):
            return formulas.world.real()
        case ("size", form):
            return _size(form, formulas.world, made)
        case ("constant", _, value):
            return value
        case ("tuple", *parts):
            return tuple(_instance(inner, formulas, made) for inner in parts)
        case ("record", names, *parts):
            made_parts = [_instance(inner, formulas, made) for inner in parts]
            return Record(dict(zip(names, made_parts, strict=True)))
        case ("hidden", name, number, by, *parts):
            if number not in made:
                tensors = tuple(_instance(inner, formulas, made) for inner in parts)
                made[number] = Group(by, tensors)
            return Hidden(name, made[number], formulas)
        case ("free",):
            return UNDEFINED
    raise NoMeaning("an argument")


def _size(form: Given, world: World, made: dict[Hashable, Given]) -> Size:
    if form in made:
        return world.sized(made[form])
    total = Poly({})
    for parts, coefficient in form:
        product = rational(coefficient)
        for name, exponent in parts:
            if name not in made:
                made[name] = world.size().form
            for _ in range(exponent):
                product = product * made[name]
        total = total + product
    made[form] = total
    return world.sized(total)
