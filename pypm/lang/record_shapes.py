"""The fields of the records that names of patterns may stand for, before anything is matched.

Names that `let` makes equal, or that a call passes, have one shape. A shape has the fields of all
records that some alternate gives to one of its names: enough to refuse a field that none has.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pypm.core.records import record

if TYPE_CHECKING:
    from pypm.lang.capture import Captured
    from pypm.lang.named_pattern import Called, NamedPattern

__all__ = ["Shape", "Shapes"]


@dataclass(eq=False)
class Shape:
    """The fields of a record, each with its own shape. Shapes that were joined have one root."""

    fields: dict[str, Shape] = field(default_factory=dict)
    joined: Shape | None = None

    def root(self) -> Shape:
        """Return the shape that this one is now."""
        shape = self
        while shape.joined is not None:
            shape = shape.joined
        return shape


def _join(one: Shape, other: Shape) -> None:
    pairs = [(one, other)]
    while pairs:
        left, right = (shape.root() for shape in pairs.pop())
        if left is right:
            continue
        right.joined = left
        for name, inner in right.fields.items():
            pairs.append((left.fields.setdefault(name, inner), inner))


_Place: TypeAlias = "tuple[NamedPattern, Captured | None, str]"
"""A name: of a parameter, for all alternates of a pattern, or of a local of one."""


class Shapes:
    """The shapes of all names in patterns that call each other.

    `calls` are the patterns with the definitions that each calls, by the node of the call.
    """

    def __init__(self, calls: Mapping[NamedPattern, Mapping[ast.Call, Called]]) -> None:
        self._known: dict[_Place, Shape] = {}
        self._reads: list[tuple[Shape, str, Shape]] = []
        if not any(each.makes_records for form in calls for each in form.alternates):
            return
        for form, called in calls.items():
            for captured in form.alternates:
                for part in captured.parts:
                    if isinstance(part, ast.Call):
                        self._read(form, captured, part, called.get(part))
        found = True
        while found:  # a field has a shape once a record that has it is known
            found = False
            for owner, name, shape in self._reads:
                inner = owner.root().fields.get(name)
                if inner is not None and inner.root() is not shape.root():
                    found = True
                    _join(inner, shape)

    def of(self, form: NamedPattern, captured: Captured, name: str) -> Shape | None:
        """Return the shape of a name if it may be a record."""
        known = self._known.get(_place(form, captured, name))
        return known.root() if known is not None and known.root().fields else None

    def _read(
        self, form: NamedPattern, captured: Captured, call: ast.Call, called: Called | None
    ) -> None:
        if called is None:
            if getattr(captured.value_of(call.func), "name", None) == "let":
                for keyword in call.keywords:
                    if keyword.arg is not None:
                        bound = self._of_name(form, captured, keyword.arg)
                        _join(bound, self._of_expression(form, captured, keyword.value))
            return
        given = dict(zip(called.parameters, call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg in called.parameters}
        for parameter in called.form.parameters:
            argument = given.get(parameter)
            if isinstance(argument, ast.Name):
                passed = self._of_name(form, captured, argument.id)
                _join(self._of_name(called.form, captured, parameter), passed)

    def _of_name(self, form: NamedPattern, captured: Captured, name: str) -> Shape:
        return self._known.setdefault(_place(form, captured, name), Shape())

    def _of_expression(self, form: NamedPattern, captured: Captured, node: ast.expr) -> Shape:
        match node:
            case ast.Name(id=name):
                return self._of_name(form, captured, name)
            case ast.Attribute(value=value, attr=name):
                read = Shape()
                self._reads.append((self._of_expression(form, captured, value), name, read))
                return read
            case ast.Call(func=func, keywords=keywords) if captured.value_of(func) is record:
                shape = Shape()
                for keyword in keywords:
                    inner = self._of_expression(form, captured, keyword.value)
                    _join(shape.root().fields.setdefault(keyword.arg or "", Shape()), inner)
                return shape
        return Shape()


def _place(form: NamedPattern, captured: Captured, name: str) -> _Place:
    return form, None if name in form.parameters else captured, name
