"""`k(k(x)) -> x` over random chains until nothing matches: one normal form in every tool."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from benchmarks.jobs import Job
from benchmarks.terms import UNARY, Call, Rule, Subject, Var

__all__ = ["job", "jobs"]

OPERATORS = UNARY[:7]
LENGTH = 16


def jobs(nodes: Sequence[int]) -> Iterator[Job]:
    for size in sorted(nodes):
        yield job(size)


def job(nodes: int, seed: int = 0) -> Job:
    """Chains of 16 operators of 7 kinds, each from an input of its own."""
    drawn = random.Random(f"{seed} {nodes}")
    chains = max(1, nodes // LENGTH)
    calls: list[tuple[str, tuple[int, ...]]] = []
    outputs, remaining = [], 0
    for chain in range(chains):
        names = [drawn.choice(OPERATORS) for _ in range(LENGTH)]
        remaining += _normal_form(names)
        for position, name in enumerate(names):
            calls.append((name, (chains + len(calls) - 1 if position else chain,)))
        outputs.append(chains + len(calls) - 1)
    x = Var("x")
    return Job(
        part="fixpoint",
        series="pairs",
        label=f"{len(calls)} nodes",
        rules=tuple(Rule(Call(k, (Call(k, (x,)),)), x) for k in OPERATORS),
        subject=Subject(chains, tuple(calls), tuple(outputs)),
        rewrites=None,  # tools that share equal values make fewer
        facts={"nodes": len(calls)},
        fixpoint=True,
        remaining=remaining,
    )


def _normal_form(names: Sequence[str]) -> int:
    """The length of a chain without neighbours that are equal, by a stack."""
    stack: list[str] = []
    for name in names:
        if stack and stack[-1] == name:
            stack.pop()
        else:
            stack.append(name)
    return len(stack)
