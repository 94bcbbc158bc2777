"""Formulas: calls of operators on symbolic tensors, evaluated in any algebra."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from pypm.laws.algebra import Algebra, Given, Index, Indexed, NoMeaning, Scalar, Shape, SizesDiffer
from pypm.laws.forms.deadline import check_time
from pypm.laws.forms.functions import is_whole
from pypm.laws.forms.polynomials import Poly, factor, indicator, rational
from pypm.laws.forms.symbolic import SymbolicAlgebra
from pypm.laws.numbers import Contradiction, Size, form_of, is_number
from pypm.laws.operators.meanings import KINDS, MEANINGS, MOVES, WHOLE
from pypm.laws.operators.site import Site
from pypm.laws.result_shapes import result_shape
from pypm.laws.sizes import World

__all__ = [
    "ANYTHING",
    "Formula",
    "FormulaValues",
    "Formulas",
    "given_number",
    "is_several",
    "narrow_type",
    "rank_of",
]


HELP: Final = (
    "state what the pattern computes by `@pattern(means=...)`, or give the operator a meaning: a "
    "line in `pypm/laws/operators`"
)


def _missing(name: str) -> NoMeaning:
    """Return the exception for an operator without a meaning, with a help for its kind."""
    if name.endswith("_") and not name.endswith("__"):
        return NoMeaning(f"`{name}` writes into a tensor", "compute a new tensor instead")
    if name.startswith("torch.Tensor.") or name == "aten.item":
        help = "decide by shapes, types and numbers alone: tensors have no elements here"
        return NoMeaning(f"`{name}` reads the elements of a tensor", help)
    return NoMeaning(f"`{name}` has no meaning here", HELP)


class _Anything:
    """An argument that may be anything: its value cannot be asked for."""

    def _refused(self, *_: Given) -> bool:
        raise NoMeaning("an argument that may be anything decides the result")

    __bool__ = __eq__ = __lt__ = __iter__ = __getitem__ = __mod__ = __index__ = _refused
    __hash__ = object.__hash__


ANYTHING: Final = _Anything()


@dataclass(eq=False)
class Formula:
    """A tensor, or a tuple of tensors: a variable, a number, or the result of an operator."""

    name: str
    """The operator; "read" for a variable, "number" for a number."""
    operands: tuple[Given, ...]
    attributes: Mapping[str, Given]
    value: Indexed | tuple[Indexed, ...]
    """The value in the algebra of proofs."""
    shape: Shape
    """The shape that a meaning asks for."""

    @property
    def tensor(self) -> Indexed:
        """The value of one tensor. Raises NoMeaning for a tuple of them."""
        if isinstance(self.value, tuple):
            raise NoMeaning(f"several results of `{self.name}` as one")
        return self.value


@dataclass
class FormulaValues:
    """Values of formulas in an algebra, memoized."""

    algebra: Algebra
    size: Callable[[Poly], Index]
    symbol: Callable[[Poly], Scalar]
    read: Callable[[Formula, Shape], Indexed]
    known: dict[int, Given] = field(default_factory=dict)
    lifted: Callable[[float], Poly | None] = lambda _: None
    """Returns the symbol for which a plain number is taken, if it is for one."""
    proved: FormulaValues | None = None
    """Values in the algebra of proofs, by which those in another tell loops apart."""

    def of(self, formula: Given) -> Given:
        """Return the value of a formula, or of a tuple of them."""
        if isinstance(formula, tuple):
            return tuple(map(self.of, formula))
        if formula is None:
            return None
        if id(formula) not in self.known:
            shape = tuple(map(self.index, formula.shape))
            self.known[id(formula)] = self.computed(
                formula, formula.name, [self.of(x) for x in formula.operands], shape
            )
        return self.known[id(formula)]

    def computed(
        self, formula: Formula, name: str, operands: Sequence[Given], shape: Shape
    ) -> Given:
        """Return the value of a formula, given those of its operands."""
        check_time()
        if name == "read":
            return self.read(formula, shape)
        if name == "loop":
            loop, part, count = formula.attributes.values()
            return loop.value(self, part, shape, count)
        if name == "number":
            form = formula.attributes["form"]
            found, kind = self.number(form), formula.attributes["kind"]
            return Indexed((), lambda _: found, kind=kind, rational=form.constant)
        meaning = MEANINGS.get(name)
        if meaning is None:
            raise _missing(name)
        site = Site(self.algebra, shape, self.number, self.index)
        try:
            result = meaning(site, *operands, **formula.attributes)
        except Contradiction:
            raise
        except (IndexError, ValueError, ZeroDivisionError):
            raise SizesDiffer(0, 1) from None  # an operand of too few dimensions
        except (TypeError, KeyError) as other:  # of arguments that the meaning does not take
            raise NoMeaning(f"`{name}` has no meaning here in this form: {other}") from other
        except NoMeaning as missing:
            if name in str(missing):
                raise
            raise NoMeaning(f"`{name}` has no meaning here: {missing}") from None
        kind = KINDS.get(name)
        if name in MOVES and operands and not isinstance(result, tuple):
            is_item = name == "getitem" and isinstance(operands[0], tuple)
            first = result if is_item else operands[0]
            while isinstance(first, tuple):
                first = first[0] if first else None
            kind = None if first is None else first.kind
        elif name in WHOLE and all(x.kind == "whole" for x in operands):
            kind = "whole"
        for part in result if isinstance(result, tuple) else (result,):
            part.kind = kind or part.kind
        return result

    def number(self, value: Given) -> Scalar:
        """Return a number as a value."""
        if isinstance(value, float) and not hasattr(value, "form"):
            known = self.lifted(value)
            return self.algebra.number(value) if known is None else self.symbol(known)
        if is_number(value):
            return self.symbol(form_of(value))
        if isinstance(value, bool):
            return self.symbol(rational(int(value)))
        raise NoMeaning(f"the number {value!r}")

    def index(self, value: Given) -> Index:
        """Return a number as a size or an index."""
        if not is_number(value):
            raise NoMeaning(f"the size {value!r}")
        return self.size(form_of(value))


class Formulas:
    """Makes formulas in one world, each with its value in the algebra of proofs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.algebra = SymbolicAlgebra()
        self.references: set[str] = set()
        """Names of kernels whose reference was computed in their place."""
        self.loops: list[Given] = []
        """The loops over a symbolic number of steps."""
        self.declined = ""
        """The reason for which the reading of a match declines, though its body may run."""
        self.tensors: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        """Tensors for torch code, by the identity of their formula: one value is one tensor."""
        self.reads = 0
        self._kept: list[Formula] = []
        """Formulas that live as long as the memo, which knows them by identity."""
        self._names: set[str] = set()
        self.values = FormulaValues(self.algebra, _same, _same, _symbolic, lifted=world.plain.get)
        """Values in the algebra of proofs."""

    def read(self, shape: Sequence[Given], kind: str = "real", name: str = "") -> Formula:
        """Return a variable of this shape. A name that is taken is replaced by another."""
        self.reads += 1
        is_new = name and name not in self._names
        name = name if is_new else f"x{self.reads}"
        self._names.add(name)
        forms = tuple(self.world.resolved(form_of(n)) for n in shape)
        attributes = {"name": name, "kind": kind}
        made = Formula("read", (), attributes, (), forms)
        made.value = self.values.known[id(made)] = _symbolic(made, forms)
        return made

    def number(self, value: Given) -> Formula:
        """Return a number as a tensor."""
        form = self.world.resolved(form_of(value))
        is_size = form.constant is None and is_whole(form)
        kind = "whole" if is_size or isinstance(value, int) else "real"
        found = Indexed((), lambda _: form, kind=kind, rational=form.constant)
        return Formula("number", (), {"form": form, "kind": kind}, found, ())

    def of(self, value: Given) -> Given:
        """Return an operand as a formula: a tensor, a number, a list of these."""
        if value is None or isinstance(value, Formula):
            return value
        if isinstance(value, (tuple, list)):
            return tuple(map(self.of, value))
        if isinstance(value, bool):
            return self.number(int(value))
        if is_number(value):
            return self.number(value)
        raise NoMeaning(f"the operand {value!r}")

    def apply(
        self,
        name: str,
        operands: Sequence[Given],
        attributes: Mapping[str, Given],
        shape: Sequence[Given] | None = None,
    ) -> Formula:
        """Return the result of an operator. `shape` is that of a view whose arguments do not say
        it. Raises NoMeaning, and SizesDiffer where operands do not fit.
        """
        given = tuple(map(self.of, operands))
        values = [self.values.of(x) for x in given]
        if shape is None:
            found = self._result_shape(name, values, attributes)
        else:
            found = tuple(shape)
        forms = tuple(self.world.resolved(form_of(n)) for n in found)
        made = Formula(name, given, dict(attributes), (), forms)
        made.value = self.values.computed(made, name, values, forms)
        self.values.known[id(made)] = made.value
        self._kept.append(made)
        return made

    def _result_shape(
        self, name: str, values: Sequence[Given], attributes: Mapping[str, Given]
    ) -> Shape:
        """Return the shape of a result; comparisons of sizes that decide it become conditions."""
        try:
            with self.world.observing(watched=True, divides=False):
                return result_shape(self.world, name, values, attributes)
        except Contradiction:
            raise
        except (IndexError, ValueError, ZeroDivisionError):
            raise SizesDiffer(0, 1) from None  # an operand of too few dimensions
        except TypeError as error:  # of arguments of another kind
            raise NoMeaning(f"`{name}` has no meaning here in this form: {error}") from error

    def item(self, of: Formula, index: int) -> Formula:
        """Return one of several results."""
        return self.apply("getitem", (of,), {"index": index})

    def sizes(self, of: Formula) -> tuple[Size, ...]:
        """Return the shape of a tensor."""
        return tuple(self.world.sized(n) for n in of.tensor.shape)


