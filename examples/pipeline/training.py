"""The model trained whole, and in stages on the ranks of a process group."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from examples.pipeline.model import batch, build, export, loss
from pypm.pipeline import Pipeline, schedule, stages


@dataclass(frozen=True)
class Options:
    """Sizes of the model and the batch, and the schedule."""

    width: int = 768
    layers: int = 4
    words: int = 50257
    rows: int = 8
    length: int = 32
    microbatches: int = 4
    steps: int = 3
    schedule: str = "1f1b"


def whole(options: Options) -> list[float]:
    """Train the whole model in this process; return the losses."""
    model = build(options.width, options.layers, options.words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(options.steps):
        tokens, target = batch(step, options.rows, options.length, options.words)
        optimizer.zero_grad()
        value = loss(model(tokens).logits, target)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def train(options: Options, ranks: int) -> list[float]:
    """Train the stages of one rank; return the losses on the rank that has the last stage."""
    model = build(options.width, options.layers, options.words)
    program = export(model, options.rows // options.microbatches, options.length)
    chosen = schedule(options.schedule, stages=ranks)
    pipeline = Pipeline(
        stages(program, count=ranks), chosen, microbatches=options.microbatches, loss=loss
    )
    optimizer = torch.optim.AdamW(pipeline.parameters(), lr=1e-3)
    losses = []
    for step in range(options.steps):
        tokens, target = batch(step, options.rows, options.length, options.words)
        optimizer.zero_grad()
        result = pipeline.step(tokens, target=target)
        optimizer.step()
        if result.loss is not None:
            losses.append(result.loss.item())
    return losses
