"""Operators that are applied in a way: their arguments, and the shapes of their results."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from pypm.core.guards import Attribute, Equal
from pypm.core.operators import CONS, GETITEM, LITERAL, NIL, REQUIRED, Operator
from pypm.fx.operators.body_trace import stated_reference
from pypm.fx.operators.corrections import named
from pypm.laws.algebra import Given
from pypm.laws.formulas import ANYTHING, Formula, given_number, is_several
from pypm.laws.operators.dims import count_dims
from pypm.laws.operators.meanings import ELEMENTS
from pypm.laws.patterns.by_reference import by_reference
from pypm.laws.patterns.guarding import Guarding
from pypm.laws.patterns.listing import Items, joined
from pypm.laws.patterns.uses import said_ranks, said_type
from pypm.laws.patterns.ways import Argument, Impossible, NotMatched, Tree, WayName

__all__ = ["Applying"]

VIEWS: Final = named(
    "aten",
    "view reshape _unsafe_view flatten unflatten view_as reshape_as",
    "expand slice unsqueeze squeeze",
)
"""Operators whose result has the shape that guards say, where arguments may be anything."""
LIKE_ANOTHER: Final = ("aten.view_as", "aten.reshape_as")
"""Operators that take the shape of another operand."""
OF_SEVERAL: Final = (
    "getitem",
    "aten.cat",
    "aten.stack",
    "aten.einsum",
    "aten.index",
    "aten.index_put",
)
"""Operators that take several tensors as one operand."""


def _required(operator: Operator) -> list[str]:
    """Return the names of the arguments that each overload has to be given."""
    signatures = [{p.name: p.default for p in s.attributes} for s in operator.signatures]
    every = {name for signature in signatures for name in signature}
    return [n for n in sorted(every) if all(s.get(n) is REQUIRED for s in signatures)]


class Applying(Guarding):
    """The part of a valuation that is about applied operators."""

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
        if operator == CONS and isinstance(operands[1], Items):
            return Items((operands[0], *operands[1].heads), operands[1].rest)
        if operator in (CONS, NIL):
            return (operands[0], *operands[1]) if operands else ()
        needed = 1 + (operator.name in ELEMENTS and operator.name != "aten.clamp")
        if None in operands[:needed]:
            raise Impossible("None is no tensor")
        if operator.name not in OF_SEVERAL and any(map(is_several, operands)):
            raise Impossible("several tensors as one")
        attributes: dict[str, Given] = dict.fromkeys(operator.attribute_defaults, ANYTHING)
        for name, argument in said.items():
            attributes[name] = _plain(self._argument(argument))
        if any(attributes[name] is None for name in _required(operator)):
            raise Impossible("None for an argument that has to be given")
        if operator.name in ("aten.stack", "aten.cat") and isinstance(operands[0], Items):
            return joined(self._formulas, operator.name, operands[0], attributes["dim"])
        index = attributes.get("index")
        if operator == GETITEM and isinstance(operands[0], tuple) and isinstance(index, int):
            if not -len(operands[0]) <= index < len(operands[0]):
                raise Impossible("an item that a tuple has not")
            return operands[0][index]
        if attributes.get("dtype") is ANYTHING and slot is not None:
            attributes["dtype"] = said_type(self._way.every_guard, slot) or ANYTHING
        count_dims(operator, operands, attributes)
        if operator.name == "aten.full" and attributes["size"] is ANYTHING:
            attributes["size"] = (1,)  # it is broadcast
        said_shape = self._said_shape(slot) if operator.name == "prims.iota" else None
        if said_shape is not None and len(said_shape) == 1:
            attributes["length"] = said_shape[0]
        if attributes.get("keepdim") is ANYTHING:
            attributes["keepdim"] = self._pick((False, True), "keepdim")
        if operator.name == "aten.slice" and _is_of_any_length(attributes):
            return self._cut(operands[0], attributes)
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

    def _cut(self, x: Formula, attributes: Mapping[str, Given]) -> Formula:
        """Return a slice of any length, which guards decide."""
        dim, start, length = attributes["dim"], attributes["start"] or 0, self._world.size()
        own = self._formulas.sizes(x)
        said = {"dim": dim, "start": start, "end": start + length, "step": 1}
        sizes = (*own[:dim], length, *own[dim + 1 :])
        return self._formulas.apply("aten.slice", [x], said, sizes)

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

    def _shape(
        self,
        own: tuple[Given, ...],
        slot: WayName | None,
        is_own: bool = False,
        is_alike: bool = False,
    ) -> tuple[Given, ...]:
        """Return the shape of a view of a tensor of the shape `own`: what guards say, or new; of
        three dimensions, where a meaning says which shape `is_own`. All views that are to be
        `is_alike` are of one rank.
        """
        found = self._said_shape(slot)
        if found is not None:
            return found
        self._world.has_choices = True
        said = said_ranks(self._way.every_guard, slot)
        ranks = [None, *said] if said == (len(own),) else [*said]
        if not said:
            ranks = [None] + [3] * (len(own) > 3)
        if not (said or is_own):
            ranks = [None, *(rank for rank in (2, 3) if rank != len(own))]
            ranks += [len(own)] * (len(own) > 2)
        options = self._alike if is_alike and self._alike else ranks
        chosen = self._pick(options, "shape")
        if is_alike:
            self._alike = [chosen]
        if chosen is None:
            return own
        sizes = tuple(self._world.size() for _ in range(chosen))
        if chosen == len(own):
            self._world.chosen |= {of for size in sizes for m in size.form.terms for of, _ in m}
        return sizes

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


def _is_of_any_length(attributes: Mapping[str, Given]) -> bool:
    """Return whether a slice takes items one after another from a known one on."""
    start, dim = attributes["start"], attributes["dim"]
    starts = start is None or (type(start) is int and start >= 0)
    is_known = starts and type(dim) is int and type(attributes["step"]) is int
    return is_known and attributes["step"] == 1 and attributes["end"] is ANYTHING


def _plain(argument: Given) -> Given:
    """Return an argument that is no operand: of a number that a graph holds, its value."""
    if not isinstance(argument, Formula):
        return argument
    if argument.name != "number":
        raise Impossible("a tensor as an argument that is a number")
    return argument.attributes["given"]
