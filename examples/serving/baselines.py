"""What transformers does with the same requests: `generate` on one padded batch after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import CompileConfig, LlamaForCausalLM, LogitsProcessor, StaticCache

from examples.serving.server import Reply, Request


class Clock(LogitsProcessor):
    """Takes the time of each step of `generate`."""

    def __init__(self, start: float) -> None:
        self.start, self.times = start, list[float]()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.times.append(time.perf_counter() - self.start)
        return scores


@torch.no_grad()
def generate(
    model: LlamaForCausalLM, requests: Sequence[Request], *, batch: int, capacity: int | None = None
) -> list[Reply]:
    """Return the replies, with batches in the order of the requests, padded on the left.

    A batch begins when all its requests are there and the batch before is done, and ends with its
    longest request. With a capacity, the cache is a static one of this length, and decoding steps
    are compiled, once.
    """
    start = time.perf_counter()
    replies: list[Reply] = []
    for at in range(0, len(requests), batch):
        wave = requests[at : at + batch]
        while time.perf_counter() - start < max(r.arrival for r in wave):
            time.sleep(1e-4)
        rows = [*wave, *[wave[-1]] * (batch - len(wave))]
        longest = max(len(r.prompt) for r in rows)
        ids, mask = (torch.zeros(batch, longest, dtype=torch.int64) for _ in range(2))
        for row, request in enumerate(rows):
            ids[row, longest - len(request.prompt) :] = request.prompt
            mask[row, longest - len(request.prompt) :] = 1
        clock = Clock(start)
        options: dict[str, object] = {}
        if capacity is not None:
            compiled = CompileConfig(fullgraph=False, dynamic=False, mode="default")
            compiled._compile_all_devices = True  # on CPUs too
            cache = StaticCache(model.config, max_cache_len=capacity)
            options = {"past_key_values": cache, "compile_config": compiled}
        found = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(r.new for r in rows),
            do_sample=False,
            logits_processor=[clock],
            **options,
        )
        for request, tokens in zip(wave, found[:, longest:].tolist(), strict=False):
            replies.append(Reply(tokens[: request.new], clock.times[: request.new]))
    return replies
