"""Ways through patterns: which alternates are taken, and what then describes each name.

A way is a conjunction: terms without alternatives, guards and values of names. Calls of patterns
that say what they mean are not entered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import torch

from pypm.core.guards import (
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
)
from pypm.core.operators import Operator
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Definition,
    Exists,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.terms import ARGUMENT, DERIVED, VALUE
from pypm.core.traverse import alternates, children, conjuncts
from pypm.fx.operators.corrections import named
from pypm.fx.values.observers import joins_of
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.forms.deadline import check_time
from pypm.laws.forms.polynomials import Factor, Poly
from pypm.laws.patterns.shared_guards import shared_guards

__all__ = [
    "AppliedOperator",
    "Argument",
    "Choices",
    "Entered",
    "Impossible",
    "Meant",
    "NotMatched",
    "Replay",
    "Spelled",
    "Tree",
    "Way",
    "WayName",
    "is_meant",
    "place_of",
]


class NotMatched(Exception):
    """No graph is matched in this way, or none of the sizes that were chosen."""


class Impossible(NotMatched):
    """No graph is matched in this way, whatever the sizes."""


@dataclass
class Choices:
    """A script of choices; after a run, `advance` makes the next one."""

    script: list[int] = field(default_factory=list)
    options: list[Sequence[Given]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    """Names for whose values the choices were made; "" for others."""
    at: int = 0
    settled: list[tuple[int, Factor, Poly, str]] = field(default_factory=list)
    """Forms of symbols, in the order found, each with the number of choices that it follows from:
    scripts that begin with these choices find the same. And what is a condition of the proof.
    """

    def settle(self, symbol: Factor, form: Poly, condition: str = "") -> None:
        """Note the form that a symbol has to have."""
        before = self.settled[-1][0] if self.settled else 0
        self.settled.append((max(self.at, before), symbol, form, condition))

    def choose(self, count: int, label: str = "") -> int:
        """Return the next choice, below `count`."""
        return 0 if count == 1 else self.pick(lambda: range(count), label)

    def pick(self, options: Callable[[], Sequence[Given]], label: str = "") -> Given:
        """Return the next choice among options, which are asked for once for each script's start.

        Raises NotMatched if there are none.
        """
        check_time()
        if self.at == len(self.script):
            found = options()
            if not found:
                raise NotMatched(f"{label} takes no such arguments")
            self.script.append(0)
            self.options.append(found)
            self.labels.append(label)
        self.at += 1
        return self.options[self.at - 1][self.script[self.at - 1]]

    @property
    def taken(self) -> tuple[tuple[str, Given], ...]:
        """The choices of the last run, each with its label."""
        made = zip(self.labels, self.options, self.script, strict=True)
        return tuple((label, options[i]) for label, options, i in made)[: self.at]

    def copy(self) -> Choices:
        """Return the same choices, which others may follow."""
        at = self.at
        made = Choices(self.script[:at], self.options[:at], self.labels[:at])
        made.settled = list(self.settled)
        return made

    @property
    def made(self) -> tuple[int, ...]:
        """The numbers of the options that the last run chose."""
        return tuple(self.script[: self.at])

    def restart(self) -> None:
        """Begin the same script again."""
        self.at = 0

    def advance(self, settled: str = "") -> bool:
        """Go on to the next script; return whether there is one. The last choices with the label
        `settled` stay as they are.
        """
        self._cut(self.at)
        self.at = 0
        while settled and self.labels and self.labels[-1] == settled:
            self._cut(-1)
        while self.script and self.script[-1] + 1 >= len(self.options[-1]):
            self._cut(-1)
        if self.script:
            self.script[-1] += 1
        self.settled = [s for s in self.settled if s[0] < len(self.script)]
        return bool(self.script)

    def _cut(self, at: int) -> None:
        del self.script[at:], self.options[at:], self.labels[at:]


class Replay(Choices):
    """Choices that were made before, made again, but those for the values of some names."""

    def __init__(self, taken: Sequence[tuple[str, Given]], known: Sequence[str] = ()) -> None:
        super().__init__()
        self._left = [(label, one) for label, one in taken if label not in known]

    def pick(self, options: Callable[[], Sequence[Given]], label: str = "") -> Given:
        """Return the next choice with this label. Raises NotMatched if there is none."""
        for place, (other, chosen) in enumerate(self._left):
            if other == label:
                del self._left[place]
                return chosen
        raise NotMatched("a choice that was not made")


@dataclass(eq=False)
class WayName:
    """A name of a way, with what describes it."""

    name: str
    described: list[Tree] = field(default_factory=list)
    lets: list[tuple[Expression, Names]] = field(default_factory=list)
    arguments: dict[str, Argument] = field(default_factory=dict)
    """Arguments of the operator that describes it, as far as they are said."""
    attributes: list[tuple[WayName, str]] = field(default_factory=list)
    """Attributes that it is said to be, each of a name."""

    @property
    def fields(self) -> list[tuple[WayName, str]]:
        """The attributes of what no operator describes: fields of records."""
        return [(of, name) for of, name in self.attributes if not of.described]


@dataclass(eq=False)
class Argument:
    """An argument of an operator as a way says it: its value, or its length and items."""

    value: Said | None = None
    length: Expression | None = None
    items: dict[int, Said] = field(default_factory=dict)


@dataclass(eq=False)
class AppliedOperator:
    """An operator applied to trees."""

    operator: Operator
    operands: tuple[Tree, ...]


@dataclass(eq=False)
class Meant:
    """A call of a pattern that says what it means."""

    definition: Definition
    actuals: tuple[WayName, ...]


@dataclass(eq=False)
class Spelled:
    """A call of a pattern whose meaning is that of its spellings."""

    definition: Definition
    around: tuple[Definition, ...]
    """The recursive definitions around it, innermost first, which it may call."""
    actuals: tuple[WayName, ...]


Tree: TypeAlias = WayName | AppliedOperator | Meant | Spelled
Names: TypeAlias = Mapping[str, WayName]
Said: TypeAlias = tuple[Expression, Names] | WayName
"""The value of an argument: that of an expression, or of a name that it binds."""
_Frames: TypeAlias = tuple[Definition, ...]
"""The recursive definitions around a place, innermost first."""


class Way:
    """One way through patterns, by choices."""

    def __init__(self, choices: Choices, notes: list[Given] | None = None) -> None:
        self.choices = choices
        self.guards: list[tuple[Guard, Names]] = []
        self.shared: list[tuple[Guard, Names]] = []
        """Guards that the patterns that are called have."""
        self.slots: list[WayName] = []
        self.roots: list[Tree] = []
        self.taken: list[Pattern] = []
        """The alternates that were chosen."""
        self.sides: list[int] = []
        """The sides of guards with several that were chosen."""
        self.notes = [] if notes is None else notes
        """Lemmas that the values of the way take for granted."""

    @property
    def every_guard(self) -> list[tuple[Guard, Names]]:
        """The guards, and those of called patterns."""
        return self.guards + self.shared

    def slot(self, name: str) -> WayName:
        """Return a new slot."""
        self.slots.append(WayName(name))
        return self.slots[-1]

    def enter(
        self, definition: Definition, around: _Frames, actuals: Mapping[str, WayName]
    ) -> Tree:
        """Return the body of a definition; what it calls is not entered."""
        body = definition.body if definition.apart is None else definition.apart()
        return self.tree(body, actuals, (definition, *around))

    def tree(self, pattern: Pattern, names: Names, frames: _Frames = ()) -> Tree:
        """Return a pattern as a tree, and note what it says beside. Raises NoMeaning."""
        match pattern:
            case Var(name):
                return names[name]
            case Op(operator, arguments):
                operands = tuple(self.tree(a, names, frames) for a in arguments)
                return AppliedOperator(operator, operands)
            case Alt():
                return self.tree(self._chosen(pattern), names, frames)
            case Exists(name, body):
                return self.tree(body, {**names, name: self.slot(name)}, frames)
            case Guarded(body, guard):
                found = self.tree(body, names, frames)
                self.assume(guard, names)
                return found
            case Let(body=body):
                found = self.tree(body, names, frames)
                self._let(names[pattern.name], pattern.expression, names)
                return found
            case Constrained(body=body):
                found = self.tree(body, names, frames)
                names[pattern.name].described.append(self.tree(pattern.pattern, names, frames))
                return found
            case Mu(definition=definition):
                slots = tuple(names[a] for a in pattern.actuals)
                return self.called(definition.unmarked or definition, frames, slots)
            case Call(index=index):
                slots = tuple(names[a] for a in pattern.actuals)
                return self.called(frames[index], frames[index + 1 :], slots)
        raise NoMeaning("any operator of a class")

    def called(self, definition: Definition, around: _Frames, slots: tuple[WayName, ...]) -> Tree:
        """Return a call of a definition."""
        if is_meant(definition):
            names = dict(zip(definition.parameters, slots, strict=True))
            self.shared += [(guard, names) for guard in shared_guards(definition)]
            return Meant(definition, slots)
        return Spelled(definition, around, slots)

    def _chosen(self, pattern: Pattern) -> Pattern:
        options = distinct(alternates(pattern))
        chosen = options[self.choices.choose(len(options))]
        self.taken.append(chosen)
        return chosen

    def assume(self, guard: Guard, names: Names) -> None:
        """Note a guard, or what it says of the argument of an operator."""
        parts = conjuncts(guard)
        self.guards += [(part, names) for part in parts if not self._is_of_argument(part, names)]

    def _is_of_argument(self, guard: Guard, names: Names) -> bool:
        match guard:
            case Equal(tested, expected):
                return self._argument(tested, (expected, names), names)
            case Holds(Apply(function, (tested, Constant() as expected, *_))) if function.name in (
                "close",
                "same_dims",
                "is_value",
            ):
                return self._argument(tested, (expected, names), names)
        return False

    def _let(self, slot: WayName, expression: Expression, names: Names) -> None:
        if not self._argument(expression, slot, names):
            slot.lets.append((expression, names))
        elif isinstance(expression, Attribute):
            slot.attributes.append((names[expression.name], _argument_of(expression.attribute)))

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
                function.name == "len" and _is_argument(attribute) and not isinstance(said, WayName)
            ):
                self._of(names[name], attribute).length = said[0]
            case _:
                return False
        return True

    def _of(self, slot: WayName, attribute: str) -> Argument:
        return slot.arguments.setdefault(_argument_of(attribute), Argument())


def is_meant(definition: Definition) -> bool:
    """Return whether a definition says what it means; so does the list, if it joins one."""
    joins = joins_of(definition.means)
    if joins is not None:
        return definition.given is not None and is_meant(definition.given(joins.items))
    return definition.means is not None


def distinct(options: Sequence[Pattern]) -> list[Pattern]:
    """Return alternates but for those that swap the operands of another one, such as a sum."""
    found: list[Pattern] = []
    for option in options:
        inner = option
        while isinstance(inner, Guarded):  # a sum is swapped if nothing scales its second operand
            inner = inner.body
        if isinstance(inner, Op) and inner.operator.name in SYMMETRIC:
            one, two, *others = inner.arguments
            if Op(inner.operator, (two, one, *others)) in found:
                continue
        found.append(option)
    return found


SYMMETRIC: Final = named("aten", "add mul maximum minimum")
"""Operators whose first two operands may be swapped, whatever they are."""


def _argument_of(attribute: str) -> str:
    return attribute.removesuffix(ARGUMENT)


def _is_argument(attribute: str) -> bool:
    return attribute not in DERIVED and attribute != VALUE


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


@dataclass(frozen=True)
class Entered:
    """A pattern entered by choices: its result, and the values of its parameters."""

    result: Given
    values: tuple[Given, ...]
    slots: tuple[WayName, ...]
    dtypes: Mapping[WayName, torch.dtype]
