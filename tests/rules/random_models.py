"""Random small models: layers in random spellings, some nearly what a rule looks for.

A model is a plan: sizes, a stem, and layers, each a kind, a seed and the choices that differ from
the plainest. A layer keeps its weights when others, or some of its choices, are dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from tests.rules.combinations import (
    BY_TOKEN,
    MASKS,
    NEAR_PRODUCTS,
    NEAR_SOFTMAXES,
    NEAR_STEPS,
    PLACES,
    PRODUCTS,
    SCALES,
    SOFTMAXES,
    SQUARE,
)
from tests.rules.model_layers import (
    ACTIVATIONS,
    CAUSAL,
    KINDS,
    LINEARS,
    MIXES,
    NORMS,
    Context,
    Sizes,
)

__all__ = ["Layer", "Model", "Plan", "Sizes", "draw_plan", "smaller"]

JUMPS: Final = {
    "rounded",
    "integers",
    "weights as integers",
    "scale for each key",
    "regrouped along keys",
}
"""Left out: what makes a large error of a rounding error, and what holds the sizes of its file."""
OF_ROWS: Final = [name for name in PRODUCTS if name != "columns"]
"""The products of queries and keys that are not stored as columns."""
ROUNDED: Final = {"upcast", "float", "squares in float32"}


@dataclass(frozen=True)
class Layer:
    kind: str
    seed: int
    choices: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{key}={value!r}" for key, value in self.choices.items())])


@dataclass(frozen=True)
class Plan:
    """All that makes a model."""

    seed: int
    sizes: Sizes
    stem: str
    layers: tuple[Layer, ...]
    dtype: torch.dtype = torch.float64
    on_gpu: bool = False
    """Whether rules act as on a GPU."""

    def __str__(self) -> str:
        where = ", as on a GPU" * self.on_gpu
        head = f"seed {self.seed}, {self.dtype}, {self.stem}, {self.sizes}{where}"
        return "\n".join([head, *(f"  {layer}" for layer in self.layers)])

    @property
    def sites(self) -> int:
        """Attention that is no near miss. Some of it may still have to be left alone."""
        return sum(x.kind == "attention" and "near" not in x.choices for x in self.layers)

    @property
    def rounds(self) -> bool:
        """Whether something is computed in float32 whatever the rest is in."""
        return any(ROUNDED & {*x.choices.values()} for x in self.layers)

    def inputs(self) -> tuple[Tensor, ...]:
        """What the stem takes, other tokens, a mask of numbers and one of bits."""
        made = torch.Generator().manual_seed(self.seed)
        n = self.sizes

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=made, dtype=torch.float64).to(self.dtype)

        longest = max(n.length, n.other)
        bits = torch.rand(n.batch, 1, n.length, longest, generator=made) < 0.6
        bits[..., 0] = True
        match self.stem:
            case "embedding":
                first = torch.randint(VOCABULARY, (n.batch, n.length), generator=made)
            case "convolution":
                rows = rows_of(n.length)
                first = normal(n.batch, 3, 2 * rows, 2 * (n.length // rows))
            case _:
                first = normal(n.batch, n.length, n.inner)
        mask = normal(n.batch, 1, n.length, longest)
        return first, normal(n.batch, n.other, n.width), mask, bits


VOCABULARY: Final = 11


def rows_of(length: int) -> int:
    """Rows of an image of so many patches."""
    return next((n for n in (2, 3) if length % n == 0), 1)


class Stem(nn.Module):
    """Tokens [batch, length, width] from what a model is given."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        n, self.kind = plan.sizes, plan.stem
        match self.kind:
            case "embedding":
                self.tokens = nn.Embedding(VOCABULARY, n.width)
                self.places = nn.Embedding(n.length, n.width)
            case "convolution":
                self.patches = nn.Conv2d(3, n.width, 2, stride=2)
            case _:
                self.linear = nn.Linear(n.inner, n.width)

    def forward(self, x: Tensor) -> Any:
        match self.kind:
            case "embedding":
                return self.tokens(x) + self.places(torch.arange(x.shape[1]))
            case "convolution":
                return self.patches(x).flatten(2).transpose(1, 2)
        return self.linear(x)


