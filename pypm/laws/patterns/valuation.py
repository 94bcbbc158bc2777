"""Values of the names of a way, as formulas, and guards as equations of sizes and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Final

from pypm.core.guards import (
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
    Or,
    Reference,
    evaluate,
    holds,
)
from pypm.core.operators import CONS, GETITEM, LITERAL, NIL, Operator
from pypm.core.patterns import Definition
from pypm.core.records import Record
from pypm.core.terms import UNDEFINED, VALUE, Value, all_made
from pypm.core.traverse import names as names_in
from pypm.fx.operators.corrections import named
from pypm.fx.operators.references import stated_reference
from pypm.lang.observers import steps_of
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import ANYTHING, Formula, Formulas
from pypm.laws.lemmas import Lemma, Lemmas, has_own_shape, takes
from pypm.laws.meanings_of_patterns import meaning_of
from pypm.laws.operators.meanings import ELEMENTS
from pypm.laws.patterns.by_reference import by_reference
from pypm.laws.patterns.inversion import parts_of_expression
from pypm.laws.patterns.looping import Looping, binds
from pypm.laws.patterns.operator_dims import count_dims
from pypm.laws.patterns.subjects import (
    SHAPES,
    GuardedName,
    is_of_none,
    is_plain,
    is_said,
    known_attribute,
)
from pypm.laws.patterns.unknown_guards import (
    check_values,
    is_about_sizes,
    is_about_values,
    lacks_a_dimension,
)
from pypm.laws.patterns.variables import Variables, given_number, is_several, parts_of, rank_of
from pypm.laws.patterns.ways import (
    AppliedOperator,
    Argument,
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
from pypm.laws.sizes import Contradiction, form_of, is_number

__all__ = ["Valuation", "entered"]

VIEWS: Final = named(
    "aten",
    "view reshape _unsafe_view flatten unflatten view_as reshape_as",
    "expand slice unsqueeze squeeze",
)
"""Operators whose result has the shape that guards say, where arguments may be anything."""
LIKE_ANOTHER: Final = ("aten.view_as", "aten.reshape_as")
"""Operators that take the shape of another operand."""
OF_SEVERAL: Final = ("getitem", "aten.cat", "aten.stack", "aten.einsum", "aten.index")
"""Operators that take several tensors as one operand."""


class Valuation(Looping):
    """Values of slots, computed where they are asked for."""

    def __init__(
        self, way: Way, formulas: Formulas, lemmas: Lemmas, given: Mapping[WayName, Given]
    ) -> None:
        self._way = way
        self._formulas = formulas
        self._world = formulas.world
        self._lemmas = lemmas
        self._given = dict(given)
        self._solve_given()
        self._results: dict[Tree, Given] = {}
        self._bound: dict[WayName, Given] = {}
        """Values that calls bind."""
        self._known: dict[WayName, Given] = {}
        self._under_way: set[WayName] = set()
        self._equal: list[tuple[Given, Given]] = []
        """Values that views make equal: checked last, since guards say more of them."""
        self._ors: dict[tuple[int, int], int] = {}
        """Sides of guards with several, by their identity: those that were chosen."""
        self._whole: list[tuple[Given, Given]] = []
        """Shapes of a tensor and of a slice of it, with any arguments: the same if it is whole."""
        self.shapes: dict[WayName, tuple[Given, ...]] = {}
        """Shapes that are known beforehand."""
        self._variables = Variables(way, formulas, lemmas, [*given.values()])
        self.dtypes = self._variables.dtypes
        self._uses = self._variables.uses
        self._aliases = {
            tree: slot for slot in way.slots for tree in slot.described if isinstance(tree, WayName)
        }

    def exclude(self) -> None:
        """Raise Impossible if a guard on constants alone fails: before anything is chosen."""
        for guard, names in self._way.guards:
            lets = [names[name].lets for name in names_in(guard)]
            are_known = lets and all(let and isinstance(let[0][0], Constant) for let in lets)
            if are_known and self._holds(guard, names) is False:
                raise Impossible("another constant")

    def _pick(self, options: Sequence[Given], label: str) -> Given:
        return self._way.choices.pick(lambda: options, label)

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
                case Attribute(name, attribute) if isinstance(value, Record):
                    fields.setdefault(name, {})[attribute] = own
        return [*found, *((name, Record(known)) for name, known in fields.items())]

    # --- guards ---

    def settle(self, equal: Sequence[tuple[Given, Given]] = ()) -> None:
        """Make all guards hold, and these values equal. Raises NotMatched."""
        for slot, value in self._given.items():
            if VALUE in slot.arguments and is_number(value):
                self._unify(value, self._argument(slot.arguments[VALUE]))
        for guard, names in sorted(self._way.guards, key=_is_of_results):
            self._guard(guard, names)
        self._check_shared()
        failed: NotMatched | None = None
        for one, two in (*equal, *self._equal, *self._world.views):
            try:
                self._unify(one, two)
            except NotMatched as why:  # another equation may say more
                failed = failed or why
        if failed is not None:
            raise failed
        for one, two in self._whole:
            if [*map(form_of, one)] != [*map(form_of, two)]:
                raise NoMeaning("a slice whose arguments may be anything")

    def _check_shared(self) -> None:
        """Make the guards of patterns that are called hold, as far as values are known."""
        for guard, names in self._way.shared:
            if all(names[name] in self._known for name in names_in(guard)):
                self._guard(guard, names)

    def _unify(self, one: Given, two: Given, are_said: bool = False) -> None:
        """Make two values equal; `are_said` says that they are constants of the pattern."""
        try:
            self._world.unify(one, two)
        except Contradiction as why:
            are_known = are_said or (is_plain(one) and is_plain(two))
            raise (Impossible if are_known else NotMatched)(str(why)) from None

    def _guard(self, guard: Guard, names: Names) -> None:
        if lacks_a_dimension(guard, lambda name: rank_of(self.value(names[name]))):
            raise NotMatched("a guard")
        match guard:
            case Or(left, right):
                if is_of_none(left):
                    known = self._holds(left, names)
                elif not is_about_values(guard):
                    known = self._holds(guard, names) is not False
                else:
                    known = None
                if known is None:  # whatever the sizes: choices depend on choices alone
                    place = id(guard), id(names)
                    if place not in self._ors:
                        self._ors[place] = self._pick((0, 1), "or")
                        self._way.sides.append(self._ors[place])
                    self._guard((left, right)[self._ors[place]], names)
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

    def _holds(self, guard: Guard, names: Names) -> bool | None:
        return holds(guard, self._subjects(names))

    def _evaluate(self, expression: Expression, names: Names) -> Value:
        return all_made(evaluate(expression, self._subjects(names)))

    def _subjects(self, names: Names) -> Callable[[str], GuardedName]:
        return lambda name: GuardedName(
            partial(self.value, names[name]), partial(self.attribute, names[name])
        )

    def attribute(self, slot: WayName, name: str) -> Value:
        """Return what is known of an attribute of a slot's value, or UNDEFINED."""
        if name == "dtype":
            return self.dtypes.get(slot, UNDEFINED)
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

    # --- values ---

    def value(self, slot: WayName) -> Given:
        """Return the value of a slot. Raises NotMatched, NoMeaning."""
        if slot not in self._known:
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
            found = self.tree(slot.described[0], slot)
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
        found = self._evaluate(expression, names)
        if found is UNDEFINED:
            for one, two in list(self._world.unequal):  # it may have one where they are equal
                self._unify(one, two)
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
            case Meant(definition, actuals):
                if steps_of(definition.means) is not None:
                    return self.bound_by(tree)
                self.hide(tree)
                return self._meant(definition, actuals, slot)
            case Spelled():
                return self._called(tree)
            case AppliedOperator(operator, operands):
                return self._applied(operator, operands, slot)

    def _called(self, call: Spelled) -> Given:
        """Return the result of a call by one of its spellings, which also binds names."""
        if call not in self._results:
            values = tuple(UNDEFINED if self._is_free(s) else self.value(s) for s in call.actuals)
            given, names = signed(values)
            lemma = Lemma(call.definition, call.around, given)
            self._way.notes.append(lemma)
            name = f"({call.definition.name})"
            spelling = self._way.choices.pick(lambda: self._lemmas.spellings(lemma), name)
            if spelling.lemma.given == given:
                spelling.settle(self._world, names)
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
        """Return whether nothing but calls says the value of a name."""
        if slot in self._known or slot in self._given or slot in self._bound:
            return False
        if self._variables.said(slot) is not UNDEFINED:
            return False
        is_operand = self._uses.get(slot, {}).get("operand")
        return not (slot.lets or slot.described or VALUE in slot.arguments or is_operand)

    def _meant(
        self, definition: Definition, actuals: tuple[WayName, ...], slot: WayName | None
    ) -> Given:
        """Return the meaning of a call. Where it says how the result depends on its own shape, that
        is what guards say, or any of the same elements.
        """
        is_open = any(map(self._is_open, actuals))
        early = tuple(map(self._early, actuals))
        self._check_shared()
        own = self._own_shape(definition, early, is_open)
        if not takes(definition, "shape"):
            return self._mean(definition, tuple(map(self.value, actuals)))
        if own is None:
            return self._mean(definition, (*map(self.value, actuals), ()))
        is_own = is_open or slot is None
        is_flat = has_own_shape(definition)
        shape = own if is_own and is_flat else self._shape(own, slot, is_flat)
        if not has_own_shape(definition):
            self._equal.append((prod(own), prod(shape)))
        found = self._mean(definition, (*map(self.value, actuals), shape))
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

    def _shape(
        self, own: tuple[Given, ...], slot: WayName | None, is_own: bool = False
    ) -> tuple[Given, ...]:
        """Return the shape of a view of a tensor of the shape `own`: what guards say, or new; of
        three dimensions, where a meaning says which shape `is_own`.
        """
        found = self._said_shape(slot)
        if found is not None:
            return found
        self._world.has_choices = True
        ranks = [3] * (len(own) > 3)
        if not is_own:
            ranks = [rank for rank in (2, 3) if rank != len(own)] + [len(own)] * (len(own) > 2)
        chosen = self._pick([None, *ranks], "shape")
        return own if chosen is None else tuple(self._world.size() for _ in range(chosen))

    def _applied(self, operator: Operator, trees: tuple[Tree, ...], slot: WayName | None) -> Given:
        said = slot.arguments if slot else {}
        if operator == LITERAL:
            return self._literal(said)
        reference = stated_reference(operator.name)
        if reference is not None:
            found = by_reference(
                *(operator, reference, trees, said, self._formulas),
                value=self.tree,
                argument=self._argument,
            )
            return found
        operands = [self.tree(tree) for tree in trees]
        if operator in (CONS, NIL):
            return (operands[0], *operands[1]) if operands else ()
        needed = 1 + (operator.name in ELEMENTS and operator.name != "aten.clamp")
        if None in operands[:needed]:
            raise Impossible("None is no tensor")
        if operator.name not in OF_SEVERAL and any(map(is_several, operands)):
            raise Impossible("several tensors as one")
        attributes: dict[str, Given] = dict.fromkeys(operator.attribute_defaults, ANYTHING)
        for name, argument in said.items():
            attributes[name] = self._argument(argument)
        index = attributes.get("index")
        if operator == GETITEM and isinstance(operands[0], tuple) and isinstance(index, int):
            if not -len(operands[0]) <= index < len(operands[0]):
                raise Impossible("an item that a tuple has not")
            return operands[0][index]
        if attributes.get("dtype") is ANYTHING and slot is not None:
            attributes["dtype"] = self._variables.said_type(slot) or ANYTHING
        count_dims(operator, operands, attributes)
        if operator.name == "aten.full" and attributes["size"] is ANYTHING:
            attributes["size"] = (1,)  # it is broadcast
        if attributes.get("keepdim") is ANYTHING:
            attributes["keepdim"] = self._pick((False, True), "keepdim")
        is_free = any(
            value is ANYTHING
            for name, value in attributes.items()
            if name not in ("implicit", "dtype")
        )
        if (operator.name in VIEWS and is_free) or operator.name in LIKE_ANOTHER:
            return self._view(operator, operands, slot)
        return self._formulas.apply(operator.name, operands, attributes)

    def _literal(self, said: Mapping[str, Argument]) -> Given:
        value = self._argument(said["value"]) if "value" in said else self._world.real()
        return given_number(self._formulas, value)

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

    def _view(self, operator: Operator, operands: list[Given], slot: WayName | None) -> Formula:
        """Return a view in any shape, which guards decide."""
        x: Formula = operands[0]
        own = self._formulas.sizes(x)
        sizes = self._shape(own, slot)
        rank = len(sizes)
        kind = operator.name.partition(".")[2]
        if kind == "slice":
            self._whole.append((own, sizes))
            return x
        if kind == "expand":
            if rank < len(own):
                raise NotMatched("fewer dimensions")
            for n, m in zip(own[::-1], sizes[::-1], strict=False):
                if n != 1:
                    self._equal.append((n, m))
            return self._formulas.apply("aten.expand", [x], {}, sizes)
        self._equal.append((prod(own), prod(sizes)))
        return self._formulas.apply("aten.view", [x], {}, sizes)

    def _said_shape(self, slot: WayName | None) -> tuple[Given, ...] | None:
        """Return the shape that a guard says of a slot, or of a name for the same value."""
        while slot is not None:
            if slot in self.shapes:
                return self.shapes[slot]
            for guard, names in self._way.guards:
                match guard:
                    case Equal(Attribute(name, "shape"), other) if names.get(name) is slot:
                        found = self._evaluate(other, names)
                        if isinstance(found, tuple):
                            return found
            slot = self._aliases.get(slot)
        return None

    # --- variables ---

    def variable(self) -> Formula:
        """Return a new tensor; others then have its rank."""
        self._variables.are_alike = True
        return self._variables.tensor(WayName("result"))

    def _said_value(self, slot: WayName) -> Given:
        """Return the value to which a guard says that a name is equal, or UNDEFINED."""
        for guard, names in self._way.guards:
            match guard:
                case Equal(Reference(name), other) if names.get(name) is slot:
                    return self._evaluate(other, names)
        return UNDEFINED

    def _bound_or_leaf(self, slot: WayName) -> Given:
        for call in self._uses.get(slot, {}).get("spelled", ()):
            if self._is_free(slot):
                self._called(call)
        for call in self._uses.get(slot, {}).get("meant", ()):
            if self._is_free(slot) and steps_of(call.definition.means) is not None:
                self.bound_by(call)
            elif self._is_free(slot):
                self.hide(call)
        if slot in self._bound:
            return self._bound[slot]
        if VALUE not in slot.arguments:
            try:
                return self._variables.value(slot)
            except NoMeaning:
                found = self._said_value(slot)
                if found is UNDEFINED:
                    raise
                return found
        return given_number(self._formulas, self._argument(slot.arguments[VALUE]))


def _is_of_results(said: tuple[Guard, Names]) -> bool:
    """Return whether a guard is about what the way computes: others refuse more ways early."""
    guard, names = said
    return any(names[name].described for name in names_in(guard))


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
