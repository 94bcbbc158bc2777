"""All operators of PyPM under the transforms of torch: forward, twice, over a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.autograd.forward_ad as forward
from torch import Tensor

from pypm.events import operator as steps
from pypm.events.program import printed
from pypm.kernels import (
    grouped_linear,
    gru,
    linear,
    linear_attention,
    lstm,
    quantized_norm,
    recurrence,
    rnn,
    rotary,
    row_linear,
    scan,
    wkv,
)
from pypm.kernels.attention import block_sparse, decoding
from pypm.kernels.paged import operator as paged
from pypm.pipeline import blocks
from pypm.tiles import operator as tiles
from pypm.torch_internals import OPDEFS, pytree
from tests.events.steps import made as made_step
from tests.kernels.calls import TILES

TYPE: Final = torch.float64


def normal(*shape: int, dtype: torch.dtype = TYPE) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=made, dtype=TYPE).to(dtype)


L, B, N, M = 3, 2, 4, 5
"""Steps, rows, and the widths of states."""


def turned(*shape: int) -> Tensor:
    """Return numbers whose last two dimensions lie the other way round."""
    made = torch.Generator().manual_seed(sum(shape))
    x = torch.rand(shape, generator=made, dtype=TYPE)
    return x.mT.contiguous().mT if x.dim() > 1 else x


ROWS: Final = torch.tensor([1, 0, 1])
KEYED: Final = (turned(L, B, N), turned(L, B, N), turned(L, B, M))
READ: Final = (turned(L, B, N), turned(L, B, N), turned(L, B, M))
STATE: Final = turned(B, N, M)
GATED: Final = (turned(L, B, N), turned(3 * M, N), turned(3 * M, M))
FOUR: Final = (turned(L, B, N), turned(4 * M, N), turned(4 * M, M), turned(4 * M))
AVERAGED: Final = (
    turned(N), turned(N), *(turned(B, L, N) for _ in range(2)), *(turned(B, N) for _ in range(3)),
)  # fmt: skip
EPILOGUE: Final = "add(acc,s0);gelu(v0);mul(v1,s1)"
PROGRAM: Final = "score = s + t0[q, k]; visible = k <= q; hidden rows = zero"
PLAN: Final = paged.plan(torch.tensor([[0, 1], [2, 0]]), torch.tensor([5, 3]), pages=3, page_size=4)
THREE: Final = [normal(1, 2, 4, 8, dtype=torch.float32) for _ in range(3)]
SQUARE: Final = normal(4, 4, dtype=torch.float32)
PAGES: Final = (normal(3, 4, 1, 8), normal(3, 4, 1, 8))
STEP: Final = made_step(gated=True, layers=1)
CALLS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "linear attention": (linear_attention.linear_attention, (*KEYED, *READ, STATE)),
    "linear attention, backward": (
        linear_attention.linear_attention_backward,
        (*KEYED, *READ, STATE, turned(L, B, M), turned(B, N, M)),
    ),
    "linear attention without results, backward": (
        linear_attention.linear_attention_backward,
        (*KEYED, None, None, None, STATE, turned(0, B, M), turned(B, N, M)),
    ),
    "recurrence": (
        recurrence.linear_recurrence,
        (*(turned(L, B, N) for _ in range(2)), turned(B, N), False),
    ),
    "scan": (
        scan.scan,
        (*(turned(L, B, M, N) for _ in range(2)), turned(L, B, N), turned(B, M, N)),
    ),
    "GRU": (gru.gru, (*GATED, turned(3 * M), turned(3 * M), turned(B, M))),
    "GRU, backward": (
        gru.gru_backward,
        (
            *GATED,
            turned(3 * M),
            turned(3 * M),
            turned(B, M),
            *(turned(L, B, M) for _ in range(2)),
        ),
    ),
    "RNN": (rnn.rnn, (turned(L, B, M), turned(M, M), turned(B, M), False)),
    "RNN, backward": (
        rnn.rnn_backward,
        (turned(M, M), turned(B, M), *(turned(L, B, M) for _ in range(2)), True),
    ),
    "LSTM": (lstm.lstm, (*FOUR, turned(B, M), turned(B, M))),
    "LSTM, backward": (
        lstm.lstm_backward,
        (
            *FOUR,
            turned(B, M),
            turned(B, M),
            *(turned(L, B, M) for _ in range(2)),
            turned(B, M),
        ),
    ),
    "averages": (wkv.wkv, AVERAGED),
    "averages, backward": (
        wkv.wkv_backward,
        (*AVERAGED, turned(B, L, N), *(turned(B, N) for _ in range(3))),
    ),
    "experts": (grouped_linear.grouped_linear, (turned(3, N), turned(2, N, M), ROWS)),
    "experts, outer": (grouped_linear.grouped_outer, (turned(3, N), turned(3, M), ROWS, 2)),
    "linear in float32": (
        linear.linear_in_float32,
        (normal(3, 2, 4), normal(5, 4), normal(5), True),
    ),
    "tiles": (
        tiles.tile_kernel,
        ([normal(3, 4), normal(4, 5), normal(3, 1), normal(1, 5) > 0], TILES, [2, 1, 1, 1]),
    ),
    "linear": (
        linear.linear_pointwise,
        (*(normal(*n, dtype=torch.float32) for n in ((3, 4), (5, 4), (5,))), None, "gelu"),
    ),
    "linear of few rows": (row_linear.row_linear, (normal(2, 4), normal(5, 4), normal(5))),
    "rotary": (
        rotary.rotary,
        ([normal(2, 3, 8), normal(2, 3, 8)], normal(3, 6), normal(3, 6), False),
    ),
    "rotary of neighbours": (rotary.rotary, ([normal(2, 3, 8)], normal(3, 8), normal(3, 8), True)),
    "cache": (
        decoding.attention_over_cache,
        (normal(2, 4, 1, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 3), normal(2, 1, 1, 5), 0.3, True),
    ),
    "blocks": (block_sparse.block_sparse_attention, (*THREE, [SQUARE], PROGRAM, 0.3)),
    "pages": (paged.attend, (normal(2, 2, 8), *PAGES, *PLAN.tensors(), None)),
    "norm in steps": (
        quantized_norm.quantized_norm,
        (normal(3, 4), normal(3, 4), normal(4), 1e-3, 127.0, 1e-5, -128.0, 127.0),
    ),
    "step of a decoder": (
        steps.decoder_step,
        (*STEP.operands(2, 3, torch.float64), printed(STEP.step)),
    ),
    "mark": (blocks._mark_stage_end, (normal(3),)),
}
NOT_DIFFERENTIABLE: Final = {"pypm::paged_plan"}
"""An operator whose arguments and results are integers."""


def differentiable(value: object) -> list[Tensor]:
    """Return the tensors in a value that may need a gradient."""
    found = [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor)]
    return [x for x in found if x.is_floating_point()]


def of_tensors(name: str) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    """Return an operator as a function of the arguments that may need gradients, and these."""
    operator, given = CALLS[name]
    leaves, structure = pytree.tree_flatten(given)
    places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.is_floating_point()]

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        filled = list(leaves)
        for place, x in zip(places, tensors, strict=True):
            filled[place] = x
        return tuple(differentiable(operator(*pytree.tree_unflatten(filled, structure))))

    return function, [leaves[i] for i in places]


def product(xs: Any, ys: Any) -> Tensor:
    total: Tensor = sum((x.double() * y.double()).sum() for x, y in zip(xs, ys, strict=True))
    return total


def alike(xs: Any) -> list[Tensor]:
    return [normal(*x.shape, 1)[..., 0].to(x.dtype) for x in xs]


def filled(xs: Any, like: list[Tensor]) -> list[Tensor]:
    """Return gradients with zeros for those that are missing."""
    return [torch.zeros_like(y) if x is None else x for x, y in zip(xs, like, strict=True)]


@pytest.fixture(autouse=True)
def by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by blocks without its compiler."""
    operator = block_sparse.block_sparse_attention
    monkeypatch.setitem(operator._backend_fns, "cpu", block_sparse.reference)


