"""Block-sparse attention by score programs: FlexAttention, compiled for each program and shape.

FlexAttention on a CPU runs compiled and without gradients alone, and Inductor cannot put another
operator behind it. The operator here is one call that Inductor does not look into; inside of it,
FlexAttention is a graph of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import is_known_scalar, same_size
from pypm.kernels.attention.blocks import FULL, PARTIAL, Blocks, Sizes, decide
from pypm.kernels.attention.expressions import evaluate
from pypm.kernels.attention.programs import ScoreProgram, reference
from pypm.kernels.support.registration import STAND_INS, custom_operator
from pypm.torch_internals import compile_fx, select_decomp_table, unset_fake_temporarily

__all__ = ["BLOCK", "TYPES", "block_sparse_attention", "unsupported", "visible_blocks"]

BLOCK: Final = (64, 64)
"""Queries and keys of a block."""
TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)

FLEX: Final = 1.3
"""FlexAttention takes at least this many times as long for a pair as torch's own kernel: 1.5 to 1.7
in float32 and 2.2 to 2.8 in bfloat16, on an EPYC with AVX-512."""

Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and type of a tensor."""


def unsupported(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Return why there is no block-sparse kernel for these inputs, or None.

    q [B, H, S, D], k and v [B, G, T, D] with G dividing H.
    """
    if q.device.type != "cpu":
        return f"no block-sparse kernel for {q.device.type}"
    if not q.dim() == k.dim() == v.dim() == 4:
        return "the block-sparse kernel takes four dimensions"
    if q.dtype not in TYPES or not q.dtype == k.dtype == v.dtype:
        return f"no block-sparse kernel for {q.dtype}"
    if not all(is_known_scalar(n) and n > 0 for x in (q, k, v) for n in x.shape):
        return "the sizes are not known, or there is nothing to attend to"
    agree = same_size(q.shape[0], k.shape[0]) and same_size(q.shape[3], k.shape[3])
    if not agree or k.shape != v.shape or q.shape[1] % k.shape[1]:
        return "batch, heads, keys or head sizes do not agree"
    return None


@lru_cache(maxsize=256)
def visible_blocks(program: ScoreProgram, sizes: Sizes) -> Blocks:
    """Return the blocks of a program in which indices alone decide what is visible.

    `sizes` are those of the scores: batches, heads, queries, keys. Not to be called while a
    function of tensors is traced.
    """
    with unset_fake_temporarily():
        return decide(program.visible, sizes, BLOCK)


def _blocks(program: ScoreProgram, sizes: Sizes, tensors: Sequence[Tensor]) -> Blocks:
    """Return the blocks of a program for the tensors that it reads."""
    if program.sees_by_index:
        return visible_blocks(program, sizes)
    return decide(program.visible, sizes, BLOCK, tensors)


def _outputs(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:3], v.shape[3]))


def _compute(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor], program: str, scale: float
) -> Tensor:
    """Return softmax(score) v over the visible keys, [B, H, S, D].

    Arguments:
        q: [B, H, S, D] on a CPU, in a type of `TYPES`.
        k: [B, G, T, D] in the type of q, with G dividing H.
        v: of the shape and type of k.
        tensors: what the program reads.
        program: the text of a `ScoreProgram`.
        scale: factor of q k^T, before the program.
    """
    known = ScoreProgram.parse(program)
    found = _blocks(known, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]), tensors)
    blocks = [*_table(found.kinds == PARTIAL), *_table(found.kinds == FULL)]
    given = (q, k, v, *blocks, *tensors)
    call = _kernel(known, scale, tuple(map(_layout, given)))
    result = call(*given)
    if found.hidden is None:
        return result
    groups = q.shape[1] // k.shape[1]
    other = v.mean(2, keepdim=True).repeat_interleave(groups, 1)
    return torch.where(found.hidden, other if known.hidden == "mean" else 0.0, result)


def _table(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks of keys are wanted by each block of queries, and these first."""
    order = torch.sort(wanted.to(torch.int8), dim=-1, descending=True, stable=True).indices
    return wanted.sum(-1).to(torch.int32), order.to(torch.int32)


def _layout(x: Tensor) -> Layout:
    return tuple(x.shape), x.stride(), x.dtype


@lru_cache(maxsize=256)
def _kernel(
    program: ScoreProgram, scale: float, layouts: tuple[Layout, ...]
) -> Callable[..., Tensor]:
    """Return FlexAttention of a program, compiled for tensors of these layouts.

    They are q, k, v, four tables of blocks, and what the program reads.
    """

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, *tensors: Tensor) -> Tensor:
        values = {"s": s, "b": b, "h": h, "q": q, "k": k}
        return cast("Tensor", evaluate(program.score, values, tensors))

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor, *tensors: Tensor) -> Tensor:
        seen = evaluate(program.visible, {"b": b, "h": h, "q": q, "k": k}, tensors)
        return seen if isinstance(seen, Tensor) else torch.full_like(b, seen, dtype=torch.bool)

    def attend(q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import BlockMask

        blocks = BlockMask.from_kv_blocks(
            given[0],
            given[1],
            given[2],
            given[3],
            BLOCK_SIZE=BLOCK,
            mask_mod=visible,
            seq_lengths=(q.shape[2], k.shape[2]),
            compute_q_blocks=False,
        )
        flex = torch.ops.higher_order.flex_attention
        options = {"BACKEND": "AUTO", "OUTPUT_LOGSUMEXP": False, "OUTPUT_MAX": False}
        tensors = given[4:]
        mask = blocks.as_tuple()
        result: Tensor = flex(q, k, v, score, mask, scale, options, tensors, tensors)[0]
        return result

    import torch.nn.attention.flex_attention  # defines the operator

    examples = [torch.empty_strided(shape, strides, dtype=d) for shape, strides, d in layouts]
    with torch.no_grad():
        graph = make_fx(attend, select_decomp_table(), tracing_mode="fake")(*examples)
        made = compile_fx(graph, examples)
    call = cast("Callable[..., Tensor | Sequence[Tensor]]", made)

    def run(*given: Tensor) -> Tensor:
        with torch.no_grad():
            result = call(*given)
        return (result if isinstance(result, Tensor) else result[0]).contiguous()

    return run


def _flops(
    q: Sequence[int],
    k: Sequence[int],
    v: Sequence[int],
    tensors: Sequence[Sequence[int]],
    program: str,
    scale: float,
    **known: object,
) -> int:
    """Return the FLOPs of both products over the blocks that are not empty; 0 if data decide."""
    parsed, sizes = ScoreProgram.parse(program), (q[0], q[1], q[2], k[2])
    share = visible_blocks(parsed, sizes).share if parsed.sees_by_index else 0.0
    return int(4 * q[0] * q[1] * q[2] * k[2] * q[3] * share)


def _at_best(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor], program: str, scale: float
) -> Tensor:
    """Attend to as many keys as the operator takes no less time for.

    For each pair of a query and a key FlexAttention takes longer than torch's kernel without a
    program, and that takes no less if it sees fewer keys.
    """
    parsed, sizes = ScoreProgram.parse(program), (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    keys = max(1, int(FLEX * _blocks(parsed, sizes, tensors).share * k.shape[2]))
    k, v = (x.repeat(1, 1, -(-keys // x.shape[2]), 1)[:, :, :keys] for x in (k, v))
    enable_gqa = k.shape[1] != q.shape[1]
    return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=enable_gqa)


def _misfit(q: Tensor, k: Tensor, tensors: Sequence[Tensor], program: str) -> str | None:
    """Return why there is no such kernel, or None. Raises ValueError if `program` is none."""
    if q.dtype not in TYPES or 0 in (*q.shape, *k.shape) or q.shape[1] % k.shape[1]:
        found = f"`q` {list(q.shape)} is {q.dtype} and `k` {list(k.shape)}"
        return f"{found}; they must be of {TYPES}, not empty, and heads of `k` divide those of `q`"
    for x in sorted(ScoreProgram.parse(program).elements, key=lambda x: x.tensor):
        if x.tensor >= len(tensors):
            needed = f"it must have {x.tensor + 1} or more"
            return f"`program` reads tensor {x.tensor} of {len(tensors)} in `tensors`; {needed}"
        if len(x.indices) != tensors[x.tensor].dim():
            found = f"{len(x.indices)} indices, and it has {tensors[x.tensor].dim()} dimensions"
            return f"`program` reads `tensors[{x.tensor}]` by {found}; these must be as many"
    return None


block_sparse_attention = custom_operator(
    "pypm::block_sparse_attention",
    _compute,
    outputs=_outputs,
    operands={
        "q": "[batch, heads, queries, size] T",
        "k": "[batch, groups, keys, size] T",
        "v": "[batch, groups, keys, size] T",
        "tensors": "[*] any...",
    },
    requires=_misfit,
    reference=reference,
    device="cpu",
    flops=_flops,
)
STAND_INS[torch.ops.pypm.block_sparse_attention.default] = _at_best
