"""Lowering of patterns to steps, and to the index items of subjects at which these can succeed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeAlias, assert_never

from pypm.core.guards import Attribute, Expression, Reference
from pypm.core.patterns import (
    Alt,
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
    args,
)
from pypm.core.traverse import alternates, children, subexpressions
from pypm.match.compile import steps
from pypm.match.compile.conditions import held_in, holds_in
from pypm.match.compile.extent import fact_asked
from pypm.match.index import ANYTHING, Index, Item
from pypm.match.requirements import BUILT_IN
from pypm.match.search_state import Scope, Step

__all__ = ["VERSIONS", "Compiler", "Expected", "Family", "Lowered", "Lowering"]

Expected: TypeAlias = Mapping[str, Item]
"""Names that a later constraint or guard examines, with the item that their binding must have."""
Lowered: TypeAlias = tuple[Step, Item]
_Wanted: TypeAlias = tuple[tuple[str, Item], ...]
"""Parameters with the item that their binding must have, in order of their names."""

VERSIONS: Final = 16
"""The most bodies that calls of a definition inside of its own body add, before all others share
one."""


class Compiler:
    """State that the patterns of one program share: the index, and compiled definitions."""

    def __init__(
        self,
        index: Index,
        present: Collection[str] | None = None,
        left_out: Collection[str] = (),
    ) -> None:
        """`present` are the operators of all subjects, None if they are not known: what needs
        another one never matches, and is left out. `left_out` were left out of the index before.
        """
        self.index = index
        self.left_out = {*left_out}.difference(present or ())
        """The operators that patterns name and that are not present."""
        self._present = None if present is None else {*present, *BUILT_IN}
        self._void = None if present is None else index.either(())
        self._families: dict[tuple[int, tuple[Family, ...]], Family] = {}
        self._bound: dict[int, frozenset[str]] = {}

    def leaves_out(self, pattern: Pattern) -> bool:
        """Return whether a pattern is of an operator that is not present."""
        if self._present is None or not isinstance(pattern, Op):
            return False
        name = pattern.operator.name
        if name in self._present:
            return False
        self.left_out.add(name)
        return True

    def is_void(self, item: Item) -> bool:
        """Return whether a pattern with that item needs operators that are not present."""
        return item == self._void

    def family(self, definition: Definition, enclosing: tuple[Family, ...]) -> Family:
        if definition.closed is not None:  # it calls none of them, so all contexts share its bodies
            enclosing = ()
        key = (id(definition), enclosing)
        if key not in self._families:
            self._families[key] = Family(self, definition, enclosing)
        return self._families[key]

    def bound(self, pattern: Pattern) -> frozenset[str]:
        """Return the names that every match binds.

        Unlike `bound_after`, this ignores the declared outputs of a definition that was not checked
        yet.
        """
        found = self._bound.get(id(pattern))
        if found is None:
            found = self._bound[id(pattern)] = self._names_bound(pattern)
        return found

    def _names_bound(self, pattern: Pattern) -> frozenset[str]:
        if isinstance(pattern, Mu):
            definition = pattern.definition
            is_known = definition.closed is not None and not definition.inputs
            return args(definition, pattern.actuals, definition.outputs) if is_known else _NONE
        inside = [self.bound(part) for part in children(pattern)]
        if isinstance(pattern, Alt):
            return frozenset.intersection(*inside)
        names = _NONE.union(*inside)
        if isinstance(pattern, Var | Fun | Let):
            return names | {pattern.name}
        return names - {pattern.name} if isinstance(pattern, Exists) else names

    def lowering(self, names: tuple[str, ...], enclosing: tuple[Family, ...] = ()) -> Lowering:
        """Return a `Lowering` for one activation with these names."""
        return Lowering(self, names, enclosing)


class Family:
    """A definition in its context, with one compiled body for each set of expectations of its
    arguments.
    """

    def __init__(
        self, compiler: Compiler, definition: Definition, enclosing: tuple[Family, ...]
    ) -> None:
        self._compiler = compiler
        self.definition = definition
        self._enclosing = enclosing
        self._bodies: dict[_Wanted, _Body] = {}
        self._keys: dict[_Wanted, _Wanted] = {}
        """Expectations that calls had, with those of the body that all such calls share."""
        self._limit: int | None = None
        """The largest number of bodies, while one is being compiled; None if none is."""

    def body(self, actuals: tuple[str, ...], expected: Expected) -> _Body:
        """Return the body for a call with these actuals, under what is expected of their bindings.

        A body specialized to expectations demands more of its subjects, so the index excludes more.
        Inside of a recursive body, expectations may grow from call to call without end. So calls
        from outside are specialized; past `VERSIONS` bodies, calls from inside share the one
        without expectations, which is correct for any.
        """
        first: dict[str, str] = {}
        for parameter, actual in zip(self.definition.parameters, actuals, strict=False):
            first.setdefault(parameter, actual)
        asked = [(name, expected[actual]) for name, actual in first.items() if actual in expected]
        is_outside = self._limit is None
        if self._limit is None:
            self._limit = len(self._bodies) + VERSIONS
        wanted = tuple(sorted(asked))
        has_room = len(self._bodies) < self._limit
        key = self._keys.setdefault(wanted, wanted if has_room else ())
        if key not in self._bodies:
            # The entry exists before its body is lowered, so that a recursive call inside finds it.
            body = self._bodies[key] = _Body(self.definition, self._compiler.index)
            enclosing = (self, *self._enclosing)
            lowering = self._compiler.lowering(self.definition.parameters, enclosing)
            step, item = lowering.lower(self.definition.body, lowering.scope, dict(key))
            body.finish(step, item, lowering.size)
        if is_outside:
            self._limit = None
        return self._bodies[key]


class _Body(steps.Body):
    """A body and its index item; a recursive call reads the item before the body is compiled."""

    __slots__ = ("_index", "_item", "_name", "is_recursive")

    def __init__(self, definition: Definition, index: Index) -> None:
        super().__init__()
        self._index = index
        self._name = definition.name
        self._item: Item | None = None
        self.is_recursive = False

    @property
    def item(self) -> Item:
        if self._item is None:
            self._item = self._index.recursion(self._name)
            self.is_recursive = True
        return self._item

    def finish(self, step: Step, item: Item, size: int) -> None:
        self.step, self.size = step, size
        if self.is_recursive:
            self._index.define(self.item, item)
        else:
            self._item = item


class Lowering:
    """Lowering of one activation: the roots of a rule, or the body of a definition."""

    def __init__(
        self, compiler: Compiler, names: tuple[str, ...], enclosing: tuple[Family, ...] = ()
    ) -> None:
        self.scope: Scope = {name: slot for slot, name in reversed([*enumerate(names)])}
        self.size = len(names)
        self._compiler = compiler
        self._index = compiler.index
        self._enclosing = enclosing

    def lower(self, pattern: Pattern, scope: Scope, expected: Expected) -> Lowered:
        """Return the pattern's step, and an item of every subject at which the step succeeds."""
        slots: list[int] = []
        after: list[Step] = []
        step, item = self.split(pattern, scope, expected, slots, after)
        if self._compiler.is_void(item):
            return steps.fail, item
        if slots or after:
            step = steps.block(tuple(slots), step, tuple(after))
        return step, item

    def split(
        self,
        pattern: Pattern,
        scope: Scope,
        expected: Expected,
        slots: list[int],
        after: list[Step],
    ) -> Lowered:
        """Lower the innermost body of a pattern.

        The slots of the locals around it are added to `slots`, and the steps of the guards, lets
        and constraints that follow it to `after`.
        """
        match pattern:
            case Exists(name, body):
                slot, self.size = self.size, self.size + 1
                slots.append(slot)
                if name in expected:
                    expected = {n: item for n, item in expected.items() if n != name}
                lowered = self.split(body, {**scope, name: slot}, expected, slots, after)
                if self._compiler.is_void(lowered[1]):
                    return lowered
                # The calculus demands that a local is bound at the end; the test is left out if it
                # cannot fail.
                if name in self._compiler.bound(body):
                    return lowered
                step = steps.check(slot)
            case Guarded(body, guard):
                asked = fact_asked(guard)
                # The body binds the name to a subject, whose state has the fact if the guard holds.
                if asked is not None:
                    name, fact = asked
                    known = expected.get(name, ANYTHING)
                    expected = {**expected, name: self._index.both(known, self._index.fact(fact))}
                lowered = self.split(body, scope, expected, slots, after)
                if self._compiler.is_void(lowered[1]):
                    return lowered
                step = steps.guard(holds_in(guard, scope))
            case Let(body, name, expression):
                lowered = self.split(body, scope, expected, slots, after)
                if self._compiler.is_void(lowered[1]):
                    return lowered
                step = _let(name, expression, scope)
            case Constrained(body, constraint, name):
                # The constraint runs after the body, but is lowered first: its item is demanded of
                # whatever the body binds to the name, so that the index excludes other bindings
                # early.
                examine, asked_item = self.lower(constraint, scope, expected)
                if self._compiler.is_void(asked_item):
                    return steps.fail, asked_item
                asked_item = self._index.both(asked_item, expected.get(name, ANYTHING))
                expected = {**expected, name: asked_item}
                lowered = self.split(body, scope, expected, slots, after)
                step = steps.constraint(scope[name], examine) if name in scope else steps.fail
            case _:
                return self._lower(pattern, scope, expected)
        after.append(self.watched(step, pattern, scope))
        return lowered

    def _lower(
        self, pattern: Var | Op | Fun | Alt | Mu | Call, scope: Scope, expected: Expected
    ) -> Lowered:
        match pattern:
            case Var(name):
                item = expected.get(name, ANYTHING)
                step = steps.var(scope[name], item) if name in scope else steps.fail
                return self.watched(step, pattern, scope), item
            case Op(operator, arguments, keep):
                if self._compiler.leaves_out(pattern):
                    return steps.fail, self._index.either(())
                parts, children = self._children(arguments, scope, expected)
                if children and self._compiler.is_void(children[-1]):
                    return steps.fail, children[-1]
                item = self._index.applied(operator.name, children)
                return self.watched(steps.op(item, parts, keep), pattern, scope), item
            case Fun(name, arguments, keep):
                parts, children = self._children(arguments, scope, expected)
                if children and self._compiler.is_void(children[-1]):
                    return steps.fail, children[-1]
                item = self._index.applied(None, children)
                known = name in scope
                step = steps.fun(scope[name], item, parts, keep) if known else steps.fail
                return self.watched(step, pattern, scope), item
            case Alt():
                lowered = [self.lower(p, scope, expected) for p in alternates(pattern)]
                branches = tuple(b for b in lowered if not self._compiler.is_void(b[1]))
                return steps.alt(branches), self._index.either([item for _, item in branches])
            case Mu(definition, actuals):
                return self._call(
                    self._compiler.family(definition, self._enclosing), actuals, scope, expected
                )
            case Call(index, actuals):
                if index >= len(self._enclosing):
                    return self.watched(steps.fail, pattern, scope), self._index.either(())
                return self._call(self._enclosing[index], actuals, scope, expected)
            case _:
                assert_never(pattern)

    def watched(self, step: Step, pattern: Pattern, scope: Scope) -> Step:
        """Return the step of a pattern's own test, the only one that can fail; `explain` overrides
        this.
        """
        return step

    def _children(
        self, patterns: tuple[Pattern, ...], scope: Scope, expected: Expected
    ) -> tuple[tuple[Step, ...], list[Item]]:
        lowered = []  # up to the first that needs operators that are not present
        for pattern in patterns:
            lowered.append(self.lower(pattern, scope, expected))
            if self._compiler.is_void(lowered[-1][1]):
                break
        return tuple(step for step, _ in lowered), [item for _, item in lowered]

    def _call(
        self, called: Family, actuals: tuple[str, ...], scope: Scope, expected: Expected
    ) -> Lowered:
        body = called.body(actuals, expected)
        slots, item = _actual_slots(called.definition.parameters, actuals, scope), body.item
        return (steps.call if body.is_recursive else steps.enter)(body, slots), item


def _let(name: str, expression: Expression, scope: Scope) -> Step:
    """Return the step that binds a name to the value of an expression."""
    value = held_in(expression, scope)
    # An attribute counts as well: a field of a record may be a term.
    parts = [p for p in subexpressions(expression) if isinstance(p, Reference | Attribute)]
    sources = tuple(dict.fromkeys(scope[p.name] for p in parts if p.name in scope))
    return steps.let(scope[name], value, sources) if name in scope else steps.fail


def _actual_slots(
    parameters: tuple[str, ...], actuals: tuple[str, ...], scope: Scope
) -> tuple[int | None, ...]:
    """Return the slot of the actual for each parameter (callenv of the calculus)."""
    firsts = [parameters.index(parameter) for parameter in parameters]
    return tuple(scope.get(actuals[at]) if at < len(actuals) else None for at in firsts)


_NONE: Final = frozenset[str]()
