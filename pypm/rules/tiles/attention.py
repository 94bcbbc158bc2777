"""Attention whose scores are a program: of indices, caps, slopes, documents, and what is added."""

from dataclasses import replace

from pypm import decline, let, pattern, rule
from pypm.fx import GETITEM, Reading, aten, describe, metadata, same_shape, trained
from pypm.kernels.attention.expressions import SCORE, parse
from pypm.kernels.attention.programs import ScoreProgram
from pypm.kernels.support.devices import off_gpu
from pypm.rules.attention.block_sparse import called_scores
from pypm.rules.attention.decoding import turned
from pypm.rules.attention.heads import Heads4D
from pypm.rules.attention.layouts import arranged, of_rank_four
from pypm.rules.attention.patterns import Attention
from pypm.rules.attention.rules import reads_scores
from pypm.rules.attention.scores.program import UNKNOWN, Scores, read_scores
from pypm.rules.tiles.kernels import UNTRAINED, kernel_of, refused
from pypm.tiles.families.attention import attention_tiles
from pypm.tiles.program import TileError

ALL = ScoreProgram()
CAUSAL = ScoreProgram(SCORE, parse("k <= q"))

# --- written out ---------------------------------------------------------------------------------


def read_written(match):
    """Return the reading of attention that is written out: its scores, tiles and kernel."""
    reading = read_scores(match)
    if isinstance(reading.value, str):
        return replace(reading, declined=reading.value)
    scores, v, lv = (match.bindings[name] for name in ("scores", "v", "lv"))
    given = (metadata(x) for x in (scores.q, scores.k, v))
    *heads, out = arranged(*given, scores.layout, lv)
    if out is None:
        return replace(reading, declined="the second product is not that of attention")
    if reads_scores(match.region):
        return replace(reading, declined="a mask is computed from the scores")
    return with_tiles(reading, *heads)


@rule(Attention, pays="sometimes", unless=off_gpu, reads=read_written)
def tiled_attention(scores, v, lv, match):
    q, k, v, out = arranged(scores.q, scores.k, v, scores.layout, lv)
    return attended(match, q, k, v, out)


# --- by torch's operators ------------------------------------------------------------------------


@pattern
def CalledTiles(q, k, v, lk, lv, mask, causal, scale):
    keys, values = Heads4D(k, lk), Heads4D(v, lv)
    assert q.rank == k.rank == v.rank == 4
    return aten.scaled_dot_product_attention(
        q, keys, values, mask, 0.0, causal, scale=scale, enable_gqa=_
    ) | GETITEM(
        aten._scaled_dot_product_flash_attention_for_cpu(
            q, keys, values, 0.0, causal, attn_mask=mask, scale=scale
        )
        | aten._scaled_dot_product_efficient_attention(
            q, keys, values, mask, _, 0.0, causal, scale=scale
        )
        | aten._scaled_dot_product_cudnn_attention(
            q, keys, values, mask, _, 0.0, causal, _, scale=scale
        ),
        0,
    )


@pattern
def CalledTiles(q, k, v, lk, lv, mask, causal, scale):
    let(mask=None)
    keys, values = Heads4D(k, lk), Heads4D(v, lv)
    assert q.rank == k.rank == v.rank == 4
    return GETITEM(
        aten._scaled_dot_product_flash_attention(q, keys, values, 0.0, causal, _, scale=scale), 0
    )


FROM_THE_END = {
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_flash_attention",
}
"""Kernels that torch does not call with a causal mask where queries and keys differ in number."""


def names_in(match):
    return {describe(node).operator.name for node in match.region.nodes}


def read_called(match):
    """Return the reading of a call of torch's fused attention: its scores, tiles and kernel."""
    bound = match.bindings
    q, k, v = (metadata(bound[name]) for name in "qkv")
    k, v = turned(k, bound["lk"]), turned(v, bound["lv"])
    sizes, causal, scale = (*q.shape[:3], k.shape[2]), bound["causal"], bound["scale"]
    is_known = scale is None or isinstance(scale, (int, float))
    if not is_known or not all(isinstance(n, int) and n for n in (*sizes, q.shape[3])):
        return Reading(None, declined=UNKNOWN)
    if causal and sizes[2] != sizes[3] and FROM_THE_END & names_in(match):
        return Reading(None, declined="the mask of this kernel may count from the last key")
    if bound["mask"] is None:
        scale = q.shape[3] ** -0.5 if scale is None else scale
        return with_tiles(Reading(Scores(CAUSAL if causal else ALL, scale, sizes, None)), q, k, v)
    reading = called_scores(match)
    if isinstance(reading.value, str):
        return replace(reading, declined=reading.value)
    return with_tiles(reading, q, k, v)


@rule(CalledTiles, pays="sometimes", unless=off_gpu, reads=read_called)
def called_tiled_attention(q, k, v, lk, lv, mask, causal, scale, match):
    return attended(match, q, turned(k, lk), turned(v, lv), (0, 1, 2, 3))


# --- both ----------------------------------------------------------------------------------------


def with_tiles(reading, q, k, v):
    """Return the reading of scores with their tiles and kernel, declined where there is none."""
    scores = reading.value
    q, k, v = (of_rank_four(x, q, scores.sizes[:2]) for x in (q, k, v))
    tensors = [metadata(node) for node in reading.nodes]
    try:
        tiles = attention_tiles(scores.program, q, k, v, tensors, scores.scale)
        kernel = kernel_of(tiles.program, tiles.rings)
    except TileError as error:
        return replace(reading, declined=error.diagnostic.message)
    reason = refused(kernel, tiles.operands(q, k, v, tensors))
    return replace(reading, value=(scores.sizes, tiles, kernel), declined=reason)


def attended(match, q, k, v, out):
    """Return the attention of a match by its kernel, or decline.

    q, k, v and out are those that `arranged` returns.
    """
    if trained():
        return decline(UNTRAINED)
    sizes, tiles, kernel = match.reading.value
    rows = q.shape[:-1]
    q, k, v = (of_rank_four(x, q, sizes[:2]) for x in (q, k, v))
    operands = tiles.operands(q, k, v, [*match.reading.nodes])
    result = kernel(operands.values())[0].flatten(1, 2)
    result = result if same_shape(result.shape[:-1], rows) else result.reshape(*rows, v.shape[-1])
    return result if out == tuple(sorted(out)) else result.permute(out)
