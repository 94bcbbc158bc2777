"""Values that patterns bind and that replacements read by an observer alone: any tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Final

from pypm.fx.operators.body_trace import opaque
from pypm.fx.values.observers import Unseen, ranks_of
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.tracing import tensor_of

__all__ = ["Group", "Hidden", "is_by_steps", "new_group"]

STEPS: Final = "steps"
"""The last parameter of observers that return the items of so many steps."""


@dataclass(eq=False)
class Group:
    """The results of an observer for values that one call binds."""

    by: Callable[..., Given]
    tensors: tuple[Formula | None, ...]


@dataclass(frozen=True)
class Hidden(Unseen):
    """One of the values that a call binds."""

    name: str
    group: Group
    formulas: Formulas

    def seen(self, by: Callable[..., Given], arguments: Sequence[Given]) -> Given:
        """Return what an observer returns for it. Raises NoMeaning for another observer."""
        groups = {value.group for value in arguments if isinstance(value, Hidden)}
        if by is not self.group.by or len(groups) != 1:
            raise NoMeaning(f"`{by.__name__}` of values that another function observes")
        found = self.group.tensors
        if not ranks_of(by):
            (x, *_), (token,) = arguments, (tensor_of(one, self.formulas) for one in found)
            return opaque(by.__name__, x, x, token)
        if is_by_steps(by):
            found = tuple(self._first(one, arguments[-1]) for one in found if one is not None)
        shown = tuple(tensor_of(one, self.formulas) for one in found)
        return shown[0] if len(shown) == 1 else shown

    def assume(self, name: str) -> None:
        """Note a function that is taken to compute its reference."""
        self.formulas.references.add(name)

    def _first(self, items: Formula, steps: Given) -> Formula:
        """Return the items of the first steps: there are as many."""
        shape = (steps, *self.formulas.sizes(items)[1:])
        arguments = {"dim": 0, "start": 0, "end": steps, "step": 1}
        return self.formulas.apply("aten.slice", [items], arguments, shape)


def is_by_steps(by: Callable[..., Given]) -> bool:
    """Return whether an observer returns the items of so many steps."""
    return list(signature(by).parameters)[-1] == STEPS


def new_group(
    by: Callable[..., Given], pick: Callable[[Sequence[Given]], Given], formulas: Formulas
) -> Group:
    """Return what an observer returns for new values, by choices."""
    ranks = pick(ranks_of(by)) if ranks_of(by) else (0,)
    extra = int(is_by_steps(by))

    def tensor(rank: int | None) -> Formula | None:
        if rank is None:
            return None
        return formulas.read([formulas.world.size() for _ in range(rank + extra)])

    return Group(by, tuple(map(tensor, ranks)))
