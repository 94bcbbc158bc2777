"""Loops whose number of steps is a symbol: states as functions of the number of steps before them.

The states after `n + c` steps are those after n, with c steps taken: so what is proved of one step
holds of all, by induction. Those after n are variables, whose name is what the loop computes: two
loops have the same states if they begin with the same, and a step makes the same of any states, for
any number of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Final

from pypm.laws.algebra import Given, Index, Indexed, NoMeaning, Scalar, Shape, SizesDiffer
from pypm.laws.forms.functions import substituted
from pypm.laws.forms.polynomials import Factor, Part, Poly, factor, rational
from pypm.laws.forms.sums import with_fixed_indices
from pypm.laws.forms.symbolic import SymbolicAlgebra
from pypm.laws.formulas import Formula, Formulas, FormulaValues
from pypm.laws.numbers import Size, SymbolicNumber, form_of

__all__ = ["STEP", "Loop", "by_rows", "looped"]

_COUNT: Final[Factor] = ("size", "p0")
STEP: Final = factor(_COUNT) - 1
"""The number of any step, from 0 on: one below a size."""
_NUMBERS: Final[dict[Part, int]] = {}
"""Numbers of the loops that were met, by what they compute."""


@dataclass(eq=False)
class Loop:
    """The result and the states of a step, as formulas of variables and of the step's number."""

    before: tuple[Formula, ...]
    """The states before the first step."""
    variables: tuple[Formula, ...]
    after: tuple[Formula, ...]
    result: Formula
    first: Poly
    """The number of the first step."""
    others: list[Loop]
    """All loops of the same equation."""
    larger: int
    """1 where states are compared after one step less: sizes are taken to be that much larger."""
    _known: dict[tuple[int, Index], tuple[Indexed, ...]] = field(default_factory=dict)
    _within: list[FormulaValues] = field(default_factory=list)
    _keys: dict[int, Part] = field(default_factory=dict)
    """Normal forms of steps, by how many they are later."""
    _twins: dict[int, Loop | None] = field(default_factory=dict)
    """Loops of the transposed states, by the values of which it is asked."""

    def value(self, values: FormulaValues, part: int | None, shape: Shape, count: Given) -> Indexed:
        """Return a state after so many steps, or for no `part` the results of all steps."""
        if part is not None:  # asked for when all loops are known

            def after(place: Shape) -> Scalar:
                return self.states(values, values.index(count))[part].value(*place)

            return Indexed(shape, after)
        results: dict[Index, Indexed] = {}

        def at(place: Shape) -> Scalar:
            step, *rest = place
            if step not in results:
                states = self.states(values, step)
                results[step] = _Step(values, self, states, step).of(self.result)
            return results[step].value(*rest)

        return Indexed(shape, at)

    def states(self, values: FormulaValues, count: Index) -> tuple[Indexed, ...]:
        """Return the states after so many steps."""
        key = id(values), count
        if key not in self._known:
            self._within.append(values)
            self._known[key] = self._stepped(values, count)
        return self._known[key]

    def _stepped(self, values: FormulaValues, count: Index) -> tuple[Indexed, ...]:
        if count == 0:
            return tuple(map(values.of, self.before))
        if not isinstance(count, Poly) or self._is_after_a_step(values, count):
            before = self.states(values, count - 1)
            step = _Step(values, self, before, count - 1)
            return tuple(map(step.of, self.after))
        known = self.later_part(values)
        if known is not None:
            return known.states(values, count + 1)
        other = self.turned(values)
        if other is not None:
            return transposed(other.states(values, count), self.before)
        return _read(values, f"loop{self.number(values)}", self.before, count)

    def steps(self, values: FormulaValues, later: int = 0) -> tuple[Indexed, ...]:
        """Return what the step makes of any states which comes `STEP` and so many after the first.

        So loops are the same that count their steps from other numbers on.
        """
        states = _read(values, "state", self.variables)
        return tuple(map(_Step(values, self, states, STEP + later).of, self.after))

    def _is_after_a_step(self, values: FormulaValues, count: Poly) -> bool:
        """Return whether there are steps for all sizes, and at all places of a list."""
        of = {of for monomial in count.terms for of, _ in monomial}
        sizes = {each: factor(each) + self.larger for each in of if str(each[1]).startswith("n")}
        least = substituted(count, sizes)
        return _symbolic(_proved(values)).is_least(least, 1)

    def later_part(self, values: FormulaValues) -> Loop | None:
        """Return a loop of which this one is all but the first step."""
        values = _proved(values)
        for other in self.others:
            if (
                other.first + 1 == self.first
                and len(other.before) == len(self.before)
                and other.step_key(values, 1) == self.step_key(values)
                and _keys(values, other.states(values, rational(1)))
                == _keys(values, [*map(values.of, self.before)])
            ):
                return other
        return None

    def turned(self, values: FormulaValues) -> Loop | None:
        """Return a loop before this one whose state is the transposed one, a matrix."""
        values = _proved(values)
        if id(values) not in self._twins:
            earlier = self.others[: self.others.index(self)]
            found = (one for one in earlier if self._is_turned(values, one))
            self._twins[id(values)] = next(found, None)
        return self._twins[id(values)]

    def _is_turned(self, values: FormulaValues, other: Loop) -> bool:
        own, theirs = (_matrix([x.tensor.shape for x in one.before]) for one in (self, other))
        if own is None or theirs is None or own != theirs[::-1]:
            return False
        before, after = self.as_turned(values, other)
        is_same = bool(_keys(values, before) == _keys(values, [*map(values.of, other.before)]))
        return is_same and bool(_keys(values, after) == other.step_key(values))

    def as_turned(
        self, values: FormulaValues, other: Loop
    ) -> tuple[tuple[Indexed, ...], tuple[Indexed, ...]]:
        """Return the states before the first step, and what a step makes of any states, transposed
        as those of another loop.
        """
        states = transposed(_read(values, "state", other.variables), self.variables)
        step = _Step(values, self, states, STEP)
        before, after = map(values.of, self.before), map(step.of, self.after)
        return transposed([*before], other.before), transposed([*after], other.after)

    def number(self, values: FormulaValues) -> int:
        """Return a number that loops share which have the same states."""
        values = _proved(values)
        start = _keys(values, [*map(values.of, self.before)])
        key = start, self.step_key(values)
        return _NUMBERS.setdefault(key, len(_NUMBERS))

    def step_key(self, values: FormulaValues, later: int = 0) -> Part:
        """Return the normal form of what a step makes of any states, or one so many later."""
        if later not in self._keys:
            self._keys[later] = _keys(values, self.steps(values, later))
        return self._keys[later]

    @cached_property
    def dependent(self) -> frozenset[int]:
        """The formulas that depend on the states before a step, or on its number."""
        found: dict[int, bool] = {id(one): True for one in self.variables}

        def visit(part: Given) -> bool:
            if isinstance(part, (tuple, list)):
                return sum(map(visit, part)) > 0  # all are visited
            if isinstance(part, SymbolicNumber):
                return _mentions(part.form)
            if isinstance(part, Poly):
                return _mentions(part)
            if isinstance(part, Loop):
                return visit((part.before, part.after, part.result))
            if not isinstance(part, Formula):
                return False
            if id(part) not in found:
                parts = (part.operands, part.shape, tuple(part.attributes.values()))
                found[id(part)] = visit(parts)
            return found[id(part)]

        visit((*self.after, self.result))
        return frozenset(key for key, is_dependent in found.items() if is_dependent)


