"""Values of the names of a way, as formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from pypm.core.guards import Attribute, Equal, Expression, Reference
from pypm.core.patterns import Definition
from pypm.core.records import Record, fields_of
from pypm.core.terms import DERIVED, UNDEFINED, VALUE, Value
from pypm.core.traverse import expression_names
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import Formula, Formulas, given_number, is_several
from pypm.laws.lemmas import Lemma, Lemmas, has_own_shape, read_by, takes
from pypm.laws.meanings_of_patterns import meaning_of
from pypm.laws.numbers import is_number
from pypm.laws.patterns.applying import Applying
from pypm.laws.patterns.hidden import Hidden
from pypm.laws.patterns.inversion import parts_of_expression
from pypm.laws.patterns.listing import parts_of
from pypm.laws.patterns.looping import Looping, computes_steps, given_to
from pypm.laws.patterns.unknown_guards import at_limits, check_values
from pypm.laws.patterns.ways import (
    AppliedOperator,
    Entered,
    Impossible,
    Meant,
    Names,
    NotMatched,
    Spelled,
    Tree,
    Way,
    WayName,
)
from pypm.laws.signatures import signed

__all__ = ["Valuation", "entered"]


class Valuation(Applying, Looping):
    """Values of slots, computed where they are asked for."""

    def __init__(
        self, way: Way, formulas: Formulas, lemmas: Lemmas, given: Mapping[WayName, Given]
    ) -> None:
        super().__init__(way, formulas, lemmas, given)
        self._solve_given()

    # --- given values ---

    def _solve_given(self) -> None:
        """Find the values of the names from which given values are made. Raises NotMatched."""
        todo = [slot for slot in self._given if slot.lets]
        while todo:
            slot = todo.pop()
            expression, names = slot.lets[0]
            for name, value in self._solved(expression, self._given[slot]):
                part = names[name]
                if part not in self._given:
                    self._given[part] = value
                    todo += [part] * bool(part.lets)

    def _solved(self, expression: Expression, value: Given) -> list[tuple[str, Given]]:
        """Return names with the values that they have if an expression has this one."""
        fields: dict[str, dict[str, Given]] = {}
        found: list[tuple[str, Given]] = []
        for part, own in parts_of_expression(expression, value, self._way.choices):
            match part:
                case Reference(name):
                    found.append((name, own))
                case Attribute(name, attribute) if (
                    isinstance(value, Record) and attribute not in DERIVED
                ):
                    fields.setdefault(name, {})[attribute] = own
        return [*found, *((name, Record(known)) for name, known in fields.items())]

    # --- values ---

    def value(self, slot: WayName) -> Given:
        """Return the value of a slot. Raises NotMatched, NoMeaning."""
        if slot not in self._known:
            if self._under_way and slot.lets and is_number(self._given.get(slot)):
                return self._given[slot]  # it is compared where it is asked for by itself
            if slot in self._under_way and slot in self._bound:  # by the call that is under way
                return self._bound[slot]
            if slot in self._under_way:
                raise NoMeaning(f"`{slot.name}` depends on itself")
            self._under_way.add(slot)
            try:
                self._known[slot] = self._computed(slot)
            finally:
                self._under_way.remove(slot)
        return self._known[slot]

    def value_if_used(self, slot: WayName) -> Given:
        """Return the value of a slot; `UNDEFINED` if nothing in the way is about it."""
        is_used = slot in self._uses or slot in self._given or slot.arguments
        return self.value(slot) if is_used or not self._is_free(slot) else UNDEFINED

    def _computed(self, slot: WayName) -> Given:
        found: Given = UNDEFINED
        if slot.lets:
            found = self._let(*slot.lets[0])
            if found is UNDEFINED:
                raise NoMeaning(f"the value of `{slot.name}` is not known")
        elif slot.described:
            found = self.tree(min(slot.described, key=_is_no_loop), slot)
        given = self._given.get(slot, UNDEFINED)
        if found is UNDEFINED and given is UNDEFINED:
            return self._bound_or_leaf(slot)
        if found is UNDEFINED:
            return given
        if given is not UNDEFINED:
            self._agree(found, given)
        return found

    def _let(self, expression: Expression, names: Names) -> Value:
        """Return the value of a name by its expression. Raises NotMatched where it has none,
        whatever the sizes.
        """
        self._world.unequal.clear()
        expression = at_limits(expression, self._world)
        found = self._evaluate(expression, names, is_bound=True)
        if found is UNDEFINED:
            self._unify_all(list(self._world.unequal))  # it may have one where they are equal
            check_values(expression, lambda part: self._evaluate(part, names), self._world)
        return found

    def _agree(self, found: Given, given: Given) -> None:
        """Reject a way that binds a parameter to another kind of value than is given."""
        if isinstance(found, Formula) and isinstance(given, Formula):
            if is_several(found) or is_several(given):
                raise NotMatched("several tensors")
            self._unify(self._formulas.sizes(found), self._formulas.sizes(given))
        elif isinstance(found, (tuple, Record)) and type(found) is type(given):
            one, two = (list(parts_of(value)) for value in (found, given))
            if len(one) != len(two):
                raise NotMatched("tuples of different lengths")
            for a, b in zip(one, two, strict=True):
                self._agree(a, b)
        elif is_number(found) and is_number(given):
            self._unify(found, given)
        elif isinstance(found, Formula) or isinstance(given, Formula) or found != given:
            raise Impossible("another kind of value")

    def tree(self, tree: Tree, slot: WayName | None = None) -> Given:
        """Return the value of a tree, which describes the slot."""
        match tree:
            case WayName():
                return self.value(tree)
            case Meant() | Spelled() if self.is_any_step(tree):
                return self.any_step(tree)
            case Meant(definition, actuals):
                if computes_steps(definition):
                    return self.bound_by(tree)
                self.hide(tree)
                return self._meant(definition, actuals, slot)
            case Spelled():
                return self._called(tree)
            case AppliedOperator(operator, operands):
                return self._applied(operator, operands, slot)

    # --- calls ---

    def _called(self, call: Spelled) -> Given:
        """Return the result of a call by one of its spellings, which also binds names."""
        if call not in self._results:
            self._bind_as_said(call.actuals)
            self.bind_states(call.actuals)
            for slot in call.actuals:
                if not self._is_free(slot):
                    self.value(slot)  # which may bind others
            values = tuple(UNDEFINED if self._is_free(s) else self.value(s) for s in call.actuals)
            given, names = signed(values)
            lemma = Lemma(call.definition, call.around, given)
            self._way.notes.append(lemma)
            name = f"({call.definition.name})"
            spelling = self._way.choices.pick(lambda: self._lemmas.spellings(lemma), name)
            if spelling.lemma.given == given:
                spelling.settle(self._world, names)
            else:  # it was found before symbols were settled: for more general arguments
                self._way.notes[-1] = spelling.lemma
            replay = spelling.replay(values)
            way = Way(replay, self._way.notes)
            found = entered(lemma, values, way, self._formulas, self._lemmas)
            self._results[call] = found.result
            for slot, one, other in zip(call.actuals, values, found.values, strict=True):
                if one is UNDEFINED and other is not UNDEFINED:
                    self._bound[slot] = other
            for slot, inner in zip(call.actuals, found.slots, strict=True):
                if inner in found.dtypes:
                    self.dtypes.setdefault(slot, found.dtypes[inner])
        return self._results[call]

    def _is_free(self, slot: WayName) -> bool:
        """Return whether nothing but calls says the value of a name; fields of records have one."""
        if slot in self._known or slot in self._given or slot in self._bound:
            return False
        if self._variables.said(slot) is not UNDEFINED:
            return False
        is_operand = self._uses.get(slot, {}).get("operand")
        is_said = slot.lets or slot.described or VALUE in slot.arguments
        return not (is_said or is_operand or slot.fields)

    def _meant(
        self, definition: Definition, actuals: tuple[WayName, ...], slot: WayName | None
    ) -> Given:
        """Return the meaning of a call. Where it says how the result depends on its own shape, that
        is what guards say, or any of the same elements.
        """
        read = read_by(definition.means, definition.parameters)
        is_read = [name in read for name in definition.parameters]

        def values(of: Callable[[WayName], Given]) -> tuple[Given, ...]:
            pairs = zip(is_read, actuals, strict=True)
            return tuple(of(slot) if is_known else UNDEFINED for is_known, slot in pairs)

        is_open = True in values(self._is_open)
        early = values(self._early)
        self._check_shared()
        own = self._own_shape(definition, early, is_open)
        if not takes(definition, "shape"):
            return self._mean(definition, values(self.value))
        if own is None:
            said = self._said_shape(slot)
            if said is None:  # a row, or a column
                said = self._pick([(0,), (0, 1)], "shape")
                said = tuple(n or self._world.size() for n in said)
            return self._mean(definition, (*values(self.value), said))
        is_own = is_open or slot is None
        is_flat = has_own_shape(definition)
        is_alone = any(isinstance(value, Hidden) and value.is_alone for value in early)
        shape = own if is_own and is_flat else self._shape(own, slot, is_flat, is_alone)
        if not has_own_shape(definition):
            self._equal.append((prod(own), prod(shape)))
        found = self._mean(definition, (*values(self.value), shape))
        if isinstance(found, Formula):
            self._equal.append((self._formulas.sizes(found), shape))
        return found

    def _is_open(self, slot: WayName) -> bool:
        """Return whether a value has lists that are not chosen yet."""
        return (
            slot not in self._known and self._is_variable(slot) and self._variables.has_lists(slot)
        )

    def _early(self, slot: WayName) -> Given:
        is_open = self._is_open(slot)
        return self._variables.with_empty_lists(slot) if is_open else self.value(slot)

    def _mean(self, definition: Definition, values: tuple[Given, ...]) -> Given:
        return self._lemmas.mean(definition, values, self._formulas, self._way.notes)

    def _own_shape(
        self, definition: Definition, values: tuple[Given, ...], is_open: bool
    ) -> tuple[Given, ...] | None:
        """Return the shape that the result has if nothing says another, None if there is none.

        Raises SizesDiffer where the meaning fits no lists, if there are open ones.
        """
        if is_open or has_own_shape(definition):
            first = meaning_of(definition, values, self._formulas)
        else:
            first = values[0] if values else None
        if not isinstance(first, Formula) or is_several(first):
            return None
        return self._formulas.sizes(first)

    # --- variables ---

    def variable(self) -> Formula:
        """Return a new tensor; others then have its rank."""
        self._variables.are_alike = True
        return self._variables.tensor(WayName("result"))

    def has_full_lists(self, slots: Iterable[WayName]) -> bool:
        """Return whether several of these names stand for lists, none of them empty."""
        lists = [s for s in slots if self._is_variable(s) and self._variables.has_lists(s)]
        return len(lists) > 1 and all(map(self.value, lists))

    def _bind_as_said(self, slots: Sequence[WayName]) -> None:
        """Bind names that stand for nothing yet to what guards on given values say of them."""
        for guard, names in self._way.guards:
            match guard:
                case Equal(Reference(name), other) if (
                    names.get(name) in slots
                    and self._is_free(names[name])
                    and all(names[each] in self._given for each in expression_names(other))
                ):
                    self._bound[names[name]] = self._evaluate(other, names)

    def _said_value(self, slot: WayName) -> Given:
        """Return the value to which a guard says that a name is equal, or UNDEFINED."""
        for guard, names in self._way.guards:
            match guard:
                case Equal(Reference(name), other) if names.get(name) is slot:
                    return self._evaluate(other, names)
        return UNDEFINED

    def _bound_or_leaf(self, slot: WayName) -> Given:
        meant = sorted(self._uses.get(slot, {}).get("meant", ()), key=_is_no_loop)
        loops = [call for call in meant if not _is_no_loop(call)]
        for call in loops:
            if self._is_free(slot) and slot not in given_to(call):
                self.bound_by(call)
        for call in self._uses.get(slot, {}).get("spelled", ()):
            if self._is_free(slot):
                self.tree(call)
        for call in meant[len(loops) :]:
            if self._is_free(slot):
                self.hide(call)
        if slot in self._bound:
            return self._bound[slot]
        for record, name in slot.fields:
            found = self.value(record)
            if isinstance(found, Record):
                return fields_of(found)[name]
        if VALUE not in slot.arguments:
            try:
                return self._variables.value(slot)
            except NoMeaning:
                found = self._said_value(slot)
                if found is UNDEFINED:
                    raise
                return found
        return given_number(self._formulas, self._argument(slot.arguments[VALUE]))


def _is_no_loop(tree: Tree) -> bool:
    """Return False for the steps of a loop: they say more than that their last one is a step."""
    return not (isinstance(tree, Meant) and computes_steps(tree.definition))


def entered(
    lemma: Lemma, values: Sequence[Given], way: Way, formulas: Formulas, lemmas: Lemmas
) -> Entered:
    """Return what a pattern computes in a new way, for values of its parameters; `UNDEFINED` stands
    for those that the pattern binds. Raises NotMatched, NoMeaning.
    """
    definition = lemma.definition
    slots = {name: way.slot(name) for name in definition.parameters}
    result = way.slot("result")
    result.described.append(way.enter(definition, lemma.around, slots))
    pairs = zip(slots.values(), values, strict=True)
    given = {slot: value for slot, value in pairs if value is not UNDEFINED}
    valuation = Valuation(way, formulas, lemmas, given)
    valuation.exclude()
    found = valuation.value(result)
    valuation.settle()
    bound = tuple(map(valuation.value_if_used, slots.values()))
    valuation.settle()
    return Entered(found, bound, tuple(slots.values()), valuation.dtypes)
