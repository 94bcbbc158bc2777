"""Agents that take turns: each is a generator that yields a request for every operation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from pypm.emulation.clocks import ClockedAgent, Fault

__all__ = ["Body", "Request", "Running", "deadlock"]

A = TypeVar("A", bound=ClockedAgent)

Body: TypeAlias = Generator["Request[A]", object, None]
"""The text of an agent, which is sent the result of each of its requests."""


@dataclass(frozen=True, slots=True)
class Request(Generic[A]):
    """An operation of an agent: when it can be performed, and its effect.

    The effect may return another request, for which the agent waits instead.
    """

    label: str
    act: Callable[[A], object]
    ready: Callable[[A], bool] = lambda agent: True


@dataclass
class Running(Generic[A]):
    """An agent, and the operation that it is to perform next."""

    agent: A
    body: Body[A]
    request: Request[A]

    def perform(self) -> bool:
        """Perform the operation, and go on to the next; return whether there is one.

        Raises Fault for an error in the text.
        """
        try:
            result = self.request.act(self.agent)
            self.request = result if isinstance(result, Request) else self.body.send(result)
        except StopIteration:
            return False
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            raise Fault(f"{self.agent.name}: {type(error).__name__}: {error}") from error
        return True


def begun(agent: A, body: Body[A]) -> Running[A]:
    """Return an agent before its first operation."""
    return Running(agent, body, Request("its begin", lambda agent: None))


def deadlock(running: Iterable[Running[A]]) -> Fault:
    """Return the fault that names who waits for what."""
    waits = (f"{each.agent.name} at {each.request.label}" for each in running)
    return Fault(f"deadlock: {'; '.join(waits)}")
