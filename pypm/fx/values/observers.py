"""Observers: functions by which alone replacements read what a pattern binds.

Where a pattern says what it means by an observer of what it binds, proofs of the rules that call it
take the results of the observer as any tensors, and do not look at what is bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from inspect import signature
from typing import Final, ParamSpec, TypeAlias, TypeVar

from pypm.core.records import Record, fields_of
from pypm.core.terms import Value

__all__ = [
    "RESULT",
    "Joins",
    "Lists",
    "Rank",
    "Repeats",
    "Unseen",
    "hidden_by",
    "hiding",
    "joins_of",
    "last_dims_of",
    "observer",
    "parameters_of",
    "ranks_of",
    "refines",
    "steps_of",
]

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound="Callable[..., object] | Joins")
_RANKS: Final = "__ranks__"
_LAST: Final = "__last__"
_HIDING: Final = "__hiding__"


class Unseen(ABC):
    """A value that only observers read."""

    @abstractmethod
    def is_seen_by(self, by: Callable[..., Value]) -> bool:
        """Return whether it is for this observer: others may read what that returns."""

    @abstractmethod
    def seen(self, by: Callable[..., Value], arguments: Sequence[Value]) -> Value:
        """Return what an observer returns for it."""

    @abstractmethod
    def assume(self, name: str) -> None:
        """Note a function that is taken to compute its reference."""


Rank: TypeAlias = "int | tuple[int, ...] | None"
"""The rank of a tensor, or its shape, with 0 for any size; None for no tensor."""


def observer(
    *ranks: tuple[Rank, ...], last: int | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare that a function of what a pattern binds is all that replacements read of it.

    Each of `ranks` are those of the tensors that it may return, or shapes of them. They are those
    of the item of each step, [steps, ...], if the last argument is the number of steps.
    Without `ranks`, the function also takes tensors that are not bound, and proofs know nothing of
    it but that: it returns a tensor in the shape of the first one, or if `last` is given, with so
    many dimensions of any sizes in place of the last one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def observed(*args: P.args, **kwargs: P.kwargs) -> R:
            for value in args:
                if isinstance(value, Unseen) and value.is_seen_by(observed):
                    return value.seen(observed, args)  # type: ignore[return-value]
            return function(*args, **kwargs)

        setattr(observed, _RANKS, ranks)
        setattr(observed, _LAST, last)
        return observed

    return decorate


def refines(reference: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare that a function of what observers read computes the same as another one, `reference`:
    proofs take that for granted.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def refined(*args: P.args, **kwargs: P.kwargs) -> R:
            unseen = next(_unseen(args), None)
            if unseen is None:
                return function(*args, **kwargs)
            unseen.assume(f"{function.__module__}.{function.__name__}")
            return reference(*args, **kwargs)

        return refined

    return decorate


def _unseen(value: Value) -> Iterator[Unseen]:
    """Yield what is hidden in a value."""
    if isinstance(value, Unseen):
        yield value
    elif isinstance(value, Record):
        yield from _unseen(tuple(fields_of(value).values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _unseen(part)


def hiding(by: Callable[..., Value], means: M) -> M:
    """Return the meaning `means`, which hides what `by` takes: parameters of the same names."""
    setattr(means, _HIDING, by)
    return means


def ranks_of(by: Callable[..., Value]) -> tuple[tuple[Rank, ...], ...]:
    """Return the ranks of what an observer may return."""
    found: tuple[tuple[Rank, ...], ...] = getattr(by, _RANKS)
    return found


def last_dims_of(by: Callable[..., Value]) -> int | None:
    """Return how many dimensions what an observer returns has in place of the last one of its first
    argument; None if it has the same shape.
    """
    found: int | None = getattr(by, _LAST)
    return found


def hidden_by(means: Callable[..., Value] | None) -> tuple[Callable[..., Value], list[str]] | None:
    """Return the observer of a meaning that hides parameters, and the names that it may hide."""
    by = getattr(means, _HIDING, None)
    return None if by is None else (by, parameters_of(by))


@cache
def parameters_of(by: Callable[..., Value]) -> list[str]:
    """Return the names of the parameters of an observer."""
    return list(signature(by).parameters)


def joins_of(means: Value) -> Joins | None:
    """Return a meaning that joins the tensors of a list; None for others."""
    return means if isinstance(means, Joins) else None


def steps_of(means: Value) -> Repeats | None:
    """Return a meaning that is the steps of a loop; None for others."""
    return means if isinstance(means, Repeats) else None


@dataclass(frozen=True, eq=False)
class Lists:
    """A list of the results of all steps. The names are parameters of the pattern."""

    item: Callable[..., Value]
    """Item of a result in the list: a function of it and of `given`, in torch's operators."""
    given: tuple[str, ...]
    last: str
    """The state after the last step."""
    count: str
    """The number of the step after the last one."""
    is_reversed: bool = False
    """True if the result of the last step comes first; then the first step is number 0."""
    is_written: bool = False
    """True if the results are no list, but the first items of a tensor along the dimension `given`,
    whose others may be anything; a number of steps is said.
    """
    head: tuple[str, ...] = ()
    """The pattern of the tensor before the results, and the arguments of that, of which the number
    of a step is 0; then the first step is number 1. Empty if there is none.
    """

    @property
    def is_from_last(self) -> bool:
        """True if the pattern matches the last step first."""
        return self.is_reversed or self.is_written


@dataclass(eq=False)
class Joins:
    """The meaning of a pattern that joins the tensors of a list: what the observer that it hides
    names by returns of them, stacked along the first dimension.
    """

    items: str
    """The pattern parameter that matches the list."""


RESULT: Final = "result"
"""The result of a step, as the name of a state after it."""


@dataclass(frozen=True, eq=False)
class Repeats:
    """The meaning of a recursive pattern: the steps of a loop, each matched by one pattern.

    The names are parameters of the pattern; those of states after a step may be names of their own,
    or `RESULT`.
    """

    step: str
    """The pattern of a step: a pattern parameter, or the name of a pattern."""
    call: tuple[str, ...]
    """The arguments of a step."""
    states: Mapping[str, str]
    """The states before a step, each with the one after it."""
    number: str
    """The number of a step: as a parameter, that of the last one; for lists, that before them."""
    lists: Lists | None = None
    """Items of each step, if the pattern matches a list; None if it matches a state."""

    @property
    def others(self) -> tuple[str, ...]:
        """Arguments that all steps have in common: no state, and no number."""
        varied = {*self.states, *self.states.values(), self.number}
        return tuple(name for name in self.call if name not in varied)
