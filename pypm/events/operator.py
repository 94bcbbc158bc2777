"""The operator `pypm::decoder_step`: one step of a stack of decoder layers by a program.

On CPUs, in C++, where there is a compiler; else torch computes what the program says, grid by grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.events.program import ACTIVATIONS, NORMS
from pypm.kernels.attention.dense import products
from pypm.kernels.support import native
from pypm.kernels.support.registration import custom_operator

__all__ = ["SOURCE", "TYPES", "compute", "decoder_step", "normed", "reference"]

SOURCE: Final = Path(__file__).with_name("step.cpp")
TYPES: Final = (torch.float32, torch.bfloat16)
"""Types of the kernel in C++: of all operands but masks, which are float32, and positions."""


def compute(x: Tensor, tensors: list[Tensor], program: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `reference` does; in C++, where it can be."""
    if unsupported(x):
        return reference(x, tensors, program)
    kernel = native.operator(SOURCE, "decoder_step_native")
    found: tuple[Tensor, Tensor, Tensor] = kernel(x, tensors, program)
    return found


def unsupported(x: Tensor) -> str | None:
    """Return why the kernel in C++ does not take these operands, or None."""
    return native.unsupported(SOURCE, TYPES, x)


def reference(x: Tensor, tensors: list[Tensor], program: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result of a program, and the new keys and values of all layers.

    Arguments:
        x: the rows of the batch, [*rows, width]; operand 0 of the program.
        tensors: the other operands.
        program: a text of `pypm.events.program`.

    Returns the result in the shape of x, keys and values [layers, batch, groups, 1, size]; these
    have no elements where the program has no attention.
    """
    return _Interpreter(x, tensors).run(program)


class _Interpreter:
    """Executes a program by torch's operators: a grid at a time."""

    def __init__(self, x: Tensor, tensors: Sequence[Tensor]) -> None:
        self.x = x
        self.values = {
            f"t{n}": each for n, each in enumerate((x.reshape(-1, x.shape[-1]), *tensors))
        }
        self.kinds: list[tuple[int, bool]] = []
        """Of each choice, how many experts a row has, and whether their weights are rounded."""
        self.choices: dict[str, tuple[Tensor, Tensor]] = {}
        """Numbers and weights of experts, [batch, top]."""
        self.keys: list[Tensor] = []
        self.new_values: list[Tensor] = []

    def run(self, program: str) -> tuple[Tensor, Tensor, Tensor]:
        choices = program.splitlines()[1].split("choices")[1].split()
        self.kinds = [
            (int(top), word == "1") for top, word in zip(choices[1::3], choices[3::3], strict=True)
        ]
        for line in program.splitlines()[5:]:
            words = iter(line.split())
            kind = next(words)
            _skip_events(words)
            getattr(self, f"_{kind}")(words)
        out, *news = empty(self.x, program)
        if self.keys:
            news = [torch.stack(each) for each in (self.keys, self.new_values)]
        return self.values["r"].reshape(out.shape), news[0], news[1]

    def _product(self, words: Iterator[str]) -> None:
        x, residual, out = self.values[next(words)], self.values.get(next(words)), next(words)
        x = self._normed(x, words)
        matrices = [[next(words) for _ in range(4)] for _ in range(2)]
        activation = ACTIVATIONS[int(next(words))]
        _, columns, _ = (int(next(words)) for _ in range(3))
        y, gate = (self._linear(x, each, columns) for each in matrices)
        assert y is not None
        y = _activated(y, activation) if gate is None else _activated(gate, activation) * y
        self.values[out] = y if residual is None else y + residual

    def _normed(self, x: Tensor, words: Iterator[str]) -> Tensor:
        kind = NORMS[int(next(words))]
        weight, bias = self.values.get(next(words)), self.values.get(next(words))
        eps, offset = float(next(words)), float(next(words))
        added = self.values.get(next(words), 0.0)
        return x if kind is None else normed(x, kind, (weight, offset), bias, eps + added)

    def _route(self, words: Iterator[str]) -> None:
        x = self._normed(self.values[next(words)], words)
        router, size = [next(words) for _ in range(4)], int(next(words))
        count = self.values[router[0]].numel() // size
        logits = self._linear(x, router, count)
        assert logits is not None
        wide = torch.promote_types(logits.dtype, torch.float32)
        is_normalized, choice = next(words) == "1", next(words)
        top, is_rounded = self.kinds[int(choice)]
        weights, numbers = logits.softmax(-1, dtype=wide).topk(top, -1)
        weights = weights / weights.sum(-1, keepdim=True) if is_normalized else weights
        self.choices[choice] = numbers, weights.to(x.dtype) if is_rounded else weights

    def _hidden(self, words: Iterator[str]) -> None:
        x, out = self.values[next(words)], next(words)
        x = self._normed(x, words)
        up, gate = ([next(words) for _ in range(4)] for _ in range(2))
        activation, _, columns, _ = (int(next(words)) for _ in range(4))
        numbers, _ = self.choices[next(words)]
        y, z = (self._by_experts(x[:, None], each, columns, numbers) for each in (up, gate))
        self.values[out] = _activated(z, ACTIVATIONS[activation]) * y

    def _sum(self, words: Iterator[str]) -> None:
        x, residual, out = self.values[next(words)], self.values[next(words)], next(words)
        down = [next(words) for _ in range(4)]
        _, columns, _ = (int(next(words)) for _ in range(3))
        numbers, weights = self.choices[next(words)]
        y = self._by_experts(x, down, columns, numbers)
        total = (y * weights[..., None]).sum(1)
        self.values[out] = residual + total.to(residual.dtype)

    def _by_experts(
        self, x: Tensor, matrix: Sequence[str], columns: int, numbers: Tensor
    ) -> Tensor:
        """Return x [batch, top or 1, in] by the experts of each row, [batch, top, columns]."""
        first = int(matrix[3])
        w = self.values[matrix[0]][numbers, first : first + columns]
        return (w @ x.unsqueeze(-1)).squeeze(-1)

    def _linear(self, x: Tensor, matrix: Sequence[str], columns: int) -> Tensor | None:
        name, bias, turned, first = matrix
        if name == "-":
            return None
        w = self.values[name] if turned == "1" else self.values[name].t()
        span = slice(int(first), int(first) + columns)
        return F.linear(x, w[span], None if bias == "-" else self.values[bias][span])

    def _attention(self, words: Iterator[str]) -> None:
        q, k, v = (self.values[next(words)] for _ in range(3))
        cos, sin = (self.values.get(next(words)) for _ in range(2))
        keys, values, mask, position = (self.values[next(words)] for _ in range(4))
        out = next(words)
        _, groups, heads, size = (int(next(words)) for _ in range(4))
        scale = float(next(words))
        batch = q.shape[0]
        q = self._normed(q.reshape(batch, groups * heads, 1, size), words)
        k, v = (each.reshape(batch, groups, 1, size) for each in (k, v))
        k = self._normed(k, words)
        if cos is not None and sin is not None:
            cos, sin = (each.reshape(-1, 1, 1, size) for each in (cos, sin))
            q, k = (each * cos + _quarter(each) * sin for each in (q, k))
        index = (None, None, position.reshape(1))
        keys, values = (
            torch.ops.aten.index_put(old, index, new) for old, new in ((keys, k), (values, v))
        )
        found = products(q, keys, values, mask.to(q.dtype), scale=scale)
        self.values[out] = found.reshape(batch, -1)
        self.keys.append(k)
        self.new_values.append(v)


def _skip_events(words: Iterator[str]) -> None:
    """Pass over sizes, the cost, waits, notes and chosen events."""
    for _ in range(4):
        next(words)
    for length in (4, 5, 6):
        next(words)
        for _ in range(length * int(next(words))):
            next(words)


def normed(
    x: Tensor,
    kind: str,
    scale: tuple[Tensor | None, float],
    bias: Tensor | None,
    eps: float | Tensor,
) -> Tensor:
    """Return a norm of rows in their type, computed in float32 if that is narrower."""
    weight, offset = scale
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    y = y - y.mean(-1, keepdim=True) if kind == "layer" else y
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    y = y.to(x.dtype) if kind == "rounded rms" else y
    y = y if weight is None else y * (weight.to(y.dtype) + offset)
    y = y if bias is None else y + bias
    return y.to(x.dtype)


def _activated(x: Tensor, kind: str | None) -> Tensor:
    match kind:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case _:
            return x


def _quarter(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def empty(x: Tensor, program: str) -> tuple[Tensor, Tensor, Tensor]:
    words = program.splitlines()[3].split()
    layers, groups, size = (int(word) for word in words[1::2])
    rows = x.numel() // x.shape[-1]
    news = [x.new_empty(layers, rows, groups, 1, size) for _ in range(2)]
    return x.new_empty(x.shape), news[0], news[1]


decoder_step = custom_operator(
    "pypm::decoder_step",
    compute,
    outputs=empty,
    unsupported=unsupported,
    operands={"x": "[*rows, width] T", "tensors": "[*] any..."},
    reference=reference,
)
