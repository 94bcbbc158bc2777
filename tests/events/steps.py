"""Decoding steps with random operands, of two shapes of layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pypm.events.decoder import (
    DecoderLayer,
    DecoderStep,
    ExpertChoice,
    MatrixOperand,
    NormOperands,
)

CAPACITY = 150


@dataclass
class Made:
    """A step, and its operands in order, without x."""

    step: DecoderStep
    tensors: list[Tensor]

    def operands(
        self, batch: int, position: int, dtype: torch.dtype
    ) -> tuple[Tensor, list[Tensor]]:
        """x and the operands for a batch, with caches that are filled up to a position."""
        made = torch.Generator().manual_seed(batch * CAPACITY + position)
        step = self.step
        x = torch.randn(batch, 1, step.width, generator=made, dtype=torch.float64)
        tensors = [*self.tensors]
        keys = torch.arange(CAPACITY)
        mask = torch.where(keys <= position, 0.0, -torch.inf)
        shown = (keys >= torch.arange(batch)[:, None]) | (keys == position)  # of each row others
        tensors[0] = torch.where(shown, mask, -torch.inf)[:, None, None].double()
        tensors[1] = torch.tensor([position])
        for each in (2, 3):
            tensors[each] = torch.randn(batch, 1, 1, step.size, generator=made, dtype=torch.float64)
        for layer in step.layers:
            for place in (layer.keys, layer.values):
                shape = batch, step.groups, CAPACITY, step.size
                cache = torch.randn(shape, generator=made, dtype=torch.float64)
                tensors[place - 1] = cache
        narrow = [each if each.dtype == torch.int64 else each.to(dtype) for each in tensors]
        narrow[0] = tensors[0].to(torch.promote_types(dtype, torch.float32))
        return x.to(dtype), narrow


EXPERTS, TOP = 5, 2


def made(
    gated: bool, layers: int = 2, groups: int = 2, heads: int = 2, size: int = 10,
    experts: bool = False,
) -> Made:  # fmt: skip
    """Like Llama if gated, or Mixtral with experts, else like GPT-2; no size is a multiple of those
    of tiles or vectors.
    """
    random = torch.Generator().manual_seed(gated + 2 * layers)
    width, hidden, inner = 44, 75, groups * heads * size
    tensors: list[Tensor] = [torch.empty(0)] * 4

    def add(*shape: int) -> int:
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
        tensors.append(torch.randn(shape, generator=random, dtype=torch.float64) * scale)
        return len(tensors)

    def matrix(rows: int, columns: int) -> MatrixOperand:
        if gated:
            return MatrixOperand(add(columns, rows), None, True, rows, columns)
        return MatrixOperand(add(rows, columns), add(columns), False, rows, columns)

    def norm(kind: str = "rms") -> NormOperands:
        if gated:
            return NormOperands(kind, add(width), None, 1e-6, float(kind == "rms"))
        return NormOperands("layer", add(width), add(width), 1e-5, 0.0)

    def layer() -> DecoderLayer:
        kv = groups * size
        together = matrix(width, inner + 2 * kv)
        parts = [
            MatrixOperand(together.matrix, together.bias, together.turned, width, columns, first)
            for columns, first in ((inner, 0), (kv, inner), (kv, inner + kv))
        ]
        caches = [add(1), add(1)]
        dense = None if experts else (matrix(width, hidden), matrix(hidden, width))
        both, last = (
            (0, 0) if dense else (add(EXPERTS, 2 * hidden, width), add(EXPERTS, width, hidden))
        )
        gate, up = (MatrixOperand(both, None, True, width, hidden, n) for n in (0, hidden))
        routed = ExpertChoice(matrix(width, EXPERTS), TOP, True) if experts else None
        return DecoderLayer(
            before=norm("rounded rms"), q=parts[0], k=parts[1], v=parts[2],
            angles=(3, 4) if gated else None,
            keys=caches[0], values=caches[1], mask=1, position=2, scale=0.3,
            out=matrix(inner, width), after=norm(),
            gate=gate if experts else matrix(width, hidden) if gated else None,
            up=dense[0] if dense else up,
            activation="silu" if gated else "gelu_tanh",
            down=dense[1] if dense else MatrixOperand(last, None, True, hidden, width),
            experts=routed,
        )  # fmt: skip

    stack = tuple(layer() for _ in range(layers))
    return Made(DecoderStep(width, groups, heads, size, stack), tensors)
