"""Kinds of values that a pattern may bind a parameter to: constants, numbers, tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pypm.core.guards import (
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Reference,
    Tuple,
)
from pypm.core.patterns import (
    Call,
    Constrained,
    Definition,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.record_expressions import MakeRecord
from pypm.core.terms import VALUE, exact
from pypm.core.traverse import (
    alternates,
    children,
    conjuncts,
    expression_names,
    parts,
    subexpressions,
)
from pypm.laws.patterns.operator_arguments import (
    FIELDS,
    LIST,
    MASKED,
    MEANT,
    NUMBER,
    OF_ONE_DIM,
    SHAPE,
    SIZE,
    TENSOR,
    UNKNOWN,
    Domain,
    of_argument,
    of_operand,
)

__all__ = ["Domains", "ListOf", "MeantBy", "added", "fields_in", "summands"]

ARITHMETIC: Final = frozenset({"add", "sub", "mul", "div", "neg", "pow", "ratio"})


@dataclass(eq=False)
class ListOf:
    """Lists that are put together of parts: each of some tuples, given by the domains of items."""

    parts: list[tuple[tuple[Domain, ...], ...]] = field(default_factory=list)

    def add(self, parts: Sequence[tuple[tuple[Domain, ...], ...]]) -> None:
        """Add parts that it lacks."""
        self.parts += [part for part in parts if part not in self.parts]


@dataclass(frozen=True, eq=False)
class MeantBy:
    """The meaning of a pattern for arguments of some domains, which fulfil guards."""

    definition: Definition
    arguments: tuple[Domain, ...]
    names: tuple[str, ...]
    """The names of the arguments in the guards."""
    guards: tuple[Equal, ...]


def added(found: Domain, other: Domain) -> None:
    """Add the values of a domain to another one."""
    for key, value in other.items():
        if key == LIST:
            assert isinstance(value, ListOf)
            _list_in(found).add(value.parts)
        elif key == FIELDS and FIELDS in found:
            fields = fields_in(found)
            for name, domain in fields_in(other).items():
                added(fields.setdefault(name, {}), domain)
        else:
            found[key] = value


def fields_in(domain: Domain) -> dict[str, Domain]:
    """Return the domains of the fields of a record, by name."""
    found = domain.get(FIELDS, {})
    assert isinstance(found, dict)
    return found


def _list_in(found: Domain) -> ListOf:
    made = found.setdefault(LIST, ListOf())
    assert isinstance(made, ListOf)
    return made


_Frames: TypeAlias = tuple[Definition, ...]


class Domains:
    """Domains of the names of definitions, memoized."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], Domain] = {}
        self._kept: list[Definition] = []

    def of(self, definition: Definition, parameter: str, around: _Frames = ()) -> Domain:
        """Return the kinds of values that a match of a definition may bind a name to."""
        key = (id(definition), parameter)
        if key not in self._known:
            self._kept.append(definition)
            found: Domain = {}
            self._known[key] = found
            self._add(found, definition.body, parameter, (definition, *around))
        return self._known[key]

    def _add(self, found: Domain, pattern: Pattern, name: str, frames: _Frames) -> None:
        if pattern == Var(name):
            found[TENSOR] = TENSOR
        if isinstance(pattern, Constrained) and pattern.name == name:
            self._of_described(found, pattern.pattern, frames)
        if isinstance(pattern, Let) and pattern.name == name:
            self._classify(found, pattern.expression, frames)
        if isinstance(pattern, (Mu, Call)) and name in pattern.actuals:
            self._of_call(found, pattern, frames, name)
        if isinstance(pattern, Mu):  # its body has names of its own
            return
        inner = children(pattern)
        if isinstance(pattern, Op) and pattern.operator.name in MASKED and inner[3] == Var(name):
            found[None] = None
        if isinstance(pattern, (Op, Fun)) and Var(name) in inner:
            operator = pattern.operator.name if isinstance(pattern, Op) else ""
            kind = of_operand(operator, inner.index(Var(name)))
            if kind == SIZE and not _is_one(name, pattern, frames[0].body):
                kind = UNKNOWN
            found[kind] = kind
            inner = tuple(part for part in inner if part != Var(name))
        for part in inner:
            self._add(found, part, name, frames)

    def _of_described(self, found: Domain, pattern: Pattern, frames: _Frames) -> None:
        while isinstance(pattern, (Guarded, Let, Exists, Constrained)):
            pattern = pattern.body
        if isinstance(pattern, (Mu, Call)):
            definition = _called(pattern, frames)[0]
            if definition is not None and definition.means is not None:
                arguments = tuple(self.of(frames[0], a, frames[1:]) for a in pattern.actuals)
                guards = _guards_on(pattern.actuals, frames[0].body)
                found[MEANT] = MeantBy(definition, arguments, pattern.actuals, guards)
                return
        found[TENSOR] = TENSOR

    def _of_call(self, found: Domain, call: Mu | Call, frames: _Frames, name: str) -> None:
        definition, around = _called(call, frames)
        if definition is None:
            return
        for parameter, actual in zip(definition.parameters, call.actuals, strict=True):
            if actual == name:
                added(found, self.of(definition, parameter, around))

    def _classify(self, found: Domain, expression: Expression, frames: _Frames) -> None:
        """Add the kind of value that an expression has."""
        match expression:
            case Constant(()):
                _list_in(found)
            case Apply(function) if function.limit is not None:
                found[function.limit] = function.limit
            case Apply(MakeRecord(fields=names), arguments):
                fields: dict[str, Domain] = {}
                for name, argument in zip(names, arguments, strict=True):
                    self._classify(fields.setdefault(name, {}), argument, frames)
                added(found, {FIELDS: fields})
            case Apply() | Tuple() if self._is_list(expression, frames):
                for part in summands(expression):
                    self._add_part(_list_in(found), part, frames)
            case Apply(function, _) if function.name == "add" and _reads_shapes(expression):
                found[SHAPE] = SHAPE
            case Reference(name):
                added(found, self.of(frames[0], name, frames[1:]) or {TENSOR: TENSOR})
            case Attribute(name, attribute) if attribute in self._fields(name, frames):
                added(found, self._fields(name, frames)[attribute])
            case Attribute(name, attribute) if attribute in _dims_of(name, frames[0]):
                added(found, _dims_of(name, frames[0])[attribute])
            case _:
                _of_plain(found, expression)

    def _fields(self, name: str, frames: _Frames) -> Mapping[str, Domain]:
        return fields_in(self.of(frames[0], name, frames[1:]))

    def _is_list(self, expression: Expression, frames: _Frames) -> bool:
        """Return whether an expression puts lists of tuples together."""
        return any(
            (isinstance(part, Tuple) and all(isinstance(e, Tuple) for e in part.elements))
            or (isinstance(part, Reference) and LIST in self.of(frames[0], part.name, frames[1:]))
            for part in summands(expression)
        )

    def _add_part(self, found: ListOf, part: Expression, frames: _Frames) -> None:
        if isinstance(part, Tuple):
            items = [self._items(item, frames) for item in part.elements]
            found.add([tuple(items)])
            return
        inner: Domain = {}
        self._classify(inner, part, frames)
        found.add(_list_in(inner).parts)

    def _items(self, item: Expression, frames: _Frames) -> tuple[Domain, ...]:
        assert isinstance(item, Tuple)
        found: list[Domain] = []
        for element in item.elements:
            found.append({})
            if isinstance(element, Constant):
                found[-1][exact(element.value)] = element.value
            else:
                self._classify(found[-1], element, frames)
        return tuple(found)