class _Step(FormulaValues):
    """Values within a step, for states before it and its number."""

    def __init__(
        self, values: FormulaValues, loop: Loop, states: Sequence[Indexed], step: Index
    ) -> None:
        number = step if isinstance(step, Poly) else rational(step)

        def numbered(form: Poly) -> Poly:
            """Return a form with the number of the step, counted from 1, in place of its symbol."""
            return substituted(form, {_COUNT: number + 1}) if _mentions(form) else form

        super().__init__(
            values.algebra,
            lambda form: values.size(numbered(form)),
            lambda form: values.symbol(numbered(form)),
            values.read,
        )
        self._outer, self._loop = values, loop
        self.known |= {id(one): state for one, state in zip(loop.variables, states, strict=True)}

    def of(self, formula: Given) -> Given:
        """Return the value of a formula, or of a tuple of them."""
        if isinstance(formula, Formula) and id(formula) not in self._loop.dependent:
            return self._outer.of(formula)
        return super().of(formula)


def _proved(values: FormulaValues) -> FormulaValues:
    """Return the values in the algebra of proofs."""
    found = values if isinstance(values.algebra, SymbolicAlgebra) else values.proved
    if found is None:
        raise NoMeaning("a loop of any number of steps")
    return found


def _symbolic(values: FormulaValues) -> SymbolicAlgebra:
    assert isinstance(values.algebra, SymbolicAlgebra)
    return values.algebra


