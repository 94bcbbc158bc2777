"""The serving example: greedy replies are those of `generate`, token for token."""

from __future__ import annotations

import itertools

import pytest
import torch

from examples.serving.baselines import generate
from examples.serving.model import build, config
from examples.serving.server import Request, Server
from tests.compiled import without_code

SHAPE = config(layers=2, small=True)
LENGTHS = [(5, 4), (33, 7), (1, 3), (17, 1), (16, 6), (60, 5), (2, 9)]


def requests() -> list[Request]:
    made = torch.Generator().manual_seed(0)
    return [
        Request(torch.randint(1, 128, (length,), generator=made), new, arrival=3.0 * i)
        for i, (length, new) in enumerate(LENGTHS)
    ]


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """What `generate` gives for each request by itself."""
    model = build(SHAPE, "eager")
    found = []
    for request in requests():
        ids = request.prompt[None]
        tokens = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request.new,
            do_sample=False,
        )
        found.append(tokens[0, ids.shape[1] :].tolist())
    return found


def server(*, batch: int, pages: int, compile: bool = False) -> Server:
    ticks = itertools.count()
    return Server(
        build(SHAPE, "pages"),
        batch=batch,
        pages=pages,
        compile=compile,
        clock=lambda: float(next(ticks)),
    )


@pytest.mark.parametrize(("batch", "pages"), [(4, 40), (2, 40), (1, 40), (4, 7)])
def test_replies_are_those_of_generate(batch: int, pages: int, alone: list[list[int]]) -> None:
    ours = server(batch=batch, pages=pages)
    replies = ours.serve(requests())
    assert [reply.tokens for reply in replies] == alone
    assert all(a < b for r in replies for a, b in itertools.pairwise(r.times))
    assert all(r.times[0] > q.arrival for r, q in zip(replies, requests(), strict=True))
    ours.cache.free(ours.idle)
    assert ours.cache.free_pages == pages  # none leaked


@without_code()
def test_compiled_steps() -> None:
    """One graph serves every step, whatever the lengths."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    shape = config(layers=1, small=True)
    tokens = []
    for compile in (False, True):
        ours = Server(build(shape, "pages"), batch=3, pages=40, compile=compile)
        replies = ours.serve([Request(r.prompt, r.new) for r in requests()])
        tokens.append([reply.tokens for reply in replies])
    assert tokens[0] == tokens[1]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_request_that_fits_nowhere() -> None:
    with pytest.raises(ValueError, match="more tokens than all pages hold"):
        server(batch=2, pages=3).serve([Request(torch.ones(40, dtype=torch.int64), 10)])


def test_batches_of_generate(alone: list[list[int]]) -> None:
    at_once = [Request(r.prompt, r.new) for r in requests()]
    replies = generate(build(SHAPE, "eager"), at_once, batch=3)
    assert [reply.tokens for reply in replies] == alone