def _guards_on(names: Sequence[str], body: Pattern) -> tuple[Equal, ...]:
    """Return the guards of a pattern that say of these names alone what is equal."""
    guards = (g for p in parts(body) if isinstance(p, Guarded) for g in conjuncts(p.guard))
    return tuple(
        guard
        for guard in guards
        if isinstance(guard, Equal)
        and {*expression_names(guard.left), *expression_names(guard.right)} <= {*names}
    )


def _is_one(name: str, operand_of: Pattern, body: Pattern) -> bool:
    """Return whether each alternate with an operator says that its operand has one element."""
    said = Equal(Attribute(name, "numel"), Constant(1))
    return all(
        any(isinstance(p, Guarded) and said in conjuncts(p.guard) for p in parts(option))
        for option in alternates(body)
        if any(p is operand_of for p in parts(option))
    )


def _dims_of(name: str, definition: Definition) -> Mapping[str, Domain]:
    """Return the domains of arguments of an operator on one dimension, by its result's name."""
    return OF_ONE_DIM.get(definition.read(_operators).get(name, ""), {})


def _operators(pattern: Pattern) -> Mapping[str, str]:
    """Return the first operator that describes each name."""
    found: dict[str, str] = {}
    for part in parts(pattern):
        if isinstance(part, Constrained) and isinstance(part.pattern, Op):
            found.setdefault(part.name, part.pattern.operator.name)
    return found


def summands(expression: Expression) -> list[Expression]:
    """Return the parts of a sum, such as tuples that are put together; others as they are."""
    match expression:
        case Apply(function, (one, two)) if function.name == "add":
            return [*summands(one), *summands(two)]
    return [expression]


def _reads_shapes(expression: Expression) -> bool:
    parts = subexpressions(expression)
    return any(isinstance(part, Attribute) and part.attribute == "shape" for part in parts)


def _called(pattern: Mu | Call, frames: _Frames) -> tuple[Definition | None, _Frames]:
    """Return the definition that is called, if it is known, and those around it."""
    if isinstance(pattern, Mu):
        return pattern.definition, frames
    rest = frames[pattern.index :]
    return (rest[0], rest[1:]) if rest else (None, ())


def _of_plain(found: Domain, expression: Expression) -> None:
    """Add the kind of value that an expression has, whatever its names are."""
    match expression:
        case Constant(value):
            found[exact(value)] = value
        case Attribute(_, attribute) if attribute == VALUE:
            found[NUMBER] = NUMBER
        case Attribute(_, "shape"):
            found[SHAPE] = SHAPE
        case Attribute(_, attribute):
            added(found, of_argument(attribute))
        case Apply(function, (Attribute(_, "shape"), _)) if function.name == "item":
            found[SIZE] = SIZE
        case Apply(function, _) if function.name.rpartition(".")[2] in ARITHMETIC:
            found[NUMBER] = NUMBER
        case Apply(function, _):
            added(found, of_argument(function.name.rpartition(".")[2]))
        case Tuple():
            found[UNKNOWN] = UNKNOWN
