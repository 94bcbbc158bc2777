"""Programs cut into stages at the ends of blocks, with the slowest stage as fast as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import TypeAlias

from torch import fx
from torch.export import ExportedProgram

from pypm.choice.clock import Clock
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx.values.user_input import check_module
from pypm.pipeline.blocks import End, ends
from pypm.pipeline.cutting import Cut, cut_graph, is_check
from pypm.roofline import Hardware, bound

__all__ = ["Cost", "balanced", "measured", "stages"]

Cost: TypeAlias = Callable[[Sequence[fx.Node]], float]
"""Returns the time of a forward through some nodes, in seconds."""


def stages(
    program: ExportedProgram | fx.GraphModule,
    at: End | None = None,
    *,
    count: int,
    hardware: Hardware | str = "H100",
    cost: Cost | None = None,
) -> Cut:
    """Cut a program into stages of nearly equal cost.

    Arguments:
        program: an exported program, or a graph module with metadata and its weights as attributes;
            it is not changed, and the stages share its weights.
        at: a pattern whose root is the last value of a block: a stage ends where a block ends. By
            default blocks end where the model calls `mark_stage_end`; if it does not, they are the
            elements of its lists of modules.
        count: the number of stages.
        hardware: hardware, or the name of shipped one, for whose bounds the stages are balanced.
        cost: the time of a block, instead of its bound, as `measured()`; called once with the nodes
            of each block.

    Each weight is in the stages that use it; one that several use is in `Cut.ties`. Raises
    PyPMError if there are fewer blocks than stages, or where a value cannot be cut.
    """
    gm = program.module(check_guards=False) if isinstance(program, ExportedProgram) else program
    check_module(gm, "pypm.pipeline.stages")
    blocks = _blocks(gm, ends(gm, at))
    if not 1 <= count <= len(blocks):
        message = f"{len(blocks)} blocks cannot make {count} stages"
        raise PyPMError(Diagnostic(message, help=f"take 1 to {len(blocks)} stages"))
    costs = [cost(block) if cost else bound(block, hardware).seconds for block in blocks]
    sizes = balanced(costs, count)
    starts = [0, *accumulate(sizes)]
    groups = [range(start, start + size) for start, size in zip(starts, sizes, strict=False)]
    stage_of = {
        node: stage
        for stage, group in enumerate(groups)
        for node in chain.from_iterable(blocks[index] for index in group)
    }
    seconds = tuple(sum(costs[index] for index in group) for group in groups)
    inputs = tuple(node.name for node in gm.graph.find_nodes(op="placeholder"))
    return Cut(cut_graph(gm, stage_of, count), inputs, seconds, tuple(sizes))


def measured(*, seconds: float = 0.2) -> Cost:
    """Return a cost for `stages`: the time of a block on this machine, by `torch.compile`.

    A block runs by itself, on made-up values of its sizes and types, symbolic sizes at their hints.
    Times are kept where Inductor keeps its caches; equal blocks are timed once.

    Arguments:
        seconds: the time for all runs of one block.

    Raises PyPMError, when the cost is asked for, for a block that cannot be compiled or run.
    """
    clock = Clock(seconds)

    def cost(block: Sequence[fx.Node]) -> float:
        try:
            return clock({"block": block})["block"]
        except Exception as error:
            what = f"the block from `{block[0]}` to `{block[-1]}` cannot be timed"
            reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
            help = "balance the stages by bounds, or by a cost of your own"
            raise PyPMError(Diagnostic(what, notes=(reason,), help=help)) from error

    return cost


def _blocks(gm: fx.GraphModule, last: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Return the calls of each block; what follows the last end is a block of its own."""
    blocks: list[list[fx.Node]] = [[]]
    final = {*last}
    for node in gm.graph.nodes:
        if node.op.startswith("call_") and not is_check(node):
            blocks[-1].append(node)
        if node in final:
            blocks.append([])
    return [block for block in blocks if block]


def balanced(costs: Sequence[float], groups: int) -> list[int]:
    """Return the number of blocks in each group of consecutive blocks.

    Arguments:
        costs: the cost of each block.
        groups: how many groups to make, at most as many as there are blocks; none is empty.

    The costliest group is as cheap as possible. It takes time in proportion to `groups` and the
    square of the number of blocks.
    """
    total = [0.0, *accumulate(costs)]
    count = len(costs)
    # best[end]: the largest cost among the groups of the first `end` blocks, and where the last
    # of these groups starts
    best = [(cost, 0) for cost in total]
    starts: list[list[int]] = []
    for group in range(1, groups):
        later: list[tuple[float, int]] = [(float("inf"), 0)] * (count + 1)
        for end in range(group + 1, count + 1):
            later[end] = min(
                (max(best[start][0], total[end] - total[start]), start)
                for start in range(group, end)
            )
        best = later
        starts.append([start for _, start in best])
    sizes = []
    end = count
    for row in reversed(starts):
        sizes.append(end - row[end])
        end = row[end]
    return [end, *reversed(sizes)]
