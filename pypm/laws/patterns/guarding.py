"""Guards of a way, as equations of sizes and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from pypm.core.guards import (
    And,
    Apply,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
    Or,
    evaluate,
    holds,
)
from pypm.core.records import Record
from pypm.core.terms import UNDEFINED, VALUE, Value, all_made
from pypm.core.traverse import names as names_in
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import ANYTHING, Formula
from pypm.laws.numbers import Assumed, Contradiction, form_of, is_number
from pypm.laws.patterns.looping import binds
from pypm.laws.patterns.nearest import allow
from pypm.laws.patterns.subjects import (
    SHAPES,
    GuardedName,
    is_of_none,
    is_plain,
    is_said,
    known_attribute,
)
from pypm.laws.patterns.unknown_guards import (
    is_about_sizes,
    is_about_values,
    lacks_a_dimension,
    reads_none,
)
from pypm.laws.patterns.valued import Valued
from pypm.laws.patterns.ways import Argument, Impossible, Meant, Names, NotMatched, Spelled, WayName
from pypm.laws.sizes import is_one
from pypm.laws.tracing import tensor_of

__all__ = ["Guarding"]

CONSTANTS: Final = (bool, int, str, type(None))
"""Types of constants that follow from no size."""


class Guarding(Valued):
    """The part of a valuation that is about guards, and about expressions in them."""

    def exclude(self) -> None:
        """Raise Impossible if a guard on constants, or on what is given, fails whatever the sizes:
        before anything is chosen. Raises NotMatched if given values are not those of their names.
        """
        for guard, names in self._way.guards:
            known = {name: self._constant(names[name]) for name in names_in(guard)}
            if known and UNDEFINED not in known.values():
                before = len(self._world.hypotheses)
                is_wrong = holds(guard, known.__getitem__) is False
                if is_wrong and len(self._world.hypotheses) == before:
                    raise Impossible("another constant")
        for slot, given in self._given.items():
            match slot.lets[0][0] if slot.lets else None:
                case Constant(int() as said) if type(given) is int and given != said:
                    raise Impossible("another constant")
        for slot in self._given:
            with suppress(NoMeaning):
                self.value(slot)

    def _constant(self, slot: WayName) -> Given:
        """Return a constant of the pattern, or a record that is given; else UNDEFINED."""
        given = self._given.get(slot, UNDEFINED)
        if isinstance(given, Record):
            return given
        is_constant = slot.lets and isinstance(slot.lets[0][0], Constant)
        return self.value(slot) if is_constant else UNDEFINED

    def settle(self, equal: Sequence[tuple[Given, Given]] = ()) -> None:
        """Make all guards hold, and these values equal. Raises NotMatched."""
        for slot, value in self._given.items():
            if VALUE in slot.arguments and is_number(value):
                self._unify(value, self._argument(slot.arguments[VALUE]))
        for guard, names in sorted(self._way.guards, key=_is_of_results):
            self._guard(guard, names)
        self._check_shared()
        self._unify_all((*equal, *self._equal, *self._world.views))
        for one, two in self._whole:
            if [*map(form_of, one)] != [*map(form_of, two)]:
                raise NoMeaning("a slice whose arguments may be anything")

    def _check_shared(self) -> None:
        """Make the guards of patterns that are called hold, as far as values are known."""
        for guard, names in self._way.shared:
            if all(names[name] in self._known for name in names_in(guard)):
                self._guard(guard, names)

    def _unify_all(self, pairs: Sequence[tuple[Given, Given]]) -> None:
        """Make the values of each pair equal: where one cannot be, another one may say more."""
        failed: NotMatched | None = None
        for one, two in pairs:
            try:
                self._unify(one, two)
            except NotMatched as why:
                failed = failed or why
        if failed is not None:
            raise failed

    def _unify(self, one: Given, two: Given, are_said: bool = False) -> None:
        """Make two values equal; `are_said` says that they are constants of the pattern."""
        try:
            self._world.unify(one, two)
        except Contradiction as why:
            are_known = are_said or (is_plain(one) and is_plain(two))
            raise (Impossible if are_known else NotMatched)(str(why)) from None

    def _guard(self, guard: Guard, names: Names) -> None:
        if reads_none(guard, lambda read: self._owner(names[read.name], read.attribute)):
            raise Impossible("None is no tensor")
        if lacks_a_dimension(guard, lambda name: self.value(names[name])):
            raise NotMatched("a guard")
        match guard:
            case Or(left, right):
                if is_of_none(left):
                    known = self._holds(left, names)
                elif not is_about_values(guard) or self._is_of_constants(guard, names):
                    known = self._holds(guard, names) is not False
                else:
                    known = None
                if known is None:  # whatever the sizes: choices depend on choices alone
                    place = id(guard), id(names)
                    if place not in self._ors:
                        self._ors[place] = self._pick((0, 1), "or")
                        self._way.sides.append(self._ors[place])
                    self._side((left, right)[self._ors[place]], names)
                elif not known:
                    self._guard(right, names)
                return
            case And(left, right):
                self._guard(left, names)
                self._guard(right, names)
                return
            case Equal(left, right):
                one, two = self._evaluate(left, names), self._evaluate(right, names)
                if one is not UNDEFINED and two is not UNDEFINED:
                    self._unify(one, two, is_said(left, names) and is_said(right, names))
                return
            case Holds(Apply(function, (left, right))) if function.name == "is_value":
                one, two = self._evaluate(left, names), self._evaluate(right, names)
                if is_number(one) and is_number(two):
                    self._unify(one, two)
                    return
            case Holds(Apply(function, arguments)) if function.nearest is not None:
                values = [self._evaluate(argument, names) for argument in arguments]
                if UNDEFINED not in values:
                    allow(function, values, self._formulas)
                return
        self._world.unequal.clear()
        before = len(self._world.hypotheses)
        known = self._holds(guard, names)
        if known is None and is_about_sizes(guard):
            self._world.unknown.append(guard)
        if known is False:
            for one, two in list(self._world.unequal):  # the guard may hold where they are equal
                self._unify(one, two)
            compared = len(self._world.hypotheses) - before
            if not self._world.suppose(before):
                raise NotMatched("a guard")
            if compared > 1:
                self._world.unknown.append(guard)
        elif known and len(self._world.hypotheses) - before > 1:  # it may hold by others as well
            with self._world.observing(watched=True, divides=True):
                holds(guard, self._subjects(names))

    def _is_of_constants(self, guard: Guard, names: Names) -> bool:
        """Return whether a guard reads constants alone, which follow from choices."""
        values = [self.value(names[name]) for name in names_in(guard)]
        return not is_about_sizes(guard) and all(type(value) in CONSTANTS for value in values)

    def _side(self, guard: Guard, names: Names) -> None:
        """Make a side of a guard hold: by no size of an argument that is 1 for this side alone."""
        try:
            self._guard(guard, names)
        except Assumed as assumed:
            for symbol, form in assumed.forms.items():
                if is_one(symbol, form, self._generic):
                    raise NotMatched(f"{symbol[1]} may be 1") from None
            raise

    def _holds(self, guard: Guard, names: Names) -> bool | None:
        with self._world.observing(watched=False, divides=True):
            return holds(guard, self._subjects(names))

    def _evaluate(self, expression: Expression, names: Names, is_bound: bool = False) -> Value:
        """Return the value of an expression, or UNDEFINED; of one that a name `is_bound` to, types
        that no guard says are known as well.
        """
        with self._world.observing(watched=True, divides=True):
            return all_made(evaluate(expression, self._subjects(names, is_bound)))

    def _argument(self, argument: Argument) -> Given:
        said = argument.value
        if said is not None:
            found = self.value(said) if isinstance(said, WayName) else self._evaluate(*said)
            return ANYTHING if found is UNDEFINED else found
        if argument.length is None:
            return ANYTHING
        length = evaluate(argument.length, lambda _: UNDEFINED)
        items = [Argument(argument.items.get(i)) for i in range(int(length))]  # type: ignore[call-overload]
        return tuple(map(self._argument, items))

    def _subjects(self, names: Names, is_bound: bool = False) -> Callable[[str], GuardedName]:
        return lambda name: GuardedName(
            partial(self.value, names[name]), partial(self.attribute, names[name], is_bound)
        )

    def attribute(self, slot: WayName, is_bound: bool, name: str) -> Value:
        """Return what is known of an attribute of a slot's value, or UNDEFINED."""
        if name == "dtype":
            said = self.dtypes.get(slot, UNDEFINED)
            return self._own_type(slot) if said is UNDEFINED and is_bound else said
        if name in ("device", "tags", "is_contiguous"):
            return UNDEFINED
        if self._is_variable(slot):
            field = self._variables.field(slot, name)
            if isinstance(field, Formula):
                known = partial(known_attribute, self._formulas, field)
                return GuardedName(lambda: field, known)
            if field is not UNDEFINED:
                return field
        value = self.value(slot)
        if isinstance(value, Formula) and name not in SHAPES and self._is_opaque(slot):
            return UNDEFINED
        return known_attribute(self._formulas, value, name)

    def _own_type(self, slot: WayName) -> Given:
        """Return the type of a tensor that no guard says: that of the real numbers, mostly."""
        self._world.asks_types = True
        return getattr(tensor_of(self.value(slot), self._formulas), "dtype_", self._world.dtype)

    def _owner(self, slot: WayName, attribute: str) -> Given:
        """Return the value whose attribute is read: no more of it, where a field is."""
        found = self.attribute(slot, False, attribute)
        return self.value(slot) if attribute in SHAPES else found

    def _is_variable(self, slot: WayName) -> bool:
        """Return whether a name stands for anything that its uses allow."""
        is_said = slot.lets or slot.described or VALUE in slot.arguments
        uses = self._uses.get(slot, {})
        is_bound = "spelled" in uses or any(map(binds, uses.get("meant", ())))
        return not (is_said or is_bound or slot in self._given)

    def _is_opaque(self, slot: WayName) -> bool:
        """Return whether what computes a value is not to be looked at: others may as well."""
        while slot not in self._given and slot in self._aliases:
            slot = self._aliases[slot]
        return slot in self._given or any(isinstance(t, (Spelled, Meant)) for t in slot.described)


def _is_of_results(said: tuple[Guard, Names]) -> bool:
    """Return whether a guard is about what the way computes: others refuse more ways early."""
    guard, names = said
    return any(names[name].described for name in names_in(guard))
