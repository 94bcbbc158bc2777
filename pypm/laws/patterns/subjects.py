"""Names of a way as guards see them: attributes of values, as far as they are known."""

from __future__ import annotations

from collections.abc import Callable

from pypm.core.guards import Apply, Guard
from pypm.core.terms import Unmade, Value

__all__ = ["GuardedName", "is_of_none"]


class GuardedName(Unmade):
    """A name of a way as guards see it: attributes of its value, where they are known."""

    __slots__ = ("_ask", "_value")

    def __init__(self, value: Callable[[], Value], ask: Callable[[str], Value]) -> None:
        self._value = value
        self._ask = ask

    @property
    def term(self) -> Value:  # type: ignore[override]
        """Return the value."""
        return self._value()

    def attribute(self, name: str) -> Value:
        """Return an attribute of the value, or UNDEFINED."""
        return self._ask(name)


def is_of_none(guard: Guard) -> bool:
    """Return whether a guard asks whether a name stands for None."""
    expression = getattr(guard, "expression", None)
    return isinstance(expression, Apply) and expression.function.name == "is_none"