class Model(nn.Module):
    """The model of a plan. Gives its last value, and what layers give beside."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        torch.manual_seed(plan.seed)
        self.stem = Stem(plan)
        self.layers = nn.ModuleList()
        for layer in plan.layers:
            torch.manual_seed(layer.seed)
            self.layers.append(KINDS[layer.kind](plan.sizes, layer.choices))
        self.to(plan.dtype).eval().requires_grad_(False)

    def forward(self, first: Tensor, memory: Tensor, mask: Tensor, bits: Tensor) -> Any:
        context = Context(memory, mask, bits, [])
        values = [self.stem(first)]
        for layer in self.layers:
            values.append(layer(values, context))
        return (values[-1], *context.beside)


# --- drawing -------------------------------------------------------------------------------------


def draw_plan(seed: int) -> Plan:
    draw = random.Random(seed)
    sizes = _sizes(draw)
    stem = draw.choice(["embedding", "linear", "linear", "convolution"])
    dtype = torch.bfloat16 if draw.random() < 0.25 else torch.float64
    count = draw.choice([1, 2, 3, 4, 5])
    layers = tuple(_layer(draw, sizes) for _ in range(count))
    on_gpu = draw.random() < 0.5
    if on_gpu and draw.random() < 0.25:
        dtype = torch.float32
    return Plan(seed, sizes, stem, layers, dtype, on_gpu)


def _sizes(draw: random.Random) -> Sizes:
    """Mostly distinct ones, so that no two dimensions look alike; sometimes all may be equal."""
    alike = draw.random() < 0.2
    while True:
        groups, repeats = draw.choice([1, 2, 3]), draw.choice([1, 2, 2, 3])
        some = [draw.randint(2, 3) if alike else draw.randint(2, 11) for _ in range(4)]
        length, other, head, inner = some
        batch = draw.choice([1, 2, 3, 4])
        found = Sizes(batch, groups * repeats, groups, length, other, head, inner)
        distinct = {batch, found.heads, *some}
        if groups * repeats <= 6 and (alike or len(distinct) == 6):
            return found


def _layer(draw: random.Random, sizes: Sizes) -> Layer:
    kind = draw.choices(["attention", "feedforward", "norm", "mix"], [5, 3, 2, 1])[0]
    made = _DRAWN[kind](draw, sizes)
    kept = {key: value for key, value in made.items() if value}
    return Layer(kind, draw.randrange(2**31), kept)


def _sometimes(draw: random.Random, share: float, some: Sequence[str]) -> str:
    return draw.choice(some) if draw.random() < share else ""


def _attention(draw: random.Random, sizes: Sizes) -> dict[str, str]:
    crosses = draw.random() < 0.3
    square = not crosses or sizes.length == sizes.other
    by_token = draw.random() < 0.3
    own_mask = draw.random() < 0.15
    masks = [name for name in MASKS if name != "causal"]
    made = {
        "source": _sometimes(draw, 0.1, ["first", "before"]),
        "cross": "yes" if crosses else "",
        "project": "" if crosses else _sometimes(draw, 0.3, ["chunk", "five"]),
        "rotary": "yes" if sizes.head % 2 == 0 and draw.random() < 0.2 else "",
        "layout": "BSHD" if by_token else "",
        "product": draw.choice([*(BY_TOKEN if by_token else OF_ROWS)]),
        "scale": _sometimes(draw, 0.8, list(SCALES)),
        "place": draw.choice(PLACES),
        "mask": draw.choice([*CAUSAL]) if own_mask else _sometimes(draw, 0.6, masks),
        "softmax": _sometimes(draw, 0.4, [*SOFTMAXES]),
        "merge": _sometimes(draw, 0.3, ["permute", "contiguous"]),
        "output": _sometimes(draw, 0.3, ["none"]),
        "residual": _sometimes(draw, 0.5, ["left", "right"]),
        "beside": _sometimes(draw, 0.1, ["scores", "weights", "q", "k", "product"]),
    }
    if sizes.heads != sizes.groups and made["project"] == "" and draw.random() < 0.5:
        made["groups"] = draw.choice(["expand", "interleave"])
    if draw.random() < 0.2:
        near = sorted({*NEAR_STEPS, *NEAR_SOFTMAXES, *NEAR_PRODUCTS, "keys scaled each"} - JUMPS)
        made["near"] = draw.choice([name for name in near if square or name not in SQUARE])
        if made["near"] in NEAR_PRODUCTS:
            made |= {"layout": "", "product": draw.choice(OF_ROWS)}
    return made


def _feedforward(draw: random.Random, sizes: Sizes) -> dict[str, str]:
    return {
        "linear": draw.choice([*LINEARS]),
        "activation": draw.choice([*ACTIVATIONS]),
        "gate": _sometimes(draw, 0.25, ["left", "right"]),
        "beside": _sometimes(draw, 0.15, ["before", "after"]),
        "residual": _sometimes(draw, 0.5, ["left", "right"]),
    }


_DRAWN: Final[Mapping[str, Callable[[random.Random, Sizes], dict[str, str]]]] = {
    "attention": _attention,
    "feedforward": _feedforward,
    "norm": lambda draw, sizes: {"how": draw.choice([*NORMS])},
    "mix": lambda draw, sizes: {
        "how": draw.choice([*MIXES]),
        "other": draw.choice(["first", "before"]),
    },
}


# --- making smaller ------------------------------------------------------------------------------


def smaller(plan: Plan) -> list[Plan]:
    """Plans without one layer; then, without one choice of one layer."""
    found, layers = [], plan.layers
    for i in range(len(layers)):
        found.append(replace(plan, layers=(*layers[:i], *layers[i + 1 :])))
    if plan.stem != "linear":
        found.append(replace(plan, stem="linear"))
    for i, layer in enumerate(layers):
        for key in layer.choices:
            fewer = {k: v for k, v in layer.choices.items() if k != key}
            plainer = replace(layer, choices=fewer)
            found.append(replace(plan, layers=(*layers[:i], plainer, *layers[i + 1 :])))
    return found
