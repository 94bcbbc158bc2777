"""Names of a way as guards see them: attributes of values, as far as they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pypm.core.guards import Apply, Guard
from pypm.core.terms import Unmade, Value
from pypm.laws.ways import Slot

if TYPE_CHECKING:
    from pypm.laws.valuation import Valuation

__all__ = ["Subject", "is_of_none"]


class Subject(Unmade):
    """A name of a way as guards see it: attributes of its value, where they are known."""

    __slots__ = ("slot", "valuation")

    def __init__(self, valuation: Valuation, slot: Slot) -> None:
        self.valuation = valuation
        self.slot = slot

    @property
    def term(self) -> Value:  # type: ignore[override]
        """Return the value."""
        return self.valuation.value(self.slot)

    def attribute(self, name: str) -> Value:
        """Return an attribute of the value, or UNDEFINED."""
        return self.valuation.attribute(self.slot, name)


def is_of_none(guard: Guard) -> bool:
    """Return whether a guard asks whether a name stands for None."""
    expression = getattr(guard, "expression", None)
    return isinstance(expression, Apply) and expression.function.name == "is_none"
