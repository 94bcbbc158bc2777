"""Uses of the names of a way, from which follows what they may stand for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from pypm.core.guards import (
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
    Reference,
)
from pypm.core.terms import VALUE, Value
from pypm.laws.algebra import Given
from pypm.laws.patterns.operator_arguments import (
    MASKED,
    OF_PIECES,
    PIECE,
    TENSOR,
    of_argument,
    of_operand,
)
from pypm.laws.patterns.ways import AppliedOperator, Meant, Names, Spelled, Tree, Way, WayName

__all__ = ["is_column", "said_ranks", "said_type", "uses_of"]

RANKS_OF: Final = {"aten.bmm": 3, "aten.mm": 2}
"""Operators with the rank that all operands have."""


def _dtype_tests(guard: Guard) -> list[tuple[str, Value]]:
    """Return the types that a guard says, each with the name that has it."""
    match guard:
        case Equal(Attribute(name, "dtype"), Constant(value)) | Equal(
            Constant(value), Attribute(name, "dtype")
        ):
            return [(name, value)]
    expression = getattr(guard, "expression", None)
    match expression:
        case Apply(function, (Attribute(name, "dtype"), Constant(tuple() as values))) if (
            function.name == "in"
        ):
            ordered = sorted(values, key=lambda v: v != torch.float32)
            return [(name, ordered[0])]
    return []


def _names_of(applied: AppliedOperator) -> str:
    """Return the name of an operator; `PIECE` for one that takes one of several results."""
    tree: Tree | None = applied.operands[0] if applied.operands else None
    while isinstance(tree, (Meant, WayName)):  # below operators that do nothing
        slot = tree.actuals[0] if isinstance(tree, Meant) else tree
        tree = slot.described[0] if slot.described else None
    is_of_pieces = isinstance(tree, AppliedOperator) and tree.operator.name in OF_PIECES
    return PIECE if is_of_pieces and applied.operator.name == "getitem" else applied.operator.name


def uses_of(way: Way) -> dict[WayName, dict[str, Given]]:
    """Return how each slot is used: by its `.value`, in calls, as an operand or an argument."""
    found: dict[WayName, dict[str, Given]] = {}

    def visit(tree: Tree) -> None:
        match tree:
            case WayName():
                found.setdefault(tree, {}).setdefault("operand", TENSOR)
            case Meant(definition, actuals):
                for slot, parameter in zip(actuals, definition.parameters, strict=True):
                    uses = found.setdefault(slot, {})
                    uses.setdefault("calls", []).append((definition, parameter))
                    uses.setdefault("meant", []).append(tree)
            case Spelled():
                for slot in tree.actuals:
                    found.setdefault(slot, {}).setdefault("spelled", []).append(tree)
            case AppliedOperator(operator, operands):
                for at, operand in enumerate(operands):
                    visit(operand)
                    if isinstance(operand, WayName):
                        found[operand]["operand"] = of_operand(operator.name, at)
                        if operator.name in RANKS_OF:
                            found[operand]["rank"] = RANKS_OF[operator.name]
                if operator.name == "aten.select_scatter" and isinstance(operands[0], WayName):
                    found[operands[0]]["items"] = True
                if operator.name == "aten.narrow" and isinstance(operands[1], WayName):
                    found[operands[1]]["place"] = True
                if operator.name in MASKED and isinstance(operands[3], WayName):
                    found[operands[3]]["mask"] = True

    def read(expression: Expression, names: Names) -> None:
        match expression:
            case Attribute(name, attribute) if attribute == VALUE:
                found.setdefault(names[name], {})["value"] = True
            case Apply(_, arguments):
                for argument in arguments:
                    read(argument, names)
            case Reference() | Attribute() | Constant():
                pass

    for slot in way.slots:
        for tree in slot.described:
            visit(tree)
        for expression, names in slot.lets:
            read(expression, names)
        for name, argument in slot.arguments.items():
            if isinstance(argument.value, WayName):
                applied = [t for t in slot.described if isinstance(t, AppliedOperator)]
                operators = [_names_of(t) for t in applied]
                domain = of_argument(name, *operators[:1])
                found.setdefault(argument.value, {})["argument"] = domain
    for guard, names in way.guards:
        if isinstance(guard, Equal):
            read(guard.left, names)
            read(guard.right, names)
    for tree in sorted(way.roots, key=lambda root: isinstance(root, WayName)):
        if not (isinstance(tree, WayName) and tree in found):  # else calls may bind it
            visit(tree)
    return found


def is_column(guards: Iterable[tuple[Guard, Names]], slot: WayName) -> bool:
    """Return whether a guard says that the last dimension of a name has size 1."""
    for guard, names in guards:
        match guard:
            case Equal(Apply(of, (Attribute(name, "shape"), Constant(-1))), Constant(1)) if (
                of.name == "item" and names.get(name) is slot
            ):
                return True
    return False


def said_ranks(guards: Iterable[tuple[Guard, Names]], slot: WayName | None) -> tuple[int, ...]:
    """Return the ranks that a guard says that a name may have; none if none does."""
    for guard, names in guards:
        match guard:
            case Equal(Attribute(name, "rank"), Constant(int() as rank)) if names.get(name) is slot:
                return (rank,)
            case Holds(Apply(function, (Attribute(name, "rank"), Constant(tuple() as ranks)))) if (
                function.name == "in" and names.get(name) is slot
            ):
                return ranks
    return ()


def said_type(guards: Iterable[tuple[Guard, Names]], slot: WayName | None) -> torch.dtype | None:
    """Return the type that a guard says that a name has, if one does."""
    for guard, names in guards:
        for tested, expected in _dtype_tests(guard):
            if names.get(tested) is slot and isinstance(expected, torch.dtype):
                return expected
    return None
