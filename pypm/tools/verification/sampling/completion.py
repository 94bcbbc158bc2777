"""Operators for operator variables, and elements for lists of any length."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from pypm.core.guards import holds
from pypm.core.operators import CONS, NIL, Operator
from pypm.core.traverse import names
from pypm.tools.verification.sampling.operator_choice import operators_of
from pypm.tools.verification.sampling.sketches import Condition, Contradiction, Sketch, Slot

__all__ = ["complete"]


def complete(sketch: Sketch, random: Random) -> list[Slot]:
    """Choose operators and lengths of lists where they are variables; gives the slots in order."""
    for slot in sketch.slots():
        if slot.operator is None and slot.function is not None:
            variable = slot.function.find
            if variable.operator is None:
                tags = frozenset(slot.tags | variable.tags)
                found = [
                    operator
                    for operator in operators_of(tags, len(slot.children))
                    if _may_be(variable, operator, sketch.conditions)
                ]
                if not found:
                    raise Contradiction("operator")
                familiar = found[: 10 if random.random() < 0.6 else None]
                variable.operator = random.choice(familiar)
            slot.operator = variable.operator
    for slot in sketch.slots():
        if slot.operator is None and _is_list(slot, sketch.slots()):
            cell = Slot()
            cell.apply(NIL, None, ())
            for _ in range(random.choice((1, 0, 2))):
                longer = Slot()
                longer.apply(CONS, None, (Slot(), cell))
                cell = longer
            slot.unite(cell)
    return sketch.slots()


def _may_be(variable: Slot, operator: Operator, conditions: Sequence[Condition]) -> bool:
    """Return whether the guards about an operator variable alone hold of an operator."""
    return all(
        holds(condition.guard, lambda _: operator) is True
        for condition in conditions
        if {condition.scope[name].find for name in names(condition.guard)} == {variable}
    )


def _is_list(slot: Slot, slots: Sequence[Slot]) -> bool:
    for user in slots:
        if slot not in user.below or user.operator is None:
            continue
        at = user.below.index(slot)
        if user.operator == CONS:
            return at == 1
        kinds = {s.children[at].kind for s in user.operator.signatures if at < len(s.children)}
        if kinds == {"list"}:
            return True
    return False
