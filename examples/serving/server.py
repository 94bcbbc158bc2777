"""A server: requests join and leave the batch at each step, and their caches lie on pages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from examples.serving.model import Step
from pypm.kernels.paged import PagedCache, plan


@dataclass(frozen=True, eq=False)
class Request:
    prompt: Tensor
    """int64 [tokens]."""
    new: int
    """Number of tokens to generate."""
    arrival: float = 0.0
    """Seconds after the start."""


@dataclass(eq=False)
class Reply:
    """The new tokens of a request, and when each was there, in seconds after the start."""

    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


@dataclass(eq=False)
class Running:
    request: Request
    reply: Reply
    sequence: int

    @property
    def done(self) -> bool:
        return len(self.reply.tokens) >= self.request.new


class Server:
    """Continuous batching: a step decodes one token for each running request.

    A request is admitted when a row of the batch and pages for all its tokens are free; its prompt
    runs by itself, uncompiled. With `compile`, the steps after it are compiled once: they have
    always `batch` rows, and rows without a request read an idle sequence of one token.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        *,
        batch: int,
        pages: int,
        page_size: int = 16,
        compile: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        config = model.config
        self.model, self.batch, self.clock = model, batch, clock
        self.decode = torch.compile(model, dynamic=False) if compile else model
        self.cache = PagedCache(
            config.num_hidden_layers,
            pages,
            page_size,
            config.num_key_value_heads,
            config.head_dim,
            dtype=model.dtype,
        )
        self.idle = self.cache.allocate()
        self.idle_slot = self.cache.append(self.idle, 1)
        self.running: list[Running] = []

    @torch.no_grad()
    def serve(self, requests: Iterable[Request]) -> list[Reply]:
        """Return the reply of each request; greedy."""
        requests = list(requests)
        replies = [Reply() for _ in requests]
        order = sorted(range(len(requests)), key=lambda i: requests[i].arrival)
        waiting = deque((requests[i], replies[i]) for i in order)
        self.start = self.clock()
        while waiting or self.running:
            if waiting and not self.running:
                while self.now() < waiting[0][0].arrival:
                    time.sleep(1e-4)
            if waiting and waiting[0][0].arrival <= self.now() and self.fits(waiting[0][0]):
                self.admit(*waiting.popleft())
            elif self.running:
                self.step()
            else:
                raise ValueError("a request has more tokens than all pages hold")
        return replies

    def now(self) -> float:
        return self.clock() - self.start

    def fits(self, request: Request) -> bool:
        """Whether a row is free, and pages beside those that the running requests will need."""
        size = self.cache.page_size

        def pages(tokens: int) -> int:
            return -(-tokens // size)

        promised = sum(
            pages(len(r.request.prompt) + r.request.new) - pages(self.cache.length(r.sequence))
            for r in self.running
        )
        needed = pages(len(request.prompt) + request.new)
        return len(self.running) < self.batch and promised + needed <= self.cache.free_pages

    def admit(self, request: Request, reply: Reply) -> None:
        """Run the prompt, which gives the first token."""
        sequence = self.cache.allocate()
        count = len(request.prompt)
        slots = self.cache.append(sequence, count)
        run = Running(request, reply, sequence)
        self.running.append(run)
        step = self.planned(slots, [sequence], [count])
        self.take([run], self.model, request.prompt, torch.arange(count), step, kept=1)

    def step(self) -> None:
        """Decode a token for each running request."""
        idle = self.batch - len(self.running)
        sequences = [r.sequence for r in self.running]
        slots = [self.cache.append(sequence, 1) for sequence in sequences]
        step = self.planned(
            torch.cat([*slots, *[self.idle_slot] * idle]), [*sequences, *[self.idle] * idle], None
        )
        for tensor in step.plan.tensors()[:3] + step.plan.tensors()[5:]:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)  # more pages, not another graph
        tokens = torch.tensor([r.reply.tokens[-1] for r in self.running] + [0] * idle)
        places = torch.tensor([self.cache.length(s) - 1 for s in sequences] + [0] * idle)
        self.take(list(self.running), self.decode, tokens, places, step, kept=0)

    def planned(self, slots: Tensor, sequences: list[int], queries: list[int] | None) -> Step:
        size = self.cache.page_size
        work = plan(
            self.cache.table(sequences),
            self.cache.lengths(sequences),
            queries,
            pages=len(self.cache.keys[0]),
            page_size=size,
        )
        return Step(self.cache, slots // size, slots % size, work)

    def take(
        self,
        runs: list[Running],
        model: Callable[..., object],
        tokens: Tensor,
        positions: Tensor,
        step: Step,
        kept: int,
    ) -> None:
        """Run the model on tokens; each request takes the likeliest next one, or ends."""
        out = model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=kept,
            step=step,
        )
        now = self.now()
        for run, token in zip(runs, out.logits[0].argmax(-1).tolist(), strict=False):
            run.reply.tokens.append(token)
            run.reply.times.append(now)
            if run.done:
                self.cache.free(run.sequence)
                self.running.remove(run)
