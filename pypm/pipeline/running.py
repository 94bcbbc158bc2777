"""Training steps of a cut program, run by torch's pipeline runtime on the ranks of a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import chain
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.distributed.pipelining import PipelineStage
from torch.utils.checkpoint import checkpoint

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx.subject.memory import allocations
from pypm.pipeline.cutting import Cut, Inputs, Stage, effects_in
from pypm.pipeline.exchange import Exchange, exchanges
from pypm.pipeline.plan import Kind, Plan, Schedule, plan
from pypm.pipeline.stalls import Followed, Progress
from pypm.torch_internals import Computation, PipelineAction, PipelineRuntime

__all__ = ["Loss", "Pipeline", "Prepare", "Result"]

Loss: TypeAlias = Callable[..., Tensor]
"""Takes the result of the program for a microbatch (a tuple if there are several) and the target,
if one is given; returns a scalar."""
Prepare: TypeAlias = Callable[[nn.Module], nn.Module]
"""Takes the graph of a stage, and returns what computes the same: rewritten, or compiled."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a step, on the rank of the last stage; elsewhere both are None."""

    loss: Tensor | None
    """The mean or the sum of the losses of the microbatches."""
    outputs: tuple[Tensor, ...] | None
    """The results of the program for the whole batch, if they were asked for."""


class _Local(nn.Module):
    """A stage as torch's runtime calls it: with the number of a microbatch."""

    def __init__(self, stage: Stage, is_recomputed: bool) -> None:
        super().__init__()
        self.stage = stage
        self.is_recomputed = is_recomputed
        self.batch: Sequence[Inputs] = ()

    def forward(self, *values: Tensor, microbatch: Tensor) -> tuple[Tensor, ...]:
        inputs = self.batch[int(microbatch)]
        if not self.is_recomputed:
            results: tuple[Tensor, ...] = self.stage(*values, **inputs)
            return results
        run = partial(self.stage, **inputs)
        again: tuple[Tensor, ...] = checkpoint(run, *values, use_reentrant=False)
        return again


