"""The grouping of consecutive blocks into stages of nearly equal cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["balanced"]


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
