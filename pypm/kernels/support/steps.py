"""A loop over steps in the references of kernels: so that what it computes can be proved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

__all__ = ["States", "over_steps"]

States: TypeAlias = tuple[Tensor, ...]


def over_steps(
    step: Callable[..., tuple[Tensor, States]], states: States, *items: Tensor
) -> tuple[Tensor, States]:
    """Return the results of all steps, [steps, ...], and the states after the last one.

    Arguments:
        step: a function from the states before a step and its items to its result and the states
            after it.
        states: those before the first step.
        items: [steps, ...].
    """
    if has_torch_function((*states, *items)):
        given = (*states, *items)
        found: tuple[Tensor, States]
        found = handle_torch_function(over_steps, given, step, states, *items)
        return found
    results = []
    for each in zip(*(x.unbind() for x in items), strict=True):
        result, states = step(states, *each)
        results.append(result)
    if not results:
        return states[0].new_zeros((0, *states[0].shape)), states
    return torch.stack(results), states
