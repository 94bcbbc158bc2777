"""Forms in which models write attention beside the usual ones, and their near misses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import every, rewrite
from pypm.rules import attention
from tests.axes import axes
from tests.rules.test_attention import run

torch.set_num_threads(1)

LOWEST: Final = torch.finfo(torch.float64).min
MASK: Final = torch.zeros(2, 1, 5, 5, dtype=torch.float64)
MASK[0, :, :, 3:] = LOWEST
MASK[1, :, 2] = LOWEST
"""It hides keys; in the second batch, all keys of a query."""
BIAS: Final = torch.linspace(-2, 2, 30, dtype=torch.float64).reshape(1, 6, 1, 5)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def operands(q: str = "bhsd", k: str = "bhsd", v: str = "bhsd") -> list[Tensor]:
    """Return random operands of two batches, six heads, five tokens and width 8; `1` has size 1."""
    made = torch.Generator().manual_seed(0)
    sizes = {"b": 2, "h": 6, "s": 5, "d": 8, "1": 1, "n": 12}
    return [
        torch.randn([sizes[c] for c in shape], generator=made, dtype=torch.float64)
        for shape in (q, k, v)
    ]


def raised(x: Tensor, m: Tensor, low: float, way: Callable[..., Tensor] = torch.max) -> Tensor:
    """XGLM, older OPT: what two masks made infinite becomes the lowest number, in other shapes."""
    scores = x.view(2, 6, 5, 5) + m
    return way(scores, torch.full((), low, dtype=x.dtype)).view(12, 5, 5)


def stabilized(x: Tensor, m: Tensor, axis: int = -1, back: float = 32.0) -> Tensor:
    """CogView, in LayoutLMv3: scores less their largest, while they are small."""
    small = (x + m) / 32.0
    return (small - small.amax(dim=axis).unsqueeze(axis)) * back


ONE_HEAD: Final = ("bhsd", "b1sd", "b1sd")
FORMS: Final[dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]]] = {
    "one head of keys": (lambda q, k, v, m, b: softmax(q @ k.mT) @ v, ONE_HEAD),
    "one head of keys, a scale and a bias": (
        lambda q, k, v, m, b: softmax(q @ k.mT * 0.3 + b) @ v,
        ONE_HEAD,
    ),
    "one head of keys, and a mask": (
        lambda q, k, v, m, b: softmax(q @ k.mT / 3.0 + m) @ v,
        ONE_HEAD,
    ),
    "slopes before the scale, in another shape": (
        lambda q, k, v, m, b: softmax(((q @ k.mT).view(2, 6, 5, 5) + b) * 0.3 + m) @ v,
        ONE_HEAD,
    ),
    "raised to the lowest number": (
        lambda q, k, v, m, b: torch.bmm(softmax(raised(torch.bmm(q, k.mT), m, LOWEST)), v),
        ("nsd", "nsd", "nsd"),
    ),
    "clamped at the lowest number": (
        lambda q, k, v, m, b: softmax((q @ k.mT + 2 * m).clamp(min=LOWEST)) @ v,
        ("bhsd",) * 3,
    ),
    "keys as columns": (
        lambda q, k, v, m, b: softmax(q @ k / 3.0 + m) @ v,
        ("bhsd", "bhds", "bhsd"),
    ),
    "keys as columns, values too": (
        lambda q, k, v, m, b: softmax(q @ k.view(2, 6, 8, 5) + b) @ v.permute(0, 1, 3, 2),
        ("bhsd", "bhds", "bhds"),
    ),
    "less the largest": (lambda q, k, v, m, b: softmax(stabilized(q @ k.mT, m)) @ v, ("bhsd",) * 3),
}


COLUMNS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "as they are": lambda k: k,
    "permuted": lambda k: k.permute(0, 1, 2, 3).contiguous() * 0.3,
    "reshaped": lambda k: k.reshape(k.shape[0], k.shape[1], 6, 6),
}


@axes(name=COLUMNS, shape=[(1, 1, 6, 6), (6, 6, 6, 6)], way=["export", "decomposed"])
def test_columns_that_shapes_do_not_tell(name: str, shape: tuple[int, ...], way: str) -> None:
    """Keys that are not transposed are columns, also where there are as many as elements."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return softmax(q @ COLUMNS[name](k)) @ v

    made = torch.Generator().manual_seed(0)
    args = [torch.randn(shape, generator=made, dtype=torch.float64) for _ in "qkv"]
    report, result = run(way, function, args)
    assert len(report) == 1, str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


@axes(name=FORMS, way=["export", "decomposed"])
def test_forms(name: str, way: str) -> None:
    function, shapes = FORMS[name]
    args = [*operands(*shapes), MASK, BIAS]
    report, result = run(way, function, args)
    assert len(report) == 1, str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


def test_keys_that_a_decomposition_broadcasts() -> None:
    """Below autograd, keys of one group for all are expanded: each head has columns of its own."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return softmax(q @ k.transpose(-2, -1)) @ v

    made = torch.Generator().manual_seed(0)
    shapes = [(2, 2, 2, 5, 8), (2, 1, 2, 7, 8), (2, 1, 2, 7, 8)]
    args = [torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes]
    report, result = run("decomposed", function, args)
    assert len(report) == 1, str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


MISSES: Final[dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]]] = {
    "raised to a number that scores reach": (
        lambda q, k, v, m, b: torch.bmm(softmax(raised(torch.bmm(q, k.mT), m, -1e6)), v),
        ("nsd",) * 3,
    ),
    "the least of both": (
        lambda q, k, v, m, b: torch.bmm(
            softmax(raised(torch.bmm(q, k.mT), m, LOWEST, torch.min)), v
        ),
        ("nsd",) * 3,
    ),
    "less the largest of each column": (
        lambda q, k, v, m, b: softmax(stabilized(q @ k.mT, m, axis=-2)) @ v,
        ("bhsd",) * 3,
    ),
    "turned around after the largest": (
        lambda q, k, v, m, b: softmax(stabilized(q @ k.mT, m, back=-math.inf)) @ v,
        ("bhsd",) * 3,
    ),
    "as many keys as elements, transposed weights": (
        lambda q, k, v, m, b: softmax(q @ k).mT @ v,
        ("bhss", "bhss", "bhss"),
    ),
    "softmax over queries": (
        lambda q, k, v, m, b: torch.softmax(q @ k, -2) @ v,
        ("bhss", "bhss", "bhss"),
    ),
}


@axes(name=MISSES, way=["export", "decomposed"])
def test_near_misses(name: str, way: str) -> None:
    function, shapes = MISSES[name]
    args = [*operands(*shapes), MASK, BIAS]
    report, result = run(way, function, args)
    assert len(report) == 0, str(report)
    torch.testing.assert_close(result, function(*args), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("form", ["written out", "with a mask", "called"])
def test_eight_bits_are_declined(form: str, dtype: torch.dtype) -> None:
    """Torch promotes no such type, and has no kernel for it; a body that asks raises."""

    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        if form == "called":
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return softmax(q @ k.mT + m if form == "with a mask" else q @ k.mT) @ v

    args = [x.to(dtype) for x in (*operands(), MASK.clamp(min=-8))]
    gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*args)
    report = rewrite(gm, attention.RULES, choose=every)
    assert len(report) == 0
    reasons = {refusal.reason for refusal in report.refusals if refusal.kind == "declined"}
    assert any("float8" in reason for reason in reasons), reasons