@dataclass(eq=False, repr=False)
class Pipeline:
    """The stages of a cut that belong to this rank, and the steps that train them.

    Arguments:
        cut: the result of `stages`; each rank makes the same one, with the same weights.
        schedule: a schedule for the stages of the cut, on as many ranks as there are processes.
        microbatches: the number of parts of a batch.
        loss: the loss of a microbatch; by default the only result of the program is its loss.
        reduction: whether a step's loss is the mean or the sum of those of the microbatches.
        whole: names of inputs that each microbatch gets whole; others are divided along dim 0.
        prepare: is given the graph of each stage of this rank, and returns what runs instead.
        recompute: stages that keep no activations: their forward is run again by the backward.

    Call it in a process group: under `launch`, or `torchrun` and `init_process_group`. Raises
    PyPMError if there is none, or of another size, for a schedule that `plan` refuses, and for a
    stage in `recompute` that writes a buffer or an input.
    """

    cut: Cut
    schedule: Schedule
    _: KW_ONLY
    microbatches: int
    loss: Loss | None = None
    reduction: Literal["mean", "sum"] = "mean"
    whole: Collection[str] = ()
    prepare: Prepare | None = None
    recompute: Collection[int] = ()

    def __post_init__(self) -> None:
        cut = self.cut
        self.plan = plan(self.schedule, stages=len(cut.stages), microbatches=self.microbatches)
        self.rank = _rank(self.plan)
        _check_recompute(cut, self.recompute)
        owned = [s for s, rank in enumerate(self.plan.rank_of) if rank == self.rank]
        self.stages = {s: _Local(self._prepared(cut.stages[s]), s in self.recompute) for s in owned}
        self._ties = _Ties(cut, self.plan, self.rank)
        self._order = [
            task.microbatch
            for task in self.plan.ranks[self.plan.rank_of[-1]]
            if task.kind is Kind.FORWARD and task.stage == self.plan.stages - 1
        ]
        self._key: object = None
        self._targets: Sequence[Inputs] | None = None
        self._runtime: PipelineRuntime | None = None
        self._progress: Progress | None = None

    def _prepared(self, stage: Stage) -> Stage:
        if self.prepare is None:
            return stage
        return Stage(self.prepare(stage.module), stage.received, stage.inputs, stage.sent)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the weights of this rank, each once, with the names that the program has."""
        seen: set[nn.Parameter] = set()
        for index in self.stages:
            for name, weight in self.cut.stages[index].module.named_parameters():
                if weight not in seen:
                    seen.add(weight)
                    yield name, weight

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights of this rank, for an optimizer."""
        for _, weight in self.named_parameters():
            yield weight

    def step(
        self, *args: object, target: object = None, outputs: bool = False, **kwargs: object
    ) -> Result:
        """Compute the loss of a batch, and add its gradients to those of the weights.

        Arguments:
            args, kwargs: the inputs of the program, by position or by name, the whole batch on each
                rank. Each is divided into microbatches, unless it is in `whole` or no tensor.
            target: what the loss is given beside the results; a tensor is divided as inputs are.
            outputs: True to return the results of the program.

        The optimizer is the caller's: `zero_grad` before, its `step` afterwards. Gradients of
        weights that several stages use are summed. Raises PyPMError if a batch cannot be divided,
        an input requires gradients, a stage fails, or another rank does not answer in time.
        """
        inputs = self.cut.named(args, kwargs)
        batch = self._divided(inputs)
        self._targets = None if target is None else self._divided({"target": target})
        runtime = self._ready(batch)
        for local in self.stages.values():
            local.batch = batch
        progress = self._progress
        assert progress is not None
        progress.begin()
        losses: list[Tensor] = []
        order = torch.tensor(self._order)
        try:
            self._ties.set_aside()
            results = runtime.step(
                microbatch=order, target=order, losses=losses, return_outputs=outputs
            )
            self._ties.reduce()
        except Exception as error:
            raise progress.blame(error) from error
        if not losses:
            return Result(None, None)
        return Result(torch.stack([each.detach() for each in losses]).sum(), self._whole(results))

    # --- microbatches -------------------------------------------------------------------------

    def _divided(self, values: Inputs) -> list[dict[str, object]]:
        """Return the values of each microbatch by name."""
        count = self.plan.microbatches
        found: list[dict[str, object]] = [{} for _ in range(count)]
        for name, value in values.items():
            parts: Sequence[object] = [value] * count
            if isinstance(value, Tensor):
                if value.requires_grad:
                    message = f"`{name}` requires gradients, which a pipeline does not compute"
                    raise PyPMError(Diagnostic(message, help="pass `value.detach()`"))
                if value.dim() and name not in self.whole:
                    if len(value) % count or not len(value):
                        message = (
                            f"`{name}` has {len(value)} rows, which make no {count} equal parts"
                        )
                        help = (
                            "take a multiple of the number of microbatches, or name it in `whole`"
                        )
                        raise PyPMError(Diagnostic(message, help=help))
                    parts = value.chunk(count)
            for row, part in zip(found, parts, strict=True):
                row[name] = part
        return found

    def _whole(self, results: object) -> tuple[Tensor, ...] | None:
        """Put the results of microbatches, which are in the order of forwards, in the batch's."""
        if results is None:
            return None
        assert isinstance(results, (tuple, list))
        count = self.plan.microbatches
        places = sorted(range(count), key=self._order.__getitem__)
        return tuple(torch.cat([each.chunk(count)[index] for index in places]) for each in results)

    # --- torch's runtime ----------------------------------------------------------------------

    def _loss(self, results: tuple[Tensor, ...], index: Tensor) -> Tensor:
        try:
            value = self._loss_of(results, int(index))
        except Exception as error:  # as torch does for errors of a stage: `Progress` relies on it
            raise RuntimeError("the loss cannot be computed") from error
        return value / self.plan.microbatches if self.reduction == "mean" else value

    def _loss_of(self, results: tuple[Tensor, ...], microbatch: int) -> Tensor:
        if self.loss is None:
            (value,) = results
            return value
        result = results[0] if len(results) == 1 else results
        if self._targets is None:
            return self.loss(result)
        return self.loss(result, self._targets[microbatch]["target"])

    def _ready(self, batch: Sequence[Inputs]) -> PipelineRuntime:
        """Return the runtime for microbatches of these shapes, and the weights that are trained."""
        shapes = [
            (name, value.shape, value.dtype) if isinstance(value, Tensor) else (name, value)
            for name, value in batch[0].items()
        ]
        weights = chain.from_iterable(stage.parameters() for stage in self.cut.stages)
        key = shapes, [weight.requires_grad for weight in weights]
        if self._runtime is None or key != self._key:
            found = exchanges(self.cut, batch[0])
            make: Callable[..., PipelineRuntime] = PipelineRuntime
            runtime = make(
                [self._torch_stage(index, found[index]) for index in self.stages],
                self.plan.microbatches,
                loss_fn=self._loss,
                scale_grads=False,
            )
            place = {microbatch: i for i, microbatch in enumerate(self._order)}
            actions: dict[int, list[PipelineAction | None]] = {
                rank: [
                    PipelineAction(task.stage, Computation(task.kind.value), place[task.microbatch])
                    for task in tasks
                ]
                for rank, tasks in enumerate(self.plan.ranks)
            }
            runtime._prepare_schedule_with_comms(actions)
            self._progress = Progress(runtime.pipeline_order_with_comms, self.rank)
            own = runtime.pipeline_order_with_comms[self.rank]
            runtime.pipeline_order_with_comms[self.rank] = Followed(own, self._progress)
            self._runtime, self._key = runtime, key
        return self._runtime

    def _torch_stage(self, index: int, found: Exchange) -> PipelineStage:
        """Return a stage for torch's runtime, which is told all shapes, so that it tries none."""
        local = self.stages[index]
        weights = [*local.parameters()]
        device = weights[0].device if weights else torch.device("cpu")
        is_whole = self.prepare is not None or index in self.recompute or not found.is_divisible
        return PipelineStage(
            local,
            index,
            self.plan.stages,
            device,
            input_args=found.received,
            output_args=found.sent,
            dw_builder=(lambda: _nothing) if is_whole and index > 0 else None,
        )


