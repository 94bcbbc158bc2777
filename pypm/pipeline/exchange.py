"""The tensors that stages exchange, found by a run on fake tensors: nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, fx
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.pipeline.cutting import Cut, Inputs, Stage
from pypm.pipeline.simulation import StageCost
from pypm.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

__all__ = ["Exchange", "exchanges", "stage_costs"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Tensors on the meta device, one for each that a stage takes or returns for a microbatch."""

    received: tuple[Tensor, ...]
    sent: tuple[Tensor, ...]
    """The values for the next stage, or the results of the program."""
    saved: int
    """Bytes that autograd keeps for the backward, without weights."""
    is_divisible: bool
    """True if gradients of weights may be computed after those of inputs: torch divides a backward
    where values that depend on the stage's inputs meet weights, so each result must depend on one.
    """


def exchanges(cut: Cut, inputs: Inputs) -> list[Exchange]:
    """Run the stages of a cut on fake tensors of the shapes of one microbatch.

    Raises PyPMError if a number or a size in a stage depends on data, and whatever else a stage
    raises, as for sizes that the program does not allow.
    """
    found: list[Exchange] = []
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.enable_grad():
        given = {
            name: mode.from_tensor(value) if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }
        values: tuple[Tensor, ...] = ()
        for stage in cut.stages:
            # fake ones, since a stage may write its buffers
            held: chain[tuple[str, Tensor]] = chain(stage.named_parameters(), stage.named_buffers())
            state: dict[str, Tensor] = {name: mode.from_tensor(value) for name, value in held}
            own = {value.untyped_storage()._cdata for value in state.values()}
            storages: dict[int, torch.UntypedStorage] = {}

            def keep(tensor: Tensor, kept: dict[int, torch.UntypedStorage] = storages) -> Tensor:
                if isinstance(tensor, FakeTensor):
                    storage = tensor.untyped_storage()
                    kept[storage._cdata] = storage
                return tensor

            try:
                with saved_tensors_hooks(keep, lambda tensor: tensor):
                    results = functional_call(stage, state, values, given)
            except (DataDependentOutputException, DynamicOutputShapeException):
                arguments = (*values, *(given[name] for name in stage.inputs))
                raise PyPMError(_by_data(stage, len(found), arguments)) from None
            saved = sum(part.nbytes() for key, part in storages.items() if key not in own)
            tracked = {id(value) for value in values if value.requires_grad}
            is_divisible = all(tracked & {*_leaves(r)} for r in results if r.grad_fn is not None)
            found.append(Exchange(_meta(values), _meta(results), saved, is_divisible))
            values = tuple(each.detach().requires_grad_(each.requires_grad) for each in results)
    return found


def _by_data(stage: Stage, index: int, arguments: Sequence[object]) -> Diagnostic:
    """Return the diagnostic for a stage that cannot run without the elements of a tensor."""
    last = _LastNode(stage.module)
    with suppress(DataDependentOutputException, DynamicOutputShapeException):
        last.run(*arguments)
    return Diagnostic(
        f"`{last.node}` of stage {index} reads a number or a size from data",
        notes=("the tensors that stages exchange have sizes that are known before a run",),
        help="compute it outside of the model and pass it as an input, or write the model with "
        "masks and `torch.where`",
    )


class _LastNode(fx.Interpreter):
    """An interpreter that keeps the node that it ran last."""

    node: fx.Node

    def run_node(self, n: fx.Node) -> fx.node.Argument:
        self.node = n
        found: fx.node.Argument = super().run_node(n)
        return found


def stage_costs(cut: Cut, *args: object, **kwargs: object) -> list[StageCost]:
    """Return the costs of the stages for a microbatch: seconds and bytes.

    Arguments:
        cut: the result of `stages`.
        args, kwargs: the inputs of the program for one microbatch, by position or by name.

    The forward takes the time that the cut was balanced by, and so do the gradients of inputs and
    those of weights. Raises PyPMError if the inputs do not fit the program, or if a number or a
    size in it depends on data.
    """
    inputs = cut.named(args, kwargs)
    costs: list[StageCost] = []
    for seconds, each in zip(cut.seconds, exchanges(cut, inputs), strict=True):
        is_last = len(costs) == len(cut.stages) - 1
        sent = () if is_last else each.sent
        returned = [value for value in sent if value.requires_grad]
        costs.append(
            StageCost(seconds, seconds, seconds, each.saved, _bytes(sent), _bytes(returned))
        )
    return costs


def _bytes(values: tuple[Tensor, ...] | list[Tensor]) -> int:
    return sum(value.numel() * value.dtype.itemsize for value in values)


def _meta(values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device="meta"
        ).requires_grad_(value.requires_grad)
        for value in values
    )


def _leaves(result: Tensor) -> Iterator[int]:
    """Yield the identities of the leaves that a value is computed from."""
    todo, seen = [result.grad_fn], set()
    while todo:
        function = todo.pop()
        if function is not None and function not in seen:
            seen.add(function)
            todo += [each for each, _ in function.next_functions]
            yield id(getattr(function, "variable", None))