def narrow_type(value: Formula) -> torch.dtype | None:
    """Return the type of eight bits to which a tensor is cast, if it is, perhaps moved then."""
    while value.name in MOVES and value.operands and isinstance(value.operands[0], Formula):
        value = value.operands[0]
    dtype = value.attributes.get("dtype")
    return dtype if isinstance(dtype, torch.dtype) and dtype.itemsize == 1 else None


def _same(form: Poly) -> Poly:
    return form


def _symbolic(formula: Formula, shape: Shape) -> Indexed:
    name, kind = formula.attributes["name"], formula.attributes["kind"]

    def at(place: Shape) -> Poly:
        value = factor(("whole" if kind == "whole" else "read", name, *map(_key, place)))
        return indicator("positive", value.key) if kind == "truth" else value

    return Indexed(shape, at, kind=kind)


def _key(index: Poly | int) -> Given:
    return (index if isinstance(index, Poly) else rational(index)).key


def given_number(formulas: Formulas, value: Given) -> Given:
    """Return a number that a graph holds, as an operand; other constants as they are."""
    if value is None or isinstance(value, (str, bool)):
        return value
    made = formulas.number(value)
    made.attributes["given"] = value  # type: ignore[index]
    return made


def is_several(value: Given) -> bool:
    """Return whether a value is several tensors."""
    return isinstance(value, tuple) or (
        isinstance(value, Formula) and isinstance(value.value, tuple)
    )


def rank_of(value: Given) -> int | None:
    """Return the rank of a tensor, None for other values."""
    return value.tensor.rank if isinstance(value, Formula) and not is_several(value) else None
