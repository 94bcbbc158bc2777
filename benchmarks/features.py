"""What patterns can say: recursion, alternates, either order, several outputs, equal values."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from benchmarks.jobs import Job
from benchmarks.terms import BINARY, UNARY, Call, Chain, Either, Pattern, Rule, Subject, Var

__all__ = ["alternates", "chain", "commutative", "equal_values", "jobs", "outputs", "retry"]

SITES = 64
X = Var("x")
_CHAINED = tuple(name for name in UNARY if name not in ("log", "sqrt"))


class _Graph:
    """A subject in the making."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def call(self, operator: str, *arguments: int) -> int:
        assert operator in UNARY or operator in BINARY
        self.calls.append((operator, arguments))
        return self.inputs + len(self.calls) - 1

    def done(self, outputs: Sequence[int]) -> Subject:
        return Subject(self.inputs, tuple(self.calls), tuple(outputs))


def jobs(*, quick: bool = False) -> Iterator[Job]:
    for length in (10, 100) if quick else (10, 100, 1000, 10_000):
        yield chain(length)
    for depth in (2, 4) if quick else (2, 4, 6, 8, 10, 12):
        yield alternates(depth)
    yield retry()
    for leaves in (2, 4) if quick else (2, 4, 8):
        yield commutative(leaves)
    for pairs in (50,) if quick else (50, 100, 200, 400):
        yield outputs(pairs)
    for depth in (10,) if quick else (10, 100, 1000):
        yield equal_values(depth)


def _job(series: str, label: str, rule: Rule, subject: Subject, rewrites: int) -> Job:
    facts = {"nodes": len(subject.calls)}
    return Job("features", series, label, (rule,), subject, rewrites, facts, may_miss=True)


def chain(length: int) -> Job:
    """A chain of any length: `log(Chain(x)) -> sqrt(x)`."""
    drawn = random.Random(length)
    graph = _Graph(1)
    value = 0
    for _ in range(length - 1):
        value = graph.call(drawn.choice(_CHAINED), value)
    subject = graph.done([graph.call("log", value)])
    rule = Rule(Call("log", (Chain(X),)), Call("sqrt", (X,)))
    return _job("chain", f"recursive chain of {length}", rule, subject, 1)


def alternates(depth: int) -> Job:
    """`P_k(x) = sin(P_{k-1}(x)) | cos(P_{k-1}(x))`: 2^depth spellings, at 64 sites."""
    drawn = random.Random(depth)
    graph = _Graph(SITES)
    ends = []
    for site in range(SITES):
        value = site
        for _ in range(depth):
            value = graph.call(drawn.choice(("sin", "cos")), value)
        ends.append(graph.call("log", value))
    nested: Pattern = X
    for _ in range(depth):
        nested = Either(Call("sin", (nested,)), Call("cos", (nested,)))
    rule = Rule(Call("log", (nested,)), Call("sqrt", (X,)))
    return _job("alternates", f"alternates {depth} deep", rule, graph.done(ends), SITES)


def retry() -> Job:
    """`add(x | neg(x), x)` on `add(neg(a), a)`: the first alternative matches too soon."""
    graph = _Graph(SITES)
    ends = [graph.call("add", graph.call("neg", site), site) for site in range(SITES)]
    pattern = Call("add", (Either(X, Call("neg", (X,))), X))
    rule = Rule(pattern, Call("sin", (X,)))
    return _job("retry", "alternate chosen again", rule, graph.done(ends), SITES)


def commutative(leaves: int) -> Job:
    """Sums of sums, in any order: 2^(leaves-1) spellings, at 64 sites."""
    drawn = random.Random(leaves)
    graph = _Graph(SITES * leaves)
    ends = []
    for site in range(SITES):
        level = [graph.call(_CHAINED[i], site * leaves + i) for i in range(leaves)]
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [graph.call("add", *drawn.sample(pair, 2)) for pair in pairs]
        ends.append(graph.call("log", level[0]))
    parts: list[Pattern] = [Call(_CHAINED[i], (Var(f"x{i}"),)) for i in range(leaves)]
    while len(parts) > 1:
        parts = [Call("add", pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    replacement = Call("maximum", (Var("x0"), Var("x1")))
    rule = Rule(Call("log", (parts[0],)), replacement, commutes=True)
    return _job("commutative", f"commutative, {leaves} leaves", rule, graph.done(ends), SITES)


def outputs(pairs: int) -> Job:
    """`sin(x)` and `cos(x)` of one x, replaced together."""
    graph = _Graph(pairs)
    ends = [graph.call(name, site) for site in range(pairs) for name in ("sin", "cos")]
    more = ((Call("cos", (X,)), Call("sigmoid", (X,))),)
    rule = Rule(Call("sin", (X,)), Call("tanh", (X,)), more)
    return _job("outputs", f"two outputs, {pairs} pairs", rule, graph.done(ends), pairs)


def equal_values(depth: int) -> Job:
    """`add(x, x)`, where both sides are 2^depth products, equal but computed separately."""
    graph = _Graph(1)
    sides = [0, 0]
    for _ in range(depth):
        sides = [graph.call("mul", side, side) for side in sides]
    subject = graph.done([graph.call("add", *sides)])
    rule = Rule(Call("add", (X, X)), Call("sin", (X,)))
    return _job("equal_values", f"equal values, {depth} deep", rule, subject, 1)