def _nothing() -> None:
    """Compute no gradients of weights: those of inputs came with them."""


def _rank(plan: Plan) -> int:
    """Return the rank of this process. Raises PyPMError unless there is a process for each rank."""
    ranks = len(plan.ranks)
    if not dist.is_initialized():
        help = "call it under `launch`, or under `torchrun` after `init_process_group`"
        raise PyPMError(
            Diagnostic("a pipeline runs in a process group, and there is none", help=help)
        )
    if dist.get_world_size() != ranks:
        message = f"the schedule has {ranks} ranks, and there are {dist.get_world_size()} processes"
        raise PyPMError(Diagnostic(message, help="launch a process for each rank"))
    return dist.get_rank()


def _check_recompute(cut: Cut, recompute: Collection[int]) -> None:
    """Raise PyPMError for stages that do not exist, or whose forward cannot run twice."""
    for index in recompute:
        if not 0 <= index < len(cut.stages):
            raise PyPMError(Diagnostic(f"there is no stage {index} that could be computed again"))
        module = cut.stages[index].module
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                for written in chain(*map(allocations, effects_in(module, node).writes)):
                    if written.op in ("get_attr", "placeholder"):
                        message = f"stage {index} cannot be computed again: it writes"
                        help = "leave the stage out of `recompute`"
                        raise PyPMError(Diagnostic(f"{message} `{written.target}`", help=help))


class _Ties:
    """Weights that several ranks use: their gradients are summed over these ranks."""

    def __init__(self, cut: Cut, plan: Plan, rank: int) -> None:
        self.weights: list[tuple[nn.Parameter, dist.ProcessGroup]] = []
        self.before: list[Tensor | None] = []
        groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for tie in cut.ties:
            ranks = tuple(sorted({plan.rank_of[stage] for stage, _ in tie}))
            if len(ranks) > 1 and ranks not in groups:
                groups[ranks] = dist.new_group([*ranks])  # all ranks call it, in one order
            stage, name = next((s, n) for s, n in tie if plan.rank_of[s] == rank or s == tie[-1][0])
            weight = cut.stages[stage].module.get_parameter(name)
            if rank in ranks and len(ranks) > 1:
                self.weights.append((weight, groups[ranks]))

    def set_aside(self) -> None:
        """Take away the gradients of earlier steps, which were summed already."""
        self.before = [weight.grad for weight, _ in self.weights]
        for weight, _ in self.weights:
            weight.grad = None

    def reduce(self) -> None:
        """Sum the gradients of this step over the ranks, and add those of earlier steps."""
        for (weight, group), before in zip(self.weights, self.before, strict=True):
            if not weight.requires_grad:
                weight.grad = before
                continue
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(gradient, group=group)
            weight.grad = gradient if before is None else before + gradient