def _mentions(form: Poly) -> bool:
    return any(of == _COUNT for monomial in form.terms for of, _ in monomial)


def _read(
    values: FormulaValues, name: str, like: Sequence[Formula], *key: Poly
) -> tuple[Indexed, ...]:
    """Return variables of the shapes of formulas."""

    def variable(number: int, like: Formula) -> Indexed:
        shape = like.tensor.shape
        attributes = {"name": f"{name}.{number}", "kind": "real"}
        read = values.read(Formula("read", (), attributes, like.value, shape), shape)
        return Indexed(shape, lambda place: read.value(*key, *by_rows(place, shape)))

    return tuple(variable(number, one) for number, one in enumerate(like))


def _matrix(shapes: Sequence[Shape]) -> list[Poly] | None:
    """Return the sizes of one matrix, if these are the shapes of one, and others are 1."""
    sizes = [form_of(n) for n in shapes[0]] if len(shapes) == 1 else []
    return sizes[-2:] if len(sizes) > 1 and all(n == 1 for n in sizes[:-2]) else None


def transposed(tensors: Sequence[Indexed], like: Sequence[Formula]) -> tuple[Indexed, ...]:
    """Return one matrix transposed, in the shape of another one."""
    (x,), (one,) = tensors, like
    first = (0,) * (x.rank - 2)
    return (Indexed(one.tensor.shape, lambda place: x.value(*first, place[-1], place[-2])),)


def by_rows(place: Shape, shape: Shape) -> list[Poly]:
    """Return the row and the column of a place: states of any batch dimensions are compared so."""
    *outer, last = (n if isinstance(n, Poly) else rational(n) for n in place or (0,))
    row = rational(0)
    for at, size in zip(outer, shape, strict=False):
        row = row * size + at
    return [row, last]


def _keys(values: FormulaValues, tensors: Sequence[Indexed]) -> Part:
    """Return the sizes and the normal forms of tensors, which are equal for equal rows."""
    found: list[Part] = []
    for x in tensors:
        for place in list(_symbolic(values).places(x.shape)):
            parts = (*by_rows(place, x.shape), x.value(*place))
            found += (with_fixed_indices(each, place).key for each in parts)
        *outer, last = x.shape or (1,)
        found += (form.key for form in (prod(outer, start=rational(1)), rational(1) * last))
    return tuple(found)


def looped(
    formulas: Formulas,
    step: Callable[[tuple[Formula, ...], Size], tuple[Formula, tuple[Formula, ...]]],
    before: tuple[Formula, ...],
    count: Given,
    first: Given = 0,
) -> tuple[Formula, tuple[Formula, ...]]:
    """Return the results of so many steps, [steps, ...], and the states after the last one.

    `step` is a function from the states before a step and its number to its result and the states
    after it. Raises SizesDiffer if these have another shape than the states before.
    """
    world = formulas.world
    variables = tuple(formulas.read(formulas.sizes(x)) for x in before)
    result, after = step(variables, world.sized(STEP + form_of(first)))
    for one, two in zip(before, after, strict=True):
        if [*map(form_of, one.tensor.shape)] != [*map(form_of, two.tensor.shape)]:
            raise SizesDiffer(one.tensor.shape, two.tensor.shape)
    loop = Loop(before, variables, after, result, form_of(first), formulas.loops, world.larger)
    formulas.loops.append(loop)

    def made(part: int | None, shape: Sequence[Given]) -> Formula:
        attributes = {"loop": loop, "part": part, "count": count}
        return formulas.apply("loop", (), attributes, shape)

    last = tuple(made(n, formulas.sizes(x)) for n, x in enumerate(before))
    return made(None, (world.sized(form_of(count)), *formulas.sizes(result))), last
