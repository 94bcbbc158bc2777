"""Values that patterns bind and that replacements read by an observer alone: any tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from pypm.fx.operators.body_trace import opaque
from pypm.fx.values.observers import Rank, Unseen, last_dims_of, parameters_of, ranks_of
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.tracing import SymbolicTensor, tensor_of

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

    def is_seen_by(self, by: Callable[..., Given]) -> bool:
        """Return whether it is for this observer."""
        return by is self.group.by

    @property
    def is_alone(self) -> bool:
        """True if the observer returns one tensor."""
        return bool(ranks_of(self.group.by)) and len(self.group.tensors) == 1

    def seen(self, by: Callable[..., Given], arguments: Sequence[Given]) -> Given:
        """Return what its observer returns for it. Raises NoMeaning for values of other calls."""
        groups = {value.group for value in arguments if isinstance(value, Hidden)}
        if len(groups) != 1:
            raise NoMeaning(f"`{by.__name__}` of values that another function observes")
        found = self.group.tensors
        if not ranks_of(by):
            (token,) = (tensor_of(one, self.formulas) for one in found)
            tensors = [x for x in arguments if isinstance(x, SymbolicTensor)]
            like: Tensor = tensors[0]
            if last_dims_of(by) is not None:
                like = like.new_empty((*like.shape[:-1], *token.shape))
            return opaque(by.__name__, like, *tensors, token)
        if is_by_steps(by):
            found = tuple(self._first(one, arguments[-1]) for one in found)
        shown = tuple(tensor_of(one, self.formulas) for one in found)
        return shown[0] if len(shown) == 1 else shown

    def assume(self, name: str) -> None:
        """Note a function that is taken to compute its reference."""
        self.formulas.references.add(name)

    def _first(self, items: Formula | None, steps: Given) -> Formula | None:
        """Return the items of the first steps: there are as many."""
        if items is None:
            return None
        shape = (steps, *self.formulas.sizes(items)[1:])
        arguments = {"dim": 0, "start": 0, "end": steps, "step": 1}
        return self.formulas.apply("aten.slice", [items], arguments, shape)


def is_by_steps(by: Callable[..., Given]) -> bool:
    """Return whether an observer returns the items of so many steps."""
    return parameters_of(by)[-1] == STEPS


def new_group(by: Callable[..., Given], ranks: Sequence[Rank], formulas: Formulas) -> Group:
    """Return what an observer returns for new values, of these ranks."""
    extra = int(is_by_steps(by))

    def tensor(rank: Rank) -> Formula | None:
        if rank is None:
            return None
        shape = (0,) * rank if isinstance(rank, int) else rank
        return formulas.read([n or formulas.world.size() for n in ((0,) * extra + shape)])

    return Group(by, tuple(map(tensor, ranks)))
