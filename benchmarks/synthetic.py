"""Chains of four-operator blocks under many rules, without hits and with some."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

from benchmarks.jobs import Job
from benchmarks.terms import UNARY, Call, Rule, Subject, Var

__all__ = ["MOST_RULES", "job", "jobs"]

Key = tuple[str, str, str, str]
"""The operators of a block from the root down: r, m, b, l."""
WEIGHTS = 16
MOST_RULES = 1000


def jobs(nodes: Sequence[int], rules: Sequence[int], hits: Sequence[int]) -> Iterator[Job]:
    """Every combination, from small to large."""
    for size, percent, count in product(sorted(nodes), sorted(hits), sorted(rules)):
        yield job(size, count, percent)


def job(nodes: int, rules: int, hits: int, seed: int = 0) -> Job:
    """Blocks `l=u(prev); b=bin(l,w); m=u(b); r=u(m)` and rules `r(m(b(l(x), y))) -> max(x, y)`.

    `hits` percent of the blocks match a rule; the others combine the same operators otherwise.
    Half of all combinations are kept for rules. Six unary operators are enough of them for 216
    rules, ten for 1000.
    """
    drawn = random.Random(f"{seed} {nodes} {rules} {hits}")
    unary = UNARY[: 6 if rules <= 216 else 10]
    keys: list[Key] = list(product(unary, unary, ("add", "mul"), unary))
    drawn.shuffle(keys)
    wanted, other = keys[: len(keys) // 2][:rules], keys[len(keys) // 2 :]
    if len(wanted) < rules:
        raise ValueError(f"at most {MOST_RULES} rules, not {rules}")
    blocks = max(1, nodes // 4)
    struck = set(drawn.sample(range(blocks), round(blocks * hits / 100)))
    calls: list[tuple[str, tuple[int, ...]]] = []
    previous = 0
    for block in range(blocks):
        root, middle, binary, leaf = drawn.choice(wanted if block in struck else other)
        last = 1 + WEIGHTS + len(calls)
        calls += [
            (leaf, (previous,)),
            (binary, (last, 1 + drawn.randrange(WEIGHTS))),
            (middle, (last + 1,)),
            (root, (last + 2,)),
        ]
        previous = last + 3
    return Job(
        part="synthetic",
        series=f"{hits} % hits",
        label=f"{len(calls)} nodes, {rules} rule{'s' * (rules > 1)}, {hits} % hits",
        rules=tuple(map(_rule, wanted)),
        subject=Subject(1 + WEIGHTS, tuple(calls), (previous,)),
        rewrites=len(struck),
        facts={"nodes": len(calls), "rules": rules, "hits": hits},
    )


def _rule(key: Key) -> Rule:
    root, middle, binary, leaf = key
    x, y = Var("x"), Var("y")
    pattern = Call(root, (Call(middle, (Call(binary, (Call(leaf, (x,)), y)),)),))
    return Rule(pattern, Call("maximum", (x, y)))
