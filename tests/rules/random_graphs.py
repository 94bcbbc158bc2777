"""Random functions of tensors, rich in attention and in what nearly is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

N: Final = 3
"""Every size: no shape tells a mistake."""
NAMES: Final = ("x", "y", "z", "flat", "mask", "column", "bits", "w", "b", "t")

Values = list[Any]
Step = Callable[[Values], Any]


def inputs(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    made = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64).to(dtype)

    bits = torch.rand(N, N, generator=made) < 0.4
    bits[:, seed % N] = False
    four = (normal(N, N, N, N), normal(N, N, N, N), normal(N, N, N, N))
    rest = (normal(N, N, N), normal(N, N), normal(N, 1, 1, N), bits, normal(N, N), normal(N))
    return (*four, *rest, torch.tensor(0.7, dtype=dtype))


@dataclass
class Program:
    """Steps that each append a value; some write to an earlier one."""

    seed: int
    writes: bool = True
    steps: list[tuple[str, Step]] = field(default_factory=list)
    count: int = len(NAMES)
    tensors: list[int] = field(default_factory=lambda: [0, 1, 2])
    """Values of four dimensions."""

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        for _ in range(self.draw.randint(1, 3)):
            self.fragment()
        few = min(len(self.tensors), self.draw.randint(1, 3))
        self.results = [self.tensors[-1], *self.draw.sample(self.tensors, few - 1)]

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        values: Values = list(args)
        for _, step in self.steps:
            values.append(step(values))
        return tuple(values[i] for i in self.results)

    def __str__(self) -> str:
        lines = [f"{len(NAMES) + i}: {text}" for i, (text, _) in enumerate(self.steps)]
        return "\n".join([f"seed {self.seed}", *lines, f"return {self.results}"])

    def add(self, text: str, step: Step, *, keep: bool = False) -> int:
        self.steps.append((text, step))
        self.count += 1
        if keep or self.draw.random() < 0.1:
            self.tensors.append(self.count - 1)
        return self.count - 1

    def some(self) -> int:
        return self.draw.choice(self.tensors)

    def fragment(self) -> None:
        kind = self.draw.random()
        if kind < 0.6:
            self.attention()
        elif kind < 0.8:
            self.linear()
        else:
            self.tensors.append(self.changed(self.some()))

    def attention(self) -> None:
        q, k, v = self.some(), self.some(), self.some()
        q, k = self.maybe(self.scaled, q), self.maybe(self.scaled, k)
        k = self.transposed(k)
        if self.draw.random() < 0.15:
            k = self.scaled(k)
        scores = self.product(q, k)
        for _ in range(self.draw.randint(0, 3)):
            scores = self.stepped(scores)
            self.maybe(self.written, scores)
        weights = self.softmax(scores)
        for _ in range(self.draw.randint(0, 2)):
            weights = self.unchanged(weights)
            self.maybe(self.written, self.some())
        self.tensors.append(self.product(weights, self.maybe(self.unchanged, v)))

    def maybe(self, change: Callable[[int], int], value: int) -> int:
        return change(value) if self.draw.random() < 0.3 else value

    def product(self, a: int, b: int) -> int:
        if self.draw.random() < 0.3:
            merged = (N * N, N, N)
            return self.add(
                f"bmm of views {a} {b}",
                lambda e: torch.bmm(e[a].reshape(merged), e[b].reshape(merged)).view(N, N, N, N),
            )
        return self.add(f"{a} @ {b}", lambda e: e[a] @ e[b])

    def scaled(self, x: int) -> int:
        c = self.draw.choice([0.5, 2, -0.3, 1.0])
        how = self.draw.choice(["mul", "div", "tensor"])
        if how == "tensor":
            return self.add(f"{x} * t", lambda e: e[x] * e[9])
        if how == "mul":
            return self.add(f"{x} * {c}", lambda e: e[x] * c)
        return self.add(f"{x} / {c}", lambda e: e[x] / c)

    def transposed(self, x: int) -> int:
        if self.draw.random() < 0.75:
            return self.add(f"{x}^T", lambda e: e[x].transpose(-2, -1))
        order = self.draw.sample(range(4), 4)
        return self.add(f"{x}.permute({order})", lambda e: e[x].permute(order))

    def stepped(self, x: int) -> int:
        """One of the things that happen to scores."""
        m = self.draw.choice([3, 4, 5, self.some()])
        low = self.draw.choice([-1e9, -1e9, -3e38, -1e4, 0.0])
        c = self.draw.choice([0.5, 3.0])
        steps: list[tuple[str, Step]] = [
            (f"{x} + {m}", lambda e: e[x] + e[m]),
            (f"{m} + {x}", lambda e: e[m] + e[x]),
            (f"{x} - {m}", lambda e: e[x] - e[m]),
            (f"{x} + {c}", lambda e: e[x] + c),
            (f"where(bits, {low}, {x})", lambda e: torch.where(e[6], low, e[x])),
            (f"where(bits, {x}, {low})", lambda e: torch.where(e[6], e[x], low)),
            (f"{x}.masked_fill(bits, {low})", lambda e: e[x].masked_fill(e[6], low)),
            (f"{x} + bits", lambda e: e[x] + e[6]),
        ]
        if self.draw.random() < 0.4:
            return self.scaled(x)
        return self.add(*self.draw.choice(steps))

    def softmax(self, x: int) -> int:
        dim = self.draw.choice([-1, -1, -1, 3, 3, -2, 1])
        if self.draw.random() < 0.3:
            top = self.add(f"max {x}", lambda e: e[x].amax(dim, keepdim=True))
            exp = self.add(f"exp({x} - {top})", lambda e: torch.exp(e[x] - e[top]))
            return self.add(f"{exp} / sum", lambda e: e[exp] / e[exp].sum(dim, keepdim=True))
        return self.add(f"softmax({x}, {dim})", lambda e: torch.softmax(e[x], dim))

    def unchanged(self, x: int) -> int:
        steps: list[tuple[str, Step]] = [
            ("clone", lambda e: e[x].clone()),
            ("contiguous", lambda e: e[x].contiguous()),
            ("dropout in eval", lambda e: F.dropout(e[x], 0.5, False)),
            ("view", lambda e: e[x].reshape(N, N, N, N)),
            ("expand", lambda e: e[x].expand(N, N, N, N)),
            ("there and back", lambda e: e[x].reshape(N * N, N, N).reshape(N, N, N, N)),
            ("transposed twice", lambda e: e[x].transpose(0, 1).transpose(0, 1)),
        ]
        text, step = self.draw.choice(steps)
        return self.add(f"{text} of {x}", step)

    def changed(self, x: int) -> int:
        other = self.some()
        steps: list[tuple[str, Step]] = [
            (f"relu {x}", lambda e: torch.relu(e[x])),
            (f"gelu {x}", lambda e: F.gelu(e[x])),
            (f"tanh {x} + {other}", lambda e: torch.tanh(e[x]) + e[other]),
            (f"heads of {x} swapped", lambda e: e[x].transpose(0, 1)),
            (f"{x} reversed", lambda e: e[x].flip(1)),
        ]
        return self.add(*self.draw.choice(steps))

    def linear(self) -> None:
        x = self.some()
        y = self.add(f"linear {x}", lambda e: F.linear(e[x], e[7], e[8]))
        for _ in range(self.draw.randint(0, 2)):
            y = self.changed(y)
            self.maybe(self.written, y)
        self.tensors.append(y)

    def written(self, x: int) -> int:
        """A write to some value, or to the one at hand, or to a view of it."""
        if not self.writes:
            return x
        target = self.draw.choice([x, self.some(), 4, 5])
        steps: list[tuple[str, Step]] = [
            (f"{target}.add_(1)", lambda e: e[target].add_(1)),
            (f"{target}.mul_(0.5)", lambda e: e[target].mul_(0.5)),
            (f"view of {target} zeroed", lambda e: e[target].transpose(0, -1)[0].zero_()),
        ]
        self.add(*self.draw.choice(steps))
        return x
