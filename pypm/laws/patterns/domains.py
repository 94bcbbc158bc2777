"""Kinds of values that a pattern may bind a parameter to: constants, numbers, tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from pypm.core.guards import Apply, Attribute, Constant, Expression, Reference, Tuple
from pypm.core.patterns import Call, Constrained, Definition, Fun, Let, Mu, Op, Pattern, Var
from pypm.core.terms import VALUE, exact
from pypm.core.traverse import children

__all__ = [
    "DIMS",
    "NUMBER",
    "PLACE",
    "SIZE",
    "TENSOR",
    "UNKNOWN",
    "Domain",
    "Domains",
    "of_argument",
]

NUMBER: Final = "number"
TENSOR: Final = "tensor"
SIZE: Final = "size"
PLACE: Final = "place"
UNKNOWN: Final = "unknown"
DIMS: Final = "dims"
Domain: TypeAlias = dict[object, object]
"""Values by a key: those above stand for themselves, constants for one."""
NUMBERS: Final = frozenset({"eps", "alpha", "beta", "scale", "p", "negative_slope"})
"""Arguments of operators that are numbers."""
PLACES: Final = frozenset({"start", "end", "length"})
"""Arguments that are places along a dimension: taken to be numbers from 1 on."""
OVER_DIMS: Final = frozenset(
    f"aten.{name}"
    for name in ("sum", "mean", "amax", "var", "var_mean", "logsumexp", "linalg_vector_norm")
)
"""Operators that take several dimensions."""
TRUTHS: Final = frozenset({"is_causal", "enable_gqa", "keepdim"})
"""Arguments that are truth values."""
ITEM: Final = "item"
LAST_ITEM: Final = "item from the end"
INDEX: Final = "index"
ALL: Final = ("slice", None, None, None)
_DIM: Final[Domain] = {dim: dim for dim in range(4)}
_ITEM: Final[Domain] = {ITEM: ITEM, LAST_ITEM: LAST_ITEM, 0: 0, 1: 1}
OF_ONE_DIM: Final[Mapping[str, Mapping[str, Domain]]] = {
    "aten.select": {"dim": _DIM, "index": _ITEM},
    "aten.slice": {"dim": _DIM, "start": {PLACE: PLACE, 0: 0, 1: 1}, "step": {1: 1}},
    "aten.narrow": {"dim": _DIM},
    "aten.unbind": {"dim": _DIM},
    "aten.split": {"dim": _DIM, "split_size": {1: 1, SIZE: SIZE}},
    "aten.split_with_sizes": {"dim": _DIM, "split_sizes": {1: 1, SIZE: SIZE}},
    "aten.chunk": {"dim": _DIM, "chunks": {SIZE: SIZE}},
    "aten.tensor_split": {"dim": _DIM, "sections": {SIZE: SIZE}},
    "aten.stack": {"dim": _DIM},
    "aten.cat": {"dim": _DIM},
    "getitem": {"index": {**_ITEM, INDEX: INDEX}},
}
"""Arguments of operators on one dimension: any of the first four, and one item of it."""
ARITHMETIC: Final = frozenset({"add", "sub", "mul", "div", "neg", "pow", "ratio"})


class Domains:
    """Domains of the parameters of definitions, memoized."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], Domain] = {}
        self._kept: list[Definition] = []

    def of(
        self, definition: Definition, parameter: str, around: tuple[Definition, ...] = ()
    ) -> Domain:
        """Return the kinds of values that a match of a definition may bind a parameter to."""
        key = (id(definition), parameter)
        if key not in self._known:
            self._kept.append(definition)
            found: Domain = {}
            self._known[key] = found
            self._add(found, definition.body, parameter, (definition, *around))
        return self._known[key]

    def _add(
        self, found: Domain, pattern: Pattern, name: str, frames: tuple[Definition, ...]
    ) -> None:
        if pattern == Var(name) or (isinstance(pattern, Constrained) and pattern.name == name):
            found[TENSOR] = TENSOR
        if isinstance(pattern, Let) and pattern.name == name:
            _classify(found, pattern.expression)
        if isinstance(pattern, (Mu, Call)) and name in pattern.actuals:
            self._of_call(found, _called(pattern, frames), pattern.actuals, name)
        if isinstance(pattern, Mu):  # its body has names of its own
            return
        inner = children(pattern)
        if isinstance(pattern, (Op, Fun)) and Var(name) in inner:
            found[TENSOR] = TENSOR
        for part in inner:
            self._add(found, part, name, frames)

    def _of_call(
        self, found: Domain, definition: Definition | None, actuals: tuple[str, ...], name: str
    ) -> None:
        if definition is None:
            return
        for parameter, actual in zip(definition.parameters, actuals, strict=True):
            if actual == name:
                found |= self.of(definition, parameter)


def _called(pattern: Mu | Call, frames: tuple[Definition, ...]) -> Definition | None:
    """Return the definition that is called, if it is known."""
    if isinstance(pattern, Mu):
        return pattern.definition
    return frames[pattern.index] if pattern.index < len(frames) else None


def of_argument(name: str, operator: str = "") -> Domain:
    """Return the kinds of values that an argument of an operator may have, by its name."""
    if operator in OF_ONE_DIM and name in OF_ONE_DIM[operator]:
        return OF_ONE_DIM[operator][name]
    if name in NUMBERS:
        return {NUMBER: NUMBER} | ({None: None} if name == "scale" else {})
    if name in PLACES:
        return {PLACE: PLACE}
    if name in TRUTHS:
        return {False: False, True: True}
    if name == "dim" and operator in OVER_DIMS:
        return {DIMS: DIMS}
    return {UNKNOWN: UNKNOWN}


def _classify(found: Domain, expression: Expression) -> None:
    """Add the kind of value that an expression has."""
    match expression:
        case Constant(value):
            found[exact(value)] = value
        case Attribute(_, attribute) if attribute == VALUE:
            found[NUMBER] = NUMBER
        case Attribute(_, attribute):
            found |= of_argument(attribute)
        case Apply(function, (Attribute(_, "shape"), _)) if function.name == "item":
            found[SIZE] = SIZE
        case Apply(function, _) if function.name in ARITHMETIC:
            found[NUMBER] = NUMBER
        case Reference():
            found[TENSOR] = TENSOR
        case Apply() | Tuple():
            found[UNKNOWN] = UNKNOWN
