"""Sizes of inputs that a term fixes, found by running its calls on symbolic sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pypm.tools.verification.sampling.evaluation import Step, filled_in
from pypm.tools.verification.sampling.operator_choice import result_of
from pypm.tools.verification.sampling.sketches import Slot
from pypm.tools.verification.sampling.symbolic_graphs import expression, symbolic
from pypm.torch_internals import FakeTensor, FakeTensorMode

__all__ = ["pinned"]


def pinned(steps: Sequence[Step]) -> set[tuple[Slot, int]]:
    """Return the dimensions of inputs that the calls allow no other size.

    The calls are made with the arguments that they have, so a size that is written into one of
    them is fixed as well. Every dimension counts where a call cannot be made so.
    """
    sizes = ShapeEnv()
    mode = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)
    made: dict[Slot, object] = {}
    inputs: dict[Slot, FakeTensor] = {}
    try:
        for step in steps:
            made[step.slot] = step.value
            if step.overload is not None:
                with mode, torch.no_grad():
                    made[step.slot] = result_of(step.overload, filled_in(step.arguments, made))
            elif isinstance(step.value, torch.Tensor):
                fake = symbolic(mode, step.value, len(made))
                made[step.slot] = inputs[step.slot] = fake
    except Exception:  # whatever torch says of operators on symbolic sizes
        return {(s, d) for s, fake in inputs.items() for d in range(fake.dim())}
    return {
        (slot, dim)
        for slot, fake in inputs.items()
        for dim, size in enumerate(fake.shape)
        if sizes.simplify(expression(size)).is_number
    }
