"""Patterns run backwards: terms that a pattern describes, as slots still to be filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, assert_never

from pypm.core.guard_origins import attribute_read, origin_of
from pypm.core.guards import (
    And,
    Attribute,
    AttributeTest,
    ClassTest,
    Constant,
    Expression,
    Guard,
    LengthTest,
    True_,
)
from pypm.core.operators import Operator
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
    arg,
)
from pypm.core.rules import Rule
from pypm.core.terms import ARGUMENT, DERIVED, Value
from pypm.core.traverse import alternates, expressions, free_names, parts, subexpressions
from pypm.match.requirements import TermSizes

__all__ = [
    "DEEPEST",
    "SHALLOW",
    "Condition",
    "Sampler",
    "Scope",
    "Sketch",
    "SketchSlot",
    "Unsampled",
]


SHALLOW: Final = 3
"""The largest number of levels of recursion in most samples."""
DEEPEST: Final = 12
"""The same in samples that are drawn where none of those was rewritten."""


class Unsampled(Exception):
    """The reason why a sample was not made: two parts of a pattern contradict each other."""

    def __init__(self, reason: str = "two parts of the pattern contradict each other") -> None:
        super().__init__(reason)


class SketchSlot:
    """A value that a pattern speaks of: a term, an operator or a constant, as far as it is known.

    Slots that must be the same are united; `find` gives the one that stands for them.
    """

    def __init__(self) -> None:
        self._parent: SketchSlot | None = None
        self.operator: Operator | None = None
        self.function: SketchSlot | None = None
        """The operator, where it is a variable."""
        self.children: list[SketchSlot] = []
        self.demands: dict[str, Value] = {}
        """Attributes that guards give outright."""
        self.lengths: dict[str, int] = {}
        """The lengths of attributes that are lists."""
        self.links: dict[tuple[str, int | None], SketchSlot] = {}
        """The constants that attributes, or items of them, are to be equal to."""
        self.tags: set[str] = set()
        self.asked: set[str] = set()
        """Every attribute that some guard or expression reads."""
        self.definitions: list[tuple[Expression, Scope]] = []
        """The expressions from which the constant is computed, with their scopes."""

    @property
    def find(self) -> SketchSlot:
        slot = self
        while slot._parent is not None:
            slot = slot._parent
        return slot

    @property
    def is_applied(self) -> bool:
        return self.operator is not None or self.function is not None

    @property
    def below(self) -> list[SketchSlot]:
        return [child.find for child in self.children]

    def unite(self, other: SketchSlot) -> None:
        """Make the two one. Raises Unsampled where they cannot be."""
        one, two = self.find, other.find
        if one is two:
            return
        two._parent = one
        one.tags |= two.tags
        one.asked |= two.asked
        one.lengths |= two.lengths
        one.links |= two.links
        one.definitions += two.definitions
        for name, value in two.demands.items():
            one.demand(name, value)
        if two.is_applied:
            one.apply(two.operator, two.function, two.children)

    def demand(self, name: str, value: Value) -> None:
        """Ask that an attribute have a value."""
        if self.demands.setdefault(name, value) != value:
            raise Unsampled

    def apply(
        self, operator: Operator | None, function: SketchSlot | None, children: Sequence[SketchSlot]
    ) -> None:
        """Make this an operator on children, as which it may be known already."""
        if not self.is_applied:
            self.operator, self.function, self.children = operator, function, list(children)
            return
        if len(self.children) != len(children):
            raise Unsampled
        if self.function is not None and function is not None:
            self.function.unite(function)
        elif self.operator != operator:
            raise Unsampled
        for own, child in zip(self.children, children, strict=True):
            own.unite(child)


Scope: TypeAlias = Mapping[str, SketchSlot]


@dataclass(frozen=True)
class Condition:
    """A guard that the term must pass, with what its names stand for."""

    guard: Guard
    scope: Scope


@dataclass
class Sketch:
    """A term for each root of a rule, None for an output that is left out, and its guards."""

    roots: tuple[SketchSlot | None, ...]
    conditions: list[Condition] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    """The identities of the alternates that were taken."""

    def slots(self) -> list[SketchSlot]:
        """The terms, children first. Raises Unsampled where one lies below itself."""
        order: dict[SketchSlot, bool] = {}
        for root in self.roots:
            if root is not None:
                _visit(root.find, order)
        return list(order)


def _visit(
    slot: SketchSlot, order: dict[SketchSlot, bool], path: frozenset[int] = frozenset()
) -> None:
    if slot in order:
        return
    if id(slot) in path:
        raise Unsampled
    for child in slot.below:
        _visit(child, order, path | {id(slot)})
    order[slot] = True


class Sampler:
    """Draws terms from one rule's pattern."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.least: Callable[[Pattern], float] = TermSizes().of
        """The number of operators of the smallest term; infinity if a pattern only recurs."""
        self._options: dict[int, list[Pattern]] = {}

    @property
    def is_recursive(self) -> bool:
        """Return whether the rule's pattern recurses."""
        return any(isinstance(part, Call) for root in self.rule.roots for part in parts(root))

    def draw(self, choices: Iterator[int], fuel: int) -> Sketch:
        """The term that one way through the pattern describes.

        Where there are alternates, the next number says which; the simplest of them come first.
        A recursive pattern recurs at most `fuel` times, and exactly so often if `fuel` is larger
        than `SHALLOW` and its alternates allow it. Raises Unsampled.
        """
        rule = self.rule
        outputs = (rule.roots, *rule.partial)
        chosen = outputs[next(choices) % len(outputs)] if rule.partial else rule.roots
        sketch = Sketch(tuple(None if root is None else SketchSlot() for root in chosen))
        drawing = _Drawing(self, choices, fuel, sketch, fuel > SHALLOW)
        names = sorted(frozenset().union(*map(free_names, rule.roots), rule.parameters))
        scope = {name: SketchSlot() for name in names}
        for pattern, slot in zip(chosen, sketch.roots, strict=True):
            if pattern is not None and slot is not None:
                drawing.fill(slot, pattern, scope, ())
        drawing.condition(rule.guard, scope)
        return sketch

    def options(self, pattern: Alt) -> list[Pattern]:
        """The alternates, the simplest first."""
        found = self._options.get(id(pattern))
        if found is None:
            found = self._options[id(pattern)] = sorted(alternates(pattern), key=self.least)
        return found


