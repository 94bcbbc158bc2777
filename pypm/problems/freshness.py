"""Inputs that differ from call to call, so that an answer that was kept is a wrong one."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch

from pypm.problems.contender import Contender, Inputs
from pypm.problems.formats.definition import ProblemDefinition
from pypm.problems.memory import bits_equal

__all__ = ["FreshInputs"]


class FreshInputs:
    """Inputs of one workload, from seeds that nothing in a worker can foresee."""

    def __init__(self, reference: Contender, definition: ProblemDefinition) -> None:
        self.note = ""
        """A note about inputs that are the same in every call; empty if there are none."""
        self._reference = reference
        self._names = [*definition.inputs]
        self._draws = torch.Generator().manual_seed(secrets.randbits(60))
        self._changed: list[int] = []
        """The inputs that are changed at random, since no input differs between two calls."""

    def first(self) -> Inputs:
        """Return the inputs of the first call, and find those that are the same in every one."""
        one, two = self._drawn(), self._drawn()
        tensors = [*enumerate(zip(one.tensors, two.tensors, strict=True))]
        there = [i for i, (x, _) in tensors if self._names[i] not in one.numbers and x.numel()]
        fixed = [i for i, (x, y) in tensors if i in there and bits_equal(x, y)]
        if fixed != there:
            self.note = f"the same in every call: {self._listed(fixed)}" if fixed else ""
            return one
        self._changed = [i for i in fixed if one.tensors[i].is_floating_point()]
        if self._changed:
            self.note = (
                f"no input differs between two calls, so {self._listed(self._changed)} got other "
                "elements in all calls but the first, up to a sixteenth smaller or larger"
            )
        else:
            self.note = (
                "no input differs between two calls, and none can be changed: it would not be "
                "noticed if an answer was kept from the first call"
            )
        return one

    def draw(self) -> Inputs:
        """Return inputs that no call had before."""
        found = self._drawn()
        for i in self._changed:
            x = found.tensors[i]
            drawn = torch.rand(x.shape, dtype=torch.float64, generator=self._draws)
            x.copy_(x.double() * (1 + (drawn - 0.5) / 8))
        return found

    def _drawn(self) -> Inputs:
        return self._reference.inputs(secrets.randbits(60))

    def _listed(self, places: Sequence[int]) -> str:
        return ", ".join(f"`{self._names[i]}`" for i in places)
