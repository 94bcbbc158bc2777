"""Ways through patterns: which alternates are taken, and what then describes each name.

A way is a conjunction: terms without alternatives, guards and values of names. Calls of patterns
that say what they mean are not entered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pypm.core.guards import (
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
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
)
from pypm.core.terms import ARGUMENT, DERIVED, VALUE
from pypm.core.traverse import children
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.forms.polynomials import Factor, Poly

__all__ = [
    "Application",
    "Choices",
    "Impossible",
    "Meant",
    "Rejected",
    "Slot",
    "Tree",
    "Way",
    "place_of",
]

DEEPEST: Final = 1
"""Levels of recursion of a pattern that does not say what it means."""


class Rejected(Exception):
    """No graph is matched in this way, or none of the sizes that were chosen."""


class Impossible(Rejected):
    """No graph is matched in this way, whatever the sizes."""


@dataclass
class Choices:
    """A script of choices; after a run, `advance` makes the next one."""

    script: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    at: int = 0
    settled: list[tuple[int, Factor, Poly]] = field(default_factory=list)
    """Forms of symbols, in the order found, each with the number of choices that it follows from:
    scripts that begin with these choices find the same.
    """

    def settle(self, symbol: Factor, form: Poly) -> None:
        """Note the form that a symbol has to have."""
        before = self.settled[-1][0] if self.settled else 0
        self.settled.append((max(self.at, before), symbol, form))

    def choose(self, count: int) -> int:
        """Return the next choice, below `count`."""
        if count == 1:
            return 0
        if self.at == len(self.script):
            self.script.append(0)
            self.counts.append(count)
        self.at += 1
        return self.script[self.at - 1]

    def restart(self) -> None:
        """Begin the same script again."""
        self.at = 0

    def advance(self) -> bool:
        """Go on to the next script; return whether there is one."""
        del self.script[self.at :], self.counts[self.at :]
        self.at = 0
        while self.script and self.script[-1] + 1 == self.counts[-1]:
            del self.script[-1], self.counts[-1]
        if self.script:
            self.script[-1] += 1
        self.settled = [s for s in self.settled if s[0] < len(self.script)]
        return bool(self.script)


@dataclass(eq=False)
class Slot:
    """A name of a way, with what describes it."""

    name: str
    described: list[Tree] = field(default_factory=list)
    lets: list[tuple[Expression, Names]] = field(default_factory=list)
    arguments: dict[str, Argument] = field(default_factory=dict)
    """Arguments of the operator that describes it, as far as they are said."""


@dataclass(eq=False)
class Argument:
    """An argument of an operator as a way says it: its value, or its length and items."""

    value: Said | None = None
    length: Expression | None = None
    items: dict[int, Said] = field(default_factory=dict)


@dataclass(eq=False)
class Application:
    """An operator applied to trees."""

    operator: Operator
    operands: tuple[Tree, ...]


@dataclass(eq=False)
class Meant:
    """A call of a pattern that says what it means."""

    definition: Definition
    actuals: tuple[Slot, ...]


Tree: TypeAlias = Slot | Application | Meant
Names: TypeAlias = Mapping[str, Slot]
Said: TypeAlias = tuple[Expression, Names] | Slot
"""The value of an argument: that of an expression, or of a name that it binds."""
_Frames: TypeAlias = tuple[tuple[Definition, int], ...]
"""The recursive definitions around a place, innermost first, each with its depth."""


class Way:
    """One way through patterns, by choices."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.guards: list[tuple[Guard, Names]] = []
        self.slots: list[Slot] = []
        self.roots: list[Tree] = []
        self.taken: list[Pattern] = []
        """The alternates that were chosen."""
        self.offered: dict[int, tuple[Pattern, str]] = {}
        """All alternates among which was chosen, by identity, each with the pattern it is of."""
        self.notes: list[Given] = []
        """Lemmas that the values of the way take for granted."""
        self.unknown: list[Guard] = []
        """Guards about sizes and arguments of which is not known whether they hold."""
        self.is_bounded = False
        """True if a recursive pattern was entered that does not say what it means."""

    def slot(self, name: str) -> Slot:
        """Return a new slot."""
        self.slots.append(Slot(name))
        return self.slots[-1]

    def enter(self, definition: Definition, actuals: Mapping[str, Slot]) -> Tree:
        """Return the body of a definition, whose own calls are by its meaning."""
        return self.tree(definition.body, actuals, ((definition, 0),))

    def tree(self, pattern: Pattern, names: Names, frames: _Frames = ()) -> Tree:
        """Return a pattern as a tree, and note what it says beside. Raises NoMeaning."""
        match pattern:
            case Var(name):
                return names[name]
            case Op(operator, arguments):
                return Application(operator, tuple(self.tree(a, names, frames) for a in arguments))
            case Alt():
                return self.tree(self._chosen(pattern, frames), names, frames)
            case Exists(name, body):
                return self.tree(body, {**names, name: self.slot(name)}, frames)
            case Guarded(body, guard):
                found = self.tree(body, names, frames)
                self.assume(guard, names)
                return found
            case Let(body, name, expression):
                found = self.tree(body, names, frames)
                self._let(names[name], expression, names)
                return found
            case Constrained(body, inner, name):
                found = self.tree(body, names, frames)
                names[name].described.append(self.tree(inner, names, frames))
                return found
            case Mu(definition, actuals):
                return self._called(definition, tuple(names[a] for a in actuals), frames, 0)
            case Call(index, actuals):
                definition, depth = frames[index]
                slots = tuple(names[a] for a in actuals)
                return self._called(definition, slots, frames[index + 1 :], depth + 1)
            case Fun():
                raise NoMeaning("any operator of a class")

    def _called(
        self, definition: Definition, slots: tuple[Slot, ...], around: _Frames, depth: int
    ) -> Tree:
        if definition.means is not None:
            return Meant(definition, slots)
        if depth:
            self.is_bounded = True
        if depth > DEEPEST:
            raise Rejected("recursion that goes deeper")
        scope = dict(zip(definition.parameters, slots, strict=True))
        return self.tree(definition.body, scope, ((definition, depth), *around))

    def _chosen(self, pattern: Pattern, frames: _Frames) -> Pattern:
        options = list(_options(pattern))
        owner = frames[0][0].name if frames else ""
        self.offered |= {id(option): (option, owner) for option in options}
        chosen = options[self.choices.choose(len(options))]
        self.taken.append(chosen)
        return chosen

    def assume(self, guard: Guard, names: Names) -> None:
        """Note a guard, or what it says of the argument of an operator."""
        match guard:
            case True_():
                return
            case And(left, right):
                self.assume(left, names)
                self.assume(right, names)
                return
            case Equal(tested, expected) if self._argument(tested, (expected, names), names):
                return
            case Holds(Apply(function, (tested, Constant() as expected, *_))) if function.name in (
                "close",
                "same_dims",
                "is_value",
            ) and self._argument(tested, (expected, names), names):
                return
        self.guards.append((guard, names))

    def _let(self, slot: Slot, expression: Expression, names: Names) -> None:
        if not self._argument(expression, slot, names):
            slot.lets.append((expression, names))

    def _argument(self, tested: Expression, said: Said, names: Names) -> bool:
        """Note the value of an argument; return whether the expression names one."""
        match tested:
            case Attribute(name, attribute) if _is_argument(attribute) or (
                attribute == VALUE and isinstance(said, tuple) and isinstance(said[0], Constant)
            ):
                self._of(names[name], attribute).value = said
            case Apply(function, (Attribute(name, attribute), Constant(int() as index))) if (
                function.name == "item" and _is_argument(attribute)
            ):
                self._of(names[name], attribute).items[index] = said
            case Apply(function, (Attribute(name, attribute),)) if (
                function.name == "len" and _is_argument(attribute) and not isinstance(said, Slot)
            ):
                self._of(names[name], attribute).length = said[0]
            case _:
                return False
        return True

    def _of(self, slot: Slot, attribute: str) -> Argument:
        name = attribute.removesuffix(ARGUMENT)
        return slot.arguments.setdefault(name, Argument())


def _is_argument(attribute: str) -> bool:
    return attribute not in DERIVED and attribute != VALUE


def _options(pattern: Pattern) -> Iterator[Pattern]:
    while isinstance(pattern, Alt):
        yield from _options(pattern.left)
        pattern = pattern.right
    yield pattern


def place_of(pattern: Pattern) -> str:
    """Return the line in which an alternate is written."""
    todo = [pattern]
    while todo:
        found = todo.pop(0)
        span = getattr(found, "span", None)
        if span is not None:
            return str(span)
        todo += children(found)
    return "?"