@dataclass
class _Drawing:
    sampler: Sampler
    choices: Iterator[int]
    fuel: int
    sketch: Sketch
    is_deep: bool
    """True if alternates that recur are preferred while there is fuel."""

    def fill(
        self, slot: SketchSlot, pattern: Pattern, scope: Scope, context: tuple[Definition, ...]
    ) -> None:
        """Make a slot something that the pattern matches."""
        match pattern:
            case Var(name):
                scope[name].unite(slot)
            case Op(operator, arguments):
                self._apply(slot, operator, None, arguments, scope, context)
            case Fun(name, arguments):
                self._apply(slot, None, scope[name], arguments, scope, context)
            case Alt():
                self.fill(slot, self._alternate(pattern), scope, context)
            case Exists(name, body):
                self.fill(slot, body, {**scope, name: SketchSlot()}, context)
            case Guarded(body, guard):
                self.fill(slot, body, scope, context)
                self.condition(guard, scope)
            case Let(body, name, expression):
                self.fill(slot, body, scope, context)
                self._define(scope[name], expression, scope)
            case Constrained(body, constraint, name):
                self.fill(slot, body, scope, context)
                self.fill(scope[name], constraint, scope, context)
            case Mu(definition, actuals):
                self._enter(slot, definition, actuals, scope, (definition, *context))
            case Call(index, actuals):
                self.fuel -= 1
                if self.fuel < -len(context) * 20:
                    raise Unsampled
                self._enter(slot, context[index], actuals, scope, context[index:])
            case _:
                assert_never(pattern)

    def _apply(
        self,
        slot: SketchSlot,
        operator: Operator | None,
        function: SketchSlot | None,
        arguments: Sequence[Pattern],
        scope: Scope,
        context: tuple[Definition, ...],
    ) -> None:
        children = [SketchSlot() for _ in arguments]
        slot.find.apply(operator, function, children)
        for child, argument in zip(children, arguments, strict=True):
            self.fill(child, argument, scope, context)

    def _alternate(self, pattern: Alt) -> Pattern:
        options, least = self.sampler.options(pattern), self.sampler.least
        if self.fuel <= 0:
            options = [option for option in options if least(option) <= least(options[0])]
        elif self.is_deep:
            larger = [option for option in options if least(option) > least(options[0])]
            options = larger or options
        chosen = options[next(self.choices) % len(options)]
        self.sketch.taken.add(id(chosen))
        return chosen

    def _enter(
        self,
        slot: SketchSlot,
        definition: Definition,
        actuals: Sequence[str],
        scope: Scope,
        context: tuple[Definition, ...],
    ) -> None:
        inside = {}
        for parameter in definition.parameters:
            actual = arg(definition.parameters, actuals, parameter)
            inside[parameter] = SketchSlot() if actual is None else scope[actual]
        self.fill(slot, definition.body, inside, context)

    def _define(self, slot: SketchSlot, expression: Expression, scope: Scope) -> None:
        for name, attribute in _read(expression):
            scope[name].find.asked.add(attribute)
        match attribute_read(expression):
            case Attribute(name, attribute), index if attribute not in DERIVED:
                scope[name].find.links[attribute.removesuffix(ARGUMENT), index] = slot
        slot.find.definitions.append((expression, scope))

    def condition(self, guard: Guard, scope: Scope) -> None:
        """Ask that a guard hold, and note what it says outright."""
        if isinstance(guard, And):
            self.condition(guard.left, scope)
            self.condition(guard.right, scope)
            return
        for expression in expressions(guard):
            for name, attribute in _read(expression):
                scope[name].find.asked.add(attribute)
        _learn(guard, scope)
        if not isinstance(guard, True_):
            self.sketch.conditions.append(Condition(guard, scope))


def _learn(guard: Guard, scope: Scope) -> None:
    match origin_of(guard):
        case AttributeTest(Attribute(name, attribute), Constant(value), None):
            if attribute not in DERIVED or attribute in ("rank", "dtype", "shape"):
                scope[name].find.demand(attribute, value)
        case LengthTest(Attribute(name, attribute), length):
            scope[name].find.lengths[attribute.removesuffix(ARGUMENT)] = length
        case ClassTest(name, tag):
            scope[name].find.tags.add(tag)


def _read(expression: Expression) -> Iterator[tuple[str, str]]:
    """The attributes that an expression reads."""
    for part in subexpressions(expression):
        if isinstance(part, Attribute):
            yield part.name, part.attribute