def close(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
"""Raised by torch where it first differentiates forward."""
EACH = pytest.mark.parametrize("name", CALLS)


def test_no_operator_is_left_out() -> None:
    tested = {operator._qualname for operator, _ in CALLS.values()}
    ours = {name for name in OPDEFS if name.startswith("pypm::")}
    assert ours == tested | NOT_DIFFERENTIABLE


@EACH
def test_forward_as_backward(name: str) -> None:
    function, given = of_tensors(name)
    tangents = alike(given)
    leaves = [x.detach().requires_grad_() for x in given]
    results = [x for x in function(*leaves) if x.requires_grad]
    weights = alike(results)
    gradients = torch.autograd.grad(results, leaves, weights, allow_unused=True)
    expected = product(filled(gradients, given), tangents)
    _, moved = torch.func.jvp(function, tuple(given), tuple(tangents))
    close(product(moved, weights), expected)
    with forward.dual_level():
        duals = map(forward.make_dual, given, tangents)
        found = [forward.unpack_dual(x).tangent for x in function(*duals)]
        close(product(found, weights), expected)


@EACH
def test_twice(name: str) -> None:
    function, given = of_tensors(name)
    tangents = alike(given)

    def loss(*tensors: Tensor) -> Tensor:
        results = function(*tensors)
        return product(results, results)

    leaves = [x.detach().requires_grad_() for x in given]
    gradients = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
    second = torch.autograd.grad(product(gradients, tangents), leaves, allow_unused=True)
    of_transform = torch.func.grad(loss, tuple(range(len(given))))
    first, moved = torch.func.jvp(of_transform, tuple(given), tuple(tangents))
    close(first, gradients)
    close(
        moved,
        tuple(torch.zeros_like(x) if g is None else g for g, x in zip(second, given, strict=True)),
    )


@EACH
@pytest.mark.parametrize("share", ["all", "some"])
def test_over_a_batch(name: str, share: str) -> None:
    function, given = of_tensors(name)
    dims = tuple(0 if share == "all" or i % 2 == 0 else None for i in range(len(given)))
    batch = [
        x if dim is None else torch.stack((x, x + 0.1, x * 0.5))
        for x, dim in zip(given, dims, strict=True)
    ]
    each = [
        function(*(x if dim is None else x[n] for x, dim in zip(batch, dims, strict=True)))
        for n in range(3)
    ]
    expected = [torch.stack(x) for x in zip(*each, strict=True)]
    close(list(torch.func.vmap(function, dims)(*batch)), expected)
